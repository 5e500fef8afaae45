"""Waits inside glibc's synchronisation objects: which object, and what it records about its owner. x86-64.

Layouts: sysdeps/nptl/bits/struct_mutex.h, struct_rwlock.h, thread-shared-types.h (condvar), nptl/internaltypes.h
(barrier, semaphore) of glibc 2.25 to 2.41. On a stripped libc only exported functions have names, so a wait is
recognised by the exported caller, by the futex operation and by what is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gdbext.model.certainty import Certainty
from gdbext.model.wait import Owner, Resource, Wait
from gdbext.model.wait_kind import WaitKind
from gdbext.process.memory import Memory
from gdbext.waits import once
from gdbext.waits.futex import TID_MASK, WAIT_BITSET, FutexWait, futex_wait
from gdbext.waits.snapshot import INNER, PTHREAD_TID, ThreadSnapshot

_MUTEX_SIZE, _KIND = 40, 16  # of pthread_mutex_t, and where __kind is in it
_KIND_BITS = 0x3F3
"""Type (0–3), robust, PI, PP, process-shared and elision bits of pthread_mutex_t.__data.__kind."""
_PRIORITY_INHERITING, _SHARED = 0x20, 0x80  # PTHREAD_MUTEX_PRIO_INHERIT_NP, PTHREAD_MUTEX_PSHARED_BIT (pthreadP.h)
_READER_SHIFT = 3  # PTHREAD_RWLOCK_READER_SHIFT, nptl/pthread_rwlock_common.c
_SIGNAL_OFFSETS = (40, 44, 32, 36)
"""__g_signals[0] and [1] of pthread_cond_t: up to glibc 2.40, then since 2.41 (which dropped __g_refs)."""
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
    mutex = _MutexWords.read(thread.process.memory, futex.address)
    level = thread.first("mutex", "cond", within=6)
    if mutex is not None and (level is not None or mutex.looks_owned(thread)):
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
        evidence = f"{futex.address:#x} is waited for as a mutex, and what is there is none (freed or overwritten)"
        return Wait(Resource(WaitKind.MUTEX, futex.address, "destroyed"), evidence=(evidence,))
    if level is None and not thread.module_name(0).startswith(("libc.", "libc-", "ld-", "libpthread")):
        return None
    return Wait(
        Resource(WaitKind.LIBC_LOCK, futex.address, thread.process.name_at(futex.address)),
        handover=_is_free(thread, futex.address),
        evidence=(f"the word at {futex.address:#x} is waited for as a low-level lock, and no mutex is around it",),
    )


def _stream_wait(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """_IO_lock_t (sysdeps/nptl/stdio-lock.h): int lock, int count, void* owner, which is the owner's thread pointer."""
    raw = thread.process.memory.try_read(futex.address, 16)
    if raw is None:
        return None
    lock, count, pointer = (int.from_bytes(raw[a:b], "little") for a, b in ((0, 4), (4, 8), (8, 16)))
    owners = [each.tid for each in thread.process.threads if pointer and each.thread_pointer == pointer]
    if not lock or not 0 < count < 1 << 16 or len(owners) != 1:
        return None
    resource = Resource(WaitKind.LIBC_LOCK, futex.address, "stdio stream")
    evidence = f"stdio lock {futex.address:#x}: owner {pointer:#x} at +8 is the thread pointer of thread {owners[0]}"
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
    found: dict[int, _MutexWords] = {}
    for address in {value - offset for level in levels for value in thread.values(level) for offset in (0, _KIND)}:
        mutex = _MutexWords.read(thread.process.memory, address) if address % 8 == 0 and address > 0 else None
        pi = mutex is not None and mutex.kind & _PRIORITY_INHERITING
        if mutex is not None and pi and thread.process.owner(mutex.lock & TID_MASK) is not None:
            found[address] = mutex
    if len(found) != 1:
        return None
    address, mutex = found.popitem()
    owner = thread.process.owner(mutex.lock & TID_MASK)
    evidence = f"{mutex.words} mutex {address:#x}: lock word {mutex.lock:#x}; the kernel refused to wait (EDEADLK)"
    return Wait(
        Resource(WaitKind.MUTEX, address, thread.process.name_at(address)), owner, Certainty.EXACT, evidence=(evidence,)
    )


class _MutexWords:
    """The first five words of a pthread_mutex_t."""

    def __init__(self, lock: int, owner: int, users: int, kind: int) -> None:
        self.lock = lock
        self.owner = owner
        self.users = users
        self.kind = kind

    @classmethod
    def read(cls, memory: Memory, address: int) -> _MutexWords | None:
        """The mutex at an address, None where there can be none."""
        raw = memory.try_read(address, _MUTEX_SIZE)
        if raw is None:
            return None
        lock, _, owner, users, kind = (int.from_bytes(raw[at : at + 4], "little") for at in range(0, 20, 4))
        return cls(lock, owner, users, kind) if not kind & ~_KIND_BITS else None

    def looks_owned(self, thread: ThreadSnapshot) -> bool:
        """Locked, and its owner is a thread of this process: this is a mutex even where no name says so."""
        owner = thread.process.owner(self.owner)
        return bool(self.lock) and owner is not None and not owner.gone

    @property
    def words(self) -> str:
        """What kind of mutex it is."""
        kinds = ("normal", "recursive", "error-checking", "adaptive")
        extra = [name for bit, name in ((16, "robust"), (32, "priority-inheriting"), (128, "process-shared"))
                 if self.kind & bit]  # fmt: skip
        return " ".join([*extra, kinds[self.kind & 3]])


def _mutex_wait(thread: ThreadSnapshot, futex: FutexWait, mutex: _MutexWords) -> Wait:
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
    if owner is not None and owner.tid == thread.tid and not mutex.kind & 0x10 and mutex.kind & 3 == 1:
        owner = None  # A recursive mutex lets its owner in: this cannot be its state at rest.
    if owner is None:
        evidence = f"the mutex at {futex.address:#x} is locked, its owner field is {tid}"
        return Wait(resource, evidence=(evidence,))
    evidence = f"{mutex.words} mutex {futex.address:#x}: lock word {mutex.lock:#x}, owner {tid} at +8"
    if owner.gone and mutex.kind & _SHARED:
        text = f"shared between processes, locked by thread {tid}, which is none of this one"
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
    base = _proven_base(thread, futex.address, _SIGNAL_OFFSETS, level)
    address = base if base is not None else futex.address - (40 if futex.address % 8 == 0 else 44)
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
        mutex = _MutexWords.read(memory, value)
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
    if address < 0x10000 or address >= 1 << 47:
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
    """pthread_rwlock_t: __readers +0, __wrphase_futex +8, __writers_futex +12, __cur_writer +24."""
    level = thread.first("rdlock", "wrlock", within=6)
    if level is None:
        return None
    base = _proven_base(thread, futex.address, (8, 12, 0), level)
    if base is None:
        base = futex.address - (8 if futex.address % 8 == 0 else 12)
    process = thread.process
    raw = process.memory.try_read(base, 28)
    if raw is None:
        return Wait(Resource(WaitKind.RWLOCK, base))
    readers, writer = int.from_bytes(raw[:4], "little") >> _READER_SHIFT, int.from_bytes(raw[24:28], "little")
    resource = Resource(WaitKind.RWLOCK, base, process.name_at(base))
    if writer:
        owner = process.owner(writer)
        evidence = f"rwlock {base:#x}: writer {writer} at +24"
        return Wait(resource, owner, Certainty.EXACT if owner else Certainty.UNKNOWN, futex.timed, (evidence,))
    if not readers:
        return Wait(resource, handover=True, evidence=(f"rwlock {base:#x} has no writer and no readers: free",))
    found = list(_readers(thread, base))
    evidence = f"rwlock {base:#x} is held by {readers} reader(s), which it does not name"
    if len(found) != readers:
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
    """sem_wait jumps to a local function, which has no name on a stripped libc. struct new_sem tells: value 0 in the
    low half, at least this waiter in the high half, and the futex expects that 0, called from outside of libc."""
    raw = thread.process.memory.try_read(futex.address, 12) if futex.address % 8 == 0 else None
    if raw is None or futex.command != WAIT_BITSET or futex.value or not _unnamed_in_libc(thread):
        return False
    value, waiters, private = (int.from_bytes(raw[at : at + 4], "little") for at in (0, 4, 8))
    return value == 0 and 1 <= waiters <= 1 << 22 and private in (0, 128)


def _unnamed_in_libc(thread: ThreadSnapshot) -> bool:
    """The libc frames at the top of the stack have no names, and are few."""
    levels = thread.inner_libc_levels
    return 0 < len(levels) < 4 and all(thread.stack.function(level) is None for level in levels)


def _has_tokens(thread: ThreadSnapshot, address: int) -> bool:
    """struct new_sem: the value is the low half of the first 64 bits (nptl, __HAVE_64B_ATOMICS)."""
    raw = thread.process.memory.try_read(address, 4)
    return raw is not None and any(raw)


def _join(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """pthread_join sleeps on struct pthread.tid of the thread it waits for; the kernel clears it at its end. The
    word's address proves it, so that no name is needed (pthread_join jumps to a local function)."""
    owner = thread.process.owner(futex.value & TID_MASK)
    other = thread.process.thread(owner.tid) if owner is not None else None
    if owner is None or other is None or other.thread_pointer + PTHREAD_TID != futex.address:
        named = thread.first("join", within=5) is not None
        return Wait(Resource(WaitKind.JOIN, futex.address, "a thread"), timed=futex.timed) if named else None
    evidence = f"the futex {futex.address:#x} is the tid word of thread {owner.tid}"
    return Wait(
        Resource(WaitKind.JOIN, futex.address, f"thread {owner.tid}"), owner, Certainty.EXACT, futex.timed, (evidence,)
    )


def _barrier(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    """struct pthread_barrier: in +0, current_round +4, count +8, shared +12, out +16."""
    if thread.first("barrier", within=4) is None:
        return None
    raw = thread.process.memory.try_read(futex.address - 4, 12)
    address, name = futex.address - 4, thread.process.name_at(futex.address - 4)
    text = ""
    if raw is not None:
        entered, round_, count = (int.from_bytes(raw[at : at + 4], "little") for at in (0, 4, 8))
        if 0 < count < 1 << 20 and entered - round_ <= count:
            text = f"{entered - round_} of {count} threads have arrived"
    return Wait(Resource(WaitKind.BARRIER, address, ", ".join(filter(None, (name, text)))), timed=futex.timed)
