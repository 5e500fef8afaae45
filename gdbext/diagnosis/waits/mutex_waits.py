"""Waits for mutexes, the C library's own locks and the guards of static variables, with their owners.

On a stripped libc only exported functions have names, so a wait is recognised by the exported caller, by the futex
operation and by what is in memory. The C library's own locks are malloc's, those of stdio streams, the loader's and
others. Most record no owner.

A function-local static is guarded by __cxa_guard_acquire of libstdc++ (libsupc++/guard.cc). The guard is a 64-bit
variable; the futex is its first word: bit 0 done, bit 8 initialisation pending, bit 16 with waiters. It records no
owner. The thread that runs the initialiser is found by its stack: a frame of a function that contains the static, which
has called something else than __cxa_guard_acquire.
"""

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
    fork_evidence,
)
from gdbext.engine.glibc import sync_objects as pthread_mutex
from gdbext.engine.glibc.sync_objects import Mutex, StreamLock
from gdbext.engine.process.symbolizer import Function, demangle, without_clone_suffix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdbext.engine.process.memory import Memory

_LOCKED = 1
"""The lock word without waiters. Whoever waits has set it to 2 and sleeps only while it is that: from 1 on a release is
behind it, which woke a waiter, and that one will set 2 again (``lll_lock``, sysdeps/nptl/lowlevellock.h)."""
_NEAR = 6
"""Frames between the kernel and the exported function that locks."""


def mutex_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a mutex, None for any other."""
    futex = thread.futex
    if not futex or not futex.is_lock:
        return _refused_mutex(thread, futex) if futex else None
    mutex = Mutex.read(thread.process.memory, futex.address)
    if not mutex or not (_is_named(thread) or _looks_owned(thread, mutex)):
        return None
    return _mutex_wait(thread, futex, mutex)


def destroyed(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside pthread_mutex_lock for what can be no mutex any more; None for any other."""
    futex = thread.futex
    if not futex or not futex.is_lock or not _is_named(thread):
        return None
    if Mutex.read(thread.process.memory, futex.address):
        return None
    evidence = f"{futex.address:#x} is waited for as a mutex, and what is there is not one (freed or overwritten)"
    return Wait(Resource(WaitKind.MUTEX, futex.address, "destroyed"), evidence=(evidence,))


def _is_named(thread: ThreadSnapshot) -> bool:
    return thread.first(FunctionTag.MUTEX, FunctionTag.CONDVAR, within=_NEAR) is not None


def _looks_owned(thread: ThreadSnapshot, mutex: Mutex) -> bool:
    """Locked, and its owner is a thread of this process: this is a mutex even where no name says so."""
    owner = thread.process.owner(mutex.owner)
    return bool(mutex.lock) and isinstance(owner, OwnerThread)


def _mutex_wait(thread: ThreadSnapshot, futex: FutexWait, mutex: Mutex) -> Wait:
    process = thread.process
    in_loader = _in_loader(thread, futex.address) or _loader_locks(thread)
    kind = WaitKind.LOADER_LOCK if in_loader else WaitKind.MUTEX
    resource = Resource(kind, futex.address, process.name_at(futex.address))
    by_word = futex.is_pi or futex.is_robust
    tid = mutex.lock & TID_MASK if by_word else mutex.owner
    if not mutex.lock:
        return Wait(resource, being_released=True, evidence=(f"the lock word at {futex.address:#x} is 0: free",))
    if futex.is_lock_word and mutex.lock == _LOCKED:
        evidence = f"the lock word at {futex.address:#x} is 1: released and taken again since the thread fell asleep"
        return Wait(resource, being_released=True, evidence=(evidence,))
    if by_word != (mutex.is_robust or mutex.is_priority_inheriting):
        evidence = f"the thread does not wait as for a mutex that is {mutex.description}: {futex.address:#x} is damaged"
        return Wait(resource, evidence=(evidence,))
    owner = process.owner(tid)
    if owner == OwnerThread(thread.tid) and not mutex.is_robust and mutex.is_recursive:
        owner = None  # A recursive mutex lets its owner in: this cannot be its state at rest.
    if not owner:
        evidence = f"the mutex at {futex.address:#x} is locked, its owner field is {tid}"
        return Wait(resource, evidence=(evidence,))
    evidence = f"{mutex.description} mutex {futex.address:#x}: lock word {mutex.lock:#x}, owner {tid} at +8"
    if isinstance(owner, VanishedThread) and not mutex.is_consistent:
        return Wait(resource, timed=futex.timed, evidence=(evidence, f"{mutex.users} users: its words disagree"))
    if isinstance(owner, VanishedThread) and mutex.is_shared:
        text = f"shared between processes, locked by thread {tid}, which is not one of this process"
        shared = Resource(kind, futex.address, text)
        return Wait(shared, timed=futex.timed, evidence=(evidence,), external=True)
    certainty = OwnerCertainty.RECORDED if by_word and mutex.owner == tid else process.owner_certainty(owner)
    if certainty is OwnerCertainty.INFERRED:
        evidence += "; no thread of this process has that id, and it is far from the ids of those that are"
    return Wait(resource, owner, certainty, evidence=(evidence,), timed=futex.timed)


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
        if mutex and pi and thread.process.owner(mutex.lock & TID_MASK):
            found[address] = mutex
    if len(found) != 1:
        return None
    address, mutex = found.popitem()
    owner = thread.process.owner(mutex.lock & TID_MASK)
    what = f"{mutex.description} mutex {address:#x}"
    evidence = f"{what}: lock word {mutex.lock:#x}; the kernel refused to wait (EDEADLK)"
    return Wait(
        Resource(WaitKind.MUTEX, address, thread.process.name_at(address)),
        owner,
        OwnerCertainty.RECORDED,
        evidence=(evidence,),
    )


_NEAR_LIBC_LOCK = 14
"""Frames between the kernel and the exported function of libc or ld.so that waits."""
_LIBRARIES = ("libc.", "libc-", "ld-", "libpthread")


def libc_lock_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a lock that the functions on its stack identify, None for any other."""
    futex = thread.futex
    if not futex or not futex.is_lock or by_syscall(thread):
        return None
    if thread.first(FunctionTag.MALLOC, within=_NEAR_LIBC_LOCK) is not None:
        return _interrupted_malloc(thread, futex) or _lock(thread, futex, WaitKind.LIBC_LOCK, "malloc arena")
    if thread.first(FunctionTag.STDIO, within=_NEAR_LIBC_LOCK) is not None:
        return _stream_wait(thread, futex) or _lock(thread, futex, WaitKind.LIBC_LOCK, "stdio stream")
    if thread.first(FunctionTag.LOADER, within=_NEAR_LIBC_LOCK) is not None:
        return _lock(thread, futex, WaitKind.LOADER_LOCK)
    if thread.first(FunctionTag.LIBC_LOCK, within=_NEAR_LIBC_LOCK) is not None:
        return _parents(thread, _lock(thread, futex, WaitKind.LIBC_LOCK))
    return None


def unidentified(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside libc for a lock that nothing identifies, None for any other."""
    futex = thread.futex
    if not futex or not futex.is_lock or not thread.module_name(0).startswith(_LIBRARIES) or by_syscall(thread):
        return None
    found = Wait(
        Resource(WaitKind.LIBC_LOCK, futex.address, thread.process.name_at(futex.address)),
        being_released=_is_free(thread, futex.address),
        evidence=(f"the word at {futex.address:#x} is waited for as a low-level lock, and no mutex is around it",),
    )
    return _parents(thread, found)


_START = 3
"""Outermost frames, which are of the start of a thread."""


def _parents(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait with its owner, where only a thread of the parent can be it: the process was forked, and has one thread,
    which is in no other function of libc that could hold the lock, and which no signal has interrupted."""
    forked = fork_evidence(thread.process) if len(thread.process.tids) == 1 and not wait.being_released else ()
    frames = thread.frames[: -_START or None]
    outer = next((level for level in range(len(frames)) if not thread.module_name(level).startswith(_LIBRARIES)), 0)
    others = range(outer, len(frames))
    if not forked or not outer or any(thread.module_name(each).startswith(_LIBRARIES) for each in others):
        return wait
    if any(frame.is_signal for frame in frames):
        return wait
    alone = "this process has one thread, which is in no other function of libc"
    return Wait(wait.resource, ParentsThread(), OwnerCertainty.INFERRED, evidence=(*wait.evidence, alone, *forked))


def by_syscall(thread: ThreadSnapshot) -> bool:
    """The thread has called syscall(2) of libc: the futex is that of its caller, and not libc's."""
    function = thread.stack.function(0) if thread.frames else None
    return function is not None and "syscall" in function.names


def _lock(thread: ThreadSnapshot, futex: FutexWait, kind: WaitKind, name: str = "") -> Wait:
    return Wait(
        Resource(kind, futex.address, name or thread.process.name_at(futex.address)),
        being_released=_is_free(thread, futex.address),
        evidence=(f"low-level lock {futex.address:#x} is waited for inside libc, which records no owner",),
    )


def _is_free(thread: ThreadSnapshot, address: int) -> bool:
    raw = thread.process.memory.try_read(address, 4)
    return bool(raw) and not any(raw)


def _stream_wait(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """The wait for a stdio stream, which records its owner."""
    stream = StreamLock.read(thread.process.memory, futex.address)
    if not stream:
        return None
    owners = [each.tid for each in thread.process.threads if each.thread_pointer == stream.owner]
    if len(owners) != 1:
        return None
    resource = Resource(WaitKind.LIBC_LOCK, futex.address, "stdio stream")
    owner = f"owner {stream.owner:#x} at +8 is the thread pointer of thread {owners[0]}"
    evidence = f"stdio lock {futex.address:#x}: {owner}"
    return Wait(resource, OwnerThread(owners[0]), OwnerCertainty.RECORDED, evidence=(evidence,))


def _interrupted_malloc(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """A signal handler that allocates while the thread it interrupted is itself inside malloc."""
    signals = [level for level in range(min(len(thread.frames), INNER)) if thread.frames[level].is_signal]
    inside = thread.first(FunctionTag.MALLOC, within=_NEAR_LIBC_LOCK)
    for level in signals:
        if inside is None or inside > level:
            continue
        outer = range(level + 1, min(level + 8, len(thread.frames)))
        if any(FunctionTag.MALLOC in thread.tags(at) for at in outer):
            resource = Resource(WaitKind.LIBC_LOCK, futex.address, "malloc arena")
            evidence = f"the signal handler of frame {level} interrupted this thread inside malloc, and allocates"
            return Wait(resource, OwnerThread(thread.tid), OwnerCertainty.INFERRED, evidence=(evidence,))
    return None


_PENDING = 1 << 8
_GUARD_PREFIX = "guard variable for "
_LONGEST = 1 << 20
"""Bytes of a function's code that are searched."""
_DEEP = 20_000
"""Frames of another thread that are searched for the function."""


def static_initialiser_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside __cxa_guard_acquire."""
    level = thread.first(FunctionTag.STATIC_GUARD, within=6)
    futex = thread.futex
    if level is None or not futex:
        return None
    guard = futex.address
    variable = _variable(thread, guard, level)
    raw = thread.process.memory.try_read(guard, 4)
    if raw and not int.from_bytes(raw, "little") & _PENDING:
        return Wait(
            Resource(WaitKind.STATIC_INIT, guard, variable), being_released=True, evidence=("the guard is not pending",)
        )
    found = _initialisers(thread, guard, level + 1)
    resource = Resource(WaitKind.STATIC_INIT, guard, variable)
    if not found:
        return Wait(resource, evidence=(f"guard {guard:#x} records no owner; no other stack is in its function",))
    owner, return_address = found[0]
    evidence = f"guard {guard:#x} records no owner; thread {owner.tid} has returned from it to {return_address:#x}"
    certainty = OwnerCertainty.INFERRED if len(found) == 1 else OwnerCertainty.UNKNOWN
    return Wait(resource, owner if len(found) == 1 else None, certainty, evidence=(evidence,))


def _variable(thread: ThreadSnapshot, guard: int, level: int) -> str:
    """The variable's name: by the guard's symbol, else by the function that waits for it."""
    for name in thread.process.names.names_at(guard):
        text = demangle(name)
        if text.startswith(_GUARD_PREFIX):
            return text[len(_GUARD_PREFIX) :]
    function = thread.stack.function(level + 1) if level + 1 < len(thread.frames) else None
    return f"a static variable of {function.demangled[0]}" if function else ""


def _initialisers(thread: ThreadSnapshot, guard: int, level: int) -> list[tuple[OwnerThread, int]]:
    """Threads that run the initialiser, with their address in the function that contains the static.

    The guard's address is kept in a register from __cxa_guard_acquire to __cxa_guard_release, or is made again for the
    latter: then the code between these uses is the initialiser. Both are true also in another copy of an inlined
    function. Where neither tells, it is a thread inside the same function, past the guard.
    """
    waiting_in = thread.stack.function(level) if level < len(thread.frames) else None
    if not waiting_in:
        return []
    proven: list[tuple[OwnerThread, int]] = []
    likely: list[tuple[OwnerThread, int]] = []
    for other in thread.process.threads:
        first = level + 1 if other is thread else 1
        for at in range(first, min(len(other.frames), _DEEP)):
            frame = other.frames[at]
            if FunctionTag.STATIC_GUARD in other.tags(at - 1) or not _near(frame.pc, waiting_in):
                continue
            function = other.stack.function(at)
            if not function:
                continue
            if guard in frame.registers.values() or between_uses(other.process.memory, function, guard, frame.pc):
                proven.append((OwnerThread(other.tid), frame.pc))
                break
            if _is_same(function, waiting_in) and likely[-1:] != [(OwnerThread(other.tid), frame.pc)]:
                likely.append((OwnerThread(other.tid), frame.pc))
    return proven or list({owner: (owner, pc) for owner, pc in reversed(likely)}.values())


def between_uses(memory: Memory, function: Function, guard: int, pc: int) -> bool:
    """The function's code has an address of the guard before ``pc`` and after it."""
    code = memory.try_read(function.start, min(function.size, _LONGEST)) if function.size else b""
    uses = list(_uses(memory, code, function.start, guard))
    return any(at < pc for at in uses) and any(at >= pc for at in uses)


def _uses(memory: Memory, code: bytes, start: int, guard: int) -> Iterator[int]:
    for use in memory.architecture.address_uses(code, start):
        if use.address == guard or (use.loads and memory.try_u64(use.address) == guard):
            yield use.instruction


def _near(pc: int, function: Function) -> bool:
    """A cheap refusal: another module is never the same function (its cold part is in the same module)."""
    return function.module.start <= pc < function.module.end


def _is_same(one: Function, other: Function) -> bool:
    """The same function, or its cold part."""
    if one.start == other.start:
        return True
    return without_clone_suffix(one.names[0]) == without_clone_suffix(other.names[0])
