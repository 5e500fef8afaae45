"""The futex system call: its operation, its flags and what the word says about an owner.

Operations and bits: include/uapi/linux/futex.h.
"""

from __future__ import annotations

from gdbext.model.record import Record
from gdbext.process.syscalls import Syscall

WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2 = 0, 6, 9, 11, 13
_PRIVATE = 0x80
_COMMAND = 0x7F
"""~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME), for the operations in use."""
TID_MASK = 0x3FFFFFFF
WAITERS = 0x80000000


class FutexWait(Record):
    """A thread inside futex(2): ``address`` of the word, the ``value`` it is expected to have, timed or not."""

    address: int
    command: int
    value: int
    timed: bool
    shared: bool = False
    """The word may be in memory that other processes have, too: one of them may wake the thread."""

    @property
    def is_pi(self) -> bool:
        """A priority inheritance lock: the kernel keeps the owner's tid in the word."""
        return self.command in (LOCK_PI, LOCK_PI2)

    @property
    def is_lock_word(self) -> bool:
        """The wait of glibc's low-level lock: the word is 2, "locked, with waiters" (lowlevellock.h)."""
        return self.command == WAIT and self.value == 2

    @property
    def is_lock(self) -> bool:
        """The wait for a lock proper, of whatever kind."""
        return self.is_lock_word or self.is_pi or self.is_robust

    @property
    def is_robust(self) -> bool:
        """The wait for a robust mutex: the word is its owner's tid with FUTEX_WAITERS."""
        return self.command == WAIT and bool(self.value & WAITERS) and bool(self.value & TID_MASK)


def futex_wait(call: Syscall | None) -> FutexWait | None:
    """The futex wait of a system call, None for any other call."""
    if call is None or call.name != "futex":
        return None
    address, operation, value, timeout = call.arguments[:4]
    command = operation & _COMMAND
    if command not in (WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2):
        return None
    return FutexWait(address, command, value & 0xFFFFFFFF, timeout != 0, not operation & _PRIVATE)
