"""Condition variables, read-write locks, semaphores, barriers and stdio's locks in memory.

Layouts: sysdeps/nptl/bits/thread-shared-types.h (condvar), struct_rwlock.h, nptl/internaltypes.h (barrier, semaphore),
sysdeps/nptl/stdio-lock.h of glibc 2.25 to 2.41; the same on every 64-bit architecture.
"""

from __future__ import annotations

import struct

from gdbext.model.record import Record
from gdbext.process.memory import Memory

CONDVAR_WORDS = (40, 44, 32, 36)
"""The futex words of pthread_cond_t, __g_signals[0] and [1]: up to glibc 2.40, then since 2.41, which dropped
__g_refs."""
RWLOCK_WORDS = (8, 12, 0)
"""The futex words of pthread_rwlock_t: __wrphase_futex, __writers_futex, __readers."""
BARRIER_WORD = 4
"""The futex word of pthread_barrier_t: current_round."""
ONCE_STATE, ONCE_IN_PROGRESS = 3, 1
"""The lowest bits of pthread_once_t (nptl/pthread_once.c): in progress 1, done 2; above them is the fork generation."""

_READER_SHIFT = 3  # PTHREAD_RWLOCK_READER_SHIFT, nptl/pthread_rwlock_common.c
_RWLOCK = struct.Struct("<I20xI")
_SEMAPHORE = struct.Struct("<III")
_BARRIER = struct.Struct("<III")
_STREAM_LOCK = struct.Struct("<IIQ")
_MOST_WAITERS = 1 << 22  # PID_MAX_LIMIT, include/linux/threads.h
_MOST_AT_A_BARRIER = 1 << 20
_DEEPEST_RECURSION = 1 << 16


def condvar_by_alignment(word: int) -> int:
    """The condition variable whose futex word is at ``word``, by the layout up to glibc 2.40."""
    return word - CONDVAR_WORDS[0 if word % 8 == 0 else 1]


def rwlock_by_alignment(word: int) -> int:
    """The read-write lock whose futex word is at ``word``, if that is not the count of its readers."""
    return word - RWLOCK_WORDS[0 if word % 8 == 0 else 1]


class RwLock(Record):
    """pthread_rwlock_t: __readers +0, __cur_writer +24. ``writer`` is the id of the thread that holds it to write."""

    readers: int
    writer: int

    @classmethod
    def read(cls, memory: Memory, address: int) -> RwLock | None:
        """The lock at an address, None where it cannot be read."""
        raw = memory.try_read(address, _RWLOCK.size)
        if raw is None:
            return None
        readers, writer = _RWLOCK.unpack(raw)
        return cls(readers >> _READER_SHIFT, writer)


class Semaphore(Record):
    """sem_t (struct new_sem, __HAVE_64B_ATOMICS): the value +0, the number of waiters +4, private +8."""

    value: int
    waiters: int
    private: int

    @classmethod
    def read(cls, memory: Memory, address: int) -> Semaphore | None:
        """The semaphore at an address, None where it cannot be read."""
        raw = memory.try_read(address, _SEMAPHORE.size)
        return None if raw is None else cls(*_SEMAPHORE.unpack(raw))

    @property
    def is_waited_for(self) -> bool:
        """It can be nothing else: no token, at least one waiter, a flag for the futex call."""
        return self.value == 0 and 1 <= self.waiters <= _MOST_WAITERS and self.private in (0, 128)


class Barrier(Record):
    """pthread_barrier_t (struct pthread_barrier): in +0, current_round +4, count +8."""

    entered: int
    round: int
    expected: int

    @classmethod
    def read(cls, memory: Memory, address: int) -> Barrier | None:
        """The barrier at an address, None where the numbers cannot be that."""
        raw = memory.try_read(address, _BARRIER.size)
        found = None if raw is None else cls(*_BARRIER.unpack(raw))
        if found is None or not 0 < found.expected < _MOST_AT_A_BARRIER or found.arrived > found.expected:
            return None
        return found

    @property
    def arrived(self) -> int:
        """Threads that have arrived in this round."""
        return self.entered - self.round


class StreamLock(Record):
    """_IO_lock_t: int lock, int cnt, void* owner, which is the owner's thread pointer (THREAD_SELF).

    ``depth`` of a lock that was taken once is 1, and 0 in recent versions (2.43 is one).
    """

    lock: int
    depth: int
    owner: int

    @classmethod
    def read(cls, memory: Memory, address: int) -> StreamLock | None:
        """The lock at an address, None where no thread can hold one there."""
        raw = memory.try_read(address, _STREAM_LOCK.size)
        found = None if raw is None else cls(*_STREAM_LOCK.unpack(raw))
        if found is None or not found.lock or not found.owner or found.depth >= _DEEPEST_RECURSION:
            return None
        return found
