"""What ``--record`` says of the file that it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdbext.engine.targets.recording import recorder
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.hosts.debugger.recorded_command import RecordedCommand
from gdbext.tools import table
from support.recorded import recordings


@pytest.fixture(autouse=True)
def _nothing_besides_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in table.TABLE:
        monkeypatch.setattr(row, "recorded", ())


def note(path: Path) -> str:
    """Standard error of a command that was recorded."""
    command = RecordedCommand("all-threads", [], str(path))
    outcome = command.run(lambda: ReplayTarget(recordings.recording("boxed-recursion-fallback-0")), color=False)
    command.save(outcome)
    assert outcome.status == 0, outcome.error
    return outcome.error


def test_a_complete_recording(tmp_path: Path) -> None:
    said = note(tmp_path / "hang.rec")
    assert "recorded in" in said
    assert "not complete" not in said


def test_a_recording_that_is_not_complete_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_MEMORY", 1 << 16)
    assert "It is not complete: it keeps 192 MB of memory, and more was read" in note(tmp_path / "hang.rec")
