"""The page cache that everything above the target reads through, and the layouts of structures."""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.errors import BadData, LayoutError, MemoryFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from gdbext.engine.targets.base_target import Target

    Result = TypeVar("Result")

PAGE_BITS = 12
PAGE_SIZE = 1 << PAGE_BITS
"""The smallest base page of any architecture; no mapping of a Linux process starts or ends inside one."""

_OFFSET_MASK = PAGE_SIZE - 1
_ADDRESS_LIMIT = 1 << 64
_RUN_PAGES = 8
"""Pages fetched together if the one before was read already: stacks and tables are read in order. Most other pages are
objects on their own, and 7 of 8 pages would be copied for nothing."""
_DIRECT_SIZE = 1 << 18
"""Reads of this size and more bypass the cache: they are whole sections, and would evict everything else."""
_CACHE_PAGES = 16384
"""Limit of cached pages, 64 MiB, so that our memory does not grow with the target's."""
_PAUSES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.4)
"""Seconds before each further attempt to read what a running process was changing: torch registers an operator in
microseconds, and thousands of them while a library is loaded."""
_READ_LIMIT = 1 << 28
"""A larger single read is taken for a garbage length."""

_unpack_u16 = struct.Struct("<H").unpack_from
_unpack_u32 = struct.Struct("<I").unpack_from
_unpack_i32 = struct.Struct("<i").unpack_from
_unpack_u64 = struct.Struct("<Q").unpack_from
_unpack_i64 = struct.Struct("<q").unpack_from


class Memory:
    """Cached, read-only view of a stopped target's memory. Addresses are unsigned 64-bit virtual addresses, values
    little-endian. A page is fetched once, and one that cannot be read is remembered, so that garbage pointers stay
    cheap. All readers raise ``MemoryFault`` with the first address that cannot be read."""

    __slots__ = ("_bad", "_pages", "_source", "architecture", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self._source = target.memory
        self.architecture = target.architecture
        self._pages: dict[int, bytes] = {}  # by page number
        self._bad: set[int] = set()  # numbers of unreadable pages

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes at ``address``. Raises MemoryFault."""
        offset = address & _OFFSET_MASK
        if 0 <= size <= PAGE_SIZE - offset:
            page = self._pages.get(address >> PAGE_BITS)
            if page is None:
                if not size:
                    return b""
                page = self._fetch(address >> PAGE_BITS, address, size)
            return page[offset : offset + size]
        return self._read_long(address, size)

    def _read_long(self, address: int, size: int) -> bytes:
        """``read`` for more than one page."""
        if size < 0 or size > _READ_LIMIT or address < 0 or address + size > _ADDRESS_LIMIT:
            raise MemoryFault(address, size, "no such range of addresses")
        if size >= _DIRECT_SIZE:
            with suppress(MemoryFault):  # then page by page, to name the first address that is missing
                return self._source.read(address, size)
        parts = []
        for number in range(address >> PAGE_BITS, ((address + size - 1) >> PAGE_BITS) + 1):
            page = self._pages.get(number)
            parts.append(self._fetch(number, address, size) if page is None else page)
        skip = address & _OFFSET_MASK
        return b"".join(parts)[skip : skip + size]

    def _fetch(self, number: int, address: int, size: int) -> bytes:
        """Read page ``number`` (address >> PAGE_BITS) into the cache; ``address`` and ``size`` of the whole read are
        for the error. Raises MemoryFault."""
        first_bad = max(address, number << PAGE_BITS)
        if number in self._bad:
            raise MemoryFault(first_bad, size)
        if not 0 <= number < 1 << (64 - PAGE_BITS):
            raise MemoryFault(address, size, "no such address")
        if len(self._pages) >= _CACHE_PAGES:
            self._pages.clear()
        copied = self._source.copied_page(number)  # not its neighbors: only the end of a stack is wanted
        if copied:
            self._pages[number] = copied
        elif not self._fetch_run(number):
            try:
                self._pages[number] = self._source.read(number << PAGE_BITS, PAGE_SIZE)
            except MemoryFault as fault:
                self._bad.add(number)
                raise MemoryFault(first_bad, size) from fault
        return self._pages[number]

    def _fetch_run(self, first: int) -> bool:
        """Fetch some pages from page number ``first`` on, if they seem to be read in order; False if that is not so, or
        any cannot be read."""
        if first - 1 not in self._pages or not self._source.reads_ahead:
            return False
        try:
            run = self._source.read(first << PAGE_BITS, _RUN_PAGES << PAGE_BITS)
        except MemoryFault:
            return False
        for index in range(_RUN_PAGES):
            self._pages[first + index] = run[index << PAGE_BITS : (index + 1) << PAGE_BITS]
        return True

    def u8(self, address: int) -> int:
        page = self._pages.get(address >> PAGE_BITS)
        if page is None:
            page = self._fetch(address >> PAGE_BITS, address, 1)
        return page[address & _OFFSET_MASK]

    def u16(self, address: int) -> int:
        return int(_unpack_u16(self.read(address, 2))[0])

    def u32(self, address: int) -> int:
        return int(_unpack_u32(self.read(address, 4))[0])

    def i32(self, address: int) -> int:
        return int(_unpack_i32(self.read(address, 4))[0])

    def u64(self, address: int) -> int:
        page = self._pages.get(address >> PAGE_BITS)
        offset = address & _OFFSET_MASK
        if page is None or offset > PAGE_SIZE - 8:
            return int(_unpack_u64(self.read(address, 8))[0])
        value: int = _unpack_u64(page, offset)[0]
        return value

    pointer = u64

    def i64(self, address: int) -> int:
        return int(_unpack_i64(self.read(address, 8))[0])

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """``count`` consecutive unsigned 64-bit values. Raises MemoryFault."""
        return struct.unpack(f"<{count}Q", self.read(address, 8 * count))

    def cstring(self, address: int, limit: int = 4096) -> bytes:
        """The bytes up to the first NUL (``const char*``). Raises MemoryFault if memory ends before the NUL, BadData if
        there is none within ``limit`` bytes."""
        text = b""
        while len(text) < limit:
            head, nul, _ = self._read_some(address + len(text), limit - len(text)).partition(b"\0")
            text += head
            if nul:
                return text
        raise BadData(f"no end of string within {limit} bytes at {address:#x}")

    def _read_some(self, address: int, limit: int) -> bytes:
        """From 1 to ``limit`` bytes at ``address``: as many as are read at once. Raises MemoryFault."""
        return self.read(address, min(limit, PAGE_SIZE - (address & _OFFSET_MASK)))

    def try_read(self, address: int, size: int) -> bytes:
        """``size`` bytes at ``address``, b"" if they cannot be read."""
        try:
            return self.read(address, size)
        except MemoryFault:
            return b""

    def try_u64(self, address: int) -> int | None:
        """Unsigned 64-bit value, None if it cannot be read."""
        try:
            return self.u64(address)
        except MemoryFault:
            return None

    def read_consistently(self, read: Callable[[], Result]) -> Result:
        """The result of ``read``. If a process that runs makes it fail, everything is read again, for at most a second.
        Raises what ``read`` raises."""
        for seconds in _PAUSES if self._source.runs_meanwhile else ():
            try:
                return read()
            except (MemoryFault, BadData):
                time.sleep(seconds)
                self.forget()
        return read()

    def forget(self) -> None:
        """Drop everything: the target has run."""
        self._pages.clear()
        self._bad.clear()


class _ReadOnDemand(Memory):
    """Every value goes through ``read``."""

    __slots__ = ()

    def u8(self, address: int) -> int:
        return self.read(address, 1)[0]

    def u64(self, address: int) -> int:
        return int(_unpack_u64(self.read(address, 8))[0])

    pointer = u64


class NotedMemory(_ReadOnDemand):
    """The cache of a target that is being recorded; it notes what is used of the pages."""

    __slots__ = ()

    def read(self, address: int, size: int) -> bytes:
        """As Memory.read; the bytes before a fault are noted, too, so that a replay gets to the same fault."""
        try:
            data = super().read(address, size)
        except MemoryFault as fault:
            self._source.note(address, fault.address - address)
            raise
        self._source.note(address, size)
        return data

    def cstring(self, address: int, limit: int = 4096) -> bytes:
        """As Memory.cstring; the string and its NUL are noted, not the rest of the page."""
        try:
            text = super().cstring(address, limit)
        except MemoryFault as fault:
            self._source.note(address, fault.address - address)
            raise
        except BadData:
            self._source.note(address, limit)
            raise
        self._source.note(address, len(text) + 1)
        return text

    def _read_some(self, address: int, limit: int) -> bytes:
        return super().read(address, min(limit, PAGE_SIZE - (address & _OFFSET_MASK)))


class ReplayedMemory(_ReadOnDemand):
    """Memory of a recording, which has pieces of pages: only wanted bytes are read, and nothing is cached."""

    __slots__ = ()

    def read(self, address: int, size: int) -> bytes:
        if not size:
            return b""
        if not 0 < size <= _READ_LIMIT or not 0 <= address <= _ADDRESS_LIMIT - size:
            raise MemoryFault(address, size, "no such range of addresses")
        return self._source.read(address, size)

    def _read_some(self, address: int, limit: int) -> bytes:
        return self.read(address, min(limit, self._source.known_size(address)))


def memory_of(target: Target) -> Memory:
    """The memory of a target, of the class that its kind needs."""
    if target.memory.records:
        return NotedMemory(target)
    return ReplayedMemory(target) if target.origin.recorded else Memory(target)


class FieldLayout(NamedTuple):
    """One member of a C++ class: ``offset`` and ``size`` in bytes, ``type`` as its compiler wrote it. ``size`` 0 means
    that the layout does not say. A bit-field has ``bit_offset`` (bits from the start of the object to its lowest bit)
    and ``bit_size``; both are 0 for an ordinary member."""

    name: str
    offset: int
    size: int
    type: str = ""
    bit_offset: int = 0
    bit_size: int = 0


class StructLayout(NamedTuple):
    """A C++ class or struct: ``size`` in bytes (0 where unknown), members by name."""

    name: str
    size: int
    fields: Mapping[str, FieldLayout]

    def field(self, name: str) -> FieldLayout:
        """The member of that name. Raises LayoutError naming what is missing."""
        try:
            return self.fields[name]
        except KeyError:
            raise LayoutError(f"the layout of {self.name} has no field {name}") from None

    def offset(self, name: str) -> int:
        """Offset of that member in bytes. Raises LayoutError."""
        return self.field(name).offset
