"""Names of the symbols that a release's libraries define, kept as small files: a wheel is half a gigabyte."""

from __future__ import annotations

import gzip
import struct
import tempfile
import zipfile
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

import torch_wheels

LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch_python.so", "libtorch_cuda.so", "libc10_cuda.so")
_SYMTAB, _DYNSYM = 2, 11
_SECTION, _FILE = 3, 4
"""Types of symbols that name no object and no function."""


class SymbolNames:
    """The defined symbols of one library; ``table`` is "symtab", "dynsym" where it was stripped, or "none"."""

    def __init__(self, table: str, names: list[str]) -> None:
        self.table = table
        self._names = names

    def has(self, name: str) -> bool:
        """That very symbol."""
        at = bisect_left(self._names, name)
        return at < len(self._names) and self._names[at] == name

    def has_beginning(self, beginning: str) -> bool:
        """A symbol that begins so."""
        at = bisect_left(self._names, beginning)
        return at < len(self._names) and self._names[at].startswith(beginning)


def of_release(version: str, folder: Path) -> dict[str, SymbolNames]:
    """By library; from ``folder`` where they are there, else from the wheel. Raises LayoutError."""
    if not list(folder.glob(f"{version}.libtorch_cpu.so.*.gz")):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="gdbext-wheel-") as scratch:
            _keep_names(torch_wheels.download(version, Path(scratch)), version, folder)
    found = {}
    for library in LIBRARIES:
        for path in folder.glob(f"{version}.{library}.*.gz"):
            names = gzip.decompress(path.read_bytes()).decode(errors="replace").split("\n")
            found[library] = SymbolNames(path.name.split(".")[-2], sorted(names))
    return found


def _keep_names(wheel: Path, version: str, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            library = member.filename.rpartition("/")[2]
            if member.filename == f"torch/lib/{library}" and library in LIBRARIES:
                path = Path(archive.extract(member, wheel.parent))
                table, names = defined(path)
                path.unlink()
                (folder / f"{version}.{library}.{table}.gz").write_bytes(gzip.compress(b"\n".join(names), 3))


def defined(path: Path) -> tuple[str, list[bytes]]:
    """The names in .symtab, or in .dynsym where there is none, sorted."""
    with path.open("rb") as file:

        def read(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size)

        head = read(0, 64)
        size, count, _ = struct.unpack_from("<HHH", head, 58)
        table = read(struct.unpack_from("<Q", head, 40)[0], size * count)
        sections = [struct.unpack_from("<IIQQQQII", table, index * size) for index in range(count)]
        for kind, name in ((_SYMTAB, "symtab"), (_DYNSYM, "dynsym")):
            for section in sections:
                if section[1] == kind:
                    return name, _names(section, sections, read)
    return "none", []


def _names(section: tuple[int, ...], sections: list[tuple[int, ...]], read: Callable[[int, int], bytes]) -> list[bytes]:
    strings = read(*sections[section[6]][4:6])
    found = set()
    for name, info, _, index, _, _ in struct.iter_unpack("<IBBHQQ", read(*section[4:6])):
        if name and index and info & 15 not in (_SECTION, _FILE):
            found.add(strings[name : strings.index(b"\0", name)])
    return sorted(found)
