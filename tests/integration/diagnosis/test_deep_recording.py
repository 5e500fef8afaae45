"""The recording of a stack overflow of 25,000 frames: replayed in bounded memory, and little is printed."""

from __future__ import annotations

import json
import re
import resource

import pytest

from gdbext.diagnosis.threads import thread_reporting
from gdbext.torch.stack.argument_recovery import ArgumentRecovery
from support.recorded import recordings
from support.recorded.recordings import Replay
from support.recorded.scenario_checks import check_verdict
from support.source import contract_schema


def _count(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[None]:
    calls: list[None] = []
    method = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments: [calls.append(None), method(*arguments)][1])
    return calls


NAME = "boxed-recursion-fallback-0"


@pytest.mark.slow
def test_a_stack_of_25000_frames_is_replayed() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    replay = Replay(NAME)
    report = replay.document(*recordings.COMMAND)
    check_verdict("", report, replay.truth)
    assert "known" not in report
    # It was recorded before the name of a renamed backend, what other threads are in, and who traces them were read.
    missing = replay.target.origin.missing_from_recording()
    pattern = r"((facts of the system|pages of memory|symbols of [\w.+]+) \(\d\)(, )?){0,6}"
    assert re.fullmatch(pattern, missing), missing
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "kilobytes"


def test_a_recording_of_a_recursion_prints_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what costs time is read of the frames that are shown, not of those that are folded."""
    explained = _count(monkeypatch, thread_reporting, "with_key_choice")
    arguments = _count(monkeypatch, ArgumentRecovery, "find")
    document = Replay(NAME).document("dispatch-bt", "--all", "--native", "--args", "--why")
    contract_schema.check(document)
    assert len(json.dumps(document)) < 100_000
    deep = max(document["threads"], key=lambda thread: thread["frame_count"])
    (step,) = [each for each in deep["dispatch"] if "repeats" in each]
    assert step["repeats"]["times"] > 50_000
    assert step["arguments"]
    assert any("has the highest priority" in line for line in step["evidence"])
    assert 0 < len(explained) < 200
    assert 0 < len(arguments) < 200
