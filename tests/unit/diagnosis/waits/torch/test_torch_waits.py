"""Waits below PyTorch's own functions."""

from __future__ import annotations

import struct

import pytest

from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from gdbext.diagnosis.waits.recognise import state_of
from support.programs import wait_processes
from support.programs.wait_processes import BITSET, DATA, LOCK_STACK, LOOP, STACK, Process, Python, python_wait, wait_of

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
        ({"outside": wait_processes.Outside(parent=7)}, True),
        ({"python": Python(natives={3: 9})}, True),
    ],
)
def test_that_workers_vanished_in_a_fork_needs_evidence(evidence, forked):
    process = Process({DATA: bytes(64)}).thread(3, [*torch_frames(EXECUTE), LOOP], args=(DATA + 40, BITSET, 0))
    missing = wait_of(process, **evidence).missing_workers
    assert missing == MissingWorkers(pools.AUTOGRAD, forked=forked)
    assert missing.sentence.endswith("why, is not known") is not forked


def test_a_gradient_reduction_inside_backward_waits_for_other_ranks():
    reducer = "_ZN4c10d7Reducer17finalize_backwardEv"
    frames = [*torch_frames(reducer, MAIN, EXECUTE), LOOP]
    wait = wait_of(Process({DATA: bytes(64)}).thread(1, frames, args=(DATA + 40, BITSET, 0)))
    assert (wait.kind.value, wait.missing_workers) == ("collective", None)
    assert wait.resource.name.endswith("during backward")


def test_a_python_hook_inside_backward_is_its_own_wait():
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


def test_a_device_synchronisation_may_spin():
    process = Process().thread(1, [("app.so", "cudaStreamSynchronize"), LOOP], call=(1 << 64) - 1, rax=0)
    assert wait_of(process).resource.kind.value == "device"
