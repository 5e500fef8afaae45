"""Which PyTorch or Python this is: versions and build-ids, read from files without importing or running anything."""

from __future__ import annotations

import re
from pathlib import Path

from gdbext.errors import SymbolFileError
from gdbext.formats.elf import ElfImage

_LINE = re.compile(r"^(__version__|git_version)\s*(?::[^=]*)?=\s*['\"]([^'\"]*)['\"]", re.MULTILINE)
_LIMIT = 1 << 16


def torch_version(torch: Path) -> tuple[str, str]:
    """(version, git hash) of the PyTorch in folder ``torch``; "" for what cannot be found.

    torch/version.py is parsed as text; a folder without one is asked for its dist-info.
    """
    try:
        with (torch / "version.py").open(errors="replace") as stream:
            found = dict(_LINE.findall(stream.read(_LIMIT)))
    except OSError:
        found = {}
    version = found.get("__version__", "")
    if not version:
        names = sorted(p.name for p in torch.parent.glob("torch-*.dist-info"))
        version = names[0][len("torch-") : -len(".dist-info")] if names else ""
    return version, found.get("git_version", "")


def build_id_of_file(path: Path) -> str | None:
    """The GNU build-id of an ELF file in hexadecimal, None when it has none or is no ELF file that can be read."""
    try:
        return ElfImage.open(str(path)).build_id
    except SymbolFileError:
        return None
