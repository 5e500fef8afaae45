"""Waits for the GIL, and between two of its timed waits."""

from __future__ import annotations

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


def test_a_gil_waiter_by_the_condvars_address():
    wait = wait_of(wants_gil(), python=Python(gil()))
    assert (wait.resource.kind.value, wait.owner, wait.certainty) == ("gil", OwnerThread(2), OwnerCertainty.RECORDED)


def test_the_gil_is_free_or_handed_over():
    for state in (gil(locked=False, holder=None, holder_tid=None), gil(holder=None, holder_tid=None, mutex_owner=2)):
        wait = wait_of(wants_gil(), python=Python(state))
        assert wait.being_released
        assert wait.owner is None


def test_a_waiter_that_has_the_gils_mutex_for_a_moment_hides_no_holder():
    wait = wait_of(wants_gil().thread(3, []), python=Python(gil(holder=None, holder_tid=None, mutex_owner=3)))
    assert (wait.owner, wait.certainty) == (OwnerThread(2), OwnerCertainty.INFERRED)


def test_a_waiter_between_two_timed_waits():
    process = Process({DATA: bytes(256)}).thread(1, GIL_STACK, call=(1 << 64) - 1, rax=0)
    process.thread(2, [], call=(1 << 64) - 1, rax=0)
    assert wait_of(process, python=Python(gil())).owner == OwnerThread(2)
    holder = process.snapshot(2, Python(gil()))
    assert state_of(holder).state is RunState.RUNNING


def test_a_holder_that_waits_for_itself_between_two_timed_waits():
    held = Python(gil(holder_tid=1))
    process = Process({DATA: bytes(256)}).thread(1, GIL_STACK, call=(1 << 64) - 1, rax=0)
    assert wait_of(process, python=held).owner == OwnerThread(1)
    taken = Process({DATA: bytes(256)}).thread(1, GIL_STACK[2:], call=(1 << 64) - 1, rax=0)
    assert state_of(taken.snapshot(1, held)).state is RunState.RUNNING


def test_a_sleep_and_a_mutex_of_two_moments():
    waits = wants_gil()
    for owner, expected in ((1, True), (2, False)):
        python = Python(gil(holder=None, holder_tid=None, mutex_owner=owner))
        snapshot = waits.snapshot(1, python)
        snapshot.own_tid = 1
        assert is_of_two_moments(snapshot, state_of(snapshot).wait) is expected


def test_another_futex_below_restore_thread_is_not_the_gil():
    process = Process({DATA: bytes(256), 0x40000: bytes(64)}).thread(1, GIL_STACK, args=(0x40000 + 40, BITSET, 0))
    assert wait_of(process.thread(2, []), python=Python(gil())).resource.kind.value == "condvar"
