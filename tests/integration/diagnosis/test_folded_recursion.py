"""An overflown stack as JSON: 383 kB on disk and 58,000 frames."""

from __future__ import annotations

import json

import pytest

from gdbext.torch.stack.argument_recovery import ArgumentRecovery
from gdbext.torch.stack.key_choice import KeySetExplanation
from support.recorded.recordings import Replay
from support.source import contract_schema


class Counted:
    """Counts the calls of a method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls = 0
        method = getattr(owner, name)

        def count(*arguments: object) -> object:
            self.calls += 1
            return method(*arguments)

        monkeypatch.setattr(owner, name, count)


def test_a_recording_of_a_recursion_prints_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what costs time is read of the frames that are shown, not of those that are folded."""
    explained = Counted(monkeypatch, KeySetExplanation, "_lines")
    arguments = Counted(monkeypatch, ArgumentRecovery, "find")
    document = Replay("boxed-recursion-fallback-0").document("dispatch-bt", "--all", "--native", "--args", "--why")
    contract_schema.check(document)
    assert len(json.dumps(document)) < 100_000
    deep = max(document["threads"], key=lambda thread: thread["frame_count"])
    (step,) = [each for each in deep["dispatch"] if "repeats" in each]
    assert step["repeats"]["times"] > 50_000
    assert step["arguments"]
    assert any("has the highest priority" in line for line in step["evidence"])
    assert 0 < explained.calls < 200
    assert 0 < arguments.calls < 200
