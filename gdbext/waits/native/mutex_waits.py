"""Waits for pthread_mutex_t of any kind, the dynamic loader's among them, and who owns it.

On a stripped libc only exported functions have names, so a wait is recognised by the exported caller, by the futex
operation and by what is in memory.
"""

from __future__ import annotations

from gdbext.glibc import mutex as pthread_mutex
from gdbext.glibc.mutex import Mutex
from gdbext.model.certainty import Certainty
from gdbext.model.threads.wait import Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.futex import TID_MASK, WAIT_BITSET, FutexWait, futex_wait
from gdbext.waits.snapshot import ThreadSnapshot

_LOCKED = 1
"""The lock word without waiters. Whoever waits has set it to 2 and sleeps only while it is that: from 1 on a release is
behind it, which woke a waiter, and that one will set 2 again (``lll_lock``, sysdeps/nptl/lowlevellock.h)."""
_NEAR = 6
"""Frames between the kernel and the exported function that locks."""


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a mutex, None for any other."""
    futex = futex_wait(thread.syscall)
    if futex is None or not futex.is_lock:
        return _refused_mutex(thread, futex) if futex is not None else None
    mutex = Mutex.read(thread.process.memory, futex.address)
    if mutex is None or not (_is_named(thread) or _looks_owned(thread, mutex)):
        return None
    return _mutex_wait(thread, futex, mutex)


def destroyed(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside pthread_mutex_lock for what can be no mutex any more; None for any other."""
    futex = futex_wait(thread.syscall)
    if futex is None or not futex.is_lock or not _is_named(thread):
        return None
    if Mutex.read(thread.process.memory, futex.address) is not None:
        return None
    evidence = f"{futex.address:#x} is waited for as a mutex, and what is there is not one (freed or overwritten)"
    return Wait(Resource(WaitKind.MUTEX, futex.address, "destroyed"), evidence=(evidence,))


def _is_named(thread: ThreadSnapshot) -> bool:
    return thread.first(FunctionTag.MUTEX, FunctionTag.CONDVAR, within=_NEAR) is not None


def _looks_owned(thread: ThreadSnapshot, mutex: Mutex) -> bool:
    """Locked, and its owner is a thread of this process: this is a mutex even where no name says so."""
    owner = thread.process.owner(mutex.owner)
    return bool(mutex.lock) and owner is not None and not owner.gone


def _mutex_wait(thread: ThreadSnapshot, futex: FutexWait, mutex: Mutex) -> Wait:
    process = thread.process
    in_loader = _in_loader(thread, futex.address) or _loader_locks(thread)
    kind = WaitKind.LOADER_LOCK if in_loader else WaitKind.MUTEX
    resource = Resource(kind, futex.address, process.name_at(futex.address))
    tid = mutex.owner
    if futex.is_pi or futex.is_robust:
        tid = mutex.lock & TID_MASK
    if not mutex.lock:
        return Wait(resource, handover=True, evidence=(f"the lock word at {futex.address:#x} is 0: free",))
    if futex.is_lock_word and mutex.lock == _LOCKED:
        evidence = f"the lock word at {futex.address:#x} is 1: released and taken again since the thread fell asleep"
        return Wait(resource, handover=True, evidence=(evidence,))
    owner = process.owner(tid)
    if owner is not None and owner.tid == thread.tid and not mutex.is_robust and mutex.is_recursive:
        owner = None  # A recursive mutex lets its owner in: this cannot be its state at rest.
    if owner is None:
        evidence = f"the mutex at {futex.address:#x} is locked, its owner field is {tid}"
        return Wait(resource, evidence=(evidence,))
    evidence = f"{mutex.description} mutex {futex.address:#x}: lock word {mutex.lock:#x}, owner {tid} at +8"
    if owner.gone and mutex.is_shared:
        text = f"shared between processes, locked by thread {tid}, which is not one of this process"
        return Wait(resource._replace(name=text), timed=futex.timed, evidence=(evidence,), external=True)
    return Wait(resource, owner, Certainty.EXACT, evidence=(evidence,), timed=futex.timed)


def _in_loader(thread: ThreadSnapshot, address: int) -> bool:
    module = thread.process.modules.find(address)
    return module is not None and module.name.startswith(("ld-linux", "ld-2.", "ld.so"))


def _loader_locks(thread: ThreadSnapshot) -> bool:
    """The loader itself calls pthread_mutex_lock; a constructor or callback that it runs may wait for any mutex."""
    level = thread.first(FunctionTag.MUTEX, within=_NEAR)
    return level is not None and level + 1 < len(thread.frames) and FunctionTag.LOADER in thread.tags(level + 1)


def _refused_mutex(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """A priority-inheriting mutex that would deadlock: the kernel refuses it (EDEADLK), and glibc lets the thread wait
    for ever on a zero of its own stack (nptl/pthread_mutex_lock.c). The mutex is the only one of that kind, and
    locked, that libc's frames hold a pointer to (or to its kind, which the function has just read)."""
    levels = thread.inner_libc_levels
    if futex.command != WAIT_BITSET or futex.value or futex.timed or not levels:
        return None
    red_zone = thread.process.memory.architecture.red_zone
    if not thread.frames[0].sp - red_zone <= futex.address < thread.frames[levels[-1]].cfa:
        return None
    found: dict[int, Mutex] = {}
    places = (0, pthread_mutex.KIND)
    for address in {value - offset for level in levels for value in thread.values(level) for offset in places}:
        mutex = Mutex.read(thread.process.memory, address) if address % 8 == 0 and address > 0 else None
        pi = mutex is not None and mutex.is_priority_inheriting
        if mutex is not None and pi and thread.process.owner(mutex.lock & TID_MASK) is not None:
            found[address] = mutex
    if len(found) != 1:
        return None
    address, mutex = found.popitem()
    owner = thread.process.owner(mutex.lock & TID_MASK)
    what = f"{mutex.description} mutex {address:#x}"
    evidence = f"{what}: lock word {mutex.lock:#x}; the kernel refused to wait (EDEADLK)"
    return Wait(
        Resource(WaitKind.MUTEX, address, thread.process.name_at(address)), owner, Certainty.EXACT, evidence=(evidence,)
    )
