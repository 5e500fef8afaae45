"""What is said of a thread that ran on: nothing that was read after its stack may be shown as if it belonged to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gdbext.diagnosis.report.thread_report import Frame, FrameKind, LocalVariable, ThreadReport
from gdbext.diagnosis.session import Session
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.engine.vocabulary import Certainty
from gdbext.tools import table
from gdbext.torch.stack import Argument, ArgumentTensor, DispatchFrame, DispatchStage
from support.recorded import recordings


class RunningTarget(ReplayTarget):
    """All threads of the recording ran on."""

    def threads_that_ran(self) -> Sequence[int]:
        return tuple(thread.tid for thread in self.threads())

    def has_moved_on(self, tid: int) -> bool:  # noqa: ARG002
        return True


def document(name: str, command: str, *words: str, kind: type[ReplayTarget] = RunningTarget) -> dict[str, Any]:
    target = kind(recordings.recording(name))
    outcome = table.execute(command, ["--json", *words], lambda: Session(target))
    found: dict[str, Any] = json.loads(outcome.output)
    return found


def test_late_facts_of_a_thread_that_moved_are_unknown() -> None:
    tensor = ArgumentTensor(1, "f32[1, 9322]")
    argument = Argument("query", "Tensor", "f32[1, 9322]", Certainty.EXACT, (tensor,), "query")
    step = DispatchFrame(1, None, "aten::mm", "", None, None, None, None, DispatchStage.IN_KERNEL, Certainty.EXACT)
    frame = Frame(1, FrameKind.PYTHON, "step", variables=(LocalVariable("size", "int", "9322"),))
    thread = ThreadReport(7, dispatch=(step._replace(arguments=(argument,)),), frames=(frame,), python=(frame,))
    found = thread.of_two_moments()
    assert found.dispatch[0].arguments == (Argument("query", "Tensor", "", Certainty.UNKNOWN),)
    for each in (*found.frames, *found.python):
        assert each.variables == (LocalVariable("size", "int", "?"),)


@pytest.mark.parametrize("kind", [ReplayTarget, RunningTarget])
def test_descriptors_that_were_read_later_are_not_those_of_the_call(kind: type[ReplayTarget]) -> None:
    """What has the number by now may be anything: a poll on a regular file, for example."""
    found = document("others-end-sockets-3.11", "all-threads", kind=kind)
    waits = [each["wait"] for each in found["threads"] if (each["wait"] or {}).get("kind") == "io"]
    assert waits
    for wait in waits:
        assert ("socket:" in wait["name"]) == (kind is ReplayTarget), wait["name"]
        assert "fd " in wait["name"]


@pytest.mark.parametrize("kind", [ReplayTarget, RunningTarget])
def test_arguments_of_operators(kind: type[ReplayTarget]) -> None:
    found = document("meta-mm", "dispatch-bt", "--args", kind=kind)
    values = [each["value"] for thread in found["threads"] for step in thread["dispatch"] for each in step["arguments"]]
    assert values
    assert all((value is None) == (kind is RunningTarget) for value in values), values
