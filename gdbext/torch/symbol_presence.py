"""Which of the assumed symbols the torch in a process has."""

from __future__ import annotations

from gdbext.errors import SymbolFileError
from gdbext.formats.symbols.symbol_index import SymbolIndex
from gdbext.model.symbol_check import SymbolCheck, SymbolChecks, SymbolStatus
from gdbext.process.symbols import Symbolizer
from gdbext.torch.symbols import TORCH_SYMBOLS
from gdbext.torch.torch_symbol import NameKind, TorchSymbol


def check_symbols(symbolizer: Symbolizer) -> SymbolChecks:
    """Each row of the table, looked up in its library."""
    rows = (
        SymbolCheck(
            name.lower(), row.names, row.library, row.purpose, row.lost, row.first, row.last, status(row, symbolizer)
        )
        for name, row in TORCH_SYMBOLS.items()
    )
    return SymbolChecks(tuple(rows))


def status(symbol: TorchSymbol, symbolizer: Symbolizer) -> SymbolStatus:
    """Whether one assumption holds; a family without its examples is searched for."""
    if symbol.unoptimised:
        return SymbolStatus.UNOPTIMISED_ONLY
    library = symbol.library or None
    module = symbolizer.modules.named(library) if library else None
    if library and module is None:
        return SymbolStatus.NOT_LOADED
    index = symbolizer.index(module) if module is not None else None
    if library and index is None:
        return SymbolStatus.UNREADABLE
    try:
        return SymbolStatus.FOUND if _is_in(symbol, symbolizer, index) else SymbolStatus.MISSING
    except SymbolFileError:
        return SymbolStatus.UNREADABLE


def _is_in(symbol: TorchSymbol, symbolizer: Symbolizer, index: SymbolIndex | None) -> bool:
    """Whether there is such a symbol. Raises SymbolFileError where that cannot be known."""
    exact = symbol.names if symbol.kind is NameKind.SYMBOL else symbol.examples
    if any(symbolizer.search(name, symbol.library or None) is not None for name in exact):
        return True
    families = () if symbol.kind is NameKind.SYMBOL else symbol.beginnings
    return index is not None and any(index.has_beginning(name) for name in families)
