"""A command answers once, also where threads moved while it read: only the reading is done again."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from gdbext.diagnosis.commands import dot_graph
from gdbext.diagnosis.session import Session
from gdbext.engine.formats import whole_file
from gdbext.engine.targets.base_target import TargetMoment
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.errors import MemoryFault
from gdbext.tools import running
from support.recorded import recordings


class MovingTarget(ReplayTarget, TargetMoment):
    """Moves during the first look, and stands still in the second one."""

    @property
    def moment(self) -> TargetMoment:  # type: ignore[override]
        return self

    looks = 1

    def retake(self, in_doubt: bool = False) -> bool:  # noqa: ARG002
        self.looks += 1
        return self.looks == 2


def test_what_is_read_is_read_again_and_carries_the_extras() -> None:
    session = Session(MovingTarget(recordings.recording("python-lock-abba")))
    session.extras = extras = type(session.extras)()
    seen: list[Session] = []
    later, number = session.read_consistently(lambda each: seen.append(each) or len(seen))  # type: ignore[func-returns-value]
    assert (seen[0], later, number) == (session, seen[1], 2)
    assert later is not session
    assert later.extras is extras


def execute(recording: str, *words: str) -> None:
    target = MovingTarget(recordings.recording(recording))
    outcome = running.execute(words[0], words[1:], lambda: Session(target))
    assert outcome.status == 0, outcome.error
    assert target.looks == 3


def test_files_are_written_and_child_processes_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    graph, settings, write = str(tmp_path / "g.dot"), str(tmp_path / "again.py"), dot_graph.write
    monkeypatch.setattr(dot_graph, "write", lambda path, *rest: [done.append(path), write(path, *rest)][1])
    execute("python-lock-abba", "all-threads", "--dot", graph)
    monkeypatch.setattr("gdbext.diagnosis.commands.diagnose.children_of", lambda _, wanted, __: done.append(wanted))
    execute("python-lock-abba", "dispatch-diagnose", "--children")
    monkeypatch.setattr(whole_file, "write_text", lambda path, _: done.append(path))
    execute("meta-mm", "dispatch-info", "--settings", "--reproduce", settings)
    assert done == [graph, True, settings]


@pytest.mark.parametrize("times", [1, 2])
def test_what_cannot_be_read_of_two_moments_is_read_again(times: int) -> None:
    """Of one moment it is an error."""
    target = MovingTarget(recordings.recording("python-lock-abba"))
    failures = [MemoryFault(0x18, 8)] * times

    def read(_: Session) -> str:
        if failures:
            raise failures.pop()
        return "read"

    with pytest.raises(MemoryFault, match="8 bytes at 0x18") if times == 2 else nullcontext():
        assert Session(target).read_consistently(read)[1] == "read"
    assert target.looks == 3
