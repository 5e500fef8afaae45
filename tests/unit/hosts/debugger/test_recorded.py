"""What ``--record`` says of the file that it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdbext.engine.targets.recording import recorder
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.hosts.debugger.recorded_command import RecordedCommand
from gdbext.tools import table
from support.recorded import recordings


def test_what_is_said_of_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for row in table.TABLE:
        monkeypatch.setattr(row, "recorded", ())  # nothing besides the command
    for limit, completeness in ((recorder.MAX_MEMORY, ""), (1 << 16, "It is not complete: it keeps 192 MB of memory")):
        monkeypatch.setattr(recorder, "MAX_MEMORY", limit)
        command = RecordedCommand("all-threads", [], str(tmp_path / "hang.rec"))
        outcome = command.run(lambda: ReplayTarget(recordings.recording("boxed-recursion-fallback-0")), color=False)
        command.save(outcome)
        assert outcome.status == 0, outcome.error
        assert "recorded in" in outcome.error
        assert completeness in outcome.error
        assert ("not complete" in outcome.error) == bool(completeness)
