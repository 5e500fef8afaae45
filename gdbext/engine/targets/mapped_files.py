"""Memory that a core leaves out because a file has it: read from that file, once it is proven to be the same one.

gcore and the kernel (coredump_filter 0x33, core(5)) leave out file-backed pages that were never written, all code
included, but keep the first page of every ELF file. Only files that this page proves are used.
"""

from __future__ import annotations

import bisect
import mmap
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.elf_header import MappedElf
from gdbext.engine.targets.foreign_files import LARGEST_LIBRARY, ForeignFiles
from gdbext.engine.targets.system.linux import PAGE_SIZE, split_deleted
from gdbext.errors import SymbolFileError

if TYPE_CHECKING:
    from gdbext.engine.formats.elf_core import FileMapping
    from gdbext.engine.formats.elf_header import Read


class MappedFiles:
    """Reads file-backed memory through NT_FILE.

    ``in_core`` reads what the core itself has; ``local_path`` gives our name of a file of the target, and ``foreign``
    opens that.
    """

    def __init__(
        self, files: Sequence[FileMapping], in_core: Read, local_path: Callable[[str], str], foreign: ForeignFiles
    ) -> None:
        self._files = files
        self._starts = [entry.start for entry in files]
        self._in_core = in_core
        self._local_path = local_path
        self._foreign = foreign
        self._opened: dict[tuple[str, int], tuple[mmap.mmap | None, str]] = {}
        self._bases: dict[str, list[int]] = {}
        for entry in files:
            if entry.offset == 0:
                self._bases.setdefault(entry.path, []).append(entry.start)

    def close(self) -> None:
        for file, _ in self._opened.values():
            if file:
                file.close()
        self._opened.clear()

    def mapping_at(self, address: int) -> FileMapping | None:
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._files[index].end:
            return self._files[index]
        return None

    def base_of(self, entry: FileMapping) -> int | None:
        """Address of the file's first byte: the nearest mapping of its offset 0 at or below ``entry``."""
        bases = self._bases.get(entry.path, [])
        index = bisect.bisect_right(bases, entry.start) - 1
        return bases[index] if index >= 0 else None

    def is_proven(self, path: str) -> bool:
        """The file that is found here for ``path`` is the one that was mapped."""
        bases = self._bases.get(path, [])
        entry = self.mapping_at(bases[0]) if bases else None
        return bool(entry and self._open(entry)[0])

    def permissions_at(self, entry: FileMapping, offset: int) -> str:
        """The permissions ("r-xp") of the file of a mapping at a file offset, from the core alone; "" if unknown."""
        return MappedElf(self._memory_from(self.base_of(entry))).permissions_at(offset, PAGE_SIZE)

    def build_id(self, base: int | None) -> str | None:
        """The build-id of the file whose first byte is mapped at an address, from the core alone; None if unknown."""
        return MappedElf(self._memory_from(base)).build_id

    def read(self, address: int, size: int) -> tuple[bytes, str]:
        """(up to ``size`` bytes at ``address``, not beyond the mapping; why there are none)."""
        entry = self.mapping_at(address)
        if not entry:
            return b"", "not in the core, and no file is mapped there"
        file, reason = self._open(entry)
        if not file:
            return b"", reason
        offset = entry.offset + address - entry.start
        found = file[offset : offset + min(size, entry.end - address)]
        if not found:
            return b"", f"beyond the end of {entry.path}"
        return found, ""

    def _open(self, entry: FileMapping) -> tuple[mmap.mmap | None, str]:
        base = self.base_of(entry)
        if base is None:
            return None, f"not in the core, and nothing proves which {entry.path} was mapped"
        key = (entry.path, base)
        if key not in self._opened:
            self._opened[key] = self._open_proven(entry.path, base)
        return self._opened[key]

    def _open_proven(self, path: str, base: int) -> tuple[mmap.mmap | None, str]:
        name, deleted = split_deleted(path)
        if deleted:
            return None, f"not in the core, and {name} was deleted before the core was taken"
        first_page = self._in_core(base, PAGE_SIZE)
        if not first_page:
            return None, f"not in the core, and nothing proves which {name} was mapped"
        local = self._local_path(name)
        try:
            descriptor = self._foreign.open(local, LARGEST_LIBRARY)
            try:
                file = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            return None, f"not in the core, and {local} cannot be read ({error})"
        reason = self._difference(first_page, base, file)
        if reason:
            file.close()
            return None, f"not in the core, and {local} is another file than the one mapped ({reason})"
        return file, ""

    def _difference(self, first_page: bytes, base: int, file: mmap.mmap) -> str:
        """Why the file is not the mapped one, "" if it is."""
        wanted = self.build_id(base)
        if not wanted:
            # Without a build-id the whole first page must agree: its header has the offset of the section
            # headers near the file's end, which another build practically never shares.
            return "" if file[:PAGE_SIZE] == first_page else "its first page differs"
        try:
            found = ElfImage(file, "").build_id
        except SymbolFileError:
            found = None
        return "" if found == wanted else f"build-id {found or 'none'}, in the core {wanted}"

    def _memory_from(self, base: int | None) -> Read:
        return lambda offset, size: b"" if base is None else self._in_core(base + offset, size)
