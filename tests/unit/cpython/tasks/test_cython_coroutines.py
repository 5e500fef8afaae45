"""What a coroutine of Cython awaits, in made-up objects: it has no frame, and is followed to its only awaitable."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.cpython.tasks.loops import _awaited_by_cython
from gdbext.errors import BadData

CYTHON, FUTURE, OTHER, TUPLE = 0x10000, 0x20000, 0x30000, 0x40000
KINDS = {CYTHON: "_cython_3_2_4.coroutine", FUTURE: "_asyncio.FutureIter", OTHER: "coroutine", TUPLE: "tuple"}


def awaited(*kept: int) -> int:
    def type_of(address: int) -> SimpleNamespace:
        return SimpleNamespace(name=KINDS[address], size=16 + 8 * len(kept))

    memory = SimpleNamespace(words=lambda _address, count: kept[:count])
    runtime: Any = SimpleNamespace(objects=SimpleNamespace(type_of=type_of), memory=memory)
    return _awaited_by_cython(runtime, CYTHON)


def test_it_awaits_the_only_object_that_can_be_awaited() -> None:
    assert awaited(TUPLE, 7, 0, FUTURE, FUTURE + 1, TUPLE) == FUTURE
    assert awaited(TUPLE, FUTURE, FUTURE) == FUTURE


@pytest.mark.parametrize("kept", [(TUPLE, 0), (FUTURE, OTHER)])
def test_none_or_two_of_them_are_no_answer(kept: tuple[int, ...]) -> None:
    with pytest.raises(BadData):
        awaited(*kept)
