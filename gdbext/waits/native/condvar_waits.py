"""Waits for pthread_cond_t: nobody owns it; the mutex that goes with it is found in the waiter's frames."""

from __future__ import annotations

from gdbext.glibc.mutex import Mutex
from gdbext.glibc.sync_objects import CONDVAR_WORDS, condvar_by_alignment
from gdbext.model.threads.wait import Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.futex import futex_wait
from gdbext.waits.snapshot import ThreadSnapshot

_NEAR = 6
_MAX_USERS = 1 << 16
_LOWEST = 0x10000
"""Addresses below are never mapped (vm.mmap_min_addr)."""


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a condition variable, None for any other."""
    futex, level = futex_wait(thread.syscall), thread.first(FunctionTag.CONDVAR, within=_NEAR)
    if futex is None or level is None or futex.is_lock_word:
        return None
    base = thread.object_around(futex.address, CONDVAR_WORDS, level)
    address = base if base is not None else condvar_by_alignment(futex.address)
    how = "found in the waiter's frames" if base is not None else "by the layout of glibc up to 2.40"
    return Wait(
        Resource(WaitKind.CONDVAR, address, thread.process.name_at(address)),
        timed=futex.timed,
        companion=_companion(thread, address, level),
        evidence=(f"futex {futex.address:#x} is a signal word of the condition variable {address:#x} ({how})",),
    )


def _companion(thread: ThreadSnapshot, condvar: int, level: int) -> Resource | None:
    """The mutex of a pthread_cond_wait: the only other object in its frames that is a plausible pthread_mutex_t."""
    found = {value for value in thread.values(level) if value != condvar and _may_be_companion(thread, value)}
    if len(found) != 1:
        return None
    address = found.pop()
    return Resource(WaitKind.MUTEX, address, thread.process.name_at(address))


def _may_be_companion(thread: ThreadSnapshot, address: int) -> bool:
    """The waiter does not own it (the wait unlocked it) but counts as a user of it, so its kind, its user count and
    its owner are what can be checked."""
    if not address or address % 8 or not _is_writable_data(thread, address):
        return False
    mutex = Mutex.read(thread.process.memory, address)
    if mutex is None or not 0 < mutex.users < _MAX_USERS or mutex.lock > 2:
        return False
    if mutex.owner == thread.own_tid or (mutex.owner != 0) != (mutex.lock != 0):
        return False
    return mutex.owner == 0 or thread.process.owner(mutex.owner) is not None


def _is_writable_data(thread: ThreadSnapshot, address: int) -> bool:
    if not _LOWEST <= address < thread.process.memory.architecture.user_limit:
        return False
    mapping = thread.process.modules.mapping_at(address)
    return mapping is None or not mapping.permissions or "w" in mapping.permissions
