"""The names that settings assume of torch, for searching them in its releases."""

from __future__ import annotations

from gdbext.torch.assumed_symbols import CPU, TORCH_SYMBOLS
from gdbext.torch.state import setting_sources
from gdbext.torch.state.setting_sources import (
    CALLBACKS,
    MKL_DYNAMIC,
    MKL_READY,
    MKL_THREADS,
    OLDEST,
    SETTINGS,
    StaticOwner,
)
from gdbext.torch.torch_symbol import TorchSymbol


def setting_symbols() -> dict[str, TorchSymbol]:
    """All names that settings assume of torch and that TORCH_SYMBOLS does not have, by a name for each: accessors of
    settings, objects that hold them, variables. scripts/check_releases.py searches all releases for them."""
    rows: dict[str, TorchSymbol] = {}

    def add(name: str, symbol: str, purpose: str, lost: str, library: str = CPU, first: str = OLDEST) -> None:
        """Add the mangled name ``symbol``; the other arguments are as in TorchSymbol."""
        rows[name] = TorchSymbol((symbol,), library, purpose, f"{lost}, among the settings", first=first)

    for setting in SETTINGS:
        if setting.symbol:
            purpose = f"where {setting.name} is kept"
            add(setting.name.upper(), setting.symbol, purpose, setting.name, setting.library, setting.first)
    for name, value in vars(setting_sources).items():
        if isinstance(value, TorchSymbol):
            rows[name] = value
        elif isinstance(value, StaticOwner):
            lost, library, first = "what it holds", value.library, value.first
            add(name, value.variable, value.description, lost, library, first)
            add(f"{name}_GUARD", value.guard, f"tells whether it exists: {value.description}", lost, library, first)
    for name, symbol, purpose in (
        ("RECORD_FUNCTION_CALLBACKS", CALLBACKS, "callbacks of RecordFunction"),
        ("MKL_THREADS", MKL_THREADS, "MKL's number of threads"),
        ("MKL_DYNAMIC", MKL_DYNAMIC, "whether MKL may use fewer threads"),
        ("MKL_READY", MKL_READY, "whether MKL has read its environment"),
    ):
        add(name, symbol, purpose, purpose)
    elsewhere = {name for row in TORCH_SYMBOLS.values() for name in row.names}
    return {name: row for name, row in rows.items() if elsewhere.isdisjoint(row.names)}
