"""The symbols of one ELF file: all names at an address, and all addresses of a name."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

from gdbext.engine.formats import symbol_cache
from gdbext.engine.formats.elf import SHF_EXECINSTR, SHT_SYMTAB, ElfImage
from gdbext.engine.formats.elf_header import PF_X
from gdbext.engine.formats.symbol_table import (
    GnuHash,
    Symbol,
    SymbolTable,
    dynamic_table,
    mini_debug_table,
    section_table,
)
from gdbext.errors import SymbolFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_NAMES_LIMIT = 4096  # most names of one address that are kept; identical code folding gives some hundreds
_WALK_LIMIT = 256
_MISSES_LIMIT = 16
"""Limits of the search for an enclosing symbol: start addresses, and symbols that end before the address."""


class SymbolIndex:
    """Symbols of one ELF file, by address and by name: of .symtab, of .dynsym if .symtab is missing or lacks exported
    names, and of .gnu_debugdata."""

    def __init__(self, image: ElfImage, cache: symbol_cache.SymbolCache | None = None) -> None:
        """Raises SymbolFileError if the file has no usable table."""
        self.image = image
        self._cache = cache or symbol_cache.SymbolCache()
        self.tables, self.complete = _tables_of(image)
        """``complete``: local functions are listed, too (a .symtab is there)."""
        self._total = sum(table.count for table in self.tables)
        self._key = image.identity if self._total >= symbol_cache.WORTH_CACHING else ""
        self._addresses: symbol_cache.Arrays | None = None
        self._names: symbol_cache.Arrays | None = None
        self._searched: dict[bytes, Sequence[int]] = {}  # name → numbers of its entries

    @property
    def in_use(self) -> bool:
        """True once an address or a name was looked up, except by ``exported``."""
        return bool(self._addresses or self._names or self._searched)

    def at(self, vaddr: int) -> list[Symbol]:
        """All symbols (functions and objects) that start exactly there."""
        return self._starting_at(vaddr, bisect_left(self._by_address()[0], vaddr))

    def containing(self, vaddr: int) -> list[Symbol]:
        """All names of the innermost sized symbol around ``vaddr``; [] if no symbol reaches it.

        A symbol without a size (assembler) is extended to the next symbol of its section, unless only exported symbols
        are known: then unknown functions may lie between.
        """
        addresses = self._by_address()[0]
        position = bisect_right(addresses, vaddr) - 1
        unsized: list[Symbol] = []
        misses = 0
        for step in range(_WALK_LIMIT):
            if position < 0 or misses > _MISSES_LIMIT:
                break
            start = addresses[position]
            position = bisect_left(addresses, start, 0, position + 1)
            symbols = self._starting_at(start, position)
            around = [symbol for symbol in symbols if vaddr < start + symbol.size]
            if around:
                around += [symbol for symbol in symbols if not symbol.size]
                return [symbol for symbol in around if symbol.is_function] or around
            if step == 0 and not any(symbol.size for symbol in symbols):
                unsized = symbols
            elif symbols:
                misses += 1
            position -= 1
        return self._extended([symbol for symbol in unsized if symbol.is_function], vaddr)

    def lookup(self, name: str) -> list[Symbol]:
        """All symbols with that mangled name (local ones, objects and thread-local ones, too)."""
        raw = name.encode("utf-8", "surrogateescape")
        symbols: list[Symbol] = []
        for number in self._numbers_of(raw):
            table, entry = self._entry(number)
            if table and table.is_named(entry, raw):
                symbol = table.symbol(entry)
                if symbol and symbol not in symbols:
                    symbols.append(symbol)
        exported = self.exported(name)  # .symtab may have it with its version only
        if exported and exported.vaddr not in [symbol.vaddr for symbol in symbols]:
            symbols.append(exported)
        return symbols

    def _numbers_of(self, name: bytes) -> Sequence[int]:
        """Numbers of the entries that may have that name, by the file's own hash table if all symbols are in it."""
        if self._hash and self.tables == (self._dynamic,):
            return [*self._hash.candidates(name)]
        numbers = None if self._names else self._search(name)
        if numbers is not None:
            return numbers
        self._names = self._names or self._load("names", symbol_cache.build_names)
        return symbol_cache.find_name(self._names, name)

    def _search(self, name: bytes) -> Sequence[int] | None:
        """Numbers of the entries with that name by a linear search, which takes at most a tenth of the time of building
        the hash table: for the first few names of a file that is large, or whose hash table is not stored. None if the
        hash table is to be used."""
        if name in self._searched:
            return self._searched[name]
        is_small = self._key and self._total < symbol_cache.WORTH_SEARCHING
        if is_small or len(self._searched) >= self._cache.searches:
            return None
        self._names = self._cache.load(f"{self._key}.names") if self._key else None
        if self._names:
            return None
        numbers = self._load_numbers(f"named-{crc32(name):08x}", lambda table: table.numbers_named(name))
        self._searched[name] = [numbers[at] for at in range(len(numbers))]
        return self._searched[name]

    def exported(self, name: str) -> Symbol | None:
        """The exported symbol of that name, by the file's own hash table: nothing is built or cached."""
        if not self._hash or not self._dynamic:
            return None
        raw = name.encode("utf-8", "surrogateescape")
        old_version: Symbol | None = None
        for number in self._hash.candidates(raw):
            symbol = self._dynamic.symbol(number) if self._dynamic.is_named(number, raw) else None
            if symbol and self._hash.is_default(number):
                return symbol
            old_version = old_version or symbol
        return old_version

    @cached_property
    def _hash(self) -> GnuHash | None:
        """The file's own hash table of exported symbols."""
        return GnuHash.of(self.image)

    @cached_property
    def _dynamic(self) -> SymbolTable | None:
        """The file's .dynsym, to whose entries that hash table refers; None if there is none."""
        with suppress(SymbolFileError):
            return next((table for table in self.tables if table.is_dynamic), None) or dynamic_table(self.image)
        return None

    def matching(self, *needles: bytes) -> Iterator[Symbol]:
        """All symbols whose mangled names contain every needle, in table order. Reads all names, once."""
        kind = f"with-{crc32(bytes(1).join(needles)):08x}"
        numbers = self._load_numbers(kind, lambda table: table.numbers_with(needles))
        for at in range(len(numbers)):
            table, entry = self._entry(numbers[at])
            symbol = table.symbol(entry) if table else None
            name = symbol.name.encode("utf-8", "surrogateescape") if symbol else b""
            if symbol and all(needle in name for needle in needles):
                yield symbol

    def has_beginning(self, beginning: str) -> bool:
        """True if any mangled name starts with ``beginning``. Reads all names if none does: 30 ms for libtorch_cpu."""
        return any(table.mentions(beginning.encode()) for table in self.tables)

    def _entry(self, number: int) -> tuple[SymbolTable | None, int]:
        """(its table, its number there) of the entry with that number through all tables; (None, 0) if none."""
        for table in self.tables:
            if number < table.count:
                return table, number
            number -= table.count
        return None, 0

    def _by_address(self) -> symbol_cache.Arrays:
        """(ascending addresses, number of the entry at each)."""
        if not self._addresses:
            self._addresses = self._load("addresses", symbol_cache.build_addresses)
        return self._addresses

    def _load(self, kind: str, build: symbol_cache.Builder) -> symbol_cache.Arrays:
        """The arrays ``kind`` of this file, from the cache or by ``build``."""
        return self._cache.arrays(self.tables, kind, self._key, build)

    def _load_numbers(self, kind: str, numbers_of: Callable[[SymbolTable], Iterable[int]]) -> symbol_cache.Numbers:
        return self._load(kind, lambda tables: symbol_cache.build_numbers(tables, numbers_of))[0]

    def _starting_at(self, vaddr: int, position: int) -> list[Symbol]:
        """The symbols that start at ``vaddr``, each name once; ``position``: the index of its first entry by
        address."""
        addresses, numbers = self._by_address()
        symbols: dict[str, Symbol] = {}
        while position < len(addresses) and addresses[position] == vaddr and len(symbols) < _NAMES_LIMIT:
            table, entry = self._entry(numbers[position])
            symbol = table.symbol(entry) if table else None
            if symbol and symbol.vaddr == vaddr:
                symbols.setdefault(symbol.name, symbol)
            position += 1
        return list(symbols.values())

    def _extended(self, symbols: list[Symbol], vaddr: int) -> list[Symbol]:
        """``symbols``, of one address and without a size, extended to the next symbol or the end of their code section
        (segment, if there are no sections); [] if that does not cover ``vaddr``."""
        if not symbols:
            return []
        start, image = symbols[0].vaddr, self.image
        sections = [(section.address, section.size) for section in image.section_list if section.flags & SHF_EXECINSTR]
        segments = [(segment.vaddr, segment.memsz) for segment in image.loads if segment.flags & PF_X]
        code = sections if image.section_list else segments
        end = next((first + size for first, size in code if first <= start < first + size), 0)
        if not self.complete:
            end = min(end, start + 1)
        addresses = self._by_address()[0]
        following = bisect_right(addresses, start)
        if following < len(addresses):
            end = min(end, addresses[following])
        return [symbol._replace(size=end - start) for symbol in symbols] if vaddr < end else []


def _tables_of(image: ElfImage) -> tuple[tuple[SymbolTable, ...], bool]:
    """(the tables that together have the most names, True if these include local functions). Raises SymbolFileError."""
    full = section_table(image, SHT_SYMTAB)
    dynamic = dynamic_table(image)
    if full and full.count > 1:
        exported = dynamic.count - dynamic.locals if dynamic else 0
        if not dynamic or full.count - full.locals + 8 >= exported:
            return (full,), True
        return (full, dynamic), True  # a tool removed exported names from .symtab
    mini = mini_debug_table(image)
    tables = tuple(table for table in (dynamic, mini) if table and table.count)
    if not tables:
        raise SymbolFileError(f"{image.path} has no symbol table")
    return tables, mini is not None
