"""Sorted symbol addresses and a hash table of symbol names: built once per file, then mapped from the user's cache.

Both tell only *which entry* of the ELF file's own symbol table to read: address, name and size are always read from
that table and compared, so a damaged cache can hide a symbol but cannot invent one. Entries are numbered through all
tables of a file.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from array import array
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from itertools import chain, compress
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from gdbext.cache import cache_folder, may_fill, open_ours
from gdbext.engine.formats.elf_header import release_memory
from gdbext.engine.formats.symbol_table import SYMBOL_SIZE, SymbolTable
from gdbext.errors import SymbolFileError
from gdbext.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Built = tuple["array[int]", "array[int]"]
    Arrays = tuple["Numbers", "Numbers"]
    Builder = Callable[[Sequence[SymbolTable]], Built]

WORTH_CACHING = 1024
"""Files with fewer symbols are indexed about as fast as a cache file is opened and checked: 3,400 take 2.5 ms."""
WORTH_SEARCHING = 1 << 16  # the names of smaller tables are sorted at once

_PATIENCE, _PAUSE = 1.5, 0.01
"""Seconds to wait for another process that builds the same index, and between two attempts."""

_ROOM, _FILE_COST = 1 << 29, 1 << 17
"""Bytes that all files of the cache but the newest may have, and bytes that each costs besides its size: so there are
at most 4,096."""

_log = logger(__name__)
_VERSION = 1  # of the format
_HEADER = struct.Struct("<8sIIIIII")
"""magic, version, bytes of an item of the first array, lengths of both arrays, checksums of the contents and of this
header without its last field."""
_MAGIC = b"gdbext\x1a\n"
_SAMPLES, _SAMPLE_SIZE = 32, 4096
_INDEXED_TYPES = bytes(info & 15 in (0, 1, 2, 5, 10) for info in range(256))
"""Types by st_info: NOTYPE, OBJECT, FUNC, COMMON and GNU_IFUNC have addresses; SECTION, FILE and TLS have none."""
_CHUNK = 512
_EFFORT = 64
"""Hashing all names may read the string table this many times; a file that needs more is made to exhaust us."""


class Numbers(Protocol):
    """Unsigned numbers by position: in our memory, in a mapped cache file, or in a recording."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> int: ...


def build_addresses(tables: Sequence[SymbolTable]) -> Built:
    """(ascending addresses, number of the entry at each), of all entries with an address."""
    values: list[int] = []
    kinds = b""
    for table in tables:
        raw = table.entries()
        values += _items("Q", raw)[1::3].tolist()
        kinds += raw[4::SYMBOL_SIZE].translate(_INDEXED_TYPES)
    order = sorted(compress(range(len(values)), kinds), key=values.__getitem__)
    addresses = [values[number] for number in order]
    skip = next((at for at, address in enumerate(addresses) if address), len(addresses))  # undefined symbols
    width = "I" if not addresses or addresses[-1] < 1 << 32 else "Q"
    return array(width, addresses[skip:]), array("I", order[skip:])


def build_names(tables: Sequence[SymbolTable]) -> Built:
    """A chained hash table (head, next) of entry numbers + 1, 0 for none; the hash is crc32 of the name."""
    total = sum(table.count for table in tables)
    head = array("I", bytes(4 << max(4, total.bit_length() - 1)))
    following = array("I")
    mask = len(head) - 1
    for number, value in enumerate(chain.from_iterable(map(_name_hashes, tables)), 1):
        following.append(head[value & mask])
        head[value & mask] = number
    return head, following


def build_numbers(tables: Sequence[SymbolTable], numbers_of: Callable[[SymbolTable], Iterable[int]]) -> Built:
    """(numbers of the entries that ``numbers_of`` gives for each table, an empty array)."""
    numbers = array("I")
    first = 0
    for table in tables:
        numbers.extend(first + number for number in numbers_of(table))
        first += table.count
    return numbers, array("I")


def find_name(arrays: Arrays, name: bytes) -> list[int]:
    """Ascending numbers of the entries that may have that name (its hash fits)."""
    head, following = arrays
    numbers: list[int] = []
    number = head[crc32(name) & (len(head) - 1)]
    while 0 < number <= len(following) and len(numbers) < len(following):
        numbers.append(number - 1)
        number = following[number - 1]
    return numbers[::-1]


def _items(width: str, raw: bytes) -> array[int]:
    """The numbers in ``raw``, of 4 ("I") or 8 ("Q") bytes each."""
    items = array(width)
    items.frombytes(raw)
    return items


def _name_hashes(table: SymbolTable) -> list[int]:
    """crc32 of every entry's name. Raises SymbolFileError if that takes unreasonably long."""
    starts = _items("I", table.entries())[0::6].tolist()
    strings = table.data[table.strings : table.strings_end]
    release_memory(table.data, table.strings, len(strings))
    if not strings.endswith(b"\0"):
        strings += b"\0"
    find = strings.find
    budget = _EFFORT * len(strings) + (1 << 24)
    hashes: list[int] = []
    for at in range(0, len(starts), _CHUNK):
        chunk = starts[at : at + _CHUNK]
        ends = [find(0, start) for start in chunk]
        budget -= sum(ends) - sum(chunk)
        if budget < 0:
            raise SymbolFileError("the string table is damaged: names overlap without end")
        hashes += [crc32(strings[start:end]) for start, end in zip(chunk, ends)]
    return hashes


class SymbolCache:
    """The user's folder of index files. Failures are silent: the arrays are built instead."""

    searches = 6  # names of a file that are searched for one by one; for further ones all names are hashed

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = cache_folder() if folder is None else os.fspath(folder)

    def arrays(self, tables: Sequence[SymbolTable], kind: str, key: str, build: Builder) -> Arrays:
        """The arrays of that kind ("addresses", "names") for a file's tables: the stored ones, else built and stored.
        ``key`` (cache.file_key) names the file's arrays in the folder; "": they are not stored."""
        name = f"{key}.{kind}"
        if not key:
            _log.debug("index of %s: built, nothing keeps it", kind)
            return build(tables)
        arrays = self.load(name)
        if not arrays:
            with self._building(name):
                arrays = self.load(name)
                if not arrays:
                    _log.debug("index of %s: built for %s", kind, name)
                    arrays = built = build(tables)
                    self.store(name, built)
        return arrays

    @contextmanager
    def _building(self, name: str) -> Iterator[None]:
        """While another process builds the same index, wait for it, at most _PATIENCE: of ten crashes at the same
        moment one builds the index, and nine load it. Each index locks a byte of its own in the file .building."""
        try:
            self._make_folder()
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(f"{self.folder}/.building", flags, 0o600)
        except OSError:
            yield
            return
        try:
            deadline = time.monotonic() + _PATIENCE
            while time.monotonic() < deadline:
                try:
                    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, crc32(name.encode()))
                    break
                except OSError:
                    time.sleep(_PAUSE)
            yield
        finally:
            os.close(fd)

    def _make_folder(self) -> None:
        """Make the folder. Raises OSError if others can change it, or root would fill another user's."""
        if not may_fill(self.folder):
            raise PermissionError(self.folder)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    def load(self, name: str) -> Arrays | None:
        """The arrays stored under ``name``, mapped; None if there are none, or version, size or checksum is wrong."""
        try:
            with open(open_ours(f"{self.folder}/{name}"), "rb") as stream:
                data = mmap(stream.fileno(), 0, access=ACCESS_READ)
        except (OSError, ValueError):
            return None
        if len(data) < _HEADER.size:
            return None
        magic, version, width, first_count, second_count, checksum, header_checksum = _HEADER.unpack_from(data, 0)
        if magic != _MAGIC or version != _VERSION or crc32(data[: _HEADER.size - 4]) != header_checksum:
            return None
        middle = _HEADER.size + width * first_count
        if width not in (0, 4, 8) or len(data) != middle + 4 * second_count:
            return None
        view = memoryview(data)
        first, second = view[_HEADER.size : middle], view[middle:]
        if _sample_checksum(first, second) != checksum:
            return None
        return first.cast("Q" if width == 8 else "I"), second.cast("I")

    def store(self, name: str, arrays: Built) -> None:
        """Write the arrays under ``name``, visible only when complete."""
        temporary = f"{self.folder}/.{name}.{os.getpid()}.{time.monotonic_ns()}"
        try:
            self._make_folder()
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            with open(fd, "wb") as stream:
                for piece in _format(arrays):
                    stream.write(piece)
            os.replace(temporary, f"{self.folder}/{name}")
            self._make_room(name)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _make_room(self, newest: str) -> None:
        """Delete the least recently used files until the others have room. Raises OSError."""
        entries = [entry for entry in os.scandir(self.folder) if entry.is_file(follow_symlinks=False)]
        files = [(entry.stat(follow_symlinks=False), entry) for entry in entries if entry.name != newest]
        used = sum(status.st_size + _FILE_COST for status, _ in files)
        for status, entry in sorted(files, key=lambda file: max(file[0].st_atime, file[0].st_mtime)):
            if used <= _ROOM:
                break
            used -= status.st_size + _FILE_COST
            os.unlink(entry.path)


def _format(arrays: Built) -> tuple[bytes, bytes, bytes]:
    """The header and the contents of both arrays, as ``load`` reads them."""
    first, second = (memoryview(part).cast("B") for part in arrays)
    width = len(first) // max(1, len(arrays[0]))
    checksum = _sample_checksum(first, second)
    start = _HEADER.pack(_MAGIC, _VERSION, width, len(arrays[0]), len(arrays[1]), checksum, 0)[:-4]
    return start + crc32(start).to_bytes(4, "little"), bytes(first), bytes(second)


def _sample_checksum(*parts: memoryview) -> int:
    """A checksum of sampled blocks: it detects lost pages in a tenth of a millisecond."""
    value = 0
    for part in parts:
        step = max(_SAMPLE_SIZE, len(part) // _SAMPLES)
        for at in range(0, len(part), step):
            value = crc32(part[at : at + _SAMPLE_SIZE], value)
    return value


@lru_cache(maxsize=4)
def text_cache(folder: str, name: str) -> TextCache:
    """The texts in the file ``name`` of the cache folder: ``demangled`` names, ``jumps`` of functions."""
    return TextCache(folder, name)


class TextCache:
    """A cache file from names to texts that never change: each line has a name, its text and a checksum. A damaged line
    counts as missing."""

    def __init__(self, folder: str, name: str) -> None:
        """Read the file ``name`` of the cache folder, if it is there and ours."""
        self._folder = folder
        self._path = f"{folder}/{name}"
        self._data = b""  # the file's contents at the start
        with suppress(OSError), open(open_ours(self._path), "rb", 0) as file:
            self._data = file.read(_FILE_LIMIT + _ADDED_LIMIT) or b""
        self._is_full = False  # this process has added as many names as it may

    def text(self, name: bytes) -> bytes | None:
        """The text of a name; None if the file does not have it."""
        line = self._lines.get(name, b"")
        text = line[len(name) + 1 : -_CHECKSUM_SIZE]
        return text if line and line == _line(name, text) else None

    @cached_property
    def _lines(self) -> dict[bytes, bytes]:
        """Name → its first line."""
        return {line.partition(b"\t")[0]: line for line in reversed(self._data.split(b"\n")[1:-1])}

    def keep(self, name: bytes, text: bytes) -> None:
        """Add a name that the file does not have; each process adds at most _ADDED_LIMIT bytes. A full file is emptied
        first."""
        if self._is_full or not may_fill(self._folder) or {*b"\t\n"} & {*name, *text}:
            return
        with suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self._path, flags, 0o600), "ab", 0) as file:
                size = os.fstat(file.fileno()).st_size
                if size >= _FILE_LIMIT:
                    file.truncate(size := 0)
                self._is_full = size >= len(self._data) + _ADDED_LIMIT
                if not self._is_full:
                    file.write((b"" if size else b"\n") + _line(name, text) + b"\n")


_ADDED_LIMIT, _FILE_LIMIT = 1 << 16, 1 << 18
"""Most bytes that a process adds, and that the file may have: a thousand names. An inspection asks for twenty, a trace
for thousands."""
_CHECKSUM_SIZE = 9  # bytes of a line behind the text


def _line(name: bytes, text: bytes) -> bytes:
    """The line of a name: the text and a checksum of both behind it, without the line feed."""
    return b"%b\t%b\t%08x" % (name, text, crc32(text, crc32(name)))
