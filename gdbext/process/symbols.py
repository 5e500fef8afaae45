"""Which function is at an address, and where a name is: all names of each address, not one of them."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import SymbolFileError
from .demangle import demangle
from .elf import SHF_EXECINSTR, SHT_SYMTAB, ElfImage
from .module import Module, ModuleTable
from .symbol_cache import (
    WORTH_CACHING,
    Arrays,
    Built,
    SymbolCache,
    build_addresses,
    build_names,
    cache_key,
    find_name,
)
from .symbol_table import (
    STB_LOCAL,
    STB_WEAK,
    STT_NOTYPE,
    STT_TLS,
    GnuHash,
    Symbol,
    SymbolTable,
    dynamic_table,
    mini_debug_table,
    section_table,
)

_NAMES_LIMIT = 4096
"""So many names of one address are kept; identical code folding gives some hundreds."""
_WALK_LIMIT = 256
_MISSES_LIMIT = 16
"""How far back an enclosing symbol is looked for: starts in all, and functions that end too early."""
_CLONE = re.compile(r"(\.(cold|part|isra|constprop|lto_priv|localalias|llvm|clone|_omp_fn|resolver)(\.\d+)*)+$")


def without_clone_suffix(name: str) -> str:
    """A mangled name without what GCC and Clang append to clones: ``.isra.0``, ``.cold``, ``.constprop.0.part.1``."""
    return _CLONE.sub("", name)


class SymbolIndex:
    """Symbols of one ELF file, by address and by name.

    .symtab, and .dynsym where .symtab is missing or lacks exported names, and .gnu_debugdata. Raises SymbolFileError
    when the file has no usable table.
    """

    def __init__(self, image: ElfImage, cache: SymbolCache | None = None) -> None:
        self.image = image
        self._cache = SymbolCache() if cache is None else cache
        self.tables, self.complete = _tables_of(image)
        """``complete``: local functions are listed, too (a .symtab is there)."""
        self._total = sum(table.count for table in self.tables)
        key = cache_key(image, self.tables)
        self._key = key if self._total >= WORTH_CACHING else None
        self._addresses: Arrays | None = None
        self._names: Arrays | None = None
        self._dynamic = next((table for table in self.tables if table.is_dynamic), None)
        self._hash: GnuHash | None = None
        self._hash_known = False

    def at(self, vaddr: int) -> list[Symbol]:
        """All symbols (functions and objects) that start exactly there."""
        addresses = self._by_address()[0]
        found = self._group(bisect_left(addresses, vaddr), vaddr)
        return [] if found is None else found

    def containing(self, vaddr: int) -> list[Symbol]:
        """All names of the innermost sized symbol around ``vaddr``; [] where no symbol reaches it.

        A symbol without a size (assembler) reaches to the next symbol of its section, and gets that size; not
        where only exported symbols are known, because then unknown functions may lie between.
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
            group = self._group(position, start) or []
            around = [symbol for symbol in group if vaddr < start + symbol.size]
            if around:
                return _functions_first(around + [symbol for symbol in group if not symbol.size])
            if step == 0 and not any(symbol.size for symbol in group):
                unsized = group
            elif group:
                misses += 1
            position -= 1
        return self._extended(unsized, vaddr)

    def lookup(self, name: str) -> list[Symbol]:
        """All symbols with that mangled name (local ones, objects and thread-local ones, too)."""
        raw = name.encode("utf-8", "surrogateescape")
        if self._names is None:
            self._names = self._load("names", build_names)
        found = []
        for number in find_name(self._names, raw):
            table, entry = self._entry(number)
            if table is not None and table.is_named(entry, raw):
                symbol = table.symbol(entry)
                if symbol is not None and symbol not in found:
                    found.append(symbol)
        return found

    def exported(self, name: str) -> Symbol | None:
        """The exported symbol of that name, through the file's own hash table: nothing is built or cached."""
        if not self._hash_known:
            self._hash_known = True
            self._hash = GnuHash.of(self.image)
            self._dynamic = self._dynamic or _dynamic_or_none(self.image)
        if self._hash is None or self._dynamic is None:
            return None
        raw = name.encode("utf-8", "surrogateescape")
        for number in self._hash.candidates(raw):
            if self._dynamic.is_named(number, raw):
                return self._dynamic.symbol(number)
        return None

    def matching(self, *needles: bytes) -> Iterator[Symbol]:
        """All symbols whose mangled names contain every needle, in table order. Reads all names: slow."""
        for table in self.tables:
            for number in table.numbers_with(needles):
                symbol = table.symbol(number)
                if symbol is not None:
                    yield symbol

    def _entry(self, number: int) -> tuple[SymbolTable | None, int]:
        """The table and the number in it of an entry numbered through all tables."""
        for table in self.tables:
            if number < table.count:
                return table, number
            number -= table.count
        return None, 0

    def _by_address(self) -> Arrays:
        if self._addresses is None:
            self._addresses = self._load("addresses", build_addresses)
        return self._addresses

    def _load(self, kind: str, build: Callable[[Sequence[SymbolTable]], Built]) -> Arrays:
        """The cached arrays; built and stored where there are none."""
        name = f"{self._key}.{kind}"
        arrays = self._cache.load(name) if self._key else None
        if arrays is not None:
            return arrays
        built = build(self.tables)
        if self._key:
            self._cache.store(name, built)
        return built

    def _group(self, position: int, vaddr: int) -> list[Symbol] | None:
        """The symbols from ``position`` on that start at ``vaddr``, each name once."""
        addresses, numbers = self._by_address()
        found: dict[str, Symbol] = {}
        while position < len(addresses) and addresses[position] == vaddr and len(found) < _NAMES_LIMIT:
            table, entry = self._entry(numbers[position])
            symbol = table.symbol(entry) if table is not None else None
            if symbol is not None and symbol.vaddr == vaddr:
                found.setdefault(symbol.name, symbol)
            position += 1
        return list(found.values())

    def _extended(self, symbols: list[Symbol], vaddr: int) -> list[Symbol]:
        """Symbols without size, extended to the next symbol or the end of their code section, if that covers."""
        symbols = [symbol for symbol in symbols if symbol.is_function]
        if not symbols:
            return []
        start = symbols[0].vaddr
        end = self._code_end(start)
        if not self.complete:
            end = min(end, start + 1)
        addresses = self._by_address()[0]
        following = bisect_right(addresses, start)
        if following < len(addresses):
            end = min(end, addresses[following])
        return [symbol._replace(size=end - start) for symbol in symbols] if vaddr < end else []

    def _code_end(self, vaddr: int) -> int:
        """End of the executable section around ``vaddr`` (segment, where there are no sections); 0 for data."""
        for section in self.image.section_list:
            if section.flags & SHF_EXECINSTR and section.address <= vaddr < section.address + section.size:
                return section.address + section.size
        if self.image.section_list:
            return 0
        for segment in self.image.loads:
            if self.image.is_code(vaddr) and segment.vaddr <= vaddr < segment.vaddr + segment.memsz:
                return segment.vaddr + segment.memsz
        return 0


def _tables_of(image: ElfImage) -> tuple[tuple[SymbolTable, ...], bool]:
    """The tables that together name the most, and whether local functions are among them."""
    full = section_table(image, SHT_SYMTAB)
    dynamic = dynamic_table(image)
    if full is not None and full.count > 1:
        exported = dynamic.count - dynamic.locals if dynamic is not None else 0
        if dynamic is None or full.count - full.locals + 8 >= exported:
            return (full,), True
        return (full, dynamic), True  # somebody removed exported names from .symtab
    mini = mini_debug_table(image)
    found = tuple(table for table in (dynamic, mini) if table is not None and table.count)
    if not found:
        raise SymbolFileError(f"{image.path} has no symbol table")
    return found, mini is not None


def _dynamic_or_none(image: ElfImage) -> SymbolTable | None:
    try:
        return dynamic_table(image)
    except SymbolFileError:
        return None


def _functions_first(symbols: list[Symbol]) -> list[Symbol]:
    """Only the functions, where there are any."""
    typed = [symbol for symbol in symbols if symbol.is_function]
    return typed or symbols


@dataclass(frozen=True)
class Function:
    """One function in the target: absolute start and size in bytes, and all mangled names at that start.

    The first name is a sane one for a general backtrace: typed before untyped, global before local, strong before
    weak, without before with leading underscores, short before long.
    """

    start: int
    size: int
    names: tuple[str, ...]
    module: Module

    @property
    def name(self) -> str:
        """The first of the mangled names."""
        return self.names[0]

    @cached_property
    def demangled(self) -> tuple[str, ...]:
        """The names for people, in the order of ``names``."""
        return tuple(demangle(name) for name in self.names)


def _rank(symbol: Symbol) -> tuple[bool, bool, bool, bool, int]:
    plain = symbol.name.startswith("_Z") or not symbol.name.startswith("_")
    return (
        symbol.type == STT_NOTYPE,
        symbol.binding == STB_LOCAL,
        symbol.binding == STB_WEAK,
        not plain,
        len(symbol.name),
    )


class Symbolizer:
    """Names for addresses and addresses for names, over all modules of the target."""

    def __init__(self, modules: ModuleTable, cache: SymbolCache | None = None) -> None:
        self.modules = modules
        self._cache = SymbolCache() if cache is None else cache
        self._indexes: dict[int, SymbolIndex | None] = {}
        self._functions: dict[int, Function | None] = {}
        self._found: dict[tuple[str, str | None], tuple[Module, Symbol] | None] = {}

    def index(self, module: Module) -> SymbolIndex | None:
        """The module's symbols; None where its file cannot be used or names nothing."""
        if module.start not in self._indexes:
            self._indexes[module.start] = self._make_index(module)
        return self._indexes[module.start]

    def _make_index(self, module: Module) -> SymbolIndex | None:
        image = module.image
        if image is None:
            return None
        try:
            return SymbolIndex(image, self._cache)
        except SymbolFileError:
            return None

    def function(self, address: int) -> Function | None:
        """The function around ``address``; None in data, in JIT code, and where no symbol reaches."""
        if address not in self._functions:
            self._functions[address] = self._function(address)
        return self._functions[address]

    def _function(self, address: int) -> Function | None:
        module = self.modules.find(address)
        index = None if module is None else self.index(module)
        if module is None or index is None:
            return None
        symbols = [symbol for symbol in index.containing(module.vaddr(address)) if symbol.is_function]
        if not symbols:
            return None
        symbols.sort(key=_rank)
        size = max(symbol.size for symbol in symbols)
        return Function(module.base + symbols[0].vaddr, size, _unique(symbols), module)

    def names_at(self, address: int) -> tuple[str, ...]:
        """All mangled names (functions and objects) of exactly that address, in symbol-table order."""
        module = self.modules.find(address)
        index = None if module is None else self.index(module)
        if module is None or index is None:
            return ()
        return _unique(index.at(module.vaddr(address)))

    def address_of(self, name: str, module: str | None = None) -> int | None:
        """The absolute address of a mangled name, None if it is not found or thread-local; see ``symbol_of``."""
        found = self.symbol_of(name, module)
        if found is None or found[1].type == STT_TLS:
            return None
        return found[0].base + found[1].vaddr

    def symbol_of(self, name: str, module: str | None = None) -> tuple[Module, Symbol] | None:
        """Where a mangled name is defined: the module and its symbol (STT_TLS ones, too).

        With ``module`` (a basename), all symbols of that module. Without, exported symbols of every module in map
        order (through the files' hash tables, nothing is indexed), then all symbols of the modules whose index is
        in use already: a missing name never indexes a hundred libraries.
        """
        key = (name, module)
        if key not in self._found:
            self._found[key] = self._search(name, module)
        return self._found[key]

    def _search(self, name: str, module: str | None) -> tuple[Module, Symbol] | None:
        if module is not None:
            found = self.modules.named(module)
            return None if found is None else self._search_in(found, name)
        used = [each for each in self.modules.modules if self._indexes.get(each.start) is not None]
        for each in used + [other for other in self.modules.modules if other not in used]:
            index = self.index(each)
            symbol = None if index is None else index.exported(name)
            if symbol is not None:
                return each, symbol
        for each in used:
            result = self._search_in(each, name)
            if result is not None:
                return result
        return None

    def _search_in(self, module: Module, name: str) -> tuple[Module, Symbol] | None:
        index = self.index(module)
        if index is None:
            return None
        symbol = index.exported(name) or next(iter(index.lookup(name)), None)
        return None if symbol is None else (module, symbol)


def _unique(symbols: Iterable[Symbol]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(symbol.name for symbol in symbols))
