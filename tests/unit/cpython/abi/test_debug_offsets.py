"""What a CPython publishes about itself, damaged: what is read by it is what is read without the damage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.abi.python_structures import PyInterpreterFrame
from gdbext.cpython.threads.runtime import PythonRuntime
from support.recorded.recording_damage import patched

HEADER = 24


class Published:
    """The words that a recorded process publishes."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.start, self.layout = session.python.address + HEADER, layout_for(session.python.layout.abi)
        self.names = list(self.layout.abi.debug_offsets)

    def put(self, index: int, value: int) -> None:
        target = self.session.target
        target.recording = patched(target.recording, {self.start + 8 * index: value})

    def stacks(self) -> list[Any]:
        found = PythonRuntime.detect(self.session.memory, self.session.modules, self.session.symbolizer)
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


@pytest.mark.parametrize("which", ["code", "instruction"])
def test_a_field_beyond_the_frame(published: Published, which: str) -> None:
    expected = published.stacks()
    published.put(published.names.index(PyInterpreterFrame), 0x100)
    published.put(published.names.index(getattr(published.layout.abi.frames, which)), 0x10000)
    assert published.stacks() == expected
