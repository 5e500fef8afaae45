"""A command answers once, also where threads moved while it read: only the reading is done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis import dot_graph
from gdbext.diagnosis.session import Session
from gdbext.engine.formats import whole_file
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.errors import MemoryFault
from gdbext.tools import table
from support.recorded import recordings


class MovingTarget(ReplayTarget):
    """Moves during the first look, and stands still in the second one."""

    looks = 1

    def retake(self, in_doubt: bool = False) -> bool:  # noqa: ARG002
        """Once."""
        self.looks += 1
        return self.looks == 2


def test_what_is_read_is_read_again_and_carries_the_extras() -> None:
    session = Session(MovingTarget(recordings.recording("python-lock-abba")))
    session.extras = extras = type(session.extras)()
    seen: list[Session] = []
    later, number = session.settled(lambda each: seen.append(each) or len(seen))  # type: ignore[func-returns-value]
    assert (seen[0], later, number) == (session, seen[1], 2)
    assert later is not session
    assert later.extras is extras


def test_a_graph_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = MovingTarget(recordings.recording("python-lock-abba"))
    written: list[str] = []
    write = dot_graph.write

    def counted(path: str, *rest: Any) -> Any:
        written.append(path)
        return write(path, *rest)

    monkeypatch.setattr(dot_graph, "write", counted)
    outcome = table.execute("all-threads", ["--dot", str(tmp_path / "g.dot")], lambda: Session(target))
    assert outcome.status == 0, outcome.error
    assert (target.looks, len(written)) == (3, 1)


def test_child_processes_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target = MovingTarget(recordings.recording("python-lock-abba"))
    looked: list[bool] = []
    monkeypatch.setattr("gdbext.diagnosis.diagnose.children_of", lambda _, wanted, __: looked.append(wanted))
    outcome = table.execute("dispatch-diagnose", ["--children"], lambda: Session(target))
    assert outcome.status == 0, outcome.error
    assert (target.looks, looked) == (3, [True])


def test_settings_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = MovingTarget(recordings.recording("meta-mm"))
    written: list[str] = []
    monkeypatch.setattr(whole_file, "write_text", lambda path, _: written.append(path))
    path = str(tmp_path / "again.py")
    outcome = table.execute("dispatch-info", ["--settings", "--reproduce", path], lambda: Session(target))
    assert outcome.status == 0, outcome.error
    assert (target.looks, written) == (3, [path])


def test_what_cannot_be_read_of_two_moments_is_read_again() -> None:
    target = MovingTarget(recordings.recording("python-lock-abba"))
    failures = [MemoryFault(0x18, 8)]

    def read(_: Session) -> str:
        if failures:
            raise failures.pop()
        return "read"

    assert Session(target).settled(read)[1] == "read"
    assert target.looks == 3


def test_what_cannot_be_read_of_one_moment_is_an_error() -> None:
    def read(_: Session) -> str:
        raise MemoryFault(0x18, 8)

    target = MovingTarget(recordings.recording("python-lock-abba"))
    with pytest.raises(MemoryFault, match="8 bytes at 0x18"):
        Session(target).settled(read)
    assert target.looks == 3
