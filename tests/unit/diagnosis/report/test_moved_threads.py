"""Threads that ran on while they were looked at are named, in text and in JSON."""

from __future__ import annotations

import json

import pytest

from gdbext.diagnosis import all_threads
from gdbext.diagnosis.report import Report, TargetReport, json_report, render_text


def report(moved: tuple[int, ...]) -> Report:
    target = TargetReport("live", 100, "none", paused_ms=2.5, moved=moved)
    return Report("all-threads", target, view=all_threads.render)


@pytest.mark.parametrize(
    ("moved", "named"), [((101, 102), "101, 102"), (tuple(range(1, 12)), "1, 2, 3, 4, 5, 6, 7, 8, …")]
)
def test_they_are_named(moved: tuple[int, ...], named: str) -> None:
    assert f"may mix two moments: {named}\n" in render_text(report(moved))
    assert json.loads(json_report.render(report(moved)))["target"]["moved"] == list(moved)


def test_nothing_moved() -> None:
    assert "moments" not in render_text(report(()))
    target = json.loads(json_report.render(report(())))["target"]
    assert target["paused_ms"] == 2.5
    assert "moved" not in target
