"""Waits for glibc's synchronization objects, its own locks, and guards of static variables, with their owners. On a
stripped libc only exported functions have names: with them the futex operation and the memory decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, ParentsThread, VanishedThread, Wait
from gdbext.diagnosis.report.wait_detail import Unowned
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import (
    INNER,
    TID_MASK,
    WAIT,
    WAIT_BITSET,
    FutexWait,
    ThreadSnapshot,
    wait_for_threads,
)
from gdbext.diagnosis.waits.syscall_waits import exited_children_clause
from gdbext.engine.formats.demangle import demangle
from gdbext.engine.glibc import sync_objects
from gdbext.engine.glibc.pthread import EXITING, JOINABLE, join_state_word, thread_id_word
from gdbext.engine.glibc.sync_objects import Mutex, StreamLock
from gdbext.engine.process.symbolizer import Function, without_clone_suffix
from gdbext.engine.targets.system.peer import listed

if TYPE_CHECKING:
    from gdbext.engine.process.memory import Memory


_LOCKED = 1
"""Lock word: locked, no waiters. A waiter sets 2 before it sleeps, so 1 under a sleeper means released and taken again
since: a wake-up is on its way (``lll_lock``, sysdeps/nptl/lowlevellock.h)."""
_NEAR = 6
"""Frames between the kernel and the exported function that locks."""


def mutex_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait for a mutex, None for any other: proven by a function's name, or by an owner of this process."""
    futex = thread.futex
    if not futex or not futex.is_lock:
        return _pi_deadlock_wait(thread, futex) if futex else None
    mutex = Mutex.read(thread.process.memory, futex.address)
    is_owned = mutex and mutex.lock and isinstance(thread.process.owner(mutex.owner), OwnerThread)
    if not mutex or not (_is_in_mutex_function(thread) or is_owned):
        return None
    return _mutex_wait(thread, futex, mutex)


def destroyed_mutex_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside pthread_mutex_lock for memory that holds no mutex any more; None for any other."""
    futex = thread.futex
    if not futex or not futex.is_lock or not _is_in_mutex_function(thread):
        return None
    if Mutex.read(thread.process.memory, futex.address):
        return None
    evidence = f"the thread waits for a mutex at {futex.address:#x}, but there is none (freed or overwritten)"
    return Wait(Resource(WaitKind.MUTEX, futex.address, "destroyed"), evidence=(evidence,))


def _is_in_mutex_function(thread: ThreadSnapshot) -> bool:
    return thread.level_of(FunctionTag.MUTEX, FunctionTag.CONDVAR, within=_NEAR) is not None


def _mutex_wait(thread: ThreadSnapshot, futex: FutexWait, mutex: Mutex) -> Wait:
    """The wait for ``mutex``, with its owner unless its words contradict each other."""
    process, address = thread.process, futex.address
    module = process.modules.find(address)
    level = thread.level_of(FunctionTag.MUTEX, within=_NEAR)
    # The loader itself must call pthread_mutex_lock: a constructor or callback that it runs may wait for any mutex.
    in_loader = (module is not None and module.name.startswith(("ld-linux", "ld-2.", "ld.so"))) or (
        level is not None and level + 1 < len(thread.frames) and FunctionTag.LOADER in thread.tags(level + 1)
    )
    resource = Resource(WaitKind.LOADER_LOCK if in_loader else WaitKind.MUTEX, address, process.name_at(address))
    owner_in_word = futex.is_pi or futex.is_robust
    tid = mutex.lock & TID_MASK if owner_in_word else mutex.owner
    if not mutex.lock:
        return Wait(resource, being_released=True, evidence=(f"the lock word at {address:#x} is 0: free",))
    if futex.is_lock_word and mutex.lock == _LOCKED:
        evidence = f"the lock word at {address:#x} is 1: released and taken again since the thread began to wait"
        return Wait(resource, being_released=True, evidence=(evidence,))
    if owner_in_word != (mutex.is_robust or mutex.is_priority_inheriting):
        evidence = f"the wait does not match a {mutex.description} mutex: {address:#x} is damaged"
        return Wait(resource, evidence=(evidence,))
    owner = process.owner(tid)
    if owner == OwnerThread(thread.tid) and not mutex.is_robust and mutex.is_recursive:
        owner = None  # A recursive mutex lets its owner in: this cannot be its state at rest.
    if not owner:
        return Wait(resource, evidence=(f"the mutex at {address:#x} is locked, its owner field is {tid}",))
    evidence = f"{mutex.description} mutex {address:#x}: lock word {mutex.lock:#x}, owner {tid} at +8"
    if isinstance(owner, VanishedThread) and not mutex.is_consistent:
        return Wait(
            resource, timed=futex.timed, evidence=(evidence, f"{mutex.users} users: its fields contradict each other")
        )
    if isinstance(owner, VanishedThread) and mutex.is_shared:
        text = f"shared between processes, locked by thread {tid}, which is not in this process"
        return Wait(resource._replace(name=text), timed=futex.timed, evidence=(evidence,), external=True)
    certainty = process.owner_certainty(owner)
    if owner_in_word and mutex.owner == tid:
        certainty = OwnerCertainty.RECORDED
    if certainty is OwnerCertainty.INFERRED:
        evidence += "; no thread of this process has that id, and it is far from the ids of those that are"
    return Wait(resource, owner, certainty, evidence=(evidence,), timed=futex.timed)


def _pi_deadlock_wait(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """The wait for a priority-inheriting mutex that would deadlock: the kernel refuses it (EDEADLK), and glibc sleeps
    on a zero of its stack forever (nptl/pthread_mutex_lock.c). It is the only locked mutex of that kind to which
    libc's frames point, itself or to its kind field."""
    process, levels = thread.process, thread.inner_libc_levels
    if futex.command != WAIT_BITSET or futex.value or futex.timed or not levels:
        return None
    red_zone = process.memory.architecture.red_zone
    if not thread.frames[0].sp - red_zone <= futex.address < thread.frames[levels[-1]].cfa:
        return None
    mutexes: dict[int, Mutex] = {}
    values = {value for level in levels for value in thread.values(level)}
    for address in {value - offset for value in values for offset in (0, sync_objects.KIND)}:
        mutex = Mutex.read(process.memory, address) if address % 8 == 0 and address > 0 else None
        if mutex and mutex.is_priority_inheriting and process.owner(mutex.lock & TID_MASK):
            mutexes[address] = mutex
    if len(mutexes) != 1:
        return None
    address, mutex = mutexes.popitem()
    owner = process.owner(mutex.lock & TID_MASK)
    evidence = (
        f"{mutex.description} mutex {address:#x}: lock word {mutex.lock:#x}; the kernel refused to wait (EDEADLK)"
    )
    resource = Resource(WaitKind.MUTEX, address, process.name_at(address))
    return Wait(resource, owner, OwnerCertainty.RECORDED, evidence=(evidence,))


_NEAR_LIBC_LOCK = 14
"""Frames between the kernel and the exported function of libc or ld.so that waits."""
_LIBRARIES = ("libc.", "libc-", "ld-", "libpthread")


def libc_lock_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a lock that the functions on its stack identify, None for any other."""
    futex = thread.futex
    if not futex or not futex.is_lock or _calls_syscall(thread):
        return None
    if thread.level_of(FunctionTag.MALLOC, within=_NEAR_LIBC_LOCK) is not None:
        return _interrupted_malloc(thread, futex) or _libc_lock_wait(thread, futex, WaitKind.LIBC_LOCK, "malloc arena")
    if thread.level_of(FunctionTag.STDIO, within=_NEAR_LIBC_LOCK) is not None:
        stream = StreamLock.read(thread.process.memory, futex.address)
        owners = [other.tid for other in thread.process.threads if stream and other.thread_pointer == stream.owner]
        if not stream or len(owners) != 1:
            return _libc_lock_wait(thread, futex, WaitKind.LIBC_LOCK, "stdio stream")
        owner = f"owner {stream.owner:#x} at +8 is the thread pointer of thread {owners[0]}"
        resource = Resource(WaitKind.LIBC_LOCK, futex.address, "stdio stream")
        evidence = f"stdio lock {futex.address:#x}: {owner}"
        return wait_for_threads(resource, owners, OwnerCertainty.RECORDED, evidence)
    if thread.level_of(FunctionTag.LOADER, within=_NEAR_LIBC_LOCK) is not None:
        return _libc_lock_wait(thread, futex, WaitKind.LOADER_LOCK)
    if thread.level_of(FunctionTag.LIBC_LOCK, within=_NEAR_LIBC_LOCK) is not None:
        return _with_parent_owner(thread, _libc_lock_wait(thread, futex, WaitKind.LIBC_LOCK))
    return None


def unidentified_lock_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside libc for a lock that nothing identifies, None for any other."""
    futex = thread.futex
    if not futex or not futex.is_lock or not thread.module_name(0).startswith(_LIBRARIES) or _calls_syscall(thread):
        return None
    evidence = f"the thread waits for a low-level lock at {futex.address:#x}, which is not part of a mutex"
    return _with_parent_owner(thread, _libc_lock_wait(thread, futex, WaitKind.LIBC_LOCK)._replace(evidence=(evidence,)))


def _with_parent_owner(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait, owned by a thread of the parent process if no other can be the owner: the process was forked, and has
    one thread, which is in no other function of libc that could hold the lock, and which no signal has interrupted."""
    process = thread.process
    if len(process.tids) > 1 or wait.being_released or not process.fork_evidence:
        return wait
    frames = thread.frames[:-3]  # without the frames that start a thread
    in_libc = [thread.module_name(level).startswith(_LIBRARIES) for level in range(len(frames))]
    outer = next((level for level, is_libc in enumerate(in_libc) if not is_libc), 0)
    if not outer or any(in_libc[outer:]) or any(frame.is_signal for frame in frames):
        return wait
    alone = "this process has one thread, which is in no other function of libc"
    facts = (*wait.evidence, alone, *process.fork_evidence)
    return Wait(wait.resource, ParentsThread(), OwnerCertainty.INFERRED, evidence=facts)


def _calls_syscall(thread: ThreadSnapshot) -> bool:
    """True if the thread is in syscall(2) of libc: the futex is its caller's, not libc's."""
    function = thread.stack.function(0) if thread.frames else None
    return function is not None and "syscall" in function.names


def _libc_lock_wait(thread: ThreadSnapshot, futex: FutexWait, kind: WaitKind, name: str = "") -> Wait:
    """The wait for a low-level lock of libc or ld.so, which records no owner."""
    raw = thread.process.memory.try_read(futex.address, 4)
    return Wait(
        Resource(kind, futex.address, name or thread.process.name_at(futex.address)),
        being_released=bool(raw) and not any(raw),
        evidence=(f"the thread waits inside libc for the low-level lock {futex.address:#x}, which records no owner",),
    )


def _interrupted_malloc(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """The wait of a signal handler that allocates while the thread that it interrupted is itself inside malloc."""
    inside = thread.level_of(FunctionTag.MALLOC, within=_NEAR_LIBC_LOCK)
    for level in range(min(len(thread.frames), INNER)):
        if not thread.frames[level].is_signal or inside is None or inside > level:
            continue
        outer = range(level + 1, min(level + 8, len(thread.frames)))
        if any(FunctionTag.MALLOC in thread.tags(at) for at in outer):
            resource = Resource(WaitKind.LIBC_LOCK, futex.address, "malloc arena")
            evidence = f"the signal handler of frame {level} interrupted this thread inside malloc, and allocates"
            return wait_for_threads(resource, (thread.tid,), OwnerCertainty.INFERRED, evidence)
    return None


def static_initializer_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside __cxa_guard_acquire for the initializer of a static variable, None for any other."""
    level, futex = thread.level_of(FunctionTag.STATIC_GUARD, within=6), thread.futex
    if level is None or not futex:
        return None
    guard = futex.address
    names = map(demangle, thread.process.names.names_at(guard))
    prefix = "guard variable for "
    variable = next((name[len(prefix) :] for name in names if name.startswith(prefix)), "")
    function = thread.stack.function(level + 1) if level + 1 < len(thread.frames) else None
    if not variable and function:
        variable = f"a static variable of {function.demangled[0]}"
    resource = Resource(WaitKind.STATIC_INIT, guard, variable)
    raw = thread.process.memory.try_read(guard, 4)
    if raw and not int.from_bytes(raw, "little") & 1 << 8:
        return Wait(resource, being_released=True, evidence=("the guard is not pending",))
    initializers = _initializers(thread, guard, level + 1, function) if function else []
    if not initializers:
        return Wait(resource, evidence=(f"guard {guard:#x} records no owner; no other thread is in its function",))
    tid, return_address = initializers[0]
    evidence = f"guard {guard:#x} records no owner; thread {tid} passed it and is at {return_address:#x}"
    tids = (tid,) if len(initializers) == 1 else ()
    return wait_for_threads(resource, tids, OwnerCertainty.INFERRED, evidence)


def _initializers(thread: ThreadSnapshot, guard: int, level: int, waits_in: Function) -> list[tuple[int, int]]:
    """(tid, its address in the function that contains the static) of threads that run the initializer. ``waits_in``:
    the function of the waiter, its frame ``level``.

    From __cxa_guard_acquire to __cxa_guard_release the guard's address is in a register, or the code between two uses
    of it is the initializer; also in a copy of an inlined function. If neither tells, a thread counts that is inside
    the same function (or its cold part), past the guard.
    """
    proven: list[tuple[int, int]] = []
    likely: list[tuple[int, int]] = []
    for other in thread.process.threads:
        for at in range(level + 1 if other is thread else 1, min(len(other.frames), 20_000)):
            frame = other.frames[at]
            if FunctionTag.STATIC_GUARD in other.tags(at - 1):
                continue
            if not waits_in.module.start <= frame.pc < waits_in.module.end:
                continue  # cheaper than the symbol; a cold part is in the same module
            function = other.stack.function(at)
            if not function:
                continue
            if guard in frame.registers.values() or _is_between_uses(other.process.memory, function, guard, frame.pc):
                proven.append((other.tid, frame.pc))
                break
            is_same = function.start == waits_in.start or (
                without_clone_suffix(function.names[0]) == without_clone_suffix(waits_in.names[0])
            )
            if is_same:
                likely.append((other.tid, frame.pc))
    return proven or list({tid: (tid, pc) for tid, pc in reversed(likely)}.values())


def _is_between_uses(memory: Memory, function: Function, guard: int, pc: int) -> bool:
    """True if the function's code (at most its first MiB) uses the guard's address before ``pc`` and after it."""
    code = memory.try_read(function.start, min(function.size, 1 << 20)) if function.size else b""
    uses = [
        use.instruction
        for use in memory.architecture.address_uses(code, function.start)
        if use.address == guard or (use.loads and memory.try_u64(use.address) == guard)
    ]
    return any(at < pc for at in uses) and any(at >= pc for at in uses)


def condvar_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait for a condition variable, which has no owner, with the only possible mutex in the waiter's frames."""
    futex, level = thread.futex, thread.level_of(FunctionTag.CONDVAR, within=_NEAR)
    if not futex or level is None or futex.is_lock_word:
        return None
    process = thread.process
    base = thread.object_around(futex.address, sync_objects.CONDVAR_WORDS, level)
    address = base if base is not None else sync_objects.condvar_by_alignment(futex.address)
    how = "found in the waiter's frames" if base is not None else "by the layout of glibc up to 2.40"
    evidence = [f"futex {futex.address:#x} is a signal word of the condition variable {address:#x} ({how})"]
    is_readable = base is not None and not futex.timed
    condvar = sync_objects.Condvar.read(process.memory, futex.address, address) if is_readable else None
    lost_signal = condvar is not None and condvar.loses_signals
    if lost_signal:
        evidence.append(f"the condition variable {address:#x} counts signals for waiters that it does not have")
    mutexes = {value for value in thread.values(level) if value != address and _may_be_mutex(thread, value)}
    mutex = mutexes.pop() if len(mutexes) == 1 else None
    detail = Unowned(
        lost_signal=lost_signal,
        mutex=Resource(WaitKind.MUTEX, mutex, process.name_at(mutex)) if mutex is not None else None,
    )
    resource = Resource(WaitKind.CONDVAR, address, process.name_at(address))
    return Wait(resource, timed=futex.timed, evidence=tuple(evidence), detail=detail)


def _may_be_mutex(thread: ThreadSnapshot, address: int) -> bool:
    """True if ``address`` may be the mutex of a condition variable for which the thread waits. The wait has unlocked it
    but counts as a user of it, so its kind, its user count and its owner are checked."""
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


def join_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait for another thread to exit, None for any other wait. pthread_join sleeps on a word of that thread's
    struct pthread, which the kernel clears at its exit, or on its join state: the word's address proves it, without a
    name (pthread_join jumps to a local function)."""
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
        tids = [other.tid for other in others if join_state_word(process.memory, other.thread_pointer) == futex.address]
    if len(tids) != 1:
        named = thread.level_of(FunctionTag.JOIN, within=5) is not None
        return Wait(Resource(WaitKind.JOIN, futex.address, "a thread"), timed=futex.timed) if named else None
    resource = Resource(WaitKind.JOIN, futex.address, f"thread {tids[0]}")
    evidence = f"the futex {futex.address:#x} is the {word} of thread {tids[0]}"
    return wait_for_threads(resource, tids, OwnerCertainty.RECORDED, evidence, timed=futex.timed)


def barrier_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread at a pthread_barrier_t, which does not record the missing threads; None for any other."""
    futex = thread.futex
    if not futex or thread.level_of(FunctionTag.BARRIER, within=4) is None:
        return None
    address = futex.address - sync_objects.BARRIER_WORD
    counts = sync_objects.Barrier.read(thread.process.memory, address)
    text = f"{counts.arrived} of {counts.expected} threads have arrived" if counts else ""
    name = ", ".join(filter(None, (thread.process.name_at(address), text)))
    return Wait(Resource(WaitKind.BARRIER, address, name), timed=futex.timed)


def rwlock_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a read-write lock, None for any other. The lock records its writer and counts its
    readers: if just as many other threads have its address in their frames, they are the readers."""
    futex, level = thread.futex, thread.level_of(FunctionTag.READ_LOCK, FunctionTag.WRITE_LOCK, within=_NEAR)
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
        and other.level_of(FunctionTag.READ_LOCK, FunctionTag.WRITE_LOCK, within=_NEAR) is None
        and other.mentions(base, range(min(len(other.frames), 40)))
    ]
    evidence = f"rwlock {base:#x} is held by {lock.readers} reader(s), whose ids it does not record"
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
    named = thread.level_of(FunctionTag.SEMAPHORE, within=5) is not None
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
    evidence = f"semaphore {futex.address:#x}: a semaphore has no owner; any thread can post it"
    return Wait(
        Resource(WaitKind.SEMAPHORE, futex.address, name),
        timed=futex.timed,
        evidence=(evidence,),
        being_released=semaphore is not None and semaphore.value != 0,
        external=external,
    )


def _unnamed_in_libc(thread: ThreadSnapshot, most: int) -> bool:
    """True if the innermost frames are in libc, without names, and at most ``most``."""
    levels = thread.inner_libc_levels
    return 0 < len(levels) <= most and not any(thread.stack.function(level) for level in levels)


def _shared_with(thread: ThreadSnapshot, address: int) -> str:
    """A shared semaphore's name in words, with the other processes that map it: one that took it may have exited."""
    name, process = "shared between processes", thread.process
    mapping = process.modules.mapping_at(address)
    sharers = process.procfs.sharers(mapping) if mapping else None
    if sharers is None:
        return name
    if sharers:
        return f"{name}; still alive: {listed(sharers)}"
    name += ", but every other process that mapped it has exited"
    if process.python.is_taken_elsewhere(thread.tid, address):
        name += ", and its owner did not release it"
    return f"{name}{exited_children_clause(process)}"


def once_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait for pthread_once or std::call_once in another thread; None for any other. No owner is recorded."""
    futex = thread.futex
    if not futex:
        return None
    if thread.level_of(FunctionTag.ONCE, within=4) is None:
        # __pthread_once_slow is local and has no name on a stripped libc: the word is 1 (in progress) plus the fork
        # generation in its upper bits, waited for untimed in libc, directly called by code outside of libc.
        in_progress = futex.value & sync_objects.ONCE_STATE == sync_objects.ONCE_IN_PROGRESS
        if futex.command != WAIT or futex.timed or not in_progress or futex.value > 1 << 20:
            return None
        if not _unnamed_in_libc(thread, 3) or not thread.mentions(futex.address, thread.inner_libc_levels):
            return None
    resource = Resource(WaitKind.ONCE, futex.address, thread.process.name_at(futex.address))
    tids = [other.tid for other in thread.process.threads if _runs_initializer(other, futex.address)]
    if len(tids) != 1:
        return Wait(resource, evidence=(f"once control {futex.address:#x}: in progress",))
    evidence = f"thread {tids[0]} has the once control {futex.address:#x} in a libc frame that called other code"
    return wait_for_threads(resource, tids, OwnerCertainty.INFERRED, evidence)


def _runs_initializer(thread: ThreadSnapshot, control: int) -> bool:
    """True if the thread runs the initializer of the once control at ``control``: a frame of libc (of the 200
    innermost) with that address has called a function through a pointer, or code outside of libc."""
    memory = thread.process.memory
    for level in range(1, min(len(thread.frames), 200)):
        if not thread.in_libc(level) or not thread.mentions(control, (level,)):
            continue
        pc = thread.frames[level].pc
        if not thread.in_libc(level - 1) or memory.architecture.follows_call_by_pointer(memory.try_read(pc - 8, 8)):
            return True
    return False
