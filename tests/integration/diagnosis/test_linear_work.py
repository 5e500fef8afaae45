"""Twice as many threads, mappings or frames cost twice as much: counted are our own function calls, and reads."""

from __future__ import annotations

import subprocess
import sys
from types import FrameType
from typing import Any

import pytest

from gdbext.diagnosis.commands.diagnose import _inspected
from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import briefly_stopped
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget
from support.programs import procfs
from support.programs.harness import INFERIORS, some, wait_until

LOOKS = 5
"""At most so many until two have cost the same: a thread that had a turn meanwhile makes one more expensive."""
STEPS = {"events": 1_750, "locks": 2_700, "operators": 5_400, "calls": 3_500, "mappings": 9}
"""Calls of functions that one more thread, two more kernels or one more mapping may cost: a quarter more than today."""
READS = {"events": 3, "locks": 3, "operators": 5, "calls": 1, "mappings": 1}


class Work:
    def __init__(self) -> None:
        self.steps = self.reads = 0

    def count(self, _frame: FrameType, event: str, _argument: Any) -> None:
        self.steps += event == "call"

    def of(self, pid: int) -> tuple[int, int]:
        """(calls, reads) of one look."""
        target = briefly_stopped(pid)
        read = target.memory.read

        def counted(address: int, size: int) -> bytes:
            self.reads += 1
            return read(address, size)

        target.memory.read = counted  # type: ignore[method-assign]
        self.steps = self.reads = 0
        sys.setprofile(self.count)
        try:
            Session(target).read_consistently(_inspected)
        finally:
            sys.setprofile(None)
            target.close()
        assert isinstance(target, SnapshotTarget)
        return self.steps, self.reads


def cost(kind: str, count: int) -> tuple[int, int]:
    """The least of some looks, each figure by itself."""
    command = [sys.executable, str(INFERIORS / "many_alike.py"), kind, str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert some(process.stdout).readline() == "ready\n"
        wait_until(
            lambda: {procfs.state(process.pid, tid) for tid in procfs.threads(process.pid)} == {"S"}, "all sleep"
        )
        work = Work()
        work.of(process.pid)  # what is read once for all processes: layouts, symbols
        looks: list[tuple[int, int]] = []
        while len(looks) < LOOKS and (len(looks) < 2 or sorted(looks)[0][0] * 1.01 < sorted(looks)[1][0]):
            looks.append(work.of(process.pid))
    finally:
        process.kill()
        process.communicate()
    return min(steps for steps, _ in looks), min(reads for _, reads in looks)


@pytest.mark.parametrize(
    ("kind", "least"), [("events", 40), ("locks", 40), ("operators", 20), ("calls", 50), ("mappings", 4_000)]
)
def test_work_grows_with_what_there_is(kind: str, least: int) -> None:
    costs = [cost(kind, least * times) for times in (1, 2, 4)]
    for name, figures, limit in zip(("steps", "reads"), zip(*costs), (STEPS[kind], READS[kind])):
        small, large = figures[1] - figures[0], figures[2] - figures[1]
        assert large <= 2 * least * limit, (name, figures, large / (2 * least))
        assert large <= 2.3 * small + figures[0] / 8, (name, figures)  # where things lie in memory costs a read or two


def test_a_truncated_stack_wants_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies beyond the frames that are kept needs no registers, and so no stop and no second look."""
    monkeypatch.setattr("gdbext.engine.unwind.MAX_FRAMES", 1_000)
    command = [sys.executable, str(INFERIORS / "many_alike.py"), "calls", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert some(process.stdout).readline() == "ready\n"
            wait_until(
                lambda: {procfs.state(process.pid, tid) for tid in procfs.threads(process.pid)} == {"S"}, "all sleep"
            )
            target = briefly_stopped(process.pid)
            session, inspection = Session(target).read_consistently(_inspected)
            assert any("truncated at 1000 frames" in note for each in inspection.threads for note in each.notes)
            assert session.target is target
            assert isinstance(target, SnapshotTarget)
            assert target.moment.stops == 0
            target.close()
        finally:
            process.kill()
