"""A report says whether its process was stopped, and which calls that may have ended."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gdbext.diagnosis.report import Report, TargetReport, json_report, render_text
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.render import Style


def _nothing(_report: Report, _style: Style) -> Iterator[str]:
    yield from ()


def report(stops: int | None, cut_short: tuple[tuple[int, str], ...] = (), paused: float = 0.0) -> Report:
    target = TargetReport("live", 100, "none", paused_ms=paused, stops=stops, cut_short=cut_short)
    return Report("all-threads", target, view=_nothing, threads=(ThreadReport(100),))


def test_nobody_was_stopped() -> None:
    assert "Nothing was stopped: every thread slept" in render_text(report(0))
    target = json.loads(json_report.render(report(0)))["target"]
    assert target["stops"] == 0
    assert "cut_short" not in target


def test_calls_that_a_stop_may_have_ended_are_named() -> None:
    stopped = report(2, ((101, "epoll_wait"), (102, "write")), paused=3.25)
    text = render_text(stopped)
    assert "stood still for 3.2 ms, 2 stops together" in text
    assert "epoll_wait of 101, write of 102" in text
    cut = json.loads(json_report.render(stopped))["target"]["cut_short"]
    assert cut == [{"tid": 101, "call": "epoll_wait"}, {"tid": 102, "call": "write"}]


@pytest.mark.parametrize("stops", [1, None])
def test_no_calls_are_named_where_none_was_cut_short(stops: int | None) -> None:
    assert "ended system calls" not in render_text(report(stops))
    assert ("stood still" in render_text(report(stops))) is (stops == 1)
