"""Waits below PyTorch's own functions, for OpenMP's workers, for a store and for other processes."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdbext.cpython.threads import frame_variables
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.thread_report import Frame, FrameKind, RunState
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits import torch_waits
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from gdbext.diagnosis.waits.recognize import state_of
from gdbext.engine.targets.system.peer import ChildProcess, ProcessState
from gdbext.torch.distributed import python_calls
from support.programs.wait_processes import (
    BITSET,
    DATA,
    LOCK_STACK,
    LOOP,
    PRIVATE,
    STACK,
    Outside,
    Process,
    Python,
    python_wait,
    wait_of,
)

POP = "_ZN5torch8autograd10ReadyQueue3popEv"
MAIN = "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE"
INIT = "_ZN5torch8autograd6Engine11thread_initEiRKSt10shared_ptrINS0_10ReadyQueueEEb"
EVALUATE = "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptr"
EXECUTE = "_ZN5torch8autograd6Engine7executeERKSt6vector"
COND = [("libc.so.6", None), ("libc.so.6", "pthread_cond_wait")]


def torch_frames(*names):
    return [*COND, *(("libtorch_cpu.so", name) for name in names)]


def test_autograd_workers_idle_and_at_work():
    process = Process({DATA: bytes(64)}).thread(1, torch_frames(POP, MAIN, INIT), args=(DATA + 40, BITSET, 0))
    process.thread(2, torch_frames(EVALUATE, MAIN, INIT), args=(DATA + 40, BITSET, 0))
    process.thread(3, [*torch_frames(EXECUTE), LOOP], args=(DATA + 40, BITSET, 0))
    assert state_of(process.snapshot(1)).pool is pools.AUTOGRAD
    assert state_of(process.snapshot(2)).state is RunState.WAITING
    wait = wait_of(process, 3)
    assert (wait.resource.kind.value, wait.owners) == ("queue", (OwnerThread(2),))
    assert wait.certainty is OwnerCertainty.INFERRED


@pytest.mark.parametrize(
    ("evidence", "forked"),
    [
        ({}, False),
        ({"python": Python(natives={3: 3})}, False),
        ({"procfs": Outside(parent=7)}, True),
        ({"python": Python(natives={3: 9})}, True),
    ],
)
def test_that_workers_vanished_in_a_fork_needs_evidence(evidence, forked):
    process = Process({DATA: bytes(64)}).thread(3, [*torch_frames(EXECUTE), LOOP], args=(DATA + 40, BITSET, 0))
    missing = wait_of(process, **evidence).detail.missing_workers
    assert missing == MissingWorkers(pools.AUTOGRAD, forked=forked)
    assert missing.sentence.endswith("for an unknown reason") is not forked


def test_a_gradient_reduction_inside_backward_waits_for_other_ranks_and_a_hook_is_its_own_wait():
    reducer = "_ZN4c10d7Reducer17finalize_backwardEv"
    frames = [*torch_frames(reducer, MAIN, EXECUTE), LOOP]
    wait = wait_of(Process({DATA: bytes(64)}).thread(1, frames, args=(DATA + 40, BITSET, 0)))
    assert (wait.kind.value, wait.detail.missing_workers) == ("collective", None)
    assert wait.resource.name.endswith("during backward")
    frames = [*LOCK_STACK, ("libtorch_cpu.so", EXECUTE), LOOP]
    process = Process({DATA: struct.pack("<IIII", 0, 1, 0, 0)}).thread(1, frames, args=(DATA, BITSET, 0))
    assert wait_of(process, python=Python(wait=python_wait("event"))).resource.kind.value == "condvar"


def test_collectives_but_not_the_event_loop_of_gloo():
    receive = "_ZN4gloo9transport3tcp13UnboundBuffer8waitRecvEPiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"
    loop = "_ZN4gloo9transport3tcp4Loop3runEv"
    process = Process({DATA: bytes(64)}).thread(1, torch_frames(receive), args=(DATA + 40, BITSET, 0, STACK))
    process.thread(2, [("libc.so.6", "epoll_wait"), ("libtorch_cpu.so", loop)], call=232, args=(4, STACK, 1, 10))
    assert wait_of(process).resource.kind.value == "collective"
    assert state_of(process.snapshot(2)).pool is pools.GLOO_LOOP


WORKER = [("libgomp.so.1", None), ("libgomp.so.1", None), ("libc.so.6", None), ("libc.so.6", None)]
MASTER = [("libgomp.so.1", None), ("libgomp.so.1", None), ("libtorch_cpu.so", "kernel"), LOOP]
ATWORK = [("libtorch_cpu.so", "kernel"), ("libgomp.so.1", None), ("libc.so.6", None), ("libc.so.6", None)]
AT_BARRIER = (DATA + 4, PRIVATE, 0)


def team(*workers, total=2, awaited=1):
    raw = struct.pack("<II", total, 0) + bytes(56) + struct.pack("<I", awaited) + bytes(60)
    process = Process({DATA: raw}).thread(1, MASTER, args=AT_BARRIER)
    for tid, frames in enumerate(workers, 2):
        process.thread(tid, frames, args=AT_BARRIER)
    return process


def test_workers_that_wait_or_spin_for_work_a_team_without_any_and_a_lock_that_is_told_by_its_word():
    process = team(WORKER).thread(3, WORKER, call=(1 << 64) - 1, rax=0)
    assert state_of(process.snapshot(2)).pool is pools.OPENMP
    assert state_of(process.snapshot(3)).state is RunState.IDLE
    assert wait_of(team()).detail.missing_workers == MissingWorkers(pools.OPENMP, forked=True)
    assert wait_of(team(WORKER, total=4)).detail.missing_workers == MissingWorkers(pools.OPENMP, present=1, forked=True)
    assert wait_of(team(total=0, awaited=0)).detail.missing_workers is None, "there is no barrier"
    wait = wait_of(Process({DATA: b"\xff" * 4}).thread(1, MASTER, args=(DATA, PRIVATE, 0xFFFFFFFF)))
    assert (wait.resource.kind.value, wait.detail.missing_workers) == ("mutex", None)


RUNS = (ATWORK, {"call": (1 << 64) - 1, "rax": 0})
SLEEPS = (WORKER, {"args": AT_BARRIER})
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
    assert (wait.owners, wait.being_released, wait.detail.missing_workers) == (owners, being_released, None)
    assert (wait.certainty is OwnerCertainty.INFERRED) is bool(owners)


CONNECTION = "/lib/python3.11/multiprocessing/connection.py"
FILE = "/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
STOPPED = ChildProcess(50, "python", ProcessState.STOPPED)


def polls(*files):
    named = [(each, "f") if isinstance(each, str) else each for each in files]
    frames = [Frame(level, FrameKind.PYTHON, None, name, file=file) for level, (file, name) in enumerate(named)]
    process = Process().thread(1, [("libc.so.6", "poll"), LOOP], call=7, args=(0, 0, 0xFFFFFFFF), python=frames)
    return wait_of(process, python=Python(), procfs=Outside(STOPPED))


@pytest.mark.parametrize(
    ("batch", "name"),
    [
        (((50, 51),), "the DataLoader's worker processes 50 (python, stopped) and 51"),
        (((51,), 9), "the DataLoader's worker process 51, which loads batch 9"),
    ],
)
def test_what_ends_the_wait_is_a_worker(monkeypatch, batch, name):
    monkeypatch.setattr(torch_waits, "awaited_batch", lambda *_: torch_waits.AwaitedBatch(*batch))
    wait = polls(CONNECTION, FILE, "train.py")
    assert (wait.kind, wait.resource.name) == (WaitKind.CHILD_PROCESS, name)
    assert [child.pid for child in wait.detail.children] == [*batch[0]]
    assert wait.evidence[-1].startswith("called by DataLoader's code, it waits in poll on")
    assert polls(CONNECTION, "train.py").kind is WaitKind.IO, "a poll of anybody else stays one"


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("/lib/python3.11/multiprocessing/popen_fork.py", "Popen.wait"),
        ("/lib/python3.8/multiprocessing/popen_fork.py", "wait"),
        ("/lib/python3.11/multiprocessing/popen_forkserver.py", "Popen.poll"),
        ("/site-packages/torch/multiprocessing/spawn.py", "ProcessContext.join"),
    ],
)
def test_who_joins_processes_through_their_pipes_waits_for_them(monkeypatch, file, function):
    monkeypatch.setattr(torch_waits, "joined_processes", lambda _stack: (50, 51))
    wait = polls(CONNECTION, (file, function), "train.py")
    assert (wait.kind, wait.detail.children) == (WaitKind.CHILD_PROCESS, (STOPPED, ChildProcess(51)))
    assert wait.resource.name == "child processes 50 (python, stopped) and 51"
    assert polls(CONNECTION, (file, "f")).kind is WaitKind.IO, "another function of that file joins nothing"


WAIT = "_ZN4c10d8TCPStore6doWaitEN3c108ArrayRefINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEEENSt6chrono"
HEAP = DATA + 0x400


def string(text, address):
    """A std::string of libstdc++ at that address; its text is in place or at HEAP."""
    start = address + 16 if len(text) < 16 else HEAP
    inside = text if len(text) < 16 else b""
    return struct.pack("<QQ", start, len(text)) + inside.ljust(16, b"\0")


def waits_with(memory):
    frames = [("libc.so.6", "poll"), ("libtorch_cpu.so", None), ("libtorch_cpu.so", WAIT)]
    return wait_of(Process({DATA: memory}).thread(1, frames, call=7, args=(0, 0, 5), registers={"rbx": DATA}))


@pytest.mark.parametrize("text", [b"worker/0", b"ncclUniqueId/a/long/one/0"])
def test_the_key_is_the_string_that_the_frames_hold(text):
    wait = waits_with((string(text, DATA)).ljust(0x400, b"\0") + text + b"\0")
    assert (wait.detail.collective.is_store, wait.detail.collective.key, wait.detail.collective.server) == (
        True,
        text.decode(),
        "",
    )
    assert f"the key '{text.decode()}' of the store" in wait.phrase


@pytest.mark.parametrize("raw", [string(b"a\nb", DATA), struct.pack("<QQ", DATA, 3), struct.pack("<QQ", DATA + 16, 40)])
def test_what_is_no_text_is_no_key(raw):
    assert waits_with(raw).detail.collective.key == ""


@pytest.mark.parametrize(
    ("rank", "text"),
    [
        (0, "waits, as rank 0, until all 4 ranks have reached its store at node0:29500 (c10d::TCPStore::wait)"),
        (3, "tries, as rank 3 of 4, to reach the store of rank 0 at node0:29500"),
    ],
)
def test_who_meets_whom_at_the_store(rank, text, monkeypatch):
    """The function that makes the store, or connects to it, keeps its arguments; no other one is asked."""
    values = {1: rank, 2: 4, 3: 29500, 4: "node0"}
    names = ("rank", "world_size", "port", "hostname")
    monkeypatch.setattr(frame_variables, "locals_of", lambda _python, _frame: dict(zip(names, values)))
    read = SimpleNamespace(integer=values.__getitem__, text=lambda at, _limit: values[at])
    file = "/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py"
    frames = [PythonFrame("_create_c10d_store", file, 199, 0x1000, 0x1000), PythonFrame("main", "/a.py", 1, 1, 1)]
    python = cast(Any, SimpleNamespace(objects=read))
    found = python_calls.store_meeting(PyStack(python, frames))
    assert found is not None
    wait = CollectiveWait("c10d::TCPStore::wait", is_store=True, server=found.server, rank=found.rank, size=found.size)
    assert wait.phrase == text
    assert python_calls.store_meeting(PyStack(python, frames[::-1])) is None
