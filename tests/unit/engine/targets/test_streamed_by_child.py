"""What a child of ours does on another processor: all of it comes, in whole records, whatever becomes of the child."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gdbext.engine.targets.live import supervision
from gdbext.engine.targets.live.supervision import begun_by_child

RECORD = struct.Struct("<QI")


def numbers(count: int, ends: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    for number in range(0, count, 100):
        yield b"".join(RECORD.pack(each, each % 7) for each in range(number, number + 100))
    ends()


@pytest.mark.parametrize("signal", [9, 0])
def test_where_the_child_ends_early_the_work_is_done_here(signal: int) -> None:
    ours = os.getpid()

    def fail() -> None:
        if os.getpid() != ours:
            os.kill(os.getpid(), signal)
            raise ValueError("of the child")

    found = {each for piece in begun_by_child(lambda: numbers(300, fail), 12) for each in RECORD.iter_unpack(piece)}
    assert found == {(each, each % 7) for each in range(300)}


def test_who_stops_listening_leaves_no_child() -> None:
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    stream = begun_by_child(lambda: numbers(10_000_000), RECORD.size)
    next(stream)
    assert children.read_text() != before
    stream.close()
    assert children.read_text() == before


def test_what_a_child_writes_before_it_ends_comes_though_its_parent_looks_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent finds nothing to read, and when it looks again the child has written and ended; its end of the pipe
    lives on in a child of its own."""
    ours, theirs = os.pipe()
    text = bytes(20_000)

    def has_ended(_child: int) -> bool:
        os.write(theirs, text)
        return True

    monkeypatch.setattr(supervision, "_has_ended", has_ended)
    try:
        assert supervision._received(os.getpid(), ours, 1.0) == text
    finally:
        os.close(ours)
        os.close(theirs)
