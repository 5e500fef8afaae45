"""Mutexes, condition variables, read-write locks, semaphores, barriers and stdio's locks in memory.

Layouts: sysdeps/nptl/bits/thread-shared-types.h (condvar), struct_rwlock.h, nptl/internaltypes.h (barrier, semaphore),
sysdeps/nptl/stdio-lock.h of glibc 2.25 to 2.41; the same on every 64-bit architecture. A mutex (struct_mutex.h) begins
with int __lock, unsigned __count, int __owner, unsigned __nusers, int __kind; what follows differs and is not read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gdbext.engine.process.memory import Memory

KIND = 16  # offset of the field __kind

_WORDS = struct.Struct("<5I")
_KIND_BITS = 0x3F3  # type (0–3), robust, PI, PP, process-shared and elision bits of __kind
_TYPES = ("normal", "recursive", "error-checking", "adaptive")
"""PTHREAD_MUTEX_TIMED_NP, _RECURSIVE_NP, _ERRORCHECK_NP, _ADAPTIVE_NP (pthread.h)."""
_ROBUST, _PRIORITY_INHERITING, _PRIORITY_PROTECTED, _SHARED = 0x10, 0x20, 0x40, 0x80
"""PTHREAD_MUTEX_ROBUST_NORMAL_NP, _PRIO_INHERIT_NP, _PRIO_PROTECT_NP, PTHREAD_MUTEX_PSHARED_BIT (nptl/pthreadP.h)."""
_FEATURES = ((_ROBUST, "robust"), (_PRIORITY_INHERITING, "priority-inheriting"), (_SHARED, "process-shared"))


class Mutex(NamedTuple):
    """``lock`` is the futex word, ``owner`` the recorded thread id, ``users`` the number of threads that hold the mutex
    or wait with a condition variable for it."""

    lock: int
    owner: int
    users: int
    kind: int

    @classmethod
    def read(cls, memory: Memory, address: int) -> Mutex | None:
        """The mutex at an address, None if its __kind is impossible or it cannot be read."""
        raw = memory.try_read(address, _WORDS.size)
        if not raw:
            return None
        lock, _, owner, users, kind = _WORDS.unpack(raw)
        return cls(lock, owner, users, kind) if not kind & ~_KIND_BITS else None

    @property
    def is_robust(self) -> bool:
        """True if the kernel marks the mutex when its owner exits."""
        return bool(self.kind & _ROBUST)

    @property
    def is_priority_inheriting(self) -> bool:
        """True if the lock word is the owner's id, and the kernel wakes the waiters."""
        return bool(self.kind & _PRIORITY_INHERITING)

    @property
    def is_shared(self) -> bool:
        return bool(self.kind & _SHARED)

    @property
    def is_consistent(self) -> bool:
        """True if the words agree that a thread holds the mutex while another one sleeps: the owner is one of the
        users, and a plain futex word is 2. Only then may a missing owner be reported as exited."""
        is_plain = not self.kind & (_ROBUST | _PRIORITY_INHERITING | _PRIORITY_PROTECTED)
        return 0 < self.users <= _MOST_WAITERS and (not is_plain or self.lock == 2)

    @property
    def is_recursive(self) -> bool:
        return self.kind & 3 == 1

    @property
    def description(self) -> str:
        return " ".join([*(name for bit, name in _FEATURES if self.kind & bit), _TYPES[self.kind & 3]])


def recorded_owner(memory: Memory, address: int) -> int:
    """The thread id in a mutex's field __owner, 0 while no thread holds it. Raises MemoryFault."""
    return memory.u32(address + 8)


OLD_CONDVAR_WORDS = (40, 44)  # the futex words of pthread_cond_t, __g_signals[0] and [1], up to glibc 2.40
CONDVAR_WORDS = (*OLD_CONDVAR_WORDS, 32, 36)
"""These, and those since 2.41, which dropped __g_refs."""
RWLOCK_WORDS = (8, 12, 0)  # the futex words of pthread_rwlock_t: __wrphase_futex, __writers_futex, __readers
BARRIER_WORD = 4  # the futex word of pthread_barrier_t: current_round
ONCE_STATE, ONCE_IN_PROGRESS = 3, 1
"""The lowest bits of pthread_once_t (nptl/pthread_once.c): in progress 1, done 2; above them is the fork generation."""

_RWLOCK = struct.Struct("<I20xI")
_SEMAPHORE = struct.Struct("<III")
_BARRIER = struct.Struct("<III")
_CONDVAR = struct.Struct("<Q8x2I2I4xI2I")
_STREAM_LOCK = struct.Struct("<IIQ")
_MOST_WAITERS = 1 << 22  # PID_MAX_LIMIT, include/linux/threads.h


class Condvar(NamedTuple):
    """pthread_cond_t of glibc 2.25 to 2.40: __wseq +0, __g_refs +16, __g_size +24, __wrefs +36, __g_signals +40.

    Waiters are in two groups: signals go to G1, which gets no new waiters; the lowest bit of __wseq is the index of
    G2. __wrefs counts all waiters (times 8), __g_refs the sleeping ones of a group (times 2), __g_size the waiters of
    G1 without a signal, __g_signals the signals that no thread took (times 2; odd while the group is closed).
    """

    sequence: int
    asleep: tuple[int, int]
    sizes: tuple[int, int]
    waiters: int
    signals: tuple[int, int]

    @classmethod
    def read(cls, memory: Memory, word: int, address: int) -> Condvar | None:
        """The condition variable at an address; None if unreadable, or ``word``, its futex, is a later glibc's."""
        raw = memory.try_read(address, _CONDVAR.size) if word - address in OLD_CONDVAR_WORDS else b""
        if not raw:
            return None
        sequence, asleep0, asleep1, size0, size1, waiters, signals0, signals1 = _CONDVAR.unpack(raw)
        return cls(sequence, (asleep0 >> 1, asleep1 >> 1), (size0, size1), waiters >> 3, (signals0, signals1))

    @property
    def loses_signals(self) -> bool:
        """True if signals go to waiters that do not exist, while others sleep: all waiters are in G2, and yet G1 has a
        size or a signal. Without waiters G1 should have neither: a woken thread takes the signal, and a thread that
        stops waiting reduces the size. Only a timeout together with a signal leaves that signal behind."""
        second = self.sequence & 1
        first = second ^ 1
        if not self.waiters or self.asleep[second] != self.waiters or self.asleep[first]:
            return False
        return not self.signals[first] & 1 and 0 < self.signals[first] // 2 + self.sizes[first] <= _MOST_WAITERS


def condvar_by_alignment(word: int) -> int:
    """Address of the condition variable whose futex word is at ``word``, by the layout up to glibc 2.40."""
    return word - OLD_CONDVAR_WORDS[0 if word % 8 == 0 else 1]


def rwlock_by_alignment(word: int) -> int:
    """Address of the read-write lock whose futex word, unless it is __readers, is at ``word``."""
    return word - RWLOCK_WORDS[0 if word % 8 == 0 else 1]


class RwLock(NamedTuple):
    """pthread_rwlock_t: __readers +0, __cur_writer +24. ``writer`` is the id of the thread that holds it to write."""

    readers: int
    writer: int

    @classmethod
    def read(cls, memory: Memory, address: int) -> RwLock | None:
        """The lock at an address, None if it cannot be read."""
        raw = memory.try_read(address, _RWLOCK.size)
        if not raw:
            return None
        readers, writer = _RWLOCK.unpack(raw)
        return cls(readers >> 3, writer)  # PTHREAD_RWLOCK_READER_SHIFT, nptl/pthread_rwlock_common.c


class Semaphore(NamedTuple):
    """sem_t (struct new_sem, __HAVE_64B_ATOMICS): the value +0, the number of waiters +4, private +8."""

    value: int
    waiters: int
    private: int

    @classmethod
    def read(cls, memory: Memory, address: int) -> Semaphore | None:
        raw = memory.try_read(address, _SEMAPHORE.size)
        return cls(*_SEMAPHORE.unpack(raw)) if raw else None

    @property
    def is_waited_for(self) -> bool:
        """True if this is surely a semaphore with waiters: no token, at least one waiter, a flag for the futex call."""
        return self.value == 0 and 1 <= self.waiters <= _MOST_WAITERS and self.private in (0, 128)


class Barrier(NamedTuple):
    """pthread_barrier_t (struct pthread_barrier): in +0, current_round +4, count +8."""

    entered: int
    round: int
    expected: int

    @classmethod
    def read(cls, memory: Memory, address: int) -> Barrier | None:
        """The barrier at an address, None if the numbers are impossible."""
        raw = memory.try_read(address, _BARRIER.size)
        barrier = cls(*_BARRIER.unpack(raw)) if raw else None
        if not barrier or not 0 < barrier.expected < 1 << 20 or barrier.arrived > barrier.expected:
            return None
        return barrier

    @property
    def arrived(self) -> int:
        return self.entered - self.round


class StreamLock(NamedTuple):
    """_IO_lock_t: int lock, int cnt, void* owner, which is the owner's thread pointer (THREAD_SELF). ``depth`` of a
    lock that was taken once is 1, and 0 in recent versions (2.43 is one)."""

    lock: int
    depth: int
    owner: int

    @classmethod
    def read(cls, memory: Memory, address: int) -> StreamLock | None:
        """The lock at an address, None if no thread can hold one there."""
        raw = memory.try_read(address, _STREAM_LOCK.size)
        stream = cls(*_STREAM_LOCK.unpack(raw)) if raw else None
        return stream if stream and stream.lock and stream.owner and stream.depth < 1 << 16 else None
