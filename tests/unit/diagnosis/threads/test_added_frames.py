"""The frames that a debugger's own stack lacks, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.hosts.debugger import frame_source as source
from gdbext.hosts.debugger.frame_source import AddedFrame, Position, added_frames, frame_function, interleaved
from support.recorded.recordings import Replay


def added(name: str, pc: int, sp: int) -> AddedFrame:
    return AddedFrame((pc, sp), Frame(0, FrameKind.PYTHON, None, name))


def merged(natives: Sequence[Position | str], frames: Sequence[AddedFrame]) -> list[Position | str]:
    """A native frame that is a word is inlined."""
    found = interleaved(natives, lambda native: None if isinstance(native, str) else native, frames)
    return [frame_function(each.frame) if isinstance(each, AddedFrame) else each for each in found]


@pytest.mark.parametrize(
    ("natives", "frames", "expected"),
    [
        ([(1, 10), (2, 20)], [], [(1, 10), (2, 20)]),
        ([(1, 10), (2, 20), (3, 30)], [added("f", 3, 30)], [(1, 10), (2, 20), "f", (3, 30)]),
        ([(1, 10), (2, 20)], [added("f", 2, 20), added("g", 2, 20)], [(1, 10), "f", "g", (2, 20)]),
        # a recursion: the same code, other stacks
        ([(1, 10), (2, 20), (2, 30)], [added("f", 2, 20), added("g", 2, 30)], [(1, 10), "f", (2, 20), "g", (2, 30)]),
        # the innermost native frame stays the first
        ([(1, 10), (2, 20)], [added("f", 1, 10), added("g", 2, 20)], [(1, 10), "f", "g", (2, 20)]),
        # an inlined function is inside of the frame that it shares its stack with
        ([(1, 10), "inlined", (2, 20)], [added("f", 2, 20)], [(1, 10), "inlined", "f", (2, 20)]),
        # the debugger has lost a frame, or the rest of the stack
        ([(1, 10), (3, 30)], [added("f", 2, 20), added("g", 3, 30)], [(1, 10), "f", "g", (3, 30)]),
        ([(1, 10), (7, 0)], [added("f", 2, 20), added("g", 3, 30)], [(1, 10), (7, 0), "f", "g"]),
        # it shows a frame of before again: nothing is shown twice
        ([(1, 10), (2, 20), (2, 20)], [added("f", 2, 20)], [(1, 10), "f", (2, 20), (2, 20)]),
        ([], [added("f", 2, 20)], ["f"]),
    ],
)
def test_places(natives: list[Position | str], frames: list[AddedFrame], expected: list[Position | str]) -> None:
    assert merged(natives, frames) == expected


def test_a_long_stack_is_read_only_as_far_as_it_is_shown() -> None:
    seen = []

    def position(native: int) -> Position:
        seen.append(native)
        return native, native

    frames = interleaved(iter(range(1_000_000)), position, [added("f", 2, 2)])
    assert [next(frames) for _ in range(3)][:2] == [0, 1]
    assert seen == [0, 1, 2]


def test_a_recorded_thread(replay: Callable[[str], Replay]) -> None:
    """All Python functions and passes of dispatch-bt, in its order, each at the frame that it names."""
    hung = replay("meta-mm")
    (thread,) = hung.document("dispatch-bt", "--native")["threads"]
    natives = [frame for frame in thread["frames"] if frame["kind"] == "native"]
    expected = [
        (frame["level"], 1, frame["function"], frame["file"], frame["line"])
        for frame in thread["frames"]
        if frame["kind"] == "python"
    ] + [
        (step["level"], 0, f"[{step['event']}] op=[{step['op']}], key=[{step['key']}]", "", 0)
        for step in thread["dispatch"]
    ]
    expected.sort(key=lambda item: item[:2])
    selected = hung.session.target.memory.selected_thread()
    assert selected is not None
    found = added_frames(hung.session.threads.snapshot(selected))
    shown = [(frame_function(each.frame), *source.frame_location(each.frame)) for each in found]
    assert shown == [each[2:] for each in expected]
    assert [hex(each.position[0]) for each in found] == [hex(int(natives[each[0]]["pc"], 16)) for each in expected]
    assert any("op=[aten::mm], key=[Meta]" in frame_function(each.frame) for each in found)
