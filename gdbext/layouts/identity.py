"""Which PyTorch or Python this is: versions and build-ids, read from files without importing or running anything."""

from __future__ import annotations

import re
from pathlib import Path

from gdbext.errors import SymbolFileError
from gdbext.formats.elf.elf import ElfImage
from gdbext.targets.host_files import HostFiles

_LINE = re.compile(r"^(__version__|git_version)\s*(?::[^=]*)?=\s*['\"]([^'\"]*)['\"]", re.MULTILINE)
_DIST_INFO = re.compile(r"torch-.*\.dist-info")
_LIMIT = 1 << 16


def package_of(library: str) -> Path:
    """The folder of the installed package torch, which has its libraries in lib/."""
    return Path(library).parent.parent


def torch_version(torch: Path, files: HostFiles) -> tuple[str, str]:
    """(version, git hash) of the PyTorch in folder ``torch``; "" for what cannot be found.

    torch/version.py is parsed as text; a folder without one is asked for its dist-info.
    """
    found = dict(_LINE.findall(files.text(str(torch / "version.py"), _LIMIT)))
    version = found.get("__version__", "")
    if not version:
        names = sorted(filter(_DIST_INFO.fullmatch, files.names(str(torch.parent))))
        version = names[0][len("torch-") : -len(".dist-info")] if names else ""
    return version, found.get("git_version", "")


def build_id_of_file(path: Path) -> str | None:
    """The GNU build-id of an ELF file in hexadecimal, None when it has none or is not an ELF file that can be read."""
    try:
        return ElfImage.open(str(path)).build_id
    except SymbolFileError:
        return None
