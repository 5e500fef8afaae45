"""glibc's own record of a thread: ``struct pthread``, found through the thread pointer."""

from __future__ import annotations

from gdbext.glibc.abi import glibc_abi
from gdbext.process.memory import Memory


def thread_id_word(memory: Memory, thread_pointer: int) -> int:
    """The address of the thread's id: what pthread_join sleeps on."""
    return thread_pointer + glibc_abi(memory.architecture).thread_id


def thread_id(memory: Memory, thread_pointer: int) -> int | None:
    """The thread's id as the process itself sees it, None where it cannot be read."""
    raw = memory.try_read(thread_id_word(memory, thread_pointer), 4) if thread_pointer else None
    return int.from_bytes(raw, "little") if raw else None


def pthread_self(memory: Memory, thread_pointer: int) -> int:
    """The thread's pthread_t."""
    return thread_pointer + glibc_abi(memory.architecture).pthread_self
