"""The ELF files that are mapped into the target, each proven by its memory; which one an address belongs to."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.formats import elf
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.elf_header import AT_SYSINFO_EHDR, EHDR, PF_W, PT_LOAD, MappedElf, Segment
from gdbext.engine.process.memory import PAGE_SIZE, Memory
from gdbext.engine.targets.base_target import MemoryMapping, Target
from gdbext.engine.targets.foreign_files import linked_image
from gdbext.engine.targets.host_files import FoundFile
from gdbext.errors import MemoryFault, SymbolFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_VDSO = "[vdso]"
_VDSO_LIMIT = 64 * 1024
_ADDRESS_TAGS = frozenset(
    (elf.DT_HASH, elf.DT_STRTAB, elf.DT_SYMTAB, elf.DT_GNU_HASH, elf.DT_VERSYM, elf.DT_RELA, elf.DT_JMPREL)
)
"""The tags used here whose values are addresses: ld.so adds the load bias to them in place (glibc
``elf/get-dynamic-info.h``; to DT_VERSYM, too)."""


class MemoryImage(ElfImage):
    """The part of a file that the target has mapped, with the interface of the file.

    The program headers, the dynamic section, .dynsym, .gnu.hash, .eh_frame_hdr and .eh_frame are all loaded; section
    headers and .symtab are not. So exported names and unwinding work without the file, local names do not.

    ``data`` is the first page only; everything else goes through ``read`` and ``contents``.
    """

    from_memory = True

    def __init__(self, memory: Memory, start: int, base: int, path: str) -> None:
        """``start`` is the ELF header's address, ``base`` the load bias. Raises SymbolFileError, MemoryFault."""
        self._memory = memory
        self._base = base
        super().__init__(memory.read(start, PAGE_SIZE), path, machine=memory.architecture.elf_machine)

    def read(self, vaddr: int, size: int) -> bytes:
        """Exactly ``size`` bytes of memory that the file backs (relocated, and as the program left it); else b""."""
        for segment in self.loads:
            if segment.vaddr <= vaddr and vaddr + size <= segment.vaddr + segment.filesz:
                return self._memory.try_read(self._base + vaddr, size)
        return b""

    def find(self, needle: bytes, vaddr: int, end: int, step: int = 1) -> int | None:
        """As ElfImage.find, in memory that is read at once."""
        data = self.read(vaddr, end - vaddr)
        offset = data.find(needle)
        while offset >= 0 and offset % step:
            offset = data.find(needle, offset + 1)
        return vaddr + offset if offset >= 0 else None

    def contents(self, offset: int, size: int) -> bytes:
        """The bytes at a file offset if a segment has loaded them, else b""."""
        for segment in self.loads:
            if segment.offset <= offset < segment.offset + segment.filesz:
                size = min(size, segment.offset + segment.filesz - offset)
                return self.read(segment.vaddr + offset - segment.offset, size) or b""
        return b""

    @property
    def dynamic(self) -> dict[int, int]:
        """The dynamic section with the file's own addresses: ld.so has added the load bias to some."""
        low, high = (self._base + limit for limit in self.span)
        return {
            tag: value - self._base if tag in _ADDRESS_TAGS and self._base and low <= value < high else value
            for tag, value in super().dynamic.items()
        }


def image_in_memory(module: Module, memory: Memory) -> MemoryImage | None:
    """The image of a module in memory, None if that is no ELF file or cannot be read."""
    try:
        return MemoryImage(memory, module.start, module.base, module.path)
    except (SymbolFileError, MemoryFault):
        return None


class FileIdentity:
    """One file's mappings, lowest first; its headers and build-id are read from memory on demand."""

    def __init__(self, memory: Memory, mappings: Sequence[MemoryMapping]) -> None:
        self._memory = memory
        self._mappings = mappings

    @cached_property
    def headers(self) -> MappedElf:
        """The file's headers in memory; empty if its first page cannot be read or is no ELF header."""
        first = self._mappings[0]
        start = first.start if first.offset == 0 else -1

        def read(offset: int, size: int) -> bytes:
            return self._memory.try_read(start + offset, size) if start >= 0 else b""

        return MappedElf(read, self._memory.architecture.elf_machine)

    @cached_property
    def build_id(self) -> str | None:
        """The GNU build-id (hex) in memory, None if it cannot be read or there is none."""
        return self.headers.build_id

    def bias(self, segments: Sequence[Segment]) -> int:
        """The load bias (runtime address minus vaddr), by the first mapping that is part of one of ``segments``."""
        for mapping in self._mappings:
            for segment in segments:
                first = _page(segment.offset)
                if segment.type == PT_LOAD and first <= mapping.offset < segment.offset + segment.filesz:
                    return mapping.start - (_page(segment.vaddr) + mapping.offset - first)
        return self._mappings[0].start - self._mappings[0].offset

    def contradiction(self, image: ElfImage) -> str | None:
        """The reason why ``image`` cannot be the file in memory; None if it is that file. Equal build-ids are proof.
        Without them, the ELF header, the program headers, the mappings of the segments, and pages spread over the
        read-only segments are compared."""
        if self.build_id and image.build_id:
            wanted = self.build_id
            return None if image.build_id == wanted else f"its build-id is {image.build_id}, that in memory is {wanted}"
        headers = self.headers
        if headers.segments and (headers.header, headers.segments) != (image.contents(0, EHDR.size), image.segments):
            return "its ELF headers differ"
        if not self._fits_mappings(image):
            return "its segments do not fit the mappings"
        bias = self.bias(image.segments)
        for segment in image.loads:
            if segment.flags & PF_W:  # relocations change it
                continue
            size = min(PAGE_SIZE, segment.filesz)
            step = max(PAGE_SIZE, segment.filesz // 64)
            for vaddr in range(segment.vaddr, segment.vaddr + segment.filesz - size + 1, step):
                data = b""
                with suppress(MemoryFault):  # not through the page cache: these pages are not needed again
                    data = self._memory.target.memory.sample(bias + vaddr, size)
                if data and data != image.read(vaddr, size):
                    return f"its contents differ at {vaddr:#x}"
        return None

    def _fits_mappings(self, image: ElfImage) -> bool:
        """True if PT_LOADs of the file explain the first mapping and all executable ones, at one load bias."""
        bias = self.bias(image.segments)
        return all(
            any(
                mapping.start - bias == _page(load.vaddr) + mapping.offset - _page(load.offset)
                and _page(load.offset) <= mapping.offset < load.offset + load.filesz
                for load in image.loads
            )
            for number, mapping in enumerate(self._mappings)
            if number == 0 or "x" in mapping.permissions
        )


def _page(value: int) -> int:
    return value - value % PAGE_SIZE


class Module:
    """One ELF file in the target's memory.

    The file is opened, and proven to be the one in memory, on the first access to ``image``, ``status`` or ``problem``.
    ``status`` is

    - ``ok``: the file at that path is the one in memory;
    - ``deleted``: the kernel says that the file was deleted, or replaced by one with the same build-id;
    - ``replaced``: there is a file at that path, but it is not the one in memory;
    - ``missing``: no usable ELF file is there;
    - ``memory``: there is no file, the image is memory itself (vdso).

    ``image`` is the very file if that can still be reached (``deleted``: through /proc/PID/map_files); else what is
    mapped of it in memory (CFI and exported names only, ``image.from_memory`` is True); else, for a core, None. It is
    never another file.
    """

    def __init__(self, target: Target, memory: Memory, mappings: Sequence[MemoryMapping]) -> None:
        first = mappings[0]
        self.path = first.path
        self.name = first.path.rsplit("/", 1)[-1]
        self.start = first.start
        self.end = max(mapping.end for mapping in mappings)
        self.mappings = tuple(mappings)
        self._pid, self._origin = target.pid, target.origin
        self._memory = memory
        self._identity = FileIdentity(memory, mappings)

    def __repr__(self) -> str:
        return f"Module({self.name!r}, {self.start:#x}-{self.end:#x})"

    @cached_property
    def base(self) -> int:
        """Load bias: runtime address = base + vaddr."""
        return self._identity.bias(self._segments())

    def _segments(self) -> Sequence[Segment]:
        """The program headers, from memory if they can be read there, else from the file."""
        return self._identity.headers.segments or (self.image.segments if self.image else ())

    @property
    def image(self) -> ElfImage | None:
        """The proven file, None if there is none (see ``status`` and ``problem``)."""
        return self._file.image

    @property
    def status(self) -> str:
        """ "ok", "deleted", "replaced", "missing" or "memory" (see the class)."""
        return self._file.status

    @property
    def problem(self) -> str:
        """Why the file cannot be used (or is used though deleted), one sentence; "" if nothing is wrong."""
        return self._file.problem

    @property
    def build_id(self) -> str | None:
        """GNU build-id in memory, in hexadecimal; that of the file if it cannot be read there; None if unknown."""
        return self._identity.build_id or (self.image.build_id if self.image else None)

    @property
    def kept_as(self) -> str:
        """Key for caching facts about the file; "" if another user may have written the file or the memory."""
        return "" if not self.image or self._origin.foreign.are_another_users else self.image.identity

    @property
    def span(self) -> tuple[int, int]:
        """First address and end of everything the module occupies, .bss included."""
        loads = (segment for segment in self._segments() if segment.type == PT_LOAD)
        high = max((segment.vaddr + segment.memsz for segment in loads), default=0)
        return self.start, max(self.end, self.base + high) if high else self.end

    def vaddr(self, address: int) -> int:
        """The file's own address of a runtime address."""
        return address - self.base

    @cached_property
    def _file(self) -> FoundFile:
        """The result of the search for the file; if there is none, what is mapped of it is the image."""
        result = self._origin.files.module_file(self.start, self._search)
        # A core leaves these pages out, and a debugger fills the gap from the file at that path.
        if not result.image and not self._origin.is_core:
            with suppress(SymbolFileError, MemoryFault):
                bias = self._identity.bias(self._identity.headers.segments)
                image = MemoryImage(self._memory, self.start, bias, self.path)
                header = image.eh_frame_hdr
                tables = (header.vaddr if header else -1, image.dynamic.get(elf.DT_GNU_HASH, -1))
                if any(image.read(table, 16) for table in tables):  # else it is of no use
                    problem = f"{result.problem}; using what is mapped of it: exported names only"
                    return result._replace(image=image, problem=problem)
        return result

    def _search(self) -> FoundFile:
        """The first candidate that is the file in memory; no image if none is."""
        is_deleted = any(mapping.deleted for mapping in self.mappings)
        status, problem = "deleted" if is_deleted else "missing", ""
        if self._origin.is_core and not self._origin.foreign.vouched and not self._identity.headers.segments:
            hint = "say where the core's files are: --sysroot DIR, which is / for those of this machine"
            return FoundFile("missing", f"nothing proves which {self.path} was mapped: {hint}", None)
        for path, open_image in self._candidates(is_deleted):
            try:
                image = open_image(path, self._memory.architecture.elf_machine)
            except SymbolFileError as error:
                problem = problem or error.what
                continue
            contradiction = self._identity.contradiction(image)
            if not contradiction:
                if is_deleted:
                    return FoundFile("deleted", f"{self.path} was deleted; using {path}", image)
                return FoundFile("ok", "", image)
            status, problem = "replaced", f"{path} is not the file in memory: {contradiction}"
        return FoundFile(status, problem, None)

    def _candidates(self, is_deleted: bool) -> Iterator[tuple[str, Callable[[str, int], ElfImage]]]:
        """(path, opener) of the possible files, best first. /proc/PID/map_files is the very file, but only root may
        open it. If the file was deleted, map_files comes first: an equal file at the path is not the mapped one, and a
        probe in it would have no effect."""
        first = self.mappings[0]
        mapped = f"/proc/{self._pid}/map_files/{first.start:x}-{first.end:x}"
        at_path = (self._origin.local_path(self.path), self._origin.foreign.image)
        if self._origin.is_core:
            yield at_path
            return
        if not self._origin.foreign.answers(self.path):  # a network file system whose server is down
            return
        candidates = [at_path, (mapped, linked_image)]
        yield from reversed(candidates) if is_deleted else candidates
        program = f"/proc/{self._pid}/exe"
        try:
            if first.inode and os.stat(program).st_ino == first.inode:  # noqa: PTH116 - a link of the kernel
                yield program, linked_image
        except OSError:
            return


class VdsoModule(Module):
    """The kernel's vdso: its image is read from the target's memory."""

    @cached_property
    def _file(self) -> FoundFile:
        """The image is memory itself."""
        data = self._memory.try_read(self.start, min(self.end - self.start, _VDSO_LIMIT))
        try:
            return FoundFile("memory", "", ElfImage(data, self.path))
        except SymbolFileError as error:
            return FoundFile("missing", f"{self.path} cannot be read: {error.what}", None)


class ModuleTable:
    """All modules of the target, by address and by name. Files are opened on demand."""

    def __init__(self, target: Target, memory: Memory, earlier: Sequence[Module] = ()) -> None:
        """``earlier`` modules of the same process are reused if they are still mapped as they were."""
        self.files = target.origin.files
        self.mappings: Sequence[MemoryMapping] = sorted(target.memory.maps(), key=lambda mapping: mapping.start)
        self._mapping_starts = [mapping.start for mapping in self.mappings]
        self.modules: list[Module] = []
        before = {module.mappings: module for module in earlier}
        for group in _groups(self.mappings):
            if _is_module(group, memory):
                self.modules.append(before.get(tuple(group)) or Module(target, memory, group))
        vdso = _vdso_mapping(self.mappings, target, memory)
        if vdso:
            self.modules.append(before.get((vdso,)) or VdsoModule(target, memory, [vdso]))
        self.modules.sort(key=lambda module: module.start)
        pairs = [(mapping, module) for module in self.modules for mapping in module.mappings]
        pairs.sort(key=lambda pair: pair[0].start)
        self._starts = [mapping.start for mapping, _ in pairs]
        self._pieces = [(mapping.end, module) for mapping, module in pairs]
        """(end, module) of each mapping of a module, in the order of ``_starts``."""

    def find(self, address: int) -> Module | None:
        """The module that covers ``address`` (its .bss included), None for heap, stack, JIT code."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        end, module = self._pieces[index]
        if address < end:
            return module
        mapping = self.mapping_at(address)  # .bss is anonymous memory right after the file's mappings
        return module if mapping and not mapping.path and address < module.span[1] else None

    def named(self, soname: str) -> Module | None:
        """The module whose basename is ``soname``; else one that differs by a version or a wheel's hash only."""
        if exact := next((module for module in self.modules if module.name == soname), None):
            return exact
        # libc-2.31.so (glibc before 2.34), libgomp-a34b3233.so.1 (auditwheel)
        similar = re.compile(re.escape(soname.partition(".so")[0]) + r"(-[0-9][0-9.]*|-[0-9a-f]{8})?\.so(\.[0-9.]+)?")
        return next((module for module in self.modules if similar.fullmatch(module.name)), None)

    def mapping_at(self, address: int) -> MemoryMapping | None:
        """The line of the memory map that covers ``address``."""
        index = bisect_right(self._mapping_starts, address) - 1
        return self.mappings[index] if index >= 0 and address < self.mappings[index].end else None


def _groups(maps: Sequence[MemoryMapping]) -> Iterator[list[MemoryMapping]]:
    """The mappings of each loaded file, lowest first. The same file may be mapped more than once (dlmopen, or read with
    mmap): a mapping of offset 0 that does not continue the previous one starts a new group. Tiny libraries map offset 0
    several times in a row."""
    current: dict[tuple[str, str, int, bool], list[MemoryMapping]] = {}
    for mapping in maps:
        if mapping.path.startswith("/"):
            key = (mapping.path, mapping.device, mapping.inode, mapping.deleted)
            group = current.setdefault(key, [])
            if group and not mapping.offset and group[-1].end != mapping.start:
                yield group
                group = current[key] = []
            group.append(mapping)
    yield from current.values()


def _is_module(group: Sequence[MemoryMapping], memory: Memory) -> bool:
    """True for the mappings of a loaded ELF file: one is executable, or may be (permissions are unknown)."""
    if any("x" in mapping.permissions for mapping in group):
        return True
    is_known = all(mapping.permissions for mapping in group)
    return not is_known and memory.try_read(group[0].start, 4) in (b"", b"\x7fELF")


def _vdso_mapping(maps: Sequence[MemoryMapping], target: Target, memory: Memory) -> MemoryMapping | None:
    """The vdso's line of the map; made from the auxiliary vector if the map (of a core) lacks it; None for none."""
    if listed := next((mapping for mapping in maps if mapping.path == _VDSO), None):
        return listed
    start = end = target.memory.auxv().get(AT_SYSINFO_EHDR) or 0
    if not start:
        return None
    while end - start < _VDSO_LIMIT and memory.try_read(end, 1):
        end += PAGE_SIZE
    return MemoryMapping(start, end, 0, _VDSO, "r-xp") if end > start else None
