"""What Python's own objects say of a wait."""

from __future__ import annotations

import struct

import pytest

from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, VanishedThread
from gdbext.diagnosis.report.wait_kind import SelfWait
from gdbext.diagnosis.waits import python_waits
from support.programs.wait_processes import BITSET, DATA, LOCK_STACK, Process, Python, python_wait, wait_of


def waits_for_lock(value=0):
    return Process({DATA: struct.pack("<IIII", value, 1, 0, 0)}).thread(1, LOCK_STACK, args=(DATA, BITSET, 0))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("condition", "condvar"),
        ("event", "condvar"),
        ("queue", "queue"),
        ("simplequeue", "queue"),
        ("future", "condvar"),
        ("semaphore", "semaphore"),
        ("barrier", "barrier"),
        ("lock", "python-lock"),
        ("rlock", "python-lock"),
        ("thread", "join"),
        ("shutdown", "join"),
    ],
)
def test_python_objects_name_the_wait(kind, expected):
    assert wait_of(waits_for_lock(), python=Python(wait=python_wait(kind))).resource.kind.value == expected


def test_every_waitable_has_a_meaning():
    assert set(python_waits._MEANINGS) == set(Waitable)


@pytest.mark.parametrize(
    ("owner_tid", "ended", "has_block", "owner", "certainty"),
    [
        (2, (), False, OwnerThread(2), OwnerCertainty.RECORDED),
        (None, (), False, None, OwnerCertainty.UNKNOWN),  # not every thread was looked at
        (None, [0xBEE0], False, VanishedThread(None, 0xBEE0), OwnerCertainty.INFERRED),
        (None, [0xBEE0], True, VanishedThread(None, 0xBEE0), OwnerCertainty.RECORDED),  # a thread has had it
    ],
)
def test_an_rlock_records_its_owner(owner_tid, ended, has_block, owner, certainty):
    process = waits_for_lock().thread(2, [])
    if has_block:
        process.target.regions[0xB000] = bytes(0xEE0) + struct.pack("<QQQ", 0xBEE0, 0, 0xBEE0) + bytes(0x108)
    found = python_wait("rlock", owner_ident=0xBEE0, owner_tid=owner_tid)
    wait = wait_of(process, python=Python(wait=found, ended=ended))
    assert (wait.owner, wait.certainty) == (owner, certainty)
    assert (wait.evidence[-1] == "which thread has that ident could not be read") is (owner is None)


def test_a_plain_lock_is_held_by_who_is_inside_its_with():
    process = waits_for_lock().thread(2, []).thread(3, LOCK_STACK, args=(DATA, BITSET, 0))
    wait = wait_of(process, python=Python(wait=python_wait("lock"), inside=(2, 3)))
    assert (wait.owner, wait.certainty) == (OwnerThread(2), OwnerCertainty.INFERRED)
    assert wait_of(process, python=Python(wait=python_wait("lock"))).owner is None
    alone = Python(wait=python_wait("lock"), inside=(1,))
    assert wait_of(waits_for_lock(), python=alone).owner == OwnerThread(1)
    assert wait_of(waits_for_lock(value=1), python=Python(wait=python_wait("lock"))).being_released


def test_a_future_that_an_event_loop_has_to_complete():
    process = waits_for_lock().thread(2, [])
    other = wait_of(process, python=Python(wait=python_wait("future"), owing={0x9000: 2}))
    assert (other.owner, other.certainty, other.self_wait) == (OwnerThread(2), OwnerCertainty.RECORDED, None)
    own = wait_of(process, python=Python(wait=python_wait("future"), owing={0x9000: 1}))
    assert (own.owner, own.self_wait) == (OwnerThread(1), SelfWait.EVENT_LOOP)
    assert wait_of(process, python=Python(wait=python_wait("event"), owing={0x9000: 2})).owner is None
    nobody = wait_of(process, python=Python(wait=python_wait("future")))
    assert (nobody.owner, nobody.being_released) == (None, False)


def test_the_end_of_the_interpreter_waits_for_threads_that_are_no_daemons():
    process = waits_for_lock().thread(2, []).thread(3, [])
    wait = wait_of(process, python=Python(wait=python_wait("shutdown", awaited=(1, 2, 3))))
    assert [owner.tid for owner in wait.owners] == [2, 3]
    assert wait.resource.name.startswith("all threads that are not daemons")
    assert wait_of(process, python=Python(wait=python_wait("shutdown", awaited=(1,)))).owner is None
