"""Waits inside glibc's synchronisation objects: which object, and what it records about its owner.

On a stripped libc only exported functions have names, so a wait is recognised by the exported caller, by the futex
operation and by what is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gdbext.glibc import mutex as pthread_mutex
from gdbext.glibc.mutex import Mutex
from gdbext.glibc.sync_objects import (
    BARRIER_WORD,
    CONDVAR_WORDS,
    RWLOCK_WORDS,
    Barrier,
    RwLock,
    Semaphore,
    StreamLock,
    condvar_by_alignment,
    rwlock_by_alignment,
)
from gdbext.glibc.thread import thread_id_word
from gdbext.model.certainty import Certainty
from gdbext.model.wait import Owner, Resource, Wait
from gdbext.model.wait_kind import WaitKind
from gdbext.waits import once
from gdbext.waits.futex import TID_MASK, WAIT_BITSET, FutexWait, futex_wait
from gdbext.waits.snapshot import INNER, ThreadSnapshot

_NEAR = 14
"""Frames between the kernel and the exported function of libc or ld.so that waits."""


def locks(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a lock proper: mutex, rwlock, the loader's or libc's own; None for any other."""
    futex = futex_wait(thread.syscall)
    return None if futex is None else _lock_word(thread, futex) or _rwlock(thread, futex)


def others(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a condition variable, semaphore, thread, barrier or once; None for any other."""
    futex = futex_wait(thread.syscall)
    if futex is None:
        return None
    for recognise in (_condvar, _semaphore, _join, _barrier, once.classify):
        wait = recognise(thread, futex)
        if wait is not None:
            return wait
    return None


def _lock_word(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """A pthread mutex of any kind, the loader's, or one of libc's own locks, which record no owner."""
    if not (futex.is_lock_word or futex.is_pi or futex.is_robust):
        return _refused_mutex(thread, futex)
    mutex = Mutex.read(thread.process.memory, futex.address)
    level = thread.first("mutex", "cond", within=6)
    if mutex is not None and (level is not None or _looks_owned(thread, mutex)):
        return _mutex_wait(thread, futex, mutex)
    for mark, kind, name in (
        ("malloc", WaitKind.LIBC_LOCK, "malloc arena"), ("stdio", WaitKind.LIBC_LOCK, "stdio stream"),
        ("loader", WaitKind.LOADER_LOCK, ""), ("libc-lock", WaitKind.LIBC_LOCK, ""),
    ):  # fmt: skip
        if thread.first(mark, within=_NEAR) is not None:
            if mark == "stdio" and (stream := _stream_wait(thread, futex)) is not None:
                return stream
            if mark == "malloc" and (interrupted := _interrupted_malloc(thread, futex)) is not None:
                return interrupted
            return Wait(
                Resource(kind, futex.address, name or thread.process.name_at(futex.address)),
                handover=_is_free(thread, futex.address),
                evidence=(f"low-level lock {futex.address:#x} is waited for inside libc, which records no owner",),
            )
    if level is not None and mutex is None:
        evidence = f"{futex.address:#x} is waited for as a mutex, and what is there is not one (freed or overwritten)"
        return Wait(Resource(WaitKind.MUTEX, futex.address, "destroyed"), evidence=(evidence,))
    if level is None and not thread.module_name(0).startswith(("libc.", "libc-", "ld-", "libpthread")):
        return None
    return Wait(
        Resource(WaitKind.LIBC_LOCK, futex.address, thread.process.name_at(futex.address)),
        handover=_is_free(thread, futex.address),
        evidence=(f"the word at {futex.address:#x} is waited for as a low-level lock, and no mutex is around it",),
    )


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
    inside = thread.first("malloc", within=_NEAR)
    for level in signals:
        if inside is None or inside > level:
            continue
        outer = range(level + 1, min(level + 8, len(thread.frames)))
        if any("malloc" in thread.marks(at) for at in outer):
            resource = Resource(WaitKind.LIBC_LOCK, futex.address, "malloc arena")
            evidence = f"the signal handler of frame {level} interrupted this thread inside malloc, and allocates"
            return Wait(resource, Owner(thread.tid), Certainty.INFERRED, evidence=(evidence,))
    return None


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


def _looks_owned(thread: ThreadSnapshot, mutex: Mutex) -> bool:
    """Locked, and its owner is a thread of this process: this is a mutex even where no name says so."""
    owner = thread.process.owner(mutex.owner)
    return bool(mutex.lock) and owner is not None and not owner.gone


def _mutex_wait(thread: ThreadSnapshot, futex: FutexWait, mutex: Mutex) -> Wait:
    process = thread.process
    in_loader = _in_loader(thread, futex.address) or _loader_locks(thread)
    name = process.name_at(futex.address)
    resource = Resource(WaitKind.LOADER_LOCK if in_loader else WaitKind.MUTEX, futex.address, name)
    tid = mutex.owner
    if futex.is_pi or futex.is_robust:
        tid = mutex.lock & TID_MASK
    if not mutex.lock:
        return Wait(resource, handover=True, evidence=(f"the lock word at {futex.address:#x} is 0: free",))
    owner = process.owner(tid)
    if owner is not None and owner.tid == thread.tid and not mutex.is_robust and mutex.is_recursive:
        owner = None  # A recursive mutex lets its owner in: this cannot be its state at rest.
    if owner is None:
        evidence = f"the mutex at {futex.address:#x} is locked, its owner field is {tid}"
        return Wait(resource, evidence=(evidence,))
    evidence = f"{mutex.description} mutex {futex.address:#x}: lock word {mutex.lock:#x}, owner {tid} at +8"
    if owner.gone and mutex.is_shared:
        text = f"shared between processes, locked by thread {tid}, which is not one of this process"
        return Wait(replace(resource, name=text), timed=futex.timed, evidence=(evidence,), external=True)
    return Wait(resource, owner, Certainty.EXACT, evidence=(evidence,), timed=futex.timed)


def _in_loader(thread: ThreadSnapshot, address: int) -> bool:
    module = thread.process.modules.find(address)
    return module is not None and module.name.startswith(("ld-linux", "ld-2.", "ld.so"))


def _loader_locks(thread: ThreadSnapshot) -> bool:
    """The loader itself calls pthread_mutex_lock; a constructor or callback that it runs may wait for any mutex."""
    level = thread.first("mutex", within=6)
    return level is not None and level + 1 < len(thread.frames) and "loader" in thread.marks(level + 1)


def _is_free(thread: ThreadSnapshot, address: int) -> bool:
    raw = thread.process.memory.try_read(address, 4)
    return raw is not None and not any(raw)


def _condvar(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    level = thread.first("cond", within=6)
    if level is None or futex.is_lock_word:
        return None
    base = _proven_base(thread, futex.address, CONDVAR_WORDS, level)
    address = base if base is not None else condvar_by_alignment(futex.address)
    how = "found in the waiter's frames" if base is not None else "by the layout of glibc up to 2.40"
    return Wait(
        Resource(WaitKind.CONDVAR, address, thread.process.name_at(address)),
        timed=futex.timed,
        companion=_companion(thread, address, level),
        evidence=(f"futex {futex.address:#x} is a signal word of the condition variable {address:#x} ({how})",),
    )


def _companion(thread: ThreadSnapshot, condvar: int, level: int) -> Resource | None:
    """The mutex of a pthread_cond_wait: the only other object in its frames that is a plausible pthread_mutex_t.

    It is not owned by the waiter (the wait unlocked it) but counts it as a user, so its kind and its user count
    are what can be checked; with more than one candidate nothing is said.
    """
    memory = thread.process.memory
    candidates = set()
    for value in set(thread.values(level)):
        if value in (0, condvar) or value % 8 or not _is_writable_data(thread, value):
            continue
        mutex = Mutex.read(memory, value)
        if mutex is None or not 0 < mutex.users < 1 << 16 or mutex.lock > 2:
            continue
        if mutex.owner == thread.own_tid or (mutex.owner != 0) != (mutex.lock != 0):
            continue
        if mutex.owner == 0 or thread.process.owner(mutex.owner) is not None:
            candidates.add(value)
    if len(candidates) != 1:
        return None
    address = candidates.pop()
    return Resource(WaitKind.MUTEX, address, thread.process.name_at(address))


def _is_writable_data(thread: ThreadSnapshot, address: int) -> bool:
    if not 0x10000 <= address < thread.process.memory.architecture.user_limit:
        return False
    mapping = thread.process.modules.mapping_at(address)
    return mapping is None or not mapping.permissions or "w" in mapping.permissions


def _proven_base(thread: ThreadSnapshot, word: int, offsets: tuple[int, ...], level: int) -> int | None:
    """The object that contains a word: the only candidate that the waiting frames hold a pointer to."""
    held: set[int] = set()
    for at in range(max(level - 2, 0), min(level + 3, len(thread.frames))):
        held.update(thread.values(at))
    bases = [word - offset for offset in offsets if word - offset in held and (word - offset) % 8 == 0]
    return bases[0] if len(bases) == 1 else None


def _rwlock(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    level = thread.first("rdlock", "wrlock", within=6)
    if level is None:
        return None
    base = _proven_base(thread, futex.address, RWLOCK_WORDS, level)
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
    found = list(_readers(thread, base))
    evidence = f"rwlock {base:#x} is held by {lock.readers} reader(s), which it does not name"
    if len(found) != lock.readers:
        return Wait(resource, timed=futex.timed, evidence=(evidence,))
    seen = f"{evidence}; exactly as many other threads have its address in their frames"
    return Wait(resource, found[0], Certainty.INFERRED, futex.timed, (seen,), tuple(found[1:]))


def _readers(thread: ThreadSnapshot, rwlock: int) -> Iterator[Owner]:
    """Threads whose frames mention the rwlock and that do not wait for it."""
    for other in thread.process.threads:
        if other is thread or other.first("rdlock", "wrlock", within=6) is not None:
            continue
        if other.mentions(rwlock, range(min(len(other.frames), 40))):
            yield Owner(other.tid)


def _semaphore(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    if thread.first("semaphore", within=5) is None and not _is_semaphore(thread, futex):
        return None
    name = thread.process.name_at(futex.address)
    evidence = (f"semaphore {futex.address:#x}: a semaphore has no owner, any thread may post it",)
    external = futex.shared and thread.is_shared(futex.address)
    if external:
        name = "shared between processes"
    return Wait(
        Resource(WaitKind.SEMAPHORE, futex.address, name), timed=futex.timed, evidence=evidence,
        handover=_has_tokens(thread, futex.address), external=external,
    )  # fmt: skip


def _is_semaphore(thread: ThreadSnapshot, futex: FutexWait) -> bool:
    """sem_wait jumps to a local function, which has no name on a stripped libc. The semaphore itself tells: it has no
    token and at least this waiter, and the futex expects that 0, called from outside of libc."""
    if futex.address % 8 or futex.command != WAIT_BITSET or futex.value or not _unnamed_in_libc(thread):
        return False
    semaphore = Semaphore.read(thread.process.memory, futex.address)
    return semaphore is not None and semaphore.is_waited_for


def _unnamed_in_libc(thread: ThreadSnapshot) -> bool:
    """The libc frames at the top of the stack have no names, and are few."""
    levels = thread.inner_libc_levels
    return 0 < len(levels) < 4 and all(thread.stack.function(level) is None for level in levels)


def _has_tokens(thread: ThreadSnapshot, address: int) -> bool:
    semaphore = Semaphore.read(thread.process.memory, address)
    return semaphore is not None and semaphore.value != 0


def _join(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """pthread_join sleeps on struct pthread.tid of the thread it waits for; the kernel clears it at its end. The
    word's address proves it, so that no name is needed (pthread_join jumps to a local function)."""
    owner = thread.process.owner(futex.value & TID_MASK)
    other = thread.process.thread(owner.tid) if owner is not None else None
    if owner is None or other is None or not _is_end_of(other, futex.address):
        named = thread.first("join", within=5) is not None
        return Wait(Resource(WaitKind.JOIN, futex.address, "a thread"), timed=futex.timed) if named else None
    evidence = f"the futex {futex.address:#x} is the tid word of thread {owner.tid}"
    return Wait(
        Resource(WaitKind.JOIN, futex.address, f"thread {owner.tid}"), owner, Certainty.EXACT, futex.timed, (evidence,)
    )


def _is_end_of(other: ThreadSnapshot, word: int) -> bool:
    return thread_id_word(other.process.memory, other.thread_pointer) == word


def _barrier(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    if thread.first("barrier", within=4) is None:
        return None
    address = futex.address - BARRIER_WORD
    barrier, name = Barrier.read(thread.process.memory, address), thread.process.name_at(address)
    text = f"{barrier.arrived} of {barrier.count} threads have arrived" if barrier is not None else ""
    return Wait(Resource(WaitKind.BARRIER, address, ", ".join(filter(None, (name, text)))), timed=futex.timed)
