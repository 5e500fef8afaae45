"""Makes the single-file archive of gdbext; started by scripts/package.

Equal sources give an equal file: entries are sorted, with one date and one mode.
"""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHEBANG = b"#!/usr/bin/env python3\n"
DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date that a ZIP file can hold."""


KINDS = (".py", ".json", ".css", ".js", ".gz", ".cpp", ".h", ".hpp")


def package_files() -> Iterator[Path]:
    """What belongs to the package: modules and data, nothing that was compiled or left behind."""
    for path in sorted((ROOT / "gdbext").rglob("*")):
        if path.suffix in KINDS and "__pycache__" not in path.parts:
            yield path


def make(destination: Path) -> None:
    """Write the archive, whole or not at all. Raises OSError."""
    unfinished = destination.with_name(destination.name + ".new")
    with unfinished.open("wb") as stream:
        stream.write(SHEBANG)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            _add(archive, "__main__.py", ROOT / "scripts" / "lib" / "archive_main.py")
            for path in package_files():
                _add(archive, path.relative_to(ROOT).as_posix(), path)
    unfinished.chmod(0o755)
    unfinished.rename(destination)


def _add(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    entry = zipfile.ZipInfo(name, DATE)
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, path.read_bytes())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Makes the single-file archive of gdbext.")
    parser.add_argument("destination", type=Path)
    destination: Path = parser.parse_args().destination
    destination.parent.mkdir(parents=True, exist_ok=True)
    make(destination)


if __name__ == "__main__":
    main()
