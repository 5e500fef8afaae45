"""The registry: every recogniser is in it, and the order is the one that its reasons ask for."""

from __future__ import annotations

from importlib import import_module
from inspect import isfunction
from pathlib import Path

from gdbext.diagnosis.waits import (
    gil_waits,
    mutex_waits,
    pthread_waits,
    python_waits,
    recognise,
    syscall_waits,
    torch_waits,
)

WAITS = Path(recognise.__file__).parent


def modules():
    for file in sorted(WAITS.rglob("*.py")):
        name = ".".join(file.relative_to(WAITS).with_suffix("").parts)
        if not name.endswith("__init__"):
            yield import_module(f"gdbext.diagnosis.waits.{name}")


def test_every_recogniser_is_registered():
    found = {each for module in modules() for each in _public(module) if _answers(each, "Wait | None")}
    assert len(found) > 10
    assert found - {recognise.wait_of} <= {*recognise.RECOGNISERS, *recognise.SPINNING}


def test_every_pool_recogniser_is_registered():
    own = {each for module in modules() for each in _public(module) if _answers(each, "Pool | None")}
    assert own == set(recognise.POOLS)


def _public(module):
    named = vars(module).items()
    return [
        each
        for name, each in named
        if isfunction(each) and not name.startswith("_") and each.__module__ == module.__name__
    ]


def _answers(function, kind):
    """It is ``ThreadSnapshot → kind``, as recognisers are."""
    annotations = dict(function.__annotations__)
    return annotations.pop("return", "") == kind and list(annotations.values()) == ["ThreadSnapshot"]


def test_no_recogniser_is_asked_twice():
    assert len(set(recognise.RECOGNISERS)) == len(recognise.RECOGNISERS)


def test_what_proves_more_comes_first():
    order = {recogniser: rank for rank, recogniser in enumerate(recognise.RECOGNISERS)}
    assert order[gil_waits.gil_wait] < order[pthread_waits.condvar_wait]
    assert order[mutex_waits.mutex_wait] < order[torch_waits.classify] < order[pthread_waits.condvar_wait]
    assert order[python_waits.classify] < order[pthread_waits.condvar_wait]
    assert recognise.RECOGNISERS[-1] is syscall_waits.unknown_futex
