"""What a CPython publishes about itself, damaged: what is read by it is what is read without the damage."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from gdbext.cpython.abi import debug_offsets
from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.process.memory import PAGE_BITS, PAGE_SIZE

HEADER = 24
NEXT = ("PyThreadState", "next")


class Published:
    """The words that a recorded process publishes."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.memory, runtime = session.memory, session.python
        self.start, self.layout = runtime.address + HEADER, layout_for(runtime.layout.abi)
        groups = self.layout.abi.debug_offsets
        self.names = [(struct_name, field) for struct_name, fields in groups for field in fields]
        self.runtime = runtime

    def put(self, index: int, value: int) -> int:
        """Replace a word; what it was."""
        number, at = divmod(self.start + 8 * index, PAGE_SIZE)
        assert number == (self.start + 8 * index) >> PAGE_BITS
        page = bytearray(self.memory.read(number << PAGE_BITS, PAGE_SIZE))
        (before,) = struct.unpack_from("<Q", page, at)
        struct.pack_into("<Q", page, at, value)
        self.memory._pages[number] = bytes(page)
        return int(before)

    def layouts(self) -> list[Any]:
        return debug_offsets.layouts(self.memory, self.start - HEADER, self.layout)

    def stacks(self) -> list[Any]:
        found = PythonRuntime.detect(self.memory, self.session.modules, self.session.symbolizer)
        assert found is not None
        return [(state, found.frames.stack(state).frames) for state in found.thread_states()]


@pytest.fixture
def published(replay: Callable[[str], Any]) -> Published:
    return Published(replay("task-cycle-3.15").session)


def test_each_of_them_damaged(published: Published) -> None:
    expected = published.stacks()
    assert sum(len(frames) for _, frames in expected) > 5
    for index in range(0, len(published.names), 4):
        damage = (8, 0, 1 << 40, 0x1234)[index // 4 % 4]
        before = published.put(index, damage)
        assert published.stacks() == expected, (published.names[index], before, damage)
        published.put(index, before)


def test_all_of_them_damaged(published: Published) -> None:
    expected = published.stacks()
    for index in range(len(published.names)):
        published.put(index, 0xABCD * index & 0xFFFF8)
    assert published.stacks() == expected


def test_another_build_has_other_sizes(published: Published) -> None:
    at, size = published.names.index(NEXT), published.names.index((NEXT[0], "size"))
    (usual,) = published.layouts()
    offset = usual.offset(*NEXT)
    published.put(at, offset + 8)
    assert [layout.offset(*NEXT) for layout in published.layouts()] == [offset, offset + 8], "damage: of equal size"
    published.put(size, 8 + published.put(size, 0))
    assert [layout.offset(*NEXT) for layout in published.layouts()] == [offset + 8, offset]
    published.put(at, 1 << 40)
    assert [layout.offset(*NEXT) for layout in published.layouts()] == [offset], "absurd"
