"""What the report says of its process: whether it was stopped, which calls that ended, which threads ran on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gdbext.diagnosis import all_threads
from gdbext.diagnosis.report import Report, TargetReport, json_report, render_text
from gdbext.diagnosis.report.thread_report import ThreadReport


def told(**more: Any) -> tuple[str, dict[str, Any]]:
    """The text, and the target of the document."""
    target = TargetReport("live", 100, "none", **more)
    report = Report("all-threads", target, view=all_threads.render, threads=(ThreadReport(100),))
    return render_text(report), json.loads(json_report.render(report))["target"]


@pytest.mark.parametrize(
    ("moved", "named"), [((101, 102), "101, 102"), (tuple(range(1, 12)), "1, 2, 3, 4, 5, 6, 7, 8, …")]
)
def test_threads_that_ran_on_are_named(moved: tuple[int, ...], named: str) -> None:
    text, target = told(moved=moved)
    assert f"may mix two moments: {named}\n" in text
    assert target["moved"] == list(moved)


def test_nothing_moved_and_nobody_was_stopped() -> None:
    text, target = told(stops=0)
    assert "Nothing was stopped: every thread slept" in text
    assert "moments" not in text
    assert target["stops"] == 0
    assert not {"moved", "cut_short"} & {*target}


def test_calls_that_a_stop_may_have_ended_are_named() -> None:
    text, target = told(stops=2, cut_short=((101, "epoll_wait"), (102, "write")), paused_ms=3.25)
    assert "stood still for 3.2 ms, 2 stops together" in text
    assert "epoll_wait of 101, write of 102" in text
    assert target["cut_short"] == [{"tid": 101, "call": "epoll_wait"}, {"tid": 102, "call": "write"}]
    assert target["paused_ms"] == 3.25


@pytest.mark.parametrize("stops", [1, None])
def test_no_calls_are_named_where_none_was_cut_short(stops: int | None) -> None:
    text, _ = told(stops=stops)
    assert "ended system calls" not in text
    assert ("stood still" in text) is (stops == 1)
