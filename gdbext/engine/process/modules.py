"""The files that are mapped into the target: which module an address belongs to, and whether its file can be used.

Memory says what a mapped ELF file is, and so whether a file on disk can be that one.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from typing import TYPE_CHECKING

from gdbext.engine.formats.auxv import AT_SYSINFO_EHDR
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.elf_header import PT_LOAD, Segment
from gdbext.engine.process.memory import PAGE_SIZE, Memory
from gdbext.engine.process.memory_image import FileIdentity, MemoryImage
from gdbext.engine.targets.base_target import MemoryMapping, Target
from gdbext.engine.targets.foreign_files import linked_image
from gdbext.engine.targets.host_files import FoundFile
from gdbext.errors import MemoryFault, SymbolFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_VDSO = "[vdso]"
_VDSO_LIMIT = 64 * 1024
_UNVOUCHED = "say where the core's files are: --sysroot DIR, which is / for those of this machine"
_SUFFIX = re.compile(r"(-[0-9][0-9.]*|-[0-9a-f]{8})?\.so(\.[0-9.]+)?$")
"""The text that may follow a library's stem: libc-2.31.so (glibc before 2.34), libgomp-a34b3233.so.1 (auditwheel)."""


class Module:
    """One ELF file in the target's memory.

    The file is opened, and proven to be the one in memory, when ``image``, ``status`` or ``problem`` is first asked
    for. ``status`` is

    - ``ok``: the file at that path is the one in memory;
    - ``deleted``: the kernel says that the file was deleted, or replaced by one with the same build-id;
    - ``replaced``: there is a file at that path, but it is not the one in memory;
    - ``missing``: no usable ELF file is there;
    - ``memory``: there is no file, the image is memory itself (vdso).

    ``image`` is the very file wherever that can still be reached (``deleted``: through /proc/PID/map_files); else what
    is mapped of it in memory (CFI and exported names only, ``image.from_memory`` is True); else, for a core,
    None. It is never another file.
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
        self._mapped = FileIdentity(memory, mappings)
        self._base: int | None = None
        self._image: ElfImage | None = None
        self._status = ""
        self._problem = ""

    def __repr__(self) -> str:
        return f"Module({self.name!r}, {self.start:#x}-{self.end:#x})"

    @property
    def base(self) -> int:
        """Load bias: runtime address = base + vaddr."""
        if self._base is None:
            self._base = self._mapped.bias(self._segments())
        return self._base

    def _segments(self) -> Sequence[Segment]:
        """The program headers, from memory where they can be read there."""
        segments = self._mapped.segments
        return segments or (self.image.segments if self.image else ())

    @property
    def image(self) -> ElfImage | None:
        """The proven file, None where there is none (see ``status`` and ``problem``)."""
        if not self._status:
            self._resolve()
        return self._image

    @property
    def status(self) -> str:
        """ "ok", "deleted", "replaced", "missing" or "memory" (see the class)."""
        if not self._status:
            self._resolve()
        return self._status

    @property
    def problem(self) -> str:
        """The reason why the file cannot be used (or only though deleted), one sentence; "" when all is well."""
        if not self._status:
            self._resolve()
        return self._problem

    @property
    def build_id(self) -> str | None:
        """GNU build-id (hex) of what is in memory; of the file where memory's cannot be read; None if unknown."""
        return self._mapped.build_id or (self.image.build_id if self.image else None)

    @property
    def kept_as(self) -> str:
        """The name by which what is found in its file by the process's memory is kept; "" where another user wrote the
        one or the other."""
        return "" if not self.image or self._origin.foreign.are_anothers else self.image.identity

    @property
    def span(self) -> tuple[int, int]:
        """First address and end of everything the module occupies, .bss included."""
        high = max((each.vaddr + each.memsz for each in self._segments() if each.type == PT_LOAD), default=0)
        return self.start, max(self.end, self.base + high) if high else self.end

    def vaddr(self, address: int) -> int:
        """The file's own address of a runtime address."""
        return address - self.base

    def _resolve(self) -> None:
        """Find the file; where there is none, use what is mapped of it."""
        found = self._origin.files.module_file(self.start, self._search)
        self._status, self._problem, self._image = found
        if not self._image:
            self._image = self._loaded_image()
            if self._image:
                self._problem += "; using what is mapped of it: exported names only"

    def _search(self) -> FoundFile:
        """The first candidate that is the file in memory."""
        status, problem = "deleted" if self._deleted else "missing", ""
        if self._is_unproven():
            return FoundFile("missing", f"nothing proves which {self.path} was mapped: {_UNVOUCHED}", None)
        for path, opened in self._candidates():
            try:
                image = opened(path, self._memory.architecture.elf_machine)
            except SymbolFileError as error:
                problem = problem or error.what
                continue
            contradiction = self._mapped.contradiction(image)
            if not contradiction:
                if self._deleted:
                    return FoundFile("deleted", f"{self.path} was deleted; using {path}", image)
                return FoundFile("ok", "", image)
            status, problem = "replaced", f"{path} is not the file in memory: {contradiction}"
        return FoundFile(status, problem, None)

    def _loaded_image(self) -> MemoryImage | None:
        """The image that can be used without the file: exported names and unwind tables, where memory holds them.

        Not for cores: they leave these pages out, and a debugger fills the gap from the file at that path.
        """
        if self._origin.is_core:
            return None
        try:
            image = MemoryImage(self._memory, self.start, self._mapped.bias(self._mapped.segments), self.path)
        except (SymbolFileError, MemoryFault):
            return None
        return image if image.is_useful() else None

    @property
    def _deleted(self) -> bool:
        return any(mapping.deleted for mapping in self.mappings)

    def _is_unproven(self) -> bool:
        """Nobody vouches for the files, and the core has not the page by which one is known."""
        return self._origin.is_core and not self._origin.foreign.vouched and not self._mapped.segments

    def _candidates(self) -> Iterator[tuple[str, Callable[[str, int], ElfImage]]]:
        """Paths at which the file may be found; /proc/PID/map_files is the very file, but only root may open it: a file
        that was put in the place of a deleted one may be equal and still be another, which a probe would not be in."""
        first = self.mappings[0]
        mapped = f"/proc/{self._pid}/map_files/{first.start:x}-{first.end:x}"
        at_path = (self._origin.local_path(self.path), self._origin.foreign.image)
        if self._origin.is_core:
            yield at_path
            return
        if not self._origin.foreign.answers(self.path):
            return
        places = [at_path, (mapped, linked_image)]
        yield from reversed(places) if self._deleted else places
        program = f"/proc/{self._pid}/exe"
        try:
            if first.inode and os.stat(program).st_ino == first.inode:  # noqa: PTH116 - a link of the kernel
                yield program, linked_image
        except OSError:
            return


class VdsoModule(Module):
    """The kernel's vdso: its image is read from the target's memory."""

    def _resolve(self) -> None:
        self._status = "memory"
        size = min(self.end - self.start, _VDSO_LIMIT)
        data = self._memory.try_read(self.start, size)
        try:
            self._image = ElfImage(data, self.path)
        except SymbolFileError as error:
            self._status, self._problem = "missing", f"{self.path} cannot be read: {error.what}"


class ModuleTable:
    """All modules of the target, by address and by name. Nothing is opened before it is needed."""

    def __init__(self, target: Target, memory: Memory, known: Sequence[Module] = ()) -> None:
        """``known`` modules of the same process are taken over where they are still mapped as they were."""
        self.files = target.origin.files
        self._maps = sorted(target.memory.maps(), key=lambda mapping: mapping.start)
        self._map_starts = [mapping.start for mapping in self._maps]
        self.modules: list[Module] = []
        before = {module.mappings: module for module in known}
        for group in _groups(self._maps):
            if _is_module(group, memory):
                self.modules.append(before.get(tuple(group)) or Module(target, memory, group))
        vdso = _vdso_mapping(self._maps, target, memory)
        if vdso:
            self.modules.append(before.get((vdso,)) or VdsoModule(target, memory, [vdso]))
        self.modules.sort(key=lambda module: module.start)
        self._starts: list[int] = []
        self._pieces: list[tuple[int, Module]] = []
        self._index_pieces()

    def _index_pieces(self) -> None:
        pieces = sorted(
            (mapping.start, mapping.end, number)
            for number, module in enumerate(self.modules)
            for mapping in module.mappings
        )
        self._starts = [start for start, _, _ in pieces]
        self._pieces = [(end, self.modules[number]) for _, end, number in pieces]

    def find(self, address: int) -> Module | None:
        """The module that covers ``address`` (its .bss included), None for heap, stack, JIT code."""
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        end, module = self._pieces[at]
        if address < end:
            return module
        mapping = self.mapping_at(address)  # .bss is anonymous memory right behind the file's mappings
        if not mapping or mapping.path or address >= module.span[1]:
            return None
        return module

    def named(self, soname: str) -> Module | None:
        """The module whose basename is ``soname``; else one that differs by a version or a wheel's hash only."""
        for module in self.modules:
            if module.name == soname:
                return module
        stem = soname.partition(".so")[0]
        for module in self.modules:
            if module.name.startswith(stem) and _SUFFIX.fullmatch(module.name[len(stem) :]):
                return module
        return None

    @property
    def mappings(self) -> Sequence[MemoryMapping]:
        return self._maps

    def mapping_at(self, address: int) -> MemoryMapping | None:
        at = bisect_right(self._map_starts, address) - 1
        if at < 0 or address >= self._maps[at].end:
            return None
        return self._maps[at]


def _groups(maps: Sequence[MemoryMapping]) -> Iterator[list[MemoryMapping]]:
    """Mappings of one loaded file each, lowest first.

    The same file may be mapped more than once (dlmopen, or read with mmap): a mapping of offset 0 that does not
    continue the one before starts a new group. Tiny libraries map offset 0 several times in a row.
    """
    current: dict[tuple[str, str, int, bool], list[MemoryMapping]] = {}
    for mapping in maps:
        if not mapping.path.startswith("/"):
            continue
        key = (mapping.path, mapping.device, mapping.inode, mapping.deleted)
        group = current.get(key)
        if group and (mapping.offset or group[-1].end == mapping.start):
            group.append(mapping)
            continue
        if group:
            yield group
        current[key] = [mapping]
    yield from current.values()


def _is_module(group: Sequence[MemoryMapping], memory: Memory) -> bool:
    """True for a loaded ELF file: something is executable, or, where permissions are unknown, it may be."""
    if any("x" in mapping.permissions for mapping in group):
        return True
    if all(mapping.permissions for mapping in group):
        return False
    magic = memory.try_read(group[0].start, 4)
    return magic in (b"", b"\x7fELF")


def _vdso_mapping(maps: Sequence[MemoryMapping], target: Target, memory: Memory) -> MemoryMapping | None:
    """The vdso's line of the map; made from the auxiliary vector where the map (of a core) lacks it."""
    for mapping in maps:
        if mapping.path == _VDSO:
            return mapping
    start = target.memory.auxv().get(AT_SYSINFO_EHDR)
    if not start:
        return None
    end = start
    while end - start < _VDSO_LIMIT and memory.try_read(end, 1):
        end += PAGE_SIZE
    return MemoryMapping(start, end, 0, _VDSO, "r-xp") if end > start else None
