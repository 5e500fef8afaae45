"""The offsets that asyncio's C module publishes of its tasks: what fits is taken, anything else is refused."""

from __future__ import annotations

import struct

import pytest

from gdbext.cpython.abi.python_layout import TaskLayout
from gdbext.cpython.tasks.task_lists import parsed

PUBLISHED = (168, 136, 96, 108, 109, 128, 152, 225864, 10880, 936, 864, 872, 880)
"""Debian's CPython 3.14.10 (a section of its _asyncio module, as readelf shows it)."""


def offsets(**changes):
    return struct.pack("<13Q", *(changes.get(f"at{number}", word) for number, word in enumerate(PUBLISHED)))


def test_where_a_task_keeps_what_is_read_of_it():
    lists = parsed(offsets())
    assert lists is not None
    assert lists.task == TaskLayout(task_size=168, waiter=120, coroutine=128, name=136, state=104)
    assert (lists.node, lists.interpreter_head, lists.thread_head) == (152, 10880, 880)
    assert (lists.running_loop, lists.running_task) == (864, 872)


@pytest.mark.parametrize("changes", [{"at0": 8}, {"at6": 1 << 40}, {"at8": 1 << 60}, {"at12": 1 << 60}, {"at1": 4096}])
def test_nonsense_is_refused(changes):
    assert parsed(offsets(**changes)) is None
