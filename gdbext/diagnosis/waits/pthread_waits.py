"""Waits for condition variables, one-time initialization, joins, barriers, read-write locks and semaphores of glibc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, Wait
from gdbext.diagnosis.report.wait_detail import Unowned
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import TID_MASK, WAIT, WAIT_BITSET, wait_for_threads
from gdbext.diagnosis.waits.syscall_waits import ended_children
from gdbext.engine.glibc import sync_objects
from gdbext.engine.glibc.pthread import EXITING, JOINABLE, join_state_word, thread_id_word
from gdbext.engine.targets.system.peer import listed

if TYPE_CHECKING:
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot

_NEAR = 6


def condvar_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a condition variable, which has no owner, and its mutex: the only other object in the
    waiter's frames that may be a mutex."""
    futex, level = thread.futex, thread.first(FunctionTag.CONDVAR, within=_NEAR)
    if not futex or level is None or futex.is_lock_word:
        return None
    process = thread.process
    base = thread.object_around(futex.address, sync_objects.CONDVAR_WORDS, level)
    address = base if base is not None else sync_objects.condvar_by_alignment(futex.address)
    how = "found in the waiter's frames" if base is not None else "by the layout of glibc up to 2.40"
    evidence = [f"futex {futex.address:#x} is a signal word of the condition variable {address:#x} ({how})"]
    known = base is not None and not futex.timed
    condvar = sync_objects.Condvar.read(process.memory, futex.address, address) if known else None
    lost_signal = condvar is not None and condvar.loses_signals
    if lost_signal:
        evidence.append(f"the condition variable {address:#x} counts signals for waiters that it has not got")
    mutexes = {value for value in thread.values(level) if value != address and _may_be_mutex(thread, value)}
    mutex = mutexes.pop() if len(mutexes) == 1 else None
    detail = Unowned(
        lost_signal=lost_signal,
        mutex=Resource(WaitKind.MUTEX, mutex, process.name_at(mutex)) if mutex is not None else None,
    )
    resource = Resource(WaitKind.CONDVAR, address, process.name_at(address))
    return Wait(resource, timed=futex.timed, evidence=tuple(evidence), detail=detail)


def _may_be_mutex(thread: ThreadSnapshot, address: int) -> bool:
    """``address`` may be the mutex of a condition variable for which the thread waits. The wait has unlocked it but
    counts as a user of it, so its kind, its user count and its owner are checked."""
    process = thread.process
    # Pages below 0x10000 are never mapped (vm.mmap_min_addr).
    if not address or address % 8 or not 0x10000 <= address < process.memory.architecture.user_limit:
        return False
    mapping = process.modules.mapping_at(address)
    if mapping and mapping.permissions and "w" not in mapping.permissions:
        return False
    mutex = sync_objects.Mutex.read(process.memory, address)
    if not mutex or not 0 < mutex.users < 1 << 16 or mutex.lock > 2:
        return False
    if mutex.owner == thread.own_tid or (mutex.owner != 0) != (mutex.lock != 0):
        return False
    return mutex.owner == 0 or process.owner(mutex.owner) is not None


def join(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for another thread to exit, None for any other wait.

    pthread_join sleeps on a word of the other thread's struct pthread, which the kernel clears when that exits, or on
    its join state. The word's address proves it, so that no name is needed (pthread_join jumps to a local function).
    """
    futex, process = thread.futex, thread.process
    if not futex:
        return None
    tids, word = [], "tid word"
    owner = process.owner(futex.value & TID_MASK)
    other = process.thread(owner.tid) if isinstance(owner, OwnerThread) else None
    if other and thread_id_word(process.memory, other.thread_pointer) == futex.address:
        tids = [other.tid]
    elif futex.value in (JOINABLE, EXITING):
        word = "join state"
        others = (other for other in process.threads if other is not thread)  # a join with itself is refused: EDEADLK
        tids = [each.tid for each in others if join_state_word(process.memory, each.thread_pointer) == futex.address]
    if len(tids) != 1:
        named = thread.first(FunctionTag.JOIN, within=5) is not None
        return Wait(Resource(WaitKind.JOIN, futex.address, "a thread"), timed=futex.timed) if named else None
    resource = Resource(WaitKind.JOIN, futex.address, f"thread {tids[0]}")
    evidence = f"the futex {futex.address:#x} is the {word} of thread {tids[0]}"
    return wait_for_threads(resource, tids, OwnerCertainty.RECORDED, evidence, timed=futex.timed)


def barrier(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread at a pthread_barrier_t, which does not record the missing threads; None for any other."""
    futex = thread.futex
    if not futex or thread.first(FunctionTag.BARRIER, within=4) is None:
        return None
    address = futex.address - sync_objects.BARRIER_WORD
    counts = sync_objects.Barrier.read(thread.process.memory, address)
    text = f"{counts.arrived} of {counts.expected} threads have arrived" if counts else ""
    name = ", ".join(filter(None, (thread.process.name_at(address), text)))
    return Wait(Resource(WaitKind.BARRIER, address, name), timed=futex.timed)


def rwlock_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a read-write lock, None for any other. The lock records its writer and counts its
    readers: if just as many other threads have its address in their frames, they are the readers."""
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
        return Wait(resource, owner, process.owner_certainty(owner), futex.timed, (evidence,))
    if not lock.readers:
        return Wait(resource, being_released=True, evidence=(f"rwlock {base:#x} has no writer and no readers: free",))
    readers = [
        other.tid
        for other in process.threads
        if other is not thread
        and other.first(FunctionTag.READ_LOCK, FunctionTag.WRITE_LOCK, within=_NEAR) is None
        and other.mentions(base, range(min(len(other.frames), 40)))
    ]
    evidence = f"rwlock {base:#x} is held by {lock.readers} reader(s), which it does not name"
    if len(readers) == lock.readers:
        evidence += "; exactly as many other threads have its address in their frames"
    else:
        readers = []
    return wait_for_threads(resource, readers, OwnerCertainty.INFERRED, evidence, timed=futex.timed)


def semaphore_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a semaphore, None for any other."""
    futex = thread.futex
    if not futex:
        return None
    named = thread.first(FunctionTag.SEMAPHORE, within=5) is not None
    # sem_wait jumps to a local function, which has no name on a stripped libc. The semaphore itself shows it: it has no
    # token and at least this waiter, and the futex expects that 0, called from outside of libc. From sem_wait to the
    # kernel there are 3 functions, 5 since glibc 2.41, where cancellable calls have their own.
    expects_zero = futex.address % 8 == 0 and futex.command == WAIT_BITSET and not futex.value
    if not named and not (expects_zero and _unnamed_in_libc(thread, 5)):
        return None
    semaphore = sync_objects.Semaphore.read(thread.process.memory, futex.address)
    if not named and not (semaphore and semaphore.is_waited_for):
        return None
    external = futex.shared and thread.is_shared(futex.address)
    name = _shared_with(thread, futex.address) if external else thread.process.name_at(futex.address)
    evidence = f"semaphore {futex.address:#x}: a semaphore has no owner, any thread may post it"
    return Wait(
        Resource(WaitKind.SEMAPHORE, futex.address, name),
        timed=futex.timed,
        evidence=(evidence,),
        being_released=semaphore is not None and semaphore.value != 0,
        external=external,
    )


def _unnamed_in_libc(thread: ThreadSnapshot, most: int) -> bool:
    """The innermost frames are in libc, without names, and at most ``most``."""
    levels = thread.inner_libc_levels
    return 0 < len(levels) <= most and not any(thread.stack.function(level) for level in levels)


def _shared_with(thread: ThreadSnapshot, address: int) -> str:
    """A semaphore's name by the other processes that have it mapped: one that took it may have exited."""
    name, process = "shared between processes", thread.process
    mapping = process.modules.mapping_at(address)
    sharers = process.procfs.sharers(mapping) if mapping else None
    if sharers is None:
        return name
    if sharers:
        return f"{name}; of those, {listed(sharers)} {'is' if len(sharers) == 1 else 'are'} alive"
    name += ", but no other process that has it is alive"
    if process.python.is_taken_by_somebody(thread.tid, address):
        name += ": whoever took it has ended without releasing it"
    return f"{name}{ended_children(process)}"


def once_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for pthread_once (and std::call_once, which is built on it) in another thread, None for any
    other. The control word records no owner."""
    futex = thread.futex
    if not futex:
        return None
    if thread.first(FunctionTag.ONCE, within=4) is None:
        # __pthread_once_slow is local and has no name on a stripped libc: value 1 (in progress, with the fork
        # generation above), waited for untimed in libc, directly called by code outside of libc.
        in_progress = futex.value & sync_objects.ONCE_STATE == sync_objects.ONCE_IN_PROGRESS
        if futex.command != WAIT or futex.timed or not in_progress or futex.value > 1 << 20:
            return None
        if not _unnamed_in_libc(thread, 3) or not thread.mentions(futex.address, thread.inner_libc_levels):
            return None
    resource = Resource(WaitKind.ONCE, futex.address, thread.process.name_at(futex.address))
    tids = [other.tid for other in thread.process.threads if _runs_initializer(other, futex.address)]
    if len(tids) != 1:
        return Wait(resource, evidence=(f"once control {futex.address:#x}: in progress",))
    evidence = f"once control {futex.address:#x} is in a libc frame of thread {tids[0]} that called out of libc"
    return wait_for_threads(resource, tids, OwnerCertainty.INFERRED, evidence)


def _runs_initializer(thread: ThreadSnapshot, control: int) -> bool:
    """A frame of libc (of the 200 innermost) that has the address ``control`` has called the initializer through a
    pointer. That may itself be inside libc, if it ended in a jump to it."""
    memory = thread.process.memory
    for level in range(1, min(len(thread.frames), 200)):
        if not thread.in_libc(level) or not thread.mentions(control, (level,)):
            continue
        pc = thread.frames[level].pc
        if not thread.in_libc(level - 1) or memory.architecture.follows_call_by_pointer(memory.try_read(pc - 8, 8)):
            return True
    return False
