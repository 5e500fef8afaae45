"""A pthread mutex in memory.

``struct __pthread_mutex_s`` (sysdeps/nptl/bits/struct_mutex.h, glibc 2.25 to 2.41) begins on every 64-bit architecture
with int __lock, unsigned __count, int __owner, unsigned __nusers, int __kind; what follows differs and is not read.
"""

from __future__ import annotations

import struct

from gdbext.model.record import Record
from gdbext.process.memory import Memory

KIND = 16
"""Where __kind is."""
OWNER = 8
"""Where __owner is: the id of the thread that holds the mutex, 0 while nobody does."""

_WORDS = struct.Struct("<5I")
_KIND_BITS = 0x3F3
"""Type (0–3), robust, PI, PP, process-shared and elision bits of __kind."""
_TYPES = ("normal", "recursive", "error-checking", "adaptive")
"""PTHREAD_MUTEX_TIMED_NP, _RECURSIVE_NP, _ERRORCHECK_NP, _ADAPTIVE_NP (pthread.h)."""
_ROBUST, _PRIORITY_INHERITING, _SHARED = 0x10, 0x20, 0x80
"""PTHREAD_MUTEX_ROBUST_NORMAL_NP, _PRIO_INHERIT_NP, PTHREAD_MUTEX_PSHARED_BIT (nptl/pthreadP.h)."""
_FEATURES = ((_ROBUST, "robust"), (_PRIORITY_INHERITING, "priority-inheriting"), (_SHARED, "process-shared"))


class Mutex(Record):
    """``lock`` is the futex word, ``owner`` the thread id that it records, ``users`` how many threads hold it or wait
    with a condition variable for it."""

    lock: int
    owner: int
    users: int
    kind: int

    @classmethod
    def read(cls, memory: Memory, address: int) -> Mutex | None:
        """The mutex at an address, None where there can be none."""
        raw = memory.try_read(address, _WORDS.size)
        if raw is None:
            return None
        lock, _, owner, users, kind = _WORDS.unpack(raw)
        return cls(lock, owner, users, kind) if not kind & ~_KIND_BITS else None

    @property
    def is_robust(self) -> bool:
        """The kernel marks it when its owner ends."""
        return bool(self.kind & _ROBUST)

    @property
    def is_priority_inheriting(self) -> bool:
        """The lock word is the owner's id, and the kernel wakes the waiters."""
        return bool(self.kind & _PRIORITY_INHERITING)

    @property
    def is_shared(self) -> bool:
        """It may be used by several processes."""
        return bool(self.kind & _SHARED)

    @property
    def is_recursive(self) -> bool:
        """It lets its owner in again."""
        return self.kind & 3 == 1

    @property
    def description(self) -> str:
        """What kind of mutex it is."""
        return " ".join([*(name for bit, name in _FEATURES if self.kind & bit), _TYPES[self.kind & 3]])


def recorded_owner(memory: Memory, address: int) -> int:
    """The thread id in a mutex's owner field, 0 while nobody holds it. Raises MemoryFault."""
    return memory.u32(address + OWNER)
