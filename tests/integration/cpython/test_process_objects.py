"""Objects and workers of multiprocessing: who took a lock is said only of locks, and who works does not idle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gdbext.diagnosis.inspection import Inspection, inspect_threads
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import brief_look
from support.installed import pythons
from support.programs.harness import INFERIORS

VERSIONS = ("3.8", "3.11", "3.13")


@contextmanager
def program(version: str, what: str) -> Iterator[tuple[int, dict[str, int]]]:
    words = [pythons.need(version), str(INFERIORS / "process_objects.py"), what]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, json.loads(process.stdout.readline())
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def looked_at(pid: int) -> Inspection:
    target = brief_look(pid)
    _, found = Session(target).settled(inspect_threads)
    target.close()
    return found


def thread(found: Inspection, tid: int) -> ThreadReport:
    return next(each for each in found.threads if each.tid == tid)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_a_lock_was_taken_by_somebody(version: str) -> None:
    with program(version, "threads") as (pid, tids):
        found = looked_at(pid)
    waits = {name: thread(found, tid).wait for name, tid in tids.items()}
    ended = {name for name, wait in waits.items() if wait is not None and "whoever took it" in wait.phrase}
    assert ended == {"killed", "killed with"}
    assert all(wait is not None for wait in waits.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_worker_that_works_in_c_does_not_idle(version: str) -> None:
    with program(version, "workers") as (_, pids):
        mains = {name: thread(looked_at(pid), pid) for name, pid in pids.items()}
    states = {name: each.state for name, each in mains.items()}
    assert {name for name, state in states.items() if state is RunState.IDLE} == {
        name for name in pids if name.startswith("idle")
    }
    for each in mains.values():
        outermost = each.python[-1]
        assert (outermost.function.rpartition(".")[2], outermost.file.rpartition("/")[2]) == (
            "_launch",
            "popen_fork.py",
        )
