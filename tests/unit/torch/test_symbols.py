"""The table of names that are assumed of torch: nobody else writes one down, and each row is whole."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gdbext.engine.layouts import store
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.tools.info import info_report
from gdbext.tools.info.info_report import SymbolStatus
from gdbext.torch import assumed_symbols
from gdbext.torch.assumed_symbols import TORCH_SYMBOLS
from gdbext.torch.state.setting_sources import setting_symbols
from gdbext.torch.torch_symbol import NameKind, TorchSymbol
from support.source.parsed import nodes

PACKAGE = Path(__file__).resolve().parents[3] / "gdbext"
TABLES = re.compile(
    r"torch/(assumed_symbols|torch_symbol|.*structures|state/setting_sources|measure/.*)\.py|engine/formats/demangle\.py"
    # structures of the layouts, and names that are shown to people
    r"|tools/(tensor/cpp_(summaries|object)|info/library_settings)\.py|hosts/gdb/gdb_breakpoints\.py"
    r"|torch/registry/(kernel|dispatch_table)\.py"
)
NAME = re.compile(
    r"\^?_Z(T[VISHW])?(GV)?Z?N?[KL]?(2at|3c10|5torch|4c10d|4gloo)"  # mangled
    r"|(at|c10|torch|c10d|gloo)(::\w+)*::[a-z]\w*(?<!_)$"  # a function: classes are capitalized, members end in "_"
)


def names_in(file: Path) -> list[str]:
    """Names of torch's symbols."""
    constants = [node.value for node in nodes(file.read_text()) if isinstance(node, ast.Constant)]
    texts = [each.decode("latin-1") if isinstance(each, bytes) else each for each in constants]
    return [text for text in texts if isinstance(text, str) and NAME.match(text)]


def test_names_stand_in_the_table_only() -> None:
    files = {file.relative_to(PACKAGE).as_posix(): file for file in PACKAGE.rglob("*.py")}
    found = {name: names_in(file) for name, file in files.items() if not TABLES.fullmatch(name)}
    assert {name: names for name, names in found.items() if names} == {}
    assert names_in(files["torch/assumed_symbols.py"])


def test_every_row_is_whole() -> None:
    assert len(TORCH_SYMBOLS) > 60
    assert not TORCH_SYMBOLS.keys() & setting_symbols().keys()
    for name, row in [*TORCH_SYMBOLS.items(), *setting_symbols().items()]:
        assert all((row.names, row.purpose, row.lost)), name
        assert _version(row.first) <= _version(row.last or store.newest_release()), name
        if row.kind is NameKind.SYMBOL:
            assert not row.examples, name
        elif not row.unoptimised:
            assert row.examples, name
        assert all(example.startswith(row.beginnings) for example in row.examples), name
    every = [name for row in [*TORCH_SYMBOLS.values(), *setting_symbols().values()] for name in row.names]
    assert len(every) == len(set(every))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


class Libraries:
    """A symbolizer over made-up libraries: file name to the mangled names in it."""

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
    return info_report.status(row, cast(Symbolizer, libraries))


def test_status() -> None:
    whole, reference = assumed_symbols.SINGLETON.names[0], assumed_symbols.SINGLETON_REFERENCE
    assert status(assumed_symbols.SINGLETON, Libraries(libtorch_cpu=(whole,))) is SymbolStatus.FOUND
    assert status(assumed_symbols.SINGLETON, Libraries(libtorch_cpu=(whole + "x",))) is SymbolStatus.MISSING
    assert status(assumed_symbols.SINGLETON, Libraries(libc10=(whole,))) is SymbolStatus.NOT_LOADED
    assert status(reference, Libraries(other=reference.names)) is SymbolStatus.FOUND
    older = assumed_symbols.PYTHON_DISPATCHER.names[1]
    assert status(assumed_symbols.PYTHON_DISPATCHER, Libraries(libc10=(older,))) is SymbolStatus.FOUND
    assert status(assumed_symbols.TYPED_HANDLE, Libraries(libtorch_cpu=())) is SymbolStatus.UNOPTIMISED_ONLY


def test_a_family_is_searched_for_only_without_its_examples() -> None:
    pop = assumed_symbols.AUTOGRAD_POP
    known = Libraries(libtorch_cpu=pop.examples)
    assert (status(pop, known), known.searched) == (SymbolStatus.FOUND, [])
    changed = Libraries(libtorch_cpu=("_ZN5torch8autograd10ReadyQueue3popEi",))
    assert status(pop, changed) is SymbolStatus.FOUND
    assert changed.searched == ["_ZN5torch8autograd10ReadyQueue3popE"]
    other = Libraries(libtorch_cpu=("_ZN5torch8autograd10ReadyQueue4popxE",))
    assert status(pop, other) is SymbolStatus.MISSING
