"""The contents of a recording: what was read, pieces of memory and files, and what a replay misses in it."""

from __future__ import annotations

from bisect import bisect_right
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gdbext.engine.formats.elf_header import Data
    from gdbext.engine.targets.base_target import KernelSide, MemoryMapping, RecordedRun, Signal
    from gdbext.engine.targets.host_files import Fact

    Search = tuple[bytes, int, int, int]
    """Arguments of ElfImage.find: needle, start and end address, step."""

LIMIT = 1 << 64
"""No piece ends after this."""


class SparseBytes:
    """Pieces of bytes with the addresses at which they start, ascending and not adjacent."""

    def __init__(self, starts: Sequence[int], pieces: Sequence[bytes]) -> None:
        self.starts = starts
        self.pieces = pieces

    @classmethod
    def merged(cls, pieces: Iterable[tuple[int, bytes]]) -> SparseBytes:
        """Merge pieces in any order. Overlapping ones are assumed to agree; adjacent ones become one."""
        starts: list[int] = []
        joined: list[list[bytes]] = []
        end = -1
        for start, piece in sorted(pieces, key=lambda each: each[0]):
            if start > end:
                starts.append(start)
                joined.append([piece])
                end = start + len(piece)
            elif start + len(piece) > end:
                joined[-1].append(piece[end - start :])
                end = start + len(piece)
        return cls(starts, [b"".join(parts) for parts in joined])

    def cut_to(self, ranges: Iterable[tuple[int, int]]) -> SparseBytes:
        """The known part of these ranges (start, end)."""
        return SparseBytes.merged(piece for start, end in ranges for piece in self._between(start, end))

    def _between(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        index = max(bisect_right(self.starts, start) - 1, 0)
        while index < len(self.starts) and self.starts[index] < end:
            first, piece = self.starts[index], self.pieces[index]
            at = max(start, first)
            if at < first + len(piece):
                yield at, piece[at - first : end - first]
            index += 1

    def known_size(self, start: int) -> int:
        """Number of bytes that are known from ``start`` on."""
        index = bisect_right(self.starts, start) - 1
        return max(0, self.starts[index] + len(self.pieces[index]) - start) if index >= 0 else 0

    def __len__(self) -> int:
        """Number of bytes that are known."""
        return sum(map(len, self.pieces))

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return zip(self.starts, self.pieces)

    def read(self, start: int, size: int) -> bytes:
        """Exactly ``size`` bytes; b"" if any of them is unknown."""
        index = bisect_right(self.starts, start) - 1
        if index < 0:
            return b""
        piece = self.pieces[index]
        at = start - self.starts[index]
        return piece[at : at + size] if at + size <= len(piece) else b""

    def gap(self, start: int, size: int) -> int:
        """The first unknown address from ``start`` on; only for a range that ``read`` does not have."""
        index = bisect_right(self.starts, start) - 1
        if index >= 0:
            start = max(start, min(start + size, self.starts[index] + len(self.pieces[index])))
        return start


MEMORY_BITS = 7
"""Memory is kept in blocks of 128 bytes: a later version may read other members of the same objects."""
FILE_BITS = 3
"""Files in blocks of 8 bytes: symbols, strings and unwind rows are read here and there, each as a whole."""


class BlockLog:
    """Remembers ranges, rounded to blocks of ``1 << bits`` bytes."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._blocks: set[int] = set()

    def note(self, start: int, end: int) -> None:
        """The bytes from ``start`` to ``end`` were read."""
        self._blocks.update(range(start >> self._bits, ((end - 1) >> self._bits) + 1))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Start and end of what was read, ascending; blocks that touch are one."""
        start = end = -1
        for block in sorted(self._blocks):
            if block != end:
                if end >= 0:
                    yield start << self._bits, end << self._bits
                start = block
            end = block + 1
        if end >= 0:
            yield start << self._bits, end << self._bits

    def contents(self, data: Data) -> SparseBytes:
        """The blocks with what ``data`` has in them."""
        return SparseBytes.merged((start, data[start:end]) for start, end in self.ranges())


class RecordedThread(NamedTuple):
    """One thread; ``registers`` are empty if they could not be read: ``problem`` and ``help`` say why."""

    tid: int
    number: int | None
    name: str | None
    signal: Signal | None
    kernel_state: str | None
    registers: Mapping[str, int]
    problem: str = ""
    help: str = ""
    float_registers: Mapping[str, int] = MappingProxyType({})
    kernel_side: KernelSide | None = None
    stop_signal: int = 0


class RecordedModule(NamedTuple):
    """The result of the search for a module's file (see process.modules.Module); ``file`` is its index or None."""

    status: str
    problem: str
    file: int | None


class RecordedNumbers(NamedTuple):
    """The known part of an array of ``length`` unsigned numbers of ``width`` bytes each."""

    length: int
    width: int
    contents: SparseBytes


class RecordedFile(NamedTuple):
    """The parts of an ELF file of ``size`` bytes that were read. ``offsets`` are searches (needle, start, end) by file
    offset with their results, ``found`` those in the image; ``arrays`` those of the symbol index by kind."""

    path: str
    size: int
    contents: SparseBytes
    offsets: Mapping[tuple[bytes, int, int], int]
    found: Mapping[Search, int | None]
    arrays: Mapping[str, tuple[RecordedNumbers, RecordedNumbers]]


class Recording(NamedTuple):
    """Everything that was read of a target."""

    kind: str
    debugger: str
    pid: int
    architecture: str
    run: RecordedRun
    selected: int | None
    """The tid of the selected thread."""
    threads: tuple[RecordedThread, ...] = ()
    maps: tuple[MemoryMapping, ...] = ()
    auxv: Mapping[int, int] = MappingProxyType({})
    environ: Mapping[str, str] = MappingProxyType({})
    facts: Mapping[str, Fact] = MappingProxyType({})
    """The facts that were asked of the system (see HostFiles), by name."""
    kept: Mapping[str, str] = MappingProxyType({})
    modules: Mapping[int, RecordedModule] = MappingProxyType({})
    """The modules by the address where each begins."""
    files: tuple[RecordedFile, ...] = ()
    memory: SparseBytes = SparseBytes((), ())
    unreadable: frozenset[int] = frozenset()
    """Addresses of pages that could not be read."""


class Missing:
    """Counts what a replay misses, each place once, for the report."""

    def __init__(self) -> None:
        self._places: dict[str, set[object]] = {}

    def note(self, kind: str, place: object) -> None:
        """``kind`` is a plural: "pages of memory", "parts of libc.so.6"."""
        self._places.setdefault(kind, set()).add(place)

    def __bool__(self) -> bool:
        return bool(self._places)

    def __str__(self) -> str:
        return ", ".join(f"{kind} ({len(places)})" for kind, places in sorted(self._places.items()))
