"""glibc's synchronisation objects, read from bytes."""

from __future__ import annotations

import struct

import pytest

from gdbext.engine.glibc import sync_objects
from gdbext.engine.glibc.sync_objects import Mutex, StreamLock
from gdbext.engine.process.memory import Memory
from support.fakes.fake_target import FakeTarget

HERE = 0x10000


def memory(content: bytes) -> Memory:
    return Memory(FakeTarget({HERE: content.ljust(0x1000, b"\0")}))


def mutex(kind: int, lock: int = 1, owner: int = 7, users: int = 1) -> Mutex | None:
    return Mutex.read(memory(struct.pack("<5I", lock, 0, owner, users, kind)), HERE)


@pytest.mark.parametrize(
    ("kind", "description"),
    [
        (0, "normal"),
        (1, "recursive"),
        (0x12, "robust error-checking"),
        (0xA3, "priority-inheriting process-shared adaptive"),
    ],
)
def test_what_kind_of_mutex_it_is(kind: int, description: str) -> None:
    found = mutex(kind)
    assert (found.description, found.lock, found.owner, found.users) == (description, 1, 7, 1)
    assert sync_objects.recorded_owner(memory(struct.pack("<5I", 2, 0, 4711, 1, kind)), HERE) == 4711


def test_what_can_be_no_mutex() -> None:
    assert mutex(0x400) is mutex(0x7FFF1234) is Mutex.read(memory(b""), HERE - 8) is None


def test_a_rwlock_counts_its_readers_and_names_its_writer() -> None:
    held = memory(struct.pack("<7I", 3 << 3, 0, 0, 0, 0, 0, 0))
    assert sync_objects.RwLock.read(held, HERE) == sync_objects.RwLock(readers=3, writer=0)
    written = memory(struct.pack("<7I", 2, 0, 0, 0, 0, 0, 99))
    assert sync_objects.RwLock.read(written, HERE) == sync_objects.RwLock(readers=0, writer=99)


def test_a_semaphore_that_is_waited_for() -> None:
    for words in ((0, 1, 0), (0, 5, 128), (1, 1, 0), (0, 0, 0), (0, 1, 64)):
        found = sync_objects.Semaphore.read(memory(struct.pack("<3I", *words)), HERE)
        assert found.is_waited_for is (words in ((0, 1, 0), (0, 5, 128)))


def test_a_barrier_counts_who_has_arrived() -> None:
    found = sync_objects.Barrier.read(memory(struct.pack("<3I", 6, 4, 4)), HERE)
    assert (found.arrived, found.expected) == (2, 4)
    assert sync_objects.Barrier.read(memory(struct.pack("<3I", 9, 4, 4)), HERE) is None
    assert sync_objects.Barrier.read(memory(struct.pack("<3I", 1, 0, 0)), HERE) is None


def test_a_stream_lock_records_its_owner() -> None:
    for words in ((2, 1, 0x7F00), (2, 0, 0x7F00)):  # the second one is of glibc 2.43
        assert StreamLock.read(memory(struct.pack("<IIQ", *words)), HERE) == StreamLock(*words)
    for words in ((0, 0, 0), (1, 1 << 20, 0x7F00)):
        assert StreamLock.read(memory(struct.pack("<IIQ", *words)), HERE) is None


@pytest.mark.parametrize(
    ("asleep", "sizes", "waiters", "signals", "loses"),
    [
        ((1, 0), (0, 1), 1, (0, 0), True),  # the next signal goes to nobody
        ((1, 0), (0, 0), 1, (0, 2), True),  # one went
        ((3, 0), (0, 2), 3, (0, 0), True),
        ((1, 0), (0, 0), 1, (0, 0), False),  # sleeps in G2, and nobody signalled
        ((1, 1), (0, 1), 2, (0, 0), False),  # G1 has its waiter
        ((1, 0), (0, 1), 2, (0, 0), False),  # a waiter is about to sleep
        ((1, 0), (0, 0), 2, (0, 2), False),  # a waiter is about to take its signal
        ((0, 1), (0, 0), 1, (0, 0), False),
        ((0, 0), (0, 1), 0, (0, 0), False),  # nobody waits
        ((1, 0), (0, 0), 1, (0, 3), False),  # the group is being closed
        ((1, 0), (0, 0xFFFFFFFF), 1, (0, 0), False),  # timeouts of G2, counted below zero
        ((0, 0), (0, 1), 1, (0, 2), False),  # glibc 2.41 in the older layout: nobody counts who sleeps
    ],
)
def test_a_condition_variable_that_loses_signals(
    asleep: tuple[int, int], sizes: tuple[int, int], waiters: int, signals: tuple[int, int], loses: bool
) -> None:
    """Of glibc 2.36; G2 has the index 0."""
    words = struct.pack("<QQ8I", 6, 2, asleep[0] * 2, asleep[1] * 2, *sizes, 4, waiters * 8, *signals)
    found = sync_objects.Condvar.read(memory(words), HERE + 40, HERE)
    assert found.loses_signals is loses
    assert sync_objects.Condvar.read(memory(words), HERE + 32, HERE) is None, "the layout of glibc 2.41"


def test_which_object_a_futex_word_is_in() -> None:
    assert sync_objects.condvar_by_alignment(HERE + 40) == HERE
    assert sync_objects.condvar_by_alignment(HERE + 44) == HERE
    assert sync_objects.rwlock_by_alignment(HERE + 8) == HERE
    assert sync_objects.rwlock_by_alignment(HERE + 12) == HERE
