"""Waits for mutexes, the C library's own locks and the guards of static variables, with their owners.
On a stripped libc only exported functions have names, so a wait is recognised by the exported caller, by the futex
operation and by what is in memory. The C library's own locks are malloc's, those of stdio streams, the loader's and
others. Most record no owner.

A function-local static is guarded by __cxa_guard_acquire of libstdc++ (libsupc++/guard.cc). The guard is a 64-bit
variable; the futex is its first word: bit 0 done, bit 8 initialization pending, bit 16 with waiters. It records no
owner. The thread that runs the initializer is found by its stack: a frame of a function that contains the static, which
has called something else than __cxa_guard_acquire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, ParentsThread, VanishedThread, Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import (
    INNER,
    TID_MASK,
    WAIT_BITSET,
    FutexWait,
    ThreadSnapshot,
    wait_for_threads,
)
from gdbext.engine.glibc import sync_objects
from gdbext.engine.glibc.sync_objects import Mutex, StreamLock
from gdbext.engine.process.symbolizer import Function, demangle, without_clone_suffix

if TYPE_CHECKING:
    from gdbext.engine.process.memory import Memory

_LOCKED = 1
"""Lock word: locked, no waiters. A waiter sets 2 before it sleeps, so 1 under a sleeper means released and taken again
since: a wake-up is on its way (``lll_lock``, sysdeps/nptl/lowlevellock.h)."""
_NEAR = 6
"""Frames between the kernel and the exported function that locks."""


def mutex_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a mutex, None for any other. Without a name, a locked mutex whose owner is a thread of
    this process counts."""
    futex = thread.futex
    if not futex or not futex.is_lock:
        return _pi_deadlock_wait(thread, futex) if futex else None
    mutex = Mutex.read(thread.process.memory, futex.address)
    is_owned = mutex and mutex.lock and isinstance(thread.process.owner(mutex.owner), OwnerThread)
    if not mutex or not (_is_named(thread) or is_owned):
        return None
    return _mutex_wait(thread, futex, mutex)


def destroyed(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside pthread_mutex_lock for memory that holds no mutex any more; None for any other."""
    futex = thread.futex
    if not futex or not futex.is_lock or not _is_named(thread):
        return None
    if Mutex.read(thread.process.memory, futex.address):
        return None
    evidence = f"{futex.address:#x} is waited for as a mutex, and what is there is not one (freed or overwritten)"
    return Wait(Resource(WaitKind.MUTEX, futex.address, "destroyed"), evidence=(evidence,))


def _is_named(thread: ThreadSnapshot) -> bool:
    return thread.first(FunctionTag.MUTEX, FunctionTag.CONDVAR, within=_NEAR) is not None


def _mutex_wait(thread: ThreadSnapshot, futex: FutexWait, mutex: Mutex) -> Wait:
    process, address = thread.process, futex.address
    module = process.modules.find(address)
    level = thread.first(FunctionTag.MUTEX, within=_NEAR)
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
        evidence = f"the lock word at {address:#x} is 1: released and taken again since the thread fell asleep"
        return Wait(resource, being_released=True, evidence=(evidence,))
    if owner_in_word != (mutex.is_robust or mutex.is_priority_inheriting):
        evidence = f"the thread does not wait as for a mutex that is {mutex.description}: {address:#x} is damaged"
        return Wait(resource, evidence=(evidence,))
    owner = process.owner(tid)
    if owner == OwnerThread(thread.tid) and not mutex.is_robust and mutex.is_recursive:
        owner = None  # A recursive mutex lets its owner in: this cannot be its state at rest.
    if not owner:
        return Wait(resource, evidence=(f"the mutex at {address:#x} is locked, its owner field is {tid}",))
    evidence = f"{mutex.description} mutex {address:#x}: lock word {mutex.lock:#x}, owner {tid} at +8"
    if isinstance(owner, VanishedThread) and not mutex.is_consistent:
        return Wait(resource, timed=futex.timed, evidence=(evidence, f"{mutex.users} users: its words disagree"))
    if isinstance(owner, VanishedThread) and mutex.is_shared:
        text = f"shared between processes, locked by thread {tid}, which is not one of this process"
        return Wait(resource._replace(name=text), timed=futex.timed, evidence=(evidence,), external=True)
    certainty = process.owner_certainty(owner)
    if owner_in_word and mutex.owner == tid:
        certainty = OwnerCertainty.RECORDED
    if certainty is OwnerCertainty.INFERRED:
        evidence += "; no thread of this process has that id, and it is far from the ids of those that are"
    return Wait(resource, owner, certainty, evidence=(evidence,), timed=futex.timed)


def _pi_deadlock_wait(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """The wait for a priority-inheriting mutex that would deadlock: the kernel refuses it (EDEADLK), and glibc lets the
    thread wait for ever on a zero of its own stack (nptl/pthread_mutex_lock.c). The mutex is the only one of that kind,
    and locked, to which libc's frames have a pointer (or to its kind, which the function has just read)."""
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
    if thread.first(FunctionTag.MALLOC, within=_NEAR_LIBC_LOCK) is not None:
        return _interrupted_malloc(thread, futex) or _lock(thread, futex, WaitKind.LIBC_LOCK, "malloc arena")
    if thread.first(FunctionTag.STDIO, within=_NEAR_LIBC_LOCK) is not None:
        stream = StreamLock.read(thread.process.memory, futex.address)
        owners = [each.tid for each in thread.process.threads if stream and each.thread_pointer == stream.owner]
        if not stream or len(owners) != 1:
            return _lock(thread, futex, WaitKind.LIBC_LOCK, "stdio stream")
        owner = f"owner {stream.owner:#x} at +8 is the thread pointer of thread {owners[0]}"
        resource = Resource(WaitKind.LIBC_LOCK, futex.address, "stdio stream")
        evidence = f"stdio lock {futex.address:#x}: {owner}"
        return wait_for_threads(resource, owners, OwnerCertainty.RECORDED, evidence)
    if thread.first(FunctionTag.LOADER, within=_NEAR_LIBC_LOCK) is not None:
        return _lock(thread, futex, WaitKind.LOADER_LOCK)
    if thread.first(FunctionTag.LIBC_LOCK, within=_NEAR_LIBC_LOCK) is not None:
        return _with_parent_owner(thread, _lock(thread, futex, WaitKind.LIBC_LOCK))
    return None


def unidentified(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside libc for a lock that nothing identifies, None for any other."""
    futex = thread.futex
    if not futex or not futex.is_lock or not thread.module_name(0).startswith(_LIBRARIES) or _calls_syscall(thread):
        return None
    evidence = f"the word at {futex.address:#x} is waited for as a low-level lock, and no mutex is around it"
    return _with_parent_owner(thread, _lock(thread, futex, WaitKind.LIBC_LOCK)._replace(evidence=(evidence,)))


def _with_parent_owner(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait with an owner, if only a thread of the parent can be it: the process was forked, and has one thread,
    which is in no other function of libc that could hold the lock, and which no signal has interrupted."""
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
    """The thread has called syscall(2) of libc: the futex is that of its caller, and not libc's."""
    function = thread.stack.function(0) if thread.frames else None
    return function is not None and "syscall" in function.names


def _lock(thread: ThreadSnapshot, futex: FutexWait, kind: WaitKind, name: str = "") -> Wait:
    raw = thread.process.memory.try_read(futex.address, 4)
    return Wait(
        Resource(kind, futex.address, name or thread.process.name_at(futex.address)),
        being_released=bool(raw) and not any(raw),
        evidence=(f"low-level lock {futex.address:#x} is waited for inside libc, which records no owner",),
    )


def _interrupted_malloc(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """The wait of a signal handler that allocates while the thread that it interrupted is itself inside malloc."""
    inside = thread.first(FunctionTag.MALLOC, within=_NEAR_LIBC_LOCK)
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
    """The wait of a thread inside __cxa_guard_acquire."""
    level, futex = thread.first(FunctionTag.STATIC_GUARD, within=6), thread.futex
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
        return Wait(resource, evidence=(f"guard {guard:#x} records no owner; no other stack is in its function",))
    tid, return_address = initializers[0]
    evidence = f"guard {guard:#x} records no owner; thread {tid} has returned from it to {return_address:#x}"
    tids = (tid,) if len(initializers) == 1 else ()
    return wait_for_threads(resource, tids, OwnerCertainty.INFERRED, evidence)


def _initializers(thread: ThreadSnapshot, guard: int, level: int, waits_in: Function) -> list[tuple[int, int]]:
    """(thread id, its address in the function that contains the static) of threads that run the initializer.
    ``waits_in``: the function of the waiter, its frame ``level``.

    The guard's address is kept in a register from __cxa_guard_acquire to __cxa_guard_release, or is made again for the
    latter: then the code between these uses is the initializer. Both are true also in another copy of an inlined
    function. If neither tells, it is a thread inside the same function (or its cold part), past the guard.
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
    """The function's code (at most its first MiB) uses the guard's address before ``pc`` and after it."""
    code = memory.try_read(function.start, min(function.size, 1 << 20)) if function.size else b""
    uses = [
        use.instruction
        for use in memory.architecture.address_uses(code, function.start)
        if use.address == guard or (use.loads and memory.try_u64(use.address) == guard)
    ]
    return any(at < pc for at in uses) and any(at >= pc for at in uses)
