"""Condition variables, read-write locks, semaphores, joins and barriers."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread
from gdbext.engine.targets.system.peer import ChildProcess, ProcessState
from support.programs.wait_processes import BITSET, DATA, PRIVATE, TLS, Outside, Process, mutex, wait_of

CONDVAR = [("libc.so.6", None), ("libc.so.6", "pthread_cond_wait"), ("app.so", "work")]


@pytest.mark.parametrize("offset", [40, 44, 32, 36])
def test_a_condition_variable_found_in_the_waiters_frames(offset):
    process = Process({DATA: bytes(64)}).thread(1, CONDVAR, args=(DATA + offset, BITSET, 0), registers={"rbx": DATA})
    wait = wait_of(process)
    assert (wait.resource.kind.value, wait.resource.address, wait.timed) == ("condvar", DATA, False)


def test_a_condition_variable_names_its_mutex_when_there_is_one_candidate():
    objects, registers = {DATA: bytes(64), 0x40000: mutex(lock=0, users=1)}, {"rbx": DATA, "r12": 0x40000}
    companion = wait_of(Process(objects).thread(1, CONDVAR, args=(DATA + 40, BITSET, 0), registers=registers)).mutex
    assert companion is not None
    assert companion.address == 0x40000


def test_a_rwlock_with_a_writer():
    raw = struct.pack("<IIIIIIiI", 2, 0, 1, 2, 0, 0, 2, 0) + bytes(24)
    frames = [("libc.so.6", "pthread_rwlock_rdlock"), ("app.so", "work")]
    process = Process({DATA: raw}).thread(1, frames, args=(DATA + 8, PRIVATE, 3), registers={"rbx": DATA})
    wait = wait_of(process.thread(2, []))
    assert (wait.resource.kind.value, wait.resource.address, wait.owner) == ("rwlock", DATA, OwnerThread(2))


def test_readers_of_a_rwlock_are_inferred_only_when_their_number_fits():
    raw = struct.pack("<IIIIIIiI", 2 << 3, 1, 0, 1, 0, 0, 0, 0) + bytes(24)
    frames = [("libc.so.6", "pthread_rwlock_wrlock"), ("app.so", "work")]
    reads = [("app.so", "reads"), ("app.so", "main")]
    process = Process({DATA: raw}).thread(1, frames, args=(DATA + 12, PRIVATE, 1), registers={"rbx": DATA})
    process.thread(2, reads, registers={"rbx": DATA})
    assert wait_of(process).owners == ()
    process.thread(3, reads, registers={"r12": DATA})
    wait = wait_of(process)
    assert (wait.owners, wait.certainty) == ((OwnerThread(2), OwnerThread(3)), OwnerCertainty.INFERRED)


@pytest.mark.parametrize(("waiters", "kind"), [(1, "semaphore"), (0, "futex")])
def test_a_semaphore_without_any_name(waiters, kind):
    frames = [("libc.so.6", None), ("libc.so.6", None), ("app.so", "work")]
    process = Process({DATA: struct.pack("<IIII", 0, waiters, 0, 0)}).thread(1, frames, args=(DATA, BITSET, 0))
    assert wait_of(process).resource.kind.value == kind


@pytest.mark.parametrize(
    ("word", "value", "owners"),
    [
        (0x2D0, 2, (OwnerThread(2),)),  # the thread's id
        (0x628, 2, (OwnerThread(2),)),  # its state, since glibc 2.43
        (0x628, 1, (OwnerThread(2),)),
        (0x628, 3, ()),
        (0x62C, 2, ()),
    ],
)
def test_a_join_is_proven_by_the_address_of_its_word(word, value, owners):
    process = Process().thread(1, [("libc.so.6", None)], args=(TLS + 2 * 0x1000 + word, 265, value)).thread(2, [])
    wait = wait_of(process)
    assert (wait.owners, wait.resource.kind.value == "join") == (owners, bool(owners))
    assert (wait.certainty is OwnerCertainty.RECORDED) is bool(owners)


def test_a_barrier_says_how_many_have_arrived():
    raw = struct.pack("<IIIII", 3, 0, 4, 0, 0)
    process = Process({DATA: raw}).thread(1, [("libc.so.6", "pthread_barrier_wait")], args=(DATA + 4, PRIVATE, 0))
    assert wait_of(process).resource.name == "3 of 4 threads have arrived"


class SharedMemory(Process):
    def mapping_at(self, _address):
        return SimpleNamespace(permissions="rw-s", path="/dev/shm/sem.mp-1")


class Alone(Outside):
    def sharers(self, _mapping):
        return ()


def test_a_semaphore_that_nobody_else_has_names_the_children_that_have_ended():
    """One of them may be who should have posted it: an Event of multiprocessing whose setter failed."""
    frames = [("libc.so.6", None), ("libc.so.6", "sem_wait"), ("app.so", "work")]
    process = SharedMemory({DATA: struct.pack("<QQ", 1 << 32, 0)}).thread(1, frames, args=(DATA, BITSET & ~PRIVATE, 0))
    child = ChildProcess(7, "server", ProcessState.ENDED, ending="exit status 1")
    name = wait_of(process, outside=Alone(child)).resource.name
    assert name.endswith("no other process that has it is alive; of its processes 7 (server, exit status 1) has ended")
