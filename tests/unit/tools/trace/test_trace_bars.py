"""Bars of a trace: no viewer drops one, and each has the time that is known to be its own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gdbext.live.dispatch_description import TracedDispatch
from gdbext.tools.probes.flame_files import FlameStacks, is_flame_file
from gdbext.tools.trace.chrome_trace import ChromeTrace, exact_microseconds
from gdbext.tools.trace.trace_bars import FlameTrace, bars
from support.fakes.made_pages import MM, MM_CPU, dispatch

NOW = 9e6


def random_trace(count: int) -> Iterator[tuple[TracedDispatch, list[TracedDispatch]]]:
    """Dispatches of three threads with those that end before each, by clocks that are read twice: what is inside ends a
    little after what is around it, or at once, and much begins in the same nanosecond."""
    numbers = random.Random(1)
    clocks, open_now = dict.fromkeys((7, 8, 9), 0.0), {tid: [] for tid in (7, 8, 9)}  # type: ignore[var-annotated]
    for _ in range(count):
        tid = numbers.choice((7, 8, 9))
        clocks[tid] += numbers.choice((0.0, 0.0004, 0.001, 0.0496, 0.3, 20.0)) + numbers.random() / 7
        level = numbers.randint(1, len(open_now[tid]) + 1)
        ended = [open_now[tid].pop() for _ in range(len(open_now[tid]) - level + 1)]
        for each in ended:
            each.ended = clocks[tid] + numbers.choice((-0.05, -0.001, 0.0, 0.0006, 0.05))
            each.returned = numbers.random() < 0.5
        new = dispatch(MM if level % 2 else MM_CPU, clocks[tid], None, level, tid)
        if numbers.random() < 0.5:
            new.kernel_started = clocks[tid] + numbers.choice((0.0, 0.05))
            new.kernel_ended = numbers.choice((None, clocks[tid] + 30.0))
        open_now[tid].append(new)
        yield new, ended


def dropped(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The complete events that Perfetto drops: those that begin inside of one of their track and end after it
    (SliceTracker::Scoped and StartSlice, slice_drop_overlapping_complete_event), its times cut to nanoseconds."""
    found = []
    tracks: dict[tuple[int, int], list[int]] = {}
    for event in sorted(events, key=lambda each: int(each["ts"] * 1000)):
        start = int(event["ts"] * 1000)
        end = start + int(event["dur"] * 1000)
        open_now = tracks.setdefault((event["pid"], event["tid"]), [])
        while open_now and open_now[-1] <= start and not (open_now[-1] == start == end):
            open_now.pop()
        if open_now and end > open_now[-1]:
            found.append(event)
        else:
            open_now.append(end)
    return found


def test_perfetto_drops_none_of_three_thousand() -> None:
    written: list[bytes] = []
    trace = ChromeTrace(written.append, 4, lambda: NOW, lambda tid: f"worker {tid}")
    for new, ended in random_trace(3_000):
        for each in ended:
            trace.ended(each)
        trace.dispatch(new)
    trace.close()
    events = json.loads(b"".join(written))["traceEvents"]
    complete = [each for each in events if each["ph"] == "X"]
    assert sum(each["cat"] != "kernel" for each in complete) == 3_000
    assert len(complete) > 4_000
    assert dropped(complete) == []
    names = {each["args"]["name"] for each in events if each["ph"] == "M"}
    assert names == {"process 4", "worker 7", "worker 8", "worker 9"}


@pytest.mark.parametrize("scale", [1, 1_000, 10_000_000_000])
def test_every_nanosecond_can_be_written(scale: int) -> None:
    for nanoseconds in range(scale, scale + 3_000):
        assert int(exact_microseconds(nanoseconds) * 1000) == nanoseconds


def test_time_after_the_last_inner_dispatch_is_that_of_the_one_around_it() -> None:
    """By probes: mm is followed by a second of sleep in the operator that has called it, which nobody saw return."""
    outer, first, last = dispatch(MM, 0.0, 1e6, 1), dispatch(MM_CPU, 10.0, 40.0, 2), dispatch(MM_CPU, 40.0, 1e6, 2)
    found = bars([outer, first, last], NOW)
    assert [(bar.end / 1e3, bar.is_end_seen, bar.own / 1e3) for bar in found] == [
        (1e6, True, 999_970.0),
        (40.0, True, 30.0),
        (40.0, False, 0.0),
    ]
    assert found[2].until == found[0].end
    last.returned, last.ended = True, 70.0
    assert [(bar.is_end_seen, bar.own / 1e3) for bar in bars([outer, first, last], NOW)][2] == (True, 30.0)


def test_what_is_open_at_the_end_lasts_until_then_and_counts_nowhere() -> None:
    outer, inner = dispatch(MM, 5.0, None, 1), dispatch(MM_CPU, 6.0, None, 2)
    found = [(bar.start, bar.end, bar.is_end_seen) for bar in bars([outer, inner], 20.0)]
    assert found == [(5_000, 20_000, False), (6_000, 20_000, False)]
    assert flame("x.collapsed", [outer, inner]) == ""


def flame(path: str, dispatches: Sequence[TracedDispatch]) -> str:
    written: list[bytes] = []
    trace = FlameTrace(written.append, 4, lambda: NOW, lambda tid: f"worker {tid}", path.endswith(".speedscope.json"))
    for each in dispatches:
        trace.dispatch(each)
    trace.close()
    return b"".join(written).decode()


def test_stacks_for_flame_graphs() -> None:
    dispatches = [dispatch(MM, 0.0, 10.0, 1), dispatch(MM_CPU, 2.0, 9.0, 2), dispatch(MM, 10.0, 12.0, 1)]
    dispatches[1].returned = True
    assert flame("x.collapsed", dispatches) == (
        "worker 7;aten::mm [call AutogradCPU] 5000\n"
        "worker 7;aten::mm [call AutogradCPU];aten::mm [redispatch CPU] 7000\n"
    )
    document = json.loads(flame("x.speedscope.json", dispatches))
    frames = [each["name"] for each in document["shared"]["frames"]]
    assert frames == ["aten::mm [call AutogradCPU]", "aten::mm [redispatch CPU]"]
    profile = document["profiles"][0]
    assert (profile["type"], profile["unit"], profile["name"]) == ("evented", "nanoseconds", "worker 7")
    events = [f"{each['type']}{each['frame']} {each['at']}" for each in profile["events"]]
    assert events == ["O0 0", "O1 2000", "C1 9000", "C0 10000", "O0 10000", "C0 12000"]


def test_stacks_of_counts() -> None:
    stacks = FlameStacks()
    stacks.add(("train.py:8 (step)", "aten::mm;\n"), 3)
    stacks.add(("train.py:8 (step)", "aten::mm;\n"), 4)
    stacks.add(("idle",), 0)
    assert stacks.text() == "train.py:8 (step);aten::mm:\\x0a 7\n"
    profile = json.loads(stacks.speedscope("dispatches"))["profiles"][0]
    assert (profile["type"], profile["samples"], profile["weights"]) == ("sampled", [[0, 1], [2]], [7, 0])
    names = (None, "a.json", "a.speedscope.json", "a.folded")
    assert [is_flame_file(name) for name in names] == [False, False, True, True]
