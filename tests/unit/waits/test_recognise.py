"""The registry: every recogniser is in it, and the order is the one that its reasons ask for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from gdbext.waits import recognise, syscall_waits
from gdbext.waits.native import condvar_waits, mutex_waits
from gdbext.waits.python import gil_waits, python_waits
from gdbext.waits.torch import torch_waits

WAITS = Path(recognise.__file__).parent


def modules():
    for file in sorted(WAITS.rglob("*.py")):
        name = ".".join(file.relative_to(WAITS).with_suffix("").parts)
        if not name.endswith("__init__"):
            yield import_module(f"gdbext.waits.{name}")


def test_every_recogniser_is_registered():
    found = [module.classify for module in modules() if hasattr(module, "classify")]
    assert len(found) > 10
    assert set(found) <= set(recognise.RECOGNISERS)


def test_every_pool_recogniser_is_registered():
    own = {module.pool_of for module in modules() if hasattr(module, "pool_of")}
    assert own == set(recognise.POOLS)


def test_no_recogniser_is_asked_twice():
    assert len(set(recognise.RECOGNISERS)) == len(recognise.RECOGNISERS)


def test_what_proves_more_comes_first():
    order = {recogniser: rank for rank, recogniser in enumerate(recognise.RECOGNISERS)}
    assert order[gil_waits.classify] < order[condvar_waits.classify]
    assert order[mutex_waits.classify] < order[torch_waits.classify] < order[condvar_waits.classify]
    assert order[python_waits.classify] < order[condvar_waits.classify]
    assert recognise.RECOGNISERS[-1] is syscall_waits.unknown_futex
