"""Recorded processes, parts of them replaced by garbage: nothing but typed errors, in time, and no false claim."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.tools import table
from support.fuzzing import recording_kinds, worker
from support.fuzzing.look import Kind
from support.recorded import recordings
from support.recorded.recording_damage import patched


@pytest.mark.timeout(300, method="thread")  # a signal of its own would be left behind by each look
@pytest.mark.parametrize("seed", range(0, 4000, 1000))
@pytest.mark.parametrize("kind", recording_kinds.KINDS, ids=lambda kind: kind.name)
def test_garbage_in_what_is_read(kind: Kind, seed: int) -> None:
    """Another recording, command and damage with each seed (see scripts/fuzz.py)."""
    result = worker.run(kind, seed)
    assert result.failures == []


def test_an_operators_name_that_drives_a_terminal() -> None:
    """It stands in the place of aten::mm: the operator is called what the symbols say, and not because of its name."""
    recording = recordings.recording("meta-mm")
    places = [
        start + at
        for start, piece in zip(recording.memory.starts, recording.memory.pieces)
        for at in range(-start % 8, len(piece), 8)
        if piece[at : at + 8] == b"aten::mm"
    ]
    assert places, "the name of aten::mm is recorded"
    name = int.from_bytes(b"\x1b[31mm\x07\r", "little")
    session = Session(ReplayTarget(patched(recording, dict.fromkeys(places, name))))
    for command in (("dispatch-bt", "--why"), ("dispatch-diagnose",), ("all-threads",)):
        outcome = table.execute(command[0], command[1:], lambda: session)
        text = outcome.output + outcome.error
        assert [char for char in text if not char.isprintable() and char != "\n"] == [], command
        assert "aten::mm" in text, command
        assert ("leads to '\\x1b[31mm\\x07\\r'" in text) == ("--why" in command), command
