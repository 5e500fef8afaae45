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


def test_an_rlock_records_its_owner():
    process = waits_for_lock().thread(2, [])
    wait = wait_of(process, python=Python(wait=python_wait("rlock", owner_ident=0xBEE0, owner_tid=2)))
    assert (wait.owner, wait.certainty) == (OwnerThread(2), OwnerCertainty.RECORDED)


def test_a_gone_owner_is_recorded_only_where_a_thread_has_had_its_ident():
    block, ended = 0xBEE0, Python(wait=python_wait("rlock", owner_ident=0xBEE0), ended=[0xBEE0])
    process = waits_for_lock()
    wait = wait_of(process, python=ended)
    assert (wait.owner, wait.certainty) == (VanishedThread(None, block), OwnerCertainty.INFERRED)
    process.target.regions[0xB000] = bytes(0xEE0) + struct.pack("<QQQ", block, 0, block) + bytes(0x108)
    wait = wait_of(process, python=ended)
    assert (wait.owner, wait.certainty) == (VanishedThread(None, block), OwnerCertainty.RECORDED)


def test_an_owner_is_gone_only_where_every_thread_was_looked_at():
    wait = wait_of(waits_for_lock(), python=Python(wait=python_wait("rlock", owner_ident=0xBEE0)))
    assert (wait.owner, wait.certainty) == (None, OwnerCertainty.UNKNOWN)
    assert wait.evidence[-1] == "which thread has that ident could not be read"


def test_a_plain_lock_is_held_by_who_is_inside_its_with():
    process = waits_for_lock().thread(2, []).thread(3, LOCK_STACK, args=(DATA, BITSET, 0))
    python = Python(wait=python_wait("lock"), inside=(2, 3))
    assert (wait_of(process, python=python).owner, wait_of(process, python=python).certainty) == (
        OwnerThread(2),
        OwnerCertainty.INFERRED,
    )
    assert wait_of(process, python=Python(wait=python_wait("lock"))).owner is None
    alone = Python(wait=python_wait("lock"), inside=(1,))
    assert wait_of(waits_for_lock(), python=alone).owner == OwnerThread(1)


def test_a_lock_that_is_free_again():
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
