"""Which native frame evaluates which Python frames, where a compiler has split the evaluation loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.cpython.threads.frame_reader import FrameGroup, place_groups
from gdbext.diagnosis.threads.thread_snapshots import python_frames

SPANS = [(0x1000, 0x1100), (0x1100, 0x1400), (0x1400, 0x1500), (0x1500, 0x1A00)]
"""(sp, cfa) of a call, a part of a loop without a symbol, another call, and a loop that has its name."""
NAMES = ["take_lock", "", "call", "_PyEval_EvalFrameDefault"]


def group(anchor: int | None, function: str) -> FrameGroup:
    frame: Any = SimpleNamespace(function=function, file=f"{function}.py", line=1)
    return FrameGroup([frame], anchor)


def test_an_anchor_places_frames_whatever_the_function_is_called() -> None:
    groups = [group(0x1208, "inner"), group(0x1900, "outer")]
    assert place_groups(groups, SPANS, lambda _: False) == [(1, groups[0]), (3, groups[1])]


@pytest.mark.parametrize(("anchors", "levels"), [((0x1208, 0x1900), [1, 3]), ((None, None), [3, 3])])
def test_frames_are_shown_unplaced_rather_than_not_at_all(anchors: tuple[int | None, ...], levels: list[int]) -> None:
    """Without anchors nothing but the names tells, and here none is that of an evaluation loop."""
    groups = [group(anchor, name) for anchor, name in zip(anchors, ("inner", "outer"))]
    runtime: Any = SimpleNamespace(
        frames=SimpleNamespace(stack=lambda _: SimpleNamespace(problem=""), groups=lambda _: groups),
        layout=SimpleNamespace(abi=SimpleNamespace(evaluates=lambda _: False)),
    )
    stack: Any = SimpleNamespace(
        frames=[SimpleNamespace(sp=sp, cfa=cfa) for sp, cfa in SPANS],
        function=lambda level: SimpleNamespace(names=(NAMES[level],)),
    )
    frames, problems = python_frames(runtime, [Any], stack)  # type: ignore[list-item]
    assert [(frame.level, frame.function) for frame in frames] == list(zip(levels, ("inner", "outer")))
    assert bool(problems) == (anchors[0] is None)
    assert not problems or "outermost" in problems[0]
