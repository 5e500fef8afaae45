"""What a CPython publishes about itself, damaged: what is read by it is what is read without the damage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdbext.cpython.abi import python_layout
from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.abi.python_structures import PyInterpreterFrame, PyThreadState
from gdbext.cpython.threads.runtime import PythonRuntime
from support.recorded.recording_damage import patched

HEADER = 24
NEXT = PyThreadState.next


class Published:
    """The words that a recorded process publishes."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.memory, runtime = session.memory, session.python
        self.start, self.layout = runtime.address + HEADER, layout_for(runtime.layout.abi)
        self.names = list(self.layout.abi.debug_offsets)
        self.runtime = runtime

    def put(self, index: int, value: int) -> int:
        """Replace a word; what it was."""
        address, target = self.start + 8 * index, self.session.target
        before = self.memory.u64(address)
        target.recording = patched(target.recording, {address: value})
        return int(before)

    def layouts(self) -> list[Any]:
        return python_layout.layouts(self.memory, self.start - HEADER, self.layout)

    def stacks(self) -> list[Any]:
        found = PythonRuntime.detect(self.memory, self.session.modules, self.session.symbolizer)
        assert found is not None
        return [(state, found.frames.stack(state).frames) for state in found.thread_states()]


@pytest.fixture
def published(replay: Callable[[str], Any]) -> Published:
    return Published(replay("task-cycle-3.15").session)


def test_all_of_them_damaged(published: Published) -> None:
    expected = published.stacks()
    assert sum(len(frames) for _, frames in expected) > 5
    for index in range(len(published.names)):
        published.put(index, 0xABCD * index & 0xFFFF8)
    assert published.stacks() == expected


def test_another_build_has_other_sizes(published: Published) -> None:
    at, size = published.names.index(NEXT), published.names.index(PyThreadState)
    (usual,) = published.layouts()
    offset = NEXT.find(usual)
    published.put(at, offset + 8)
    assert [NEXT.find(layout) for layout in published.layouts()] == [offset, offset + 8], "damage: of equal size"
    published.put(size, 8 + published.put(size, 0))
    assert [NEXT.find(layout) for layout in published.layouts()] == [offset + 8, offset]
    published.put(at, 1 << 40)
    assert [NEXT.find(layout) for layout in published.layouts()] == [offset], "absurd"


@pytest.mark.parametrize("which", ["code", "instruction"])
def test_a_field_beyond_the_frame(published: Published, which: str) -> None:
    expected = published.stacks()
    published.put(published.names.index(PyInterpreterFrame), 0x100)
    published.put(published.names.index(getattr(published.layout.abi.frames, which)), 0x10000)
    assert published.stacks() == expected
