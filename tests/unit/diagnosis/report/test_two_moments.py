"""Threads that ran on, and stops: nothing that was read after a thread's stack is shown as if it belonged to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gdbext.diagnosis.commands import all_threads
from gdbext.diagnosis.report import CutCall, Report, TargetReport, json_report, render_text
from gdbext.diagnosis.report.thread_report import Frame, FrameKind, LocalVariable, ThreadReport
from gdbext.diagnosis.session import Session
from gdbext.engine.targets.base_target import TargetMoment
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.engine.vocabulary import Certainty
from gdbext.tools import running
from gdbext.torch.stack import Argument, ArgumentTensor, DispatchFrame, DispatchStage
from support.recorded import recordings


class RunningTarget(ReplayTarget, TargetMoment):
    @property
    def moment(self) -> TargetMoment:  # type: ignore[override]
        return self

    def threads_that_ran(self) -> Sequence[int]:
        return tuple(thread.tid for thread in self.threads())

    def may_have_left(self, tid: int) -> bool:  # noqa: ARG002
        return True


def document(name: str, command: str, *words: str, kind: type[ReplayTarget] = RunningTarget) -> dict[str, Any]:
    target = kind(recordings.recording(name))
    outcome = running.execute(command, ["--json", *words], lambda: Session(target))
    found: dict[str, Any] = json.loads(outcome.output)
    return found


def test_late_facts_of_a_thread_that_moved_are_unknown() -> None:
    tensor = ArgumentTensor(1, "f32[1, 9322]")
    argument = Argument("query", "Tensor", "f32[1, 9322]", Certainty.EXACT, (tensor,), "query")
    step = DispatchFrame(1, None, "aten::mm", "", None, None, None, None, DispatchStage.IN_KERNEL, Certainty.EXACT)
    frame = Frame(1, FrameKind.PYTHON, None, "step", variables=(LocalVariable("size", "int", "9322"),))
    thread = ThreadReport(7, dispatch=(step._replace(arguments=(argument,)),), frames=(frame,), python_frames=(frame,))
    found = thread.without_values()
    assert found.dispatch[0].arguments == (Argument("query", "Tensor", "", Certainty.UNKNOWN),)
    for each in (*found.frames, *found.python_frames):
        assert each.variables == (LocalVariable("size", "int", "?"),)


@pytest.mark.parametrize("kind", [ReplayTarget, RunningTarget])
def test_descriptors_that_were_read_later_are_not_those_of_the_call(kind: type[ReplayTarget]) -> None:
    """What has the number by now may be anything: a poll on a regular file, for example."""
    found = document("others-end-sockets-3.11", "all-threads", kind=kind)
    names = [each["wait"]["name"] for each in found["threads"] if (each["wait"] or {}).get("kind") == "io"]
    assert names
    assert all("fd " in name and ("socket:" in name) is (kind is ReplayTarget) for name in names), names


@pytest.mark.parametrize("kind", [ReplayTarget, RunningTarget])
def test_arguments_of_operators(kind: type[ReplayTarget]) -> None:
    found = document("meta-mm", "dispatch-bt", "--args", kind=kind)
    values = [each["value"] for thread in found["threads"] for step in thread["dispatch"] for each in step["arguments"]]
    assert values
    assert all((value is None) == (kind is RunningTarget) for value in values), values


def told(**more: Any) -> tuple[str, dict[str, Any]]:
    """The text, and the target of the document."""
    target = TargetReport("live", 100, "none", **more)
    report = Report("all-threads", target, view=all_threads.render, threads=(ThreadReport(100),))
    return render_text(report), json.loads(json_report.render(report))["target"]


def test_threads_that_ran_on_and_calls_that_a_stop_may_have_ended_are_named() -> None:
    for moved, named in {(101, 102): "101, 102", tuple(range(1, 12)): "1, 2, 3, 4, 5, 6, 7, 8, …"}.items():
        text, target = told(moved=moved)
        assert f"may mix two moments: {named}\n" in text
        assert target["moved"] == list(moved)
    text, target = told(stops=2, cut_short=(CutCall(101, "epoll_wait"), CutCall(102, "write")), paused_ms=3.25)
    assert "was stopped for 3.2 ms (2 stops)" in text
    assert "epoll_wait of 101, write of 102" in text
    assert target["cut_short"] == [{"tid": 101, "call": "epoll_wait"}, {"tid": 102, "call": "write"}]
    assert target["paused_ms"] == 3.25


@pytest.mark.parametrize("stops", [0, 1, None])
def test_nothing_moved_and_no_call_was_cut_short(stops: int | None) -> None:
    text, target = told(stops=stops)
    assert ("The process was not stopped: all threads were asleep" in text) is (stops == 0)
    assert ("was stopped for" in text) is (stops == 1)
    assert not [words for words in ("moments", "ended system calls") if words in text]
    assert target.get("stops") == stops
    assert not {"moved", "cut_short"} & {*target}
