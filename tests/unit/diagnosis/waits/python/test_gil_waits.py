"""Waits for the GIL, and between two of its timed waits."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread
from gdbext.diagnosis.waits.gil_waits import is_of_two_moments
from gdbext.diagnosis.waits.recognise import state_of
from support.programs.wait_processes import BITSET, DATA, STACK, Process, Python, gil, wait_of

GIL_STACK = [
    ("libc.so.6", None),
    ("libc.so.6", "pthread_cond_timedwait"),
    ("libpython3.11.so.1.0", None),
    ("libpython3.11.so.1.0", "PyEval_RestoreThread"),
]


def wants_gil():
    return Process({DATA: bytes(256)}).thread(1, GIL_STACK, args=(DATA + 40, BITSET, 0, STACK)).thread(2, [])


FREE = gil(locked=False, holder=None, holder_tid=None)


@pytest.mark.parametrize(
    ("state", "owner", "certainty", "being_released"),
    [
        (gil(), OwnerThread(2), OwnerCertainty.RECORDED, False),  # known by the address of its condition variable
        (FREE, None, OwnerCertainty.UNKNOWN, True),
        (gil(holder=None, holder_tid=None, mutex_owner=2), None, OwnerCertainty.UNKNOWN, True),  # handed over
        # A waiter that has the GIL's mutex for a moment hides no holder.
        (gil(holder=None, holder_tid=None, mutex_owner=3), OwnerThread(2), OwnerCertainty.INFERRED, False),
    ],
)
def test_who_has_the_gil(state, owner, certainty, being_released):
    wait = wait_of(wants_gil().thread(3, []), python=Python(state))
    assert wait.resource.kind.value == "gil"
    assert (wait.owner, wait.certainty, wait.being_released) == (owner, certainty, being_released)


def between_two_timed_waits(frames=GIL_STACK):
    return Process({DATA: bytes(256)}).thread(1, frames, call=(1 << 64) - 1, rax=0)


def test_a_waiter_between_two_timed_waits():
    process = between_two_timed_waits().thread(2, [], call=(1 << 64) - 1, rax=0)
    assert wait_of(process, python=Python(gil())).owner == OwnerThread(2)
    assert state_of(process.snapshot(2, Python(gil()))).state is RunState.RUNNING


def test_a_holder_that_waits_for_itself_between_two_timed_waits():
    held = Python(gil(holder_tid=1))
    assert wait_of(between_two_timed_waits(), python=held).owner == OwnerThread(1)
    taken = between_two_timed_waits(GIL_STACK[2:])
    assert state_of(taken.snapshot(1, held)).state is RunState.RUNNING


def test_a_sleep_and_a_mutex_of_two_moments():
    for owner, expected in ((1, True), (2, False)):
        snapshot = wants_gil().snapshot(1, Python(gil(holder=None, holder_tid=None, mutex_owner=owner)))
        snapshot.own_tid = 1
        assert is_of_two_moments(snapshot, state_of(snapshot).wait) is expected


def test_another_futex_below_restore_thread_is_not_the_gil():
    process = Process({DATA: bytes(256), 0x40000: bytes(64)}).thread(1, GIL_STACK, args=(0x40000 + 40, BITSET, 0))
    assert wait_of(process.thread(2, []), python=Python(gil())).resource.kind.value == "condvar"
