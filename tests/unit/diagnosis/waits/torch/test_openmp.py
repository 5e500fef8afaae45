"""OpenMP: idle workers, teams whose workers are late, and those that do not exist."""

from __future__ import annotations

import struct

import pytest

from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from gdbext.diagnosis.waits.recognise import state_of
from support.programs.wait_processes import DATA, LOOP, PRIVATE, Process, wait_of

WORKER = [("libgomp.so.1", None), ("libgomp.so.1", None), ("libc.so.6", None), ("libc.so.6", None)]
MASTER = [("libgomp.so.1", None), ("libgomp.so.1", None), ("libtorch_cpu.so", "kernel"), LOOP]
ATWORK = [("libtorch_cpu.so", "kernel"), ("libgomp.so.1", None), ("libc.so.6", None), ("libc.so.6", None)]


def gomp_barrier(total, awaited=1):
    return struct.pack("<II", total, 0) + bytes(56) + struct.pack("<I", awaited) + bytes(60)


def team(*workers, total=2):
    process = Process({DATA: gomp_barrier(total)}).thread(1, MASTER, args=(DATA + 4, PRIVATE, 0))
    for number, frames in enumerate(workers):
        process.thread(2 + number, frames, args=(DATA + 4, PRIVATE, 0))
    return process


def test_an_openmp_worker_that_waits_or_spins_for_work_is_idle():
    process = team(WORKER)
    assert state_of(process.snapshot(2)).pool is pools.OPENMP
    process.thread(3, WORKER, call=(1 << 64) - 1, rax=0)
    assert state_of(process.snapshot(3)).state is RunState.IDLE


def test_a_team_without_workers_after_fork():
    assert wait_of(team()).missing_workers == MissingWorkers(pools.OPENMP, forked=True)
    assert wait_of(team(WORKER, total=4)).missing_workers == MissingWorkers(pools.OPENMP, present=1, forked=True)


def test_an_openmp_lock_is_told_by_its_word():
    wait = wait_of(Process({DATA: b"\xff" * 4}).thread(1, MASTER, args=(DATA, PRIVATE, 0xFFFFFFFF)))
    assert (wait.resource.kind.value, wait.missing_workers) == ("mutex", None)


def test_no_workers_are_missed_where_no_barrier_is():
    wait = wait_of(Process({DATA: gomp_barrier(0, awaited=0)}).thread(1, MASTER, args=(DATA + 4, PRIVATE, 0)))
    assert wait.missing_workers is None


RUNS = (ATWORK, {"call": (1 << 64) - 1, "rax": 0})
SLEEPS = (WORKER, {"args": (DATA + 4, PRIVATE, 0)})
LOCKED = ([("libgomp.so.1", None), *ATWORK], {"args": (DATA + 0x800, PRIVATE, 0xFFFFFFFF)})


@pytest.mark.parametrize(
    ("total", "workers", "owners", "being_released"),
    [
        (3, [RUNS, SLEEPS], (OwnerThread(2),), False),
        (3, [LOCKED, SLEEPS], (OwnerThread(2),), False),  # in an OpenMP lock
        (2, [SLEEPS], (), True),  # nobody is late
        (3, [RUNS, RUNS], (), False),  # more threads than the barrier waits for
    ],
)
def test_the_master_waits_for_workers_that_are_late(total, workers, owners, being_released):
    process = team(total=total)
    for tid, (frames, more) in enumerate(workers, 2):
        process.thread(tid, frames, **more)
    wait = wait_of(process)
    assert (wait.owners, wait.being_released, wait.missing_workers) == (owners, being_released, None)
    assert (wait.certainty is OwnerCertainty.INFERRED) is bool(owners)
