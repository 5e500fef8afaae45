"""Waits for the C library's own locks: malloc's, a stdio stream's, the loader's and others. Most record no owner."""

from __future__ import annotations

from gdbext.glibc.sync_objects import StreamLock
from gdbext.model.certainty import Certainty
from gdbext.model.threads.wait import Owner, Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.futex import FutexWait, futex_wait
from gdbext.waits.snapshot import INNER, ThreadSnapshot

_NEAR = 14
"""Frames between the kernel and the exported function of libc or ld.so that waits."""
_LIBRARIES = ("libc.", "libc-", "ld-", "libpthread")


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a lock that the functions on its stack identify, None for any other."""
    futex = futex_wait(thread.syscall)
    if futex is None or not futex.is_lock:
        return None
    if thread.first(FunctionTag.MALLOC, within=_NEAR) is not None:
        return _interrupted_malloc(thread, futex) or _lock(thread, futex, WaitKind.LIBC_LOCK, "malloc arena")
    if thread.first(FunctionTag.STDIO, within=_NEAR) is not None:
        return _stream_wait(thread, futex) or _lock(thread, futex, WaitKind.LIBC_LOCK, "stdio stream")
    if thread.first(FunctionTag.LOADER, within=_NEAR) is not None:
        return _lock(thread, futex, WaitKind.LOADER_LOCK)
    if thread.first(FunctionTag.LIBC_LOCK, within=_NEAR) is not None:
        return _lock(thread, futex, WaitKind.LIBC_LOCK)
    return None


def unidentified(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside libc for a lock that nothing identifies, None for any other."""
    futex = futex_wait(thread.syscall)
    if futex is None or not futex.is_lock or not thread.module_name(0).startswith(_LIBRARIES):
        return None
    return Wait(
        Resource(WaitKind.LIBC_LOCK, futex.address, thread.process.name_at(futex.address)),
        handover=_is_free(thread, futex.address),
        evidence=(f"the word at {futex.address:#x} is waited for as a low-level lock, and no mutex is around it",),
    )


def _lock(thread: ThreadSnapshot, futex: FutexWait, kind: WaitKind, name: str = "") -> Wait:
    return Wait(
        Resource(kind, futex.address, name or thread.process.name_at(futex.address)),
        handover=_is_free(thread, futex.address),
        evidence=(f"low-level lock {futex.address:#x} is waited for inside libc, which records no owner",),
    )


def _is_free(thread: ThreadSnapshot, address: int) -> bool:
    raw = thread.process.memory.try_read(address, 4)
    return raw is not None and not any(raw)


def _stream_wait(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """The wait for a stdio stream, which records its owner."""
    stream = StreamLock.read(thread.process.memory, futex.address)
    if stream is None:
        return None
    owners = [each.tid for each in thread.process.threads if each.thread_pointer == stream.owner]
    if len(owners) != 1:
        return None
    resource = Resource(WaitKind.LIBC_LOCK, futex.address, "stdio stream")
    owner = f"owner {stream.owner:#x} at +8 is the thread pointer of thread {owners[0]}"
    evidence = f"stdio lock {futex.address:#x}: {owner}"
    return Wait(resource, Owner(owners[0]), Certainty.EXACT, evidence=(evidence,))


def _interrupted_malloc(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """A signal handler that allocates while the thread it interrupted is itself inside malloc."""
    signals = [level for level in range(min(len(thread.frames), INNER)) if thread.frames[level].is_signal]
    inside = thread.first(FunctionTag.MALLOC, within=_NEAR)
    for level in signals:
        if inside is None or inside > level:
            continue
        outer = range(level + 1, min(level + 8, len(thread.frames)))
        if any(FunctionTag.MALLOC in thread.tags(at) for at in outer):
            resource = Resource(WaitKind.LIBC_LOCK, futex.address, "malloc arena")
            evidence = f"the signal handler of frame {level} interrupted this thread inside malloc, and allocates"
            return Wait(resource, Owner(thread.tid), Certainty.INFERRED, evidence=(evidence,))
    return None
