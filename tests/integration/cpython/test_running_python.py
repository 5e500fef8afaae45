"""Python that runs is read while it is stopped briefly; locks and workers of multiprocessing are told apart."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait_kind import WaitKind
from support.programs.harness import started
from support.programs.python_targets import brief_threads

LOOKS = 8
VERSIONS = pytest.mark.parametrize("version", ["3.8", "3.13"])


@VERSIONS
def test_whoever_holds_the_gil_has_frames_to_its_beginning(version: str) -> None:
    holders = []
    with started("running-python", "spin", python=version) as target:
        for _ in range(LOOKS):
            threads = brief_threads(target.pid).values()
            assert all(thread.python for thread in threads)
            holders += [thread for thread in threads if any(held.kind is WaitKind.GIL for held in thread.holds)]
    assert holders
    assert {thread.python[-1].function.rpartition(".")[2] for thread in holders} <= {"<module>", "_bootstrap"}


@VERSIONS
def test_threads_that_come_and_go_do_not_tear_the_list(version: str) -> None:
    with started("running-python", "churn", python=version) as target:
        for _ in range(LOOKS):
            assert brief_threads(target.pid)[target.pid].python[-1].function == "<module>"


@VERSIONS
def test_only_a_lock_was_taken_by_somebody(version: str) -> None:
    with started("running-python", "objects", python=version) as target:
        threads = brief_threads(target.pid)
    waits = {name: threads[tid].wait for name, tid in target.truth["tids"].items()}
    ended = {name for name, wait in waits.items() if wait is not None and "whoever took it" in wait.phrase}
    assert ended == {"killed", "killed with"}
    assert all(wait is not None for wait in waits.values())


@VERSIONS
def test_a_worker_that_works_in_c_does_not_idle(version: str) -> None:
    with started("running-python", "workers", python=version) as target:
        pids = target.truth["pids"]
        mains = {name: brief_threads(pid)[pid] for name, pid in pids.items()}
    idle = {name for name, each in mains.items() if each.state is RunState.IDLE}
    assert idle == {name for name in pids if name.startswith("idle")}
    for each in mains.values():
        assert each.python[-1].function.endswith("_launch")
        assert each.python[-1].file.endswith("/popen_fork.py")
