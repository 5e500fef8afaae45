"""Demangling prints what c++filt prints."""

from __future__ import annotations

import random
import subprocess

import pytest

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_index import SymbolIndex
from gdbext.engine.formats.symbol_table import STT_FUNC
from support.installed.machine import torch_library


def libtorch_names() -> list[str]:
    table = SymbolIndex(ElfImage.open(torch_library("libtorch_cpu.so"))).tables[0]
    generator = random.Random(6)
    numbers = generator.sample(range(table.count), 12000)
    return [symbol.name for symbol in map(table.symbol, numbers) if symbol is not None and symbol.type == STT_FUNC]


@pytest.mark.torch
@pytest.mark.compiler
def test_equal_to_cxxfilt_on_libtorch() -> None:
    found = libtorch_names()
    assert len(found) > 4000
    assert sum(".cold" in name or ".isra" in name or ".constprop" in name for name in found) > 20
    done = subprocess.run(["c++filt", "-i"], input="\n".join(found), capture_output=True, text=True, check=True)
    different = [
        (name, wanted, demangle(name))
        for name, wanted in zip(found, done.stdout.split("\n"))
        if demangle(name) not in (wanted, name)  # an older libstdc++ leaves the newest constructs as they are
    ]
    assert different == []
    given_up = [name for name, wanted in zip(found, done.stdout.split("\n")) if demangle(name) == name != wanted]
    assert len(given_up) * 1000 < len(found)
