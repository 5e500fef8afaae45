"""Waits for pthread_rwlock_t: it records its writer, and counts its readers."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.glibc.sync_objects import RWLOCK_WORDS, RwLock, rwlock_by_alignment
from gdbext.model.certainty import Certainty
from gdbext.model.threads.wait import Owner, Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.futex import futex_wait
from gdbext.waits.snapshot import ThreadSnapshot

_NEAR = 6
_DEEP = 40
"""Frames of a thread that may mention the lock it reads under."""


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a read-write lock, None for any other."""
    futex, level = futex_wait(thread.syscall), thread.first(FunctionTag.READ_LOCK, FunctionTag.WRITE_LOCK, within=_NEAR)
    if futex is None or level is None:
        return None
    base = thread.object_around(futex.address, RWLOCK_WORDS, level)
    if base is None:
        base = rwlock_by_alignment(futex.address)
    process = thread.process
    lock = RwLock.read(process.memory, base)
    if lock is None:
        return Wait(Resource(WaitKind.RWLOCK, base))
    resource = Resource(WaitKind.RWLOCK, base, process.name_at(base))
    if lock.writer:
        owner = process.owner(lock.writer)
        evidence = f"rwlock {base:#x}: writer {lock.writer} at +24"
        return Wait(resource, owner, Certainty.EXACT if owner else Certainty.UNKNOWN, futex.timed, (evidence,))
    if not lock.readers:
        return Wait(resource, handover=True, evidence=(f"rwlock {base:#x} has no writer and no readers: free",))
    return _held_by_readers(thread, resource, lock.readers, futex.timed)


def _held_by_readers(thread: ThreadSnapshot, resource: Resource, count: int, timed: bool) -> Wait:
    found = list(_readers(thread, resource.address))
    evidence = f"rwlock {resource.address:#x} is held by {count} reader(s), which it does not name"
    if len(found) != count:
        return Wait(resource, timed=timed, evidence=(evidence,))
    seen = f"{evidence}; exactly as many other threads have its address in their frames"
    return Wait(resource, found[0], Certainty.INFERRED, timed, (seen,), tuple(found[1:]))


def _readers(thread: ThreadSnapshot, rwlock: int) -> Iterator[Owner]:
    """Threads whose frames mention the rwlock and that do not wait for it."""
    for other in thread.process.threads:
        if other is thread or other.first(FunctionTag.READ_LOCK, FunctionTag.WRITE_LOCK, within=_NEAR) is not None:
            continue
        if other.mentions(rwlock, range(min(len(other.frames), _DEEP))):
            yield Owner(other.tid)
