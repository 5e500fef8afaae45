"""The package as one archive that travels to another machine, and the shell script that runs it there.

Nothing is installed there and nothing stays: the archive comes through standard input, is unpacked into a temporary
folder, which also takes the place of the user's cache, and goes with it, however the script ends.
"""

from __future__ import annotations

import io
import shlex
import zipfile
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]
_KINDS = (".py", ".json")

_SCRIPT = """\
d=$(mktemp -d) || exit 1; trap 'rm -rf "$d"' EXIT; trap 'exit 1' HUP INT TERM
cat >"$d/gdbext.zip" && {python} -m zipfile -e "$d/gdbext.zip" "$d" || exit 1
XDG_CACHE_HOME="$d" PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$d" {python} -S -m gdbext {words}"""
_FRAMED = ' | PYTHONPATH="$d" {python} -S -m gdbext.cli.ranks.frames'


def archive() -> bytes:
    """A ZIP file of the package: modules and data, nothing that was compiled or left behind."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted(_PACKAGE.rglob("*")):
            if path.suffix in _KINDS and "__pycache__" not in path.parts:
                packed.write(path, path.relative_to(_PACKAGE.parent).as_posix())
    return stream.getvalue()


def script(words: Sequence[str], python: str, framed: bool = False) -> str:
    """What a shell on the other machine runs; the archive is its standard input. ``framed``: its output can be told
    from that of others in one stream (see frames.py)."""
    text = _SCRIPT.format(python=shlex.quote(python), words=shlex.join(words))
    return text + _FRAMED.format(python=shlex.quote(python)) if framed else text
