"""Which PyTorch or Python this is: versions and build-ids, read from files without importing or running anything."""

from __future__ import annotations

import re
import struct
from pathlib import Path

_LINE = re.compile(r"^(__version__|git_version)\s*(?::[^=]*)?=\s*['\"]([^'\"]*)['\"]", re.MULTILINE)
_NT_GNU_BUILD_ID = 3
_MAX_HEADERS = 256
_MAX_NOTES = 1 << 16


def torch_version(torch: Path) -> tuple[str, str]:
    """(version, git hash) of the PyTorch in folder ``torch``; "" for what cannot be found.

    torch/version.py is parsed as text; a folder without one is asked for its dist-info.
    """
    try:
        found = dict(_LINE.findall((torch / "version.py").read_text(errors="replace")))
    except OSError:
        found = {}
    version = found.get("__version__", "")
    if not version:
        names = sorted(p.name for p in torch.parent.glob("torch-*.dist-info"))
        version = names[0][len("torch-") : -len(".dist-info")] if names else ""
    return version, found.get("git_version", "")


def build_id_of_file(path: Path) -> str | None:
    """The GNU build-id of an ELF file in hexadecimal, None when it has none or is no 64-bit ELF file."""
    try:
        with path.open("rb") as stream:
            header = stream.read(64)
            if header[:5] != b"\x7fELF\x02":
                return None
            table = struct.unpack_from("<Q", header, 32)[0]
            count = struct.unpack_from("<H", header, 56)[0]
            stream.seek(table)
            headers = stream.read(56 * min(count, _MAX_HEADERS))
            for at in range(0, len(headers) - 55, 56):
                kind, _flags, offset, _va, _pa, size = struct.unpack_from("<IIQQQQ", headers, at)
                if kind == 4:
                    stream.seek(offset)
                    found = _build_id(stream.read(min(size, _MAX_NOTES)))
                    if found:
                        return found
    except (OSError, struct.error):
        return None
    return None


def _build_id(notes: bytes) -> str | None:
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name = notes[at + 12 : at + 12 + name_size]
        start = at + 12 + (name_size + 3 & ~3)
        if kind == _NT_GNU_BUILD_ID and name == b"GNU\0":
            return notes[start : start + size].hex()
        at = start + (size + 3 & ~3)
    return None
