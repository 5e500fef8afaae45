"""Who holds a lock that records no owner."""

from __future__ import annotations

import struct

import pytest

from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, ParentsThread
from gdbext.diagnosis.report.wait_kind import SelfWait
from support.programs.wait_processes import (
    BITSET,
    DATA,
    LOCK_STACK,
    LOOP,
    Outside,
    Process,
    Python,
    python_wait,
    wait_of,
)

LOCK = {DATA: struct.pack("<IIII", 0, 1, 0, 0)}


def waiter(*others, frames=LOCK_STACK, python=()):
    process = Process(LOCK).thread(1, frames, args=(DATA, BITSET, 0), python=python)
    for tid in others:
        process.thread(tid, [LOOP], call=0, args=(5,))
    return process


def lock(**more):
    return Python(wait=python_wait("lock"), **more)


def test_a_try_block_tells_the_holder_where_no_with_does():
    wait = wait_of(waiter(2), 1, python=lock(inside_try=[(2, 0)]))
    assert (wait.owner, wait.certainty) == (OwnerThread(2), OwnerCertainty.INFERRED)
    assert wait_of(waiter(2, 3), 1, python=lock(inside_try=[(2, 0)], inside=[3])).owner == OwnerThread(3)
    assert wait_of(waiter(2, 3), 1, python=lock(inside_try=[(2, 0), (3, 4)])).owner is None


def test_the_frame_that_takes_the_lock_does_not_hold_it():
    assert wait_of(waiter(), python=lock(inside_try=[(1, 0)])).owner is None
    assert wait_of(waiter(), python=lock(taken_twice=[1])).owner == OwnerThread(1)
    assert wait_of(waiter(), python=lock(inside_try=[(1, 1)])).owner == OwnerThread(1)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("PyErr_CheckSignals", SelfWait.SIGNAL),
        ("PyObject_ClearWeakRefs", SelfWait.WEAKREF),
        ("PyObject_CallFinalizerFromDealloc", SelfWait.FINALIZER),
        ("PyObject_Vectorcall", None),
    ],
)
def test_what_interrupted_the_holder(function, reason):
    frames = [*LOCK_STACK, ("libpython3.11.so.1.0", function), LOOP]
    wait = wait_of(waiter(frames=frames), python=lock(inside=[1]))
    assert (wait.owner, wait.self_wait) == (OwnerThread(1), reason)


def test_a_finaliser_by_its_python_frame():
    frame = Frame(3, FrameKind.PYTHON, "Item.__del__", file="/app/items.py", line=1)
    assert wait_of(waiter(python=[frame]), python=lock(inside=[1])).self_wait is SelfWait.FINALIZER


def test_a_lock_without_holder_in_a_forked_child_is_the_parents():
    wait = wait_of(waiter(), python=lock(), outside=Outside(parent=7))
    assert (wait.owners, wait.owner_tids, wait.gone_owner) == ((ParentsThread(),), (), ParentsThread())
    assert wait_of(waiter(), python=lock()).owner is None
    assert wait_of(waiter(2), 1, python=lock(), outside=Outside(parent=7)).owner is None


def test_a_semaphore_is_held_by_the_only_thread_inside_of_it():
    semaphore = python_wait("semaphore")
    assert wait_of(waiter(2), 1, python=Python(wait=semaphore, inside_objects={0x9000: [2]})).owner == OwnerThread(2)
    assert wait_of(waiter(2, 3), 1, python=Python(wait=semaphore, inside_objects={0x9000: [2, 3]})).owner is None
