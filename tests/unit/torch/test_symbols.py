"""The table of names that are assumed of torch: each row is whole, and its status in a process."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gdbext.engine.layouts import store
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.tools.info import SymbolStatus, symbol_status
from gdbext.torch import assumed_symbols
from gdbext.torch.assumed_symbols import TORCH_SYMBOLS
from gdbext.torch.torch_symbol import NameKind, TorchSymbol
from scripts.lib.setting_symbols import setting_symbols


def test_every_row_is_whole() -> None:
    assert len(TORCH_SYMBOLS) > 60
    assert not TORCH_SYMBOLS.keys() & setting_symbols().keys()
    for name, row in [*TORCH_SYMBOLS.items(), *setting_symbols().items()]:
        assert all((row.names, row.purpose, row.lost)), name
        first, last = (tuple(map(int, text.split("."))) for text in (row.first, row.last or store.newest_release()))
        assert first <= last, name
        if row.kind is NameKind.SYMBOL:
            assert not row.examples, name
        elif not row.unoptimized:
            assert row.examples, name
        assert all(example.startswith(row.beginnings) for example in row.examples), name
    every = [name for row in [*TORCH_SYMBOLS.values(), *setting_symbols().values()] for name in row.names]
    assert len(every) == len(set(every))


def test_every_row_that_code_names_exists() -> None:
    """mypy cannot check the attributes of a module that has __getattr__."""
    assert assumed_symbols.__file__
    for path in Path(assumed_symbols.__file__).parents[1].rglob("*.py"):
        for name in re.findall(r"\bassumed_symbols\.([A-Z]\w+)", path.read_text()):
            assert hasattr(assumed_symbols, name), (path, name)


class Libraries:
    def __init__(self, **libraries: tuple[str, ...]) -> None:
        self._libraries = {f"{name}.so": names for name, names in libraries.items()}
        self.searched: list[str] = []
        self.modules = SimpleNamespace(named=lambda name: name if name in self._libraries else None)

    def search(self, name: str, library: str | None) -> Any:
        places = [library] if library is not None else list(self._libraries)
        return next((place for place in places if name in self._libraries.get(place, ())), None)

    def index(self, library: str) -> Any:
        return SimpleNamespace(has_beginning=lambda beginning: self._search(library, beginning))

    def _search(self, library: str, beginning: str) -> bool:
        self.searched.append(beginning)
        return any(name.startswith(beginning) for name in self._libraries[library])


def status(row: TorchSymbol, libraries: Libraries) -> SymbolStatus:
    return symbol_status(row, cast(Symbolizer, libraries))


def test_status_and_a_family_that_is_searched_for_only_without_its_examples() -> None:
    whole, reference = assumed_symbols.SINGLETON.names[0], assumed_symbols.SINGLETON_REFERENCE
    assert status(assumed_symbols.SINGLETON, Libraries(libtorch_cpu=(whole,))) is SymbolStatus.FOUND
    assert status(assumed_symbols.SINGLETON, Libraries(libtorch_cpu=(whole + "x",))) is SymbolStatus.MISSING
    assert status(assumed_symbols.SINGLETON, Libraries(libc10=(whole,))) is SymbolStatus.NOT_LOADED
    assert status(reference, Libraries(other=reference.names)) is SymbolStatus.FOUND
    older = assumed_symbols.PYTHON_DISPATCHER.names[1]
    assert status(assumed_symbols.PYTHON_DISPATCHER, Libraries(libc10=(older,))) is SymbolStatus.FOUND
    assert status(assumed_symbols.TYPED_HANDLE, Libraries(libtorch_cpu=())) is SymbolStatus.UNOPTIMIZED_ONLY
    pop = assumed_symbols.AUTOGRAD_POP
    known = Libraries(libtorch_cpu=pop.examples)
    assert (status(pop, known), known.searched) == (SymbolStatus.FOUND, [])
    changed = Libraries(libtorch_cpu=("_ZN5torch8autograd10ReadyQueue3popEi",))
    assert status(pop, changed) is SymbolStatus.FOUND
    assert changed.searched == ["_ZN5torch8autograd10ReadyQueue3popE"]
    other = Libraries(libtorch_cpu=("_ZN5torch8autograd10ReadyQueue4popxE",))
    assert status(pop, other) is SymbolStatus.MISSING
