"""What is assumed of torch by name, against the installed wheel."""

from __future__ import annotations

import ast
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_index import SymbolIndex
from gdbext.torch import torch_symbol
from gdbext.torch.assumed_symbols import CUDA, PYTHON, TORCH_SYMBOLS
from gdbext.torch.state.setting_sources import C10_CUDA
from gdbext.torch.torch_symbol import NameKind, TorchSymbol
from scripts.lib.setting_symbols import setting_symbols

pytestmark = [pytest.mark.torch]

SPEC = find_spec("torch")
TORCH = Path(SPEC.origin).parent if SPEC is not None and SPEC.origin is not None else Path()
ROWS = [pytest.param(row, id=name) for name, row in {**TORCH_SYMBOLS, **setting_symbols()}.items()]


@cache
def index(library: str) -> SymbolIndex:
    return SymbolIndex(ElfImage.open(str(TORCH / "lib" / library)))


def release(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.partition("+")[0].split("."))


def is_in(row: TorchSymbol, version: tuple[int, ...]) -> bool:
    return release(row.first) <= version and (not row.last or version <= release(row.last))


@pytest.mark.parametrize("row", ROWS)
def test_the_wheel_has_it_or_has_inlined_it(row: TorchSymbol) -> None:
    if row.library in (CUDA, C10_CUDA) and not (TORCH / "lib" / CUDA).exists():
        return  # the CPU wheel
    names = row.names if row.kind is NameKind.SYMBOL else row.examples
    found = [index(row.library or PYTHON).lookup(name) for name in names]
    assert any(found) is (not row.unoptimized and is_in(row, release(version("torch"))))
    assert not row.unoptimized or not any(index(row.library).has_beginning(name) for name in row.beginnings)


def test_python_names() -> None:
    loader = TORCH.parent / torch_symbol.LOADER_FILE
    assert f"self.{torch_symbol.LOADER_WORKERS} = []" in loader.read_text()
    for name in (torch_symbol.LOADER_NEXT, torch_symbol.LOADER_TASKS, torch_symbol.LOADER_IN_ORDER):
        assert f"self.{name} = " in loader.read_text()
    for file, function in torch_symbol.PIN_MEMORY_THREADS:
        tree = ast.parse((loader.parent / "_utils" / file).read_text())
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
