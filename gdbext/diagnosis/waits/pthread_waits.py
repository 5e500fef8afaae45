"""Waits for condition variables, one-time initialisation, joins, barriers, read-write locks and semaphores.

pthread_once (and std::call_once, which is built on it): the control word records no owner: the thread that runs the
initialiser has a frame of libc that holds the word's address and has called the initialiser through a pointer.

pthread_cond_t has no owner; its mutex is found in the waiter's frames. pthread_rwlock_t records its writer and counts
its readers. sem_t has no owner: any thread may post it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, Wait
from gdbext.diagnosis.report.wait_detail import Unowned
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import TID_MASK, WAIT_BITSET, FutexWait
from gdbext.diagnosis.waits.syscall_waits import ended_children
from gdbext.engine.glibc import sync_objects
from gdbext.engine.glibc.pthread import EXITING, JOINABLE, join_state_word, thread_id_word
from gdbext.engine.targets.system.peer import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot

_NEAR = 6
_MAX_USERS = 1 << 16
_LOWEST = 0x10000
"""Addresses below are never mapped (vm.mmap_min_addr)."""


def condvar_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a condition variable, None for any other."""
    futex, level = thread.futex, thread.first(FunctionTag.CONDVAR, within=_NEAR)
    if not futex or level is None or futex.is_lock_word:
        return None
    base = thread.object_around(futex.address, sync_objects.CONDVAR_WORDS, level)
    address = base if base is not None else sync_objects.condvar_by_alignment(futex.address)
    how = "found in the waiter's frames" if base is not None else "by the layout of glibc up to 2.40"
    lost = base is not None and not futex.timed and _loses_signals(thread, futex.address, base)
    return Wait(
        Resource(WaitKind.CONDVAR, address, thread.process.name_at(address)),
        timed=futex.timed,
        evidence=(
            f"futex {futex.address:#x} is a signal word of the condition variable {address:#x} ({how})",
            *((f"the condition variable {address:#x} counts signals for waiters that it has not got",) if lost else ()),
        ),
        detail=Unowned(lost_signal=lost, mutex=_mutex_of(thread, address, level)),
    )


def _loses_signals(thread: ThreadSnapshot, word: int, address: int) -> bool:
    found = sync_objects.Condvar.read(thread.process.memory, word, address)
    return found is not None and found.loses_signals


def _mutex_of(thread: ThreadSnapshot, condvar: int, level: int) -> Resource | None:
    """The mutex of a pthread_cond_wait: the only other object in its frames that is a plausible pthread_mutex_t."""
    found = {value for value in thread.values(level) if value != condvar and _may_be_mutex(thread, value)}
    if len(found) != 1:
        return None
    address = found.pop()
    return Resource(WaitKind.MUTEX, address, thread.process.name_at(address))


def _may_be_mutex(thread: ThreadSnapshot, address: int) -> bool:
    """The waiter does not own it (the wait unlocked it) but counts as a user of it, so its kind, its user count and
    its owner are what can be checked."""
    if not address or address % 8 or not _is_writable_data(thread, address):
        return False
    mutex = sync_objects.Mutex.read(thread.process.memory, address)
    if not mutex or not 0 < mutex.users < _MAX_USERS or mutex.lock > 2:
        return False
    if mutex.owner == thread.own_tid or (mutex.owner != 0) != (mutex.lock != 0):
        return False
    return mutex.owner == 0 or thread.process.owner(mutex.owner) is not None


def _is_writable_data(thread: ThreadSnapshot, address: int) -> bool:
    if not _LOWEST <= address < thread.process.memory.architecture.user_limit:
        return False
    mapping = thread.process.modules.mapping_at(address)
    return mapping is None or not mapping.permissions or "w" in mapping.permissions


_NEAR_JOIN = 5
_NEAR_BARRIER = 4


def join(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for the end of another, None for any other wait.

    pthread_join sleeps on a word of struct pthread of the thread it waits for, which the kernel clears at its end. The
    word's address proves it, so that no name is needed (pthread_join jumps to a local function).
    """
    futex = thread.futex
    if not futex:
        return None
    found = _by_thread_id(thread, futex) or _by_join_state(thread, futex)
    if not found:
        named = thread.first(FunctionTag.JOIN, within=_NEAR_JOIN) is not None
        return Wait(Resource(WaitKind.JOIN, futex.address, "a thread"), timed=futex.timed) if named else None
    owner, word = found
    resource = Resource(WaitKind.JOIN, futex.address, f"thread {owner.tid}")
    evidence = f"the futex {futex.address:#x} is the {word} of thread {owner.tid}"
    return Wait(resource, owner, OwnerCertainty.RECORDED, futex.timed, (evidence,))


def _by_thread_id(thread: ThreadSnapshot, futex: FutexWait) -> tuple[OwnerThread, str] | None:
    owner = thread.process.owner(futex.value & TID_MASK)
    other = thread.process.thread(owner.tid) if isinstance(owner, OwnerThread) else None
    if not isinstance(owner, OwnerThread) or not other:
        return None
    is_end = thread_id_word(other.process.memory, other.thread_pointer) == futex.address
    return (owner, "tid word") if is_end else None


def _by_join_state(thread: ThreadSnapshot, futex: FutexWait) -> tuple[OwnerThread, str] | None:
    if futex.value not in (JOINABLE, EXITING):
        return None
    memory = thread.process.memory
    others = (other for other in thread.process.threads if other.tid != thread.tid)  # its own end: EDEADLK
    found = [other.tid for other in others if join_state_word(memory, other.thread_pointer) == futex.address]
    return (OwnerThread(found[0]), "join state") if len(found) == 1 else None


def barrier(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread at a pthread_barrier_t, which does not name those that are late; None for any other."""
    futex = thread.futex
    if not futex or thread.first(FunctionTag.BARRIER, within=_NEAR_BARRIER) is None:
        return None
    address = futex.address - sync_objects.BARRIER_WORD
    found, name = sync_objects.Barrier.read(thread.process.memory, address), thread.process.name_at(address)
    text = f"{found.arrived} of {found.expected} threads have arrived" if found else ""
    return Wait(Resource(WaitKind.BARRIER, address, ", ".join(filter(None, (name, text)))), timed=futex.timed)


_DEEP = 40
"""Frames of a thread that may mention the lock it reads under."""


def rwlock_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a read-write lock, None for any other."""
    futex, level = thread.futex, thread.first(FunctionTag.READ_LOCK, FunctionTag.WRITE_LOCK, within=_NEAR)
    if not futex or level is None:
        return None
    base = thread.object_around(futex.address, sync_objects.RWLOCK_WORDS, level)
    if base is None:
        base = sync_objects.rwlock_by_alignment(futex.address)
    process = thread.process
    lock = sync_objects.RwLock.read(process.memory, base)
    if not lock:
        return Wait(Resource(WaitKind.RWLOCK, base))
    resource = Resource(WaitKind.RWLOCK, base, process.name_at(base))
    if lock.writer:
        owner = process.owner(lock.writer)
        evidence = f"rwlock {base:#x}: writer {lock.writer} at +24"
        certainty = process.owner_certainty(owner)
        return Wait(resource, owner, certainty, futex.timed, (evidence,))
    if not lock.readers:
        return Wait(resource, being_released=True, evidence=(f"rwlock {base:#x} has no writer and no readers: free",))
    return _held_by_readers(thread, resource, lock.readers, futex.timed)


def _held_by_readers(thread: ThreadSnapshot, resource: Resource, count: int, timed: bool) -> Wait:
    found = list(_readers(thread, resource.address))
    evidence = f"rwlock {resource.address:#x} is held by {count} reader(s), which it does not name"
    if len(found) != count:
        return Wait(resource, timed=timed, evidence=(evidence,))
    seen = f"{evidence}; exactly as many other threads have its address in their frames"
    return Wait(resource, found[0], OwnerCertainty.INFERRED, timed, (seen,), others=tuple(found[1:]))


def _readers(thread: ThreadSnapshot, rwlock: int) -> Iterator[OwnerThread]:
    """Threads whose frames mention the rwlock and that do not wait for it."""
    for other in thread.process.threads:
        if other is thread or other.first(FunctionTag.READ_LOCK, FunctionTag.WRITE_LOCK, within=_NEAR) is not None:
            continue
        if other.mentions(rwlock, range(min(len(other.frames), _DEEP))):
            yield OwnerThread(other.tid)


_NEAR_SEMAPHORE = 5
_MOST_UNNAMED = 5
"""Functions of libc from sem_wait to the kernel: two more since 2.41, where cancellable calls have their own."""


def semaphore_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a semaphore, None for any other."""
    futex = thread.futex
    if not futex:
        return None
    if thread.first(FunctionTag.SEMAPHORE, within=_NEAR_SEMAPHORE) is None and not _is_semaphore(thread, futex):
        return None
    external = futex.shared and thread.is_shared(futex.address)
    name = _shared_with(thread, futex.address) if external else thread.process.name_at(futex.address)
    evidence = f"semaphore {futex.address:#x}: a semaphore has no owner, any thread may post it"
    return Wait(
        Resource(WaitKind.SEMAPHORE, futex.address, name),
        timed=futex.timed,
        evidence=(evidence,),
        being_released=_has_tokens(thread, futex.address),
        external=external,
    )


def _shared_with(thread: ThreadSnapshot, address: int) -> str:
    """The other processes that have it: who took it need not live any more."""
    name, process = "shared between processes", thread.process
    mapping = process.modules.mapping_at(address)
    sharers = process.procfs.sharers(mapping) if mapping else None
    if sharers is None:
        return name
    if not sharers:
        alone = f"{name}, but no other process that has it is alive"
        taken = process.python.is_taken_by_somebody(thread.tid, address)
        told = f"{alone}: whoever took it has ended without releasing it" if taken else alone
        return f"{told}{ended_children(process)}"
    return f"{name}; of those, {listed(sharers)} {'is' if len(sharers) == 1 else 'are'} alive"


def _is_semaphore(thread: ThreadSnapshot, futex: FutexWait) -> bool:
    """sem_wait jumps to a local function, which has no name on a stripped libc. The semaphore itself shows it: it has
    no token and at least this waiter, and the futex expects that 0, called from outside of libc."""
    if futex.address % 8 or futex.command != WAIT_BITSET or futex.value or not _unnamed_in_libc(thread):
        return False
    semaphore = sync_objects.Semaphore.read(thread.process.memory, futex.address)
    return semaphore is not None and semaphore.is_waited_for


def _unnamed_in_libc(thread: ThreadSnapshot) -> bool:
    """The libc frames at the top of the stack have no names, and are few."""
    levels = thread.inner_libc_levels
    return 0 < len(levels) <= _MOST_UNNAMED and all(not thread.stack.function(level) for level in levels)


def _has_tokens(thread: ThreadSnapshot, address: int) -> bool:
    semaphore = sync_objects.Semaphore.read(thread.process.memory, address)
    return semaphore is not None and semaphore.value != 0


_NEAR_ONCE = 4
_DEEP_ONCE = 200
"""Frames of a thread that are searched for a running initialiser."""
_CALL_BYTES = 8
"""Bytes of code before a return address that are searched for a call instruction."""


def once_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for an initialisation that is in progress, None for any other."""
    futex = thread.futex
    if not futex or (thread.first(FunctionTag.ONCE, within=_NEAR_ONCE) is None and not _is_once_word(thread, futex)):
        return None
    resource = Resource(WaitKind.ONCE, futex.address, thread.process.name_at(futex.address))
    owners = [OwnerThread(other.tid) for other in thread.process.threads if _runs_initialiser(other, futex.address)]
    if len(owners) != 1:
        return Wait(resource, evidence=(f"once control {futex.address:#x}: in progress",))
    where = f"a libc frame of thread {owners[0].tid} that called out of libc"
    evidence = f"once control {futex.address:#x} is in {where}"
    return Wait(resource, owners[0], OwnerCertainty.INFERRED, evidence=(evidence,))


def _is_once_word(thread: ThreadSnapshot, futex: FutexWait) -> bool:
    """__pthread_once_slow is local and has no name on a stripped libc: value 1 (in progress, with the fork
    generation above), waited for untimed in libc, directly called by code outside of libc."""
    if (
        futex.command != 0
        or futex.timed
        or futex.value & sync_objects.ONCE_STATE != sync_objects.ONCE_IN_PROGRESS
        or futex.value > 1 << 20
    ):
        return False
    levels = thread.inner_libc_levels
    unnamed = all(not thread.stack.function(level) for level in levels)
    return 1 <= len(levels) <= 3 and unnamed and thread.mentions(futex.address, levels)


def _runs_initialiser(other: ThreadSnapshot, control: int) -> bool:
    """A frame of libc that holds the control word and has called the initialiser, which may itself be inside libc
    (where it ended in a jump to it)."""
    for level in range(1, min(len(other.frames), _DEEP_ONCE)):
        if not other.in_libc(level) or not other.mentions(control, (level,)):
            continue
        if not other.in_libc(level - 1) or _after_indirect_call(other, level):
            return True
    return False


def _after_indirect_call(other: ThreadSnapshot, level: int) -> bool:
    """The frame's return address follows a call through a pointer."""
    memory, pc = other.process.memory, other.frames[level].pc
    return memory.architecture.follows_call_by_pointer(memory.try_read(pc - _CALL_BYTES, _CALL_BYTES))
