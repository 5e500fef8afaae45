"""Finds the function at an address, and the address of a name, over all modules: all names of an address, not just
one."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.formats.symbol_index import SymbolIndex
from gdbext.engine.formats.symbol_table import STB_LOCAL, STB_WEAK, STT_NOTYPE, STT_TLS, Symbol
from gdbext.errors import SymbolFileError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gdbext.engine.process.modules import Module, ModuleTable

_CLONE = re.compile(r"(\.(cold|part|isra|constprop|lto_priv|localalias|llvm|clone|_omp_fn|resolver)(\.\d+)*)+$")


def without_clone_suffix(name: str) -> str:
    """A mangled name without the suffixes of clones (GCC, Clang): ``.isra.0``, ``.cold``, ``.constprop.0.part.1``."""
    return _CLONE.sub("", name)


class Function(NamedTuple):
    """One function in the target: absolute start and size in bytes, and all mangled names at that start. The first name
    is the best one for a backtrace: typed before untyped, global before local, strong before weak, without before with
    leading underscores, short before long."""

    start: int
    size: int
    names: tuple[str, ...]
    module: Module

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def demangled(self) -> tuple[str, ...]:
        """The names for people, in the order of ``names``."""
        return tuple(demangle(name) for name in self.names)


def _rank(symbol: Symbol) -> tuple[bool, bool, bool, bool, int]:
    """The sort key of a function's names: the best one for a backtrace is the least (see Function)."""
    plain = symbol.name.startswith("_Z") or not symbol.name.startswith("_")
    is_local, is_weak = symbol.binding == STB_LOCAL, symbol.binding == STB_WEAK
    return symbol.type == STT_NOTYPE, is_local, is_weak, not plain, len(symbol.name)


class Symbolizer:
    """Names for addresses and addresses for names, over all modules of the target."""

    def __init__(self, modules: ModuleTable, cache: SymbolCache | None = None) -> None:
        self.modules = modules
        self._cache = cache or SymbolCache()
        self._indexes: dict[int, SymbolIndex | None] = {}  # by the start of the module
        self._functions: dict[int, Function | None] = {}  # by address
        self._definitions: dict[tuple[str, str | None], tuple[Module, Symbol] | None] = {}

    def index(self, module: Module) -> SymbolIndex | None:
        """The module's symbols; None if its file cannot be used or has none."""
        if module.start not in self._indexes:
            self._indexes[module.start] = None
            with suppress(SymbolFileError):
                image = module.image
                self._indexes[module.start] = SymbolIndex(image, self._cache) if image else None
        return self._indexes[module.start]

    def function(self, address: int) -> Function | None:
        """The function around ``address``; None in data, in JIT code, and outside of all symbols."""
        if address not in self._functions:
            self._functions[address] = self._function(address)
        return self._functions[address]

    def _function(self, address: int) -> Function | None:
        """``function`` without cache."""
        module = self.modules.find(address)
        index = self.index(module) if module else None
        symbols: list[Symbol] = []
        if module and index:
            with suppress(SymbolFileError):
                symbols = [symbol for symbol in index.containing(module.vaddr(address)) if symbol.is_function]
        if not module or not symbols:
            return None
        symbols.sort(key=_rank)
        size = max(symbol.size for symbol in symbols)
        return Function(module.base + symbols[0].vaddr, size, _unique_names(symbols), module)

    def names_at(self, address: int) -> tuple[str, ...]:
        """All mangled names (functions and objects) of exactly that address, in symbol-table order."""
        module = self.modules.find(address)
        index = self.index(module) if module else None
        if module and index:
            with suppress(SymbolFileError):
                return _unique_names(index.at(module.vaddr(address)))
        return ()

    def address_of(self, name: str, module: str | None = None) -> int:
        """The absolute address of a mangled name, 0 if it is not found or thread-local; see ``symbol_of``."""
        defining_module, symbol = self.symbol_of(name, module) or (None, None)
        if not defining_module or not symbol or symbol.type == STT_TLS:
            return 0
        return defining_module.base + symbol.vaddr

    def symbol_of(self, name: str, module: str | None = None) -> tuple[Module, Symbol] | None:
        """The definition of a mangled name: the module and its symbol (STT_TLS ones, too). With ``module`` (a
        basename), all symbols of that module. Without, exported symbols of every module in map order (through the
        files' hash tables, nothing is indexed), then all symbols of the modules whose index is in use already: a
        missing name never indexes a hundred libraries."""
        key = (name, module)
        if key not in self._definitions:
            self._definitions[key] = None
            with suppress(SymbolFileError):
                self._definitions[key] = self.search(name, module)
        return self._definitions[key]

    def search(self, name: str, module: str | None) -> tuple[Module, Symbol] | None:
        """As ``symbol_of``, without cache. Raises SymbolFileError if the file's symbols cannot be read."""
        if module is not None:
            named_module = self.modules.named(module)
            return self._search_in(named_module, name) if named_module else None
        for loaded in self.modules.modules:
            index = self.index(loaded)
            if index and (symbol := index.exported(name)):
                return loaded, symbol
        for loaded in self.modules.modules:
            index = self.index(loaded)
            if index and index.in_use and (definition := self._search_in(loaded, name)):
                return definition
        return None

    def _search_in(self, module: Module, name: str) -> tuple[Module, Symbol] | None:
        """The definition of ``name`` among all symbols of the module, exported ones first."""
        index = self.index(module)
        if not index:
            return None
        symbol = index.exported(name) or next(iter(index.lookup(name)), None)
        return (module, symbol) if symbol else None


def _unique_names(symbols: Iterable[Symbol]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(symbol.name for symbol in symbols))
