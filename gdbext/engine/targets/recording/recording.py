"""The contents of a recording: what was read, pieces of memory and files, and what a replay misses in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
        """Merge (address, bytes) pieces in any order. Overlapping ones must agree; adjacent ones become one."""
        starts: list[int] = []
        parts: list[list[bytes]] = []  # of each merged piece, one after another
        end = -1
        for start, piece in sorted(pieces, key=lambda pair: pair[0]):
            if start > end:
                starts.append(start)
                parts.append([])
                end = start
            if start + len(piece) > end:
                parts[-1].append(piece[end - start :])
                end = start + len(piece)
        return cls(starts, list(map(b"".join, parts)))

    def cut_to(self, ranges: Iterable[tuple[int, int]]) -> SparseBytes:
        """The known part of these ranges (start, end)."""

        def known_parts(start: int, end: int) -> Iterator[tuple[int, bytes]]:
            """(address, bytes) of the known pieces from ``start`` to ``end``, cut to that range."""
            first = max(bisect_right(self.starts, start) - 1, 0)
            for index in range(first, bisect_left(self.starts, end)):
                piece_start, piece = self.starts[index], self.pieces[index]
                low = max(start, piece_start)
                if low < piece_start + len(piece):
                    yield low, piece[low - piece_start : end - piece_start]

        return SparseBytes.merged(part for start, end in ranges for part in known_parts(start, end))

    def known_size(self, start: int) -> int:
        """Number of bytes that are known from the address ``start`` on, without a gap."""
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
        piece, skip = self.pieces[index], start - self.starts[index]
        return piece[skip : skip + size] if skip + size <= len(piece) else b""

    def gap(self, start: int, size: int) -> int:
        """The first unknown address from ``start`` on; only for a range that ``read`` does not have."""
        return start + min(size, self.known_size(start))


MEMORY_BITS = 7
"""Memory is kept in blocks of 128 bytes: a later version may read other members of the same objects."""
FILE_BITS = 3
"""Files in blocks of 8 bytes: symbols, strings and unwind rows are read here and there, each as a whole."""


class BlockLog:
    """Remembers which bytes were read, rounded to blocks."""

    def __init__(self, bits: int) -> None:
        """A block has ``1 << bits`` bytes."""
        self._bits = bits
        self._blocks: set[int] = set()  # numbers of blocks

    def note(self, start: int, end: int) -> None:
        """The bytes from ``start`` to ``end`` were read."""
        self._blocks.update(range(start >> self._bits, ((end - 1) >> self._bits) + 1))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """(start, end) of what was read, ascending; adjacent blocks are one range."""
        blocks = sorted(self._blocks)
        starts = [block for block in blocks if block - 1 not in self._blocks]
        ends = [block + 1 for block in blocks if block + 1 not in self._blocks]
        for start, end in zip(starts, ends):
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
    """The result of the search for a module's file (see process.modules.Module); ``file`` is its index in
    ``Recording.files``, None for no file."""

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
    """The facts that were asked of the system, by name (see HostFiles.fact)."""
    kept: Mapping[str, str] = MappingProxyType({})
    """Texts by name (see HostFiles.store_text)."""
    modules: Mapping[int, RecordedModule] = MappingProxyType({})
    """Start address → the module."""
    files: tuple[RecordedFile, ...] = ()
    memory: SparseBytes = SparseBytes((), ())
    unreadable: frozenset[int] = frozenset()
    """Addresses of pages that could not be read."""


class Missing:
    """Counts, for the report, what a replay asked for and the recording lacks."""

    def __init__(self) -> None:
        self._items: dict[str, set[object]] = {}  # kind → what of it was missing

    def note(self, kind: str, item: object) -> None:
        """``kind`` is a plural: "pages of memory", "parts of libc.so.6". An ``item`` (a page number, an offset) counts
        once."""
        self._items.setdefault(kind, set()).add(item)

    def __bool__(self) -> bool:
        return bool(self._items)

    def __str__(self) -> str:
        return ", ".join(f"{kind} ({len(items)})" for kind, items in sorted(self._items.items()))
