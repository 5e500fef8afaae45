"""The names that settings assume of torch, as rows like those of torch/symbols.py: for whoever checks them all."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.torch.state import setting_sources as sources
from gdbext.torch.symbols import CPU
from gdbext.torch.torch_symbol import TorchSymbol

_VARIABLES = {
    "RECORD_FUNCTION_CALLBACKS": (sources.CALLBACKS, "callbacks of RecordFunction"),
    "MKL_THREADS": (sources.MKL_THREADS, "MKL's number of threads"),
    "MKL_DYNAMIC": (sources.MKL_DYNAMIC, "whether MKL may use fewer threads"),
    "MKL_READY": (sources.MKL_READY, "whether MKL has read its environment"),
}


def setting_symbols() -> dict[str, TorchSymbol]:
    """All rows by name: accessors of settings, objects that hold them, variables."""
    return dict(_rows())


def _rows() -> Iterator[tuple[str, TorchSymbol]]:
    for each in sources.SETTINGS:
        if each.symbol:
            name = each.name.upper()
            yield name, _row(each.symbol, f"where {each.name} is kept", each.name, each.library, each.first)
    for name, value in vars(sources).items():
        if isinstance(value, TorchSymbol):
            yield name, value
        elif isinstance(value, sources.Owner):
            yield name, _row(value.variable, value.made_by, "what it holds", value.library, value.first)
            purpose = f"tells whether it exists: {value.made_by}"
            yield f"{name}_GUARD", _row(value.guard, purpose, "what it holds", value.library, value.first)
    for name, (symbol, purpose) in _VARIABLES.items():
        yield name, _row(symbol, purpose, purpose, CPU, sources.OLDEST)


def _row(symbol: str, purpose: str, lost: str, library: str, first: str) -> TorchSymbol:
    return TorchSymbol((symbol,), purpose, f"{lost}, among the settings", library, first=first)
