"""Offsets that asyncio's C module publishes of its tasks, and what a coroutine of Cython, without a frame, awaits."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.cpython.abi.python_layout import TaskLayout
from gdbext.cpython.tasks.loops import _awaited_by_cython, parsed
from gdbext.errors import BadData

PUBLISHED = (168, 136, 96, 108, 109, 128, 152, 225864, 10880, 936, 864, 872, 880)
"""Debian's CPython 3.14.10 (a section of its _asyncio module, as readelf shows it)."""


def test_where_a_task_keeps_what_is_read_of_it() -> None:
    lists = parsed(struct.pack("<13Q", *PUBLISHED))
    assert lists.task == TaskLayout(task_size=168, waiter=120, coroutine=128, name=136, state=104)
    assert (lists.node, lists.interpreter_head, lists.thread_head) == (152, 10880, 880)
    assert (lists.running_loop, lists.running_task) == (864, 872)
    for index, nonsense in ((0, 8), (6, 1 << 40), (8, 1 << 60), (12, 1 << 60), (1, 4096)):
        words = [nonsense if number == index else word for number, word in enumerate(PUBLISHED)]
        assert parsed(struct.pack("<13Q", *words)) is None, index


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
    for kept in ((TUPLE, 0), (FUTURE, OTHER)):  # none, or two of them
        with pytest.raises(BadData):
            awaited(*kept)
