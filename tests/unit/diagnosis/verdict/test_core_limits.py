"""What a core lacks: said of waits that only the system could explain, and of no others."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait import CollectiveWait
from gdbext.diagnosis.reporting import unknown_in_core
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from gdbext.engine.targets.system.peer import ChildProcess
from support.fakes.analysis_facts import thread, wait


def unknown(*waits):
    return "; ".join(unknown_in_core([thread(number, each) for number, each in enumerate(waits, 1)]))


STORE = CollectiveWait("c10d::TCPStore::wait", is_store=True)


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (wait("io", name="read on fd 5"), "other end, for thread 1"),
        (wait("sleep", looks_for="the file /lock", looks_outside=True, timed=True, seconds=1.0), "who has locked them"),
        (wait("collective", collective=STORE), "where the store is"),
        (wait("semaphore", external=True), "share the memory"),
        (wait("sleep", timed=True), "how long a sleep still lasts"),
        (wait("child-process", children=(ChildProcess(7), ChildProcess(8))), "what processes 7 and 8 do"),
        (wait("child-process", children=(ChildProcess(7),)), "what process 7 does"),
        (wait("child-process"), "which child processes there are"),
        (wait("worker-pool", missing_workers=MissingWorkers(pools.OPENMP)), "forked from another one"),
        (wait("python-lock"), "forked from another one"),
    ],
)
def test_what_only_the_system_knows(found, what):
    assert what in unknown(found)


@pytest.mark.parametrize(
    "waits",
    [
        [wait("mutex", 2)],
        [wait("python-lock", 2)],
        [wait("sleep", timed=True, seconds=2.0)],
        [wait("gil", being_released=True)],
        [wait("collective", collective=STORE._replace(server="node1:29500"))],
        [wait("queue")],
        [wait("worker-pool", missing_workers=MissingWorkers(pools.OPENMP, forked=True))],
        [wait("python-lock"), wait("python-lock")],  # a thread beside it is no sign of a fork
    ],
)
def test_what_is_in_memory_is_not_missed(waits):
    assert unknown(*waits) == ""


def test_nobody_asks_what_an_idle_thread_waits_for():
    assert unknown_in_core([thread(1, wait("io"), state=RunState.IDLE), thread(2)]) == []
