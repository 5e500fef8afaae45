"""What Python's own objects say of a wait, and who holds a lock that records no owner."""

from __future__ import annotations

import struct

import pytest

from gdbext.diagnosis.report.thread_report import Frame, FrameKind
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, ParentsThread, VanishedThread
from gdbext.diagnosis.report.wait_kind import SelfWait
from support.programs import wait_processes
from support.programs.wait_processes import BITSET, DATA, LOCK_STACK, LOOP, Process, Python, python_wait, wait_of

FORKED = wait_processes.Outside(parent=7)


def waiter(*others, frames=LOCK_STACK, python=(), value=0):
    process = Process({DATA: struct.pack("<IIII", value, 1, 0, 0)})
    process.thread(1, frames, args=(DATA, BITSET, 0), python=python)
    for tid in others:
        process.thread(tid, [LOOP], call=0, args=(5,))
    return process


def lock(**more):
    return Python(wait=python_wait("lock"), **more)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        *((kind, "condvar") for kind in ("condition", "event", "future")),
        *((kind, "queue") for kind in ("queue", "simplequeue")),
        *((kind, "python-lock") for kind in ("lock", "rlock")),
        *((kind, "join") for kind in ("thread", "shutdown")),
        *((kind, kind) for kind in ("semaphore", "barrier")),
    ],
)
def test_python_objects_name_the_wait(kind, expected):
    assert wait_of(waiter(), python=Python(wait=python_wait(kind))).resource.kind.value == expected


@pytest.mark.parametrize(
    ("owner_tid", "ended", "has_block", "owner", "certainty"),
    [
        (2, (), False, OwnerThread(2), OwnerCertainty.RECORDED),
        (None, (), False, None, OwnerCertainty.UNKNOWN),  # not every thread was looked at
        (None, [0xBEE0], False, VanishedThread(0, 0xBEE0), OwnerCertainty.INFERRED),
        (None, [0xBEE0], True, VanishedThread(0, 0xBEE0), OwnerCertainty.RECORDED),  # a thread has had it
    ],
)
def test_an_rlock_records_its_owner(owner_tid, ended, has_block, owner, certainty):
    process = waiter(2)
    if has_block:
        process.target.regions[0xB000] = bytes(0xEE0) + struct.pack("<QQQ", 0xBEE0, 0, 0xBEE0) + bytes(0x108)
    found = python_wait("rlock", owner_ident=0xBEE0, owner_tid=owner_tid)
    wait = wait_of(process, python=Python(wait=found, ended=ended))
    assert (wait.owner, wait.certainty) == (owner, certainty)
    assert (wait.evidence[-1] == "which thread has that ident could not be read") is (owner is None)


def test_a_plain_lock_is_held_by_who_is_inside_its_with():
    process = waiter(2).thread(3, LOCK_STACK, args=(DATA, BITSET, 0))
    wait = wait_of(process, python=lock(inside=(2, 3)))
    assert (wait.owner, wait.certainty) == (OwnerThread(2), OwnerCertainty.INFERRED)
    assert wait_of(process, python=lock()).owner is None
    assert wait_of(waiter(), python=lock(inside=(1,))).owner == OwnerThread(1)
    assert wait_of(waiter(value=1), python=lock()).being_released


def test_a_future_that_an_event_loop_has_to_complete():
    process = waiter(2)
    other = wait_of(process, python=Python(wait=python_wait("future"), owing={0x9000: 2}))
    assert (other.owner, other.certainty, other.detail.self_wait) == (OwnerThread(2), OwnerCertainty.RECORDED, None)
    own = wait_of(process, python=Python(wait=python_wait("future"), owing={0x9000: 1}))
    assert (own.owner, own.detail.self_wait) == (OwnerThread(1), SelfWait.EVENT_LOOP)
    assert wait_of(process, python=Python(wait=python_wait("event"), owing={0x9000: 2})).owner is None
    nobody = wait_of(process, python=Python(wait=python_wait("future")))
    assert (nobody.owner, nobody.being_released) == (None, False)


def test_the_end_of_the_interpreter_waits_for_threads_that_are_no_daemons():
    process = waiter(2, 3)
    wait = wait_of(process, python=Python(wait=python_wait("shutdown", awaited=(1, 2, 3))))
    assert [owner.tid for owner in wait.owners] == [2, 3]
    assert wait.resource.name.startswith("all non-daemon threads")
    assert wait_of(process, python=Python(wait=python_wait("shutdown", awaited=(1,)))).owner is None


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
    ("function", "python", "reason"),
    [
        ("PyErr_CheckSignals", "f", SelfWait.SIGNAL),
        ("PyObject_ClearWeakRefs", "f", SelfWait.WEAKREF),
        ("PyObject_CallFinalizerFromDealloc", "f", SelfWait.FINALIZER),
        ("PyObject_Vectorcall", "Item.__del__", SelfWait.FINALIZER),
        ("PyObject_Vectorcall", "f", None),
    ],
)
def test_what_interrupted_the_holder(function, python, reason):
    frames = [*LOCK_STACK, ("libpython3.11.so.1.0", function), LOOP]
    process = waiter(frames=frames, python=[Frame(3, FrameKind.PYTHON, None, python, file="/app/items.py", line=1)])
    wait = wait_of(process, python=lock(inside=[1]))
    assert (wait.owner, wait.detail.self_wait) == (OwnerThread(1), reason)


def test_a_lock_without_holder_in_a_forked_child_is_the_parents():
    wait = wait_of(waiter(), python=lock(), procfs=FORKED)
    assert (wait.owners, wait.owner_tids, wait.gone_owner) == ((ParentsThread(),), (), ParentsThread())
    assert wait_of(waiter(), python=lock()).owner is None
    assert wait_of(waiter(2), 1, python=lock(), procfs=FORKED).owner is None
