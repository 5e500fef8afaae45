"""Who holds a lock that records no owner."""

from __future__ import annotations

import struct

import pytest

from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, ParentsThread
from gdbext.diagnosis.report.wait_kind import SelfWait
from support.programs import wait_processes
from support.programs.wait_processes import BITSET, DATA, LOCK_STACK, LOOP, Process, Python, python_wait, wait_of

FORKED = wait_processes.Outside(parent=7)
LOCK = {DATA: struct.pack("<IIII", 0, 1, 0, 0)}


def waiter(*others, frames=LOCK_STACK, python=()):
    process = Process(LOCK).thread(1, frames, args=(DATA, BITSET, 0), python=python)
    for tid in others:
        process.thread(tid, [LOOP], call=0, args=(5,))
    return process


def lock(**more):
    return Python(wait=python_wait("lock"), **more)


def semaphore(*inside):
    return Python(wait=python_wait("semaphore"), inside_objects={0x9000: inside})


@pytest.mark.parametrize(
    ("others", "python", "owner"),
    [
        ([2], lock(inside_try=[(2, 0)]), 2),  # a try block tells where no with does
        ([2, 3], lock(inside_try=[(2, 0)], inside=[3]), 3),
        ([2, 3], lock(inside_try=[(2, 0), (3, 4)]), None),
        ([], lock(inside_try=[(1, 0)]), None),  # the frame that takes the lock does not hold it
        ([], lock(taken_twice=[1]), 1),
        ([], lock(inside_try=[(1, 1)]), 1),
        ([2], semaphore(2), 2),
        ([2, 3], semaphore(2, 3), None),
    ],
)
def test_who_holds_it(others, python, owner):
    wait = wait_of(waiter(*others), 1, python=python)
    assert wait.owner == (owner and OwnerThread(owner))
    assert wait.certainty is (OwnerCertainty.INFERRED if owner else OwnerCertainty.UNKNOWN)


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
    wait = wait_of(waiter(), python=lock(), outside=FORKED)
    assert (wait.owners, wait.owner_tids, wait.gone_owner) == ((ParentsThread(),), (), ParentsThread())
    assert wait_of(waiter(), python=lock()).owner is None
    assert wait_of(waiter(2), 1, python=lock(), outside=FORKED).owner is None
