"""glibc's own record of a thread: ``struct pthread``, found through the thread pointer."""

from __future__ import annotations

from gdbext.glibc.abi import glibc_abi
from gdbext.process.memory import Memory

JOINABLE, EXITING = 2, 1
"""Values of ``struct pthread.joinstate`` of a thread that pthread_join waits for (nptl/descr.h, 2.43)."""


def thread_id_word(memory: Memory, thread_pointer: int) -> int:
    """The address of the thread's id: what pthread_join sleeps on, before 2.43."""
    return thread_pointer + glibc_abi(memory.architecture).thread_id


def join_state_word(memory: Memory, thread_pointer: int) -> int:
    """The address of the thread's state: what pthread_join sleeps on since 2.43."""
    return thread_pointer + glibc_abi(memory.architecture).join_state


def thread_id(memory: Memory, thread_pointer: int) -> int | None:
    """The thread's id as the process itself sees it, None where it cannot be read."""
    raw = memory.try_read(thread_id_word(memory, thread_pointer), 4) if thread_pointer else None
    return int.from_bytes(raw, "little") if raw else None


def pthread_self(memory: Memory, thread_pointer: int) -> int:
    """The thread's pthread_t."""
    return thread_pointer + glibc_abi(memory.architecture).pthread_self
