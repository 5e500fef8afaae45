"""The interpreter's locks: the global one, and those made by ``threading`` (lock, RLock and SimpleQueue objects).

The GIL (Python/ceval_gil.h, ceval_gil.c since 3.12): ``mutex`` protects ``locked`` and ``last_holder``; a waiter waits
on ``cond`` for 5 ms at a time; one that drops the GIL on request waits on ``switch_cond`` until another thread has
taken it. It is at ``_PyRuntime.ceval.gil``, since 3.12 each interpreter points to its own or the main interpreter's.

Locks of threading: a PyThread_type_lock is a pointer to a sem_t (Python/thread_pthread.h). A waiter sleeps in a futex
at its address; the low half of the first word is the value, the high half the number of waiters (struct new_sem of
glibc, sysdeps/nptl/internaltypes.h). A PyMutex is one byte; a waiter sleeps on a semaphore in a wait entry on its own
stack, which has the address of the mutex (Python/parking_lot.c).
"""

from __future__ import annotations

import time
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import GilPlace, LockForm, LockType
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.cpython.objects import FLAG_HEAP_TYPE
from gdbext.cpython.threads.frame_variables import locals_of, stack_slots
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.engine.glibc.sync_objects import recorded_owner
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, GdbextError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gdbext.cpython.threads.frame_reader import Interpreter, PythonFrame
    from gdbext.engine.process.modules import ModuleTable
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.targets.base_target import Target

_MAX_INTERVAL = 3_600_000_000  # Microseconds; sys.setswitchinterval(3600) is already absurd


class GilPart(Enum):
    """A part of a GIL that a thread can wait for; the value is the name of its field."""

    COND = "cond"
    MUTEX = "mutex"
    SWITCH_COND = "switch_cond"
    SWITCH_MUTEX = "switch_mutex"


class GilState(NamedTuple):
    """One GIL. ``interpreters`` are the ids of those that share it, ``interpreter`` the first. ``holder`` and
    ``last_holder`` are PyThreadState*; the former and ``holder_tid`` are None unless the GIL is locked and its fields
    are consistent, the latter stays after a release. ``mutex_owner``: tid of the thread that is changing the fields, as
    it takes or drops the GIL. ``ranges``: (first byte, end) of each part."""

    address: int
    interpreter: int
    interpreters: tuple[int, ...]
    locked: bool
    holder: int | None
    holder_tid: int | None
    last_holder: int | None
    mutex_owner: int | None
    ranges: tuple[tuple[int, int], ...]

    def part_at(self, address: int) -> GilPart | None:
        """The part that contains the address of a futex, condvar or mutex; None if none does."""
        return next((part for part, (start, end) in zip(GilPart, self.ranges) if start <= address < end), None)


def read_gils(runtime: PythonRuntime) -> list[GilState]:
    """All GILs, the main interpreter's first; none of a free-threaded build, unless something enabled it there
    (PYTHON_GIL=1, an extension that needs it). Raises BadData if a field has no possible value, MemoryFault."""
    users: dict[int, list[Interpreter]] = {}
    for interpreter in sorted(runtime.interpreters(), key=lambda each: each.id):
        address = _gil_of(runtime, interpreter)
        gil = py.GilRuntimeState(runtime.space, address)
        # ``enabled`` is a member of free-threaded builds only: INT_MAX for ever, 0, or how many wanted it for a while.
        if address and (not gil.has(py.GilRuntimeState.enabled) or gil.enabled):
            users.setdefault(address, []).append(interpreter)
    return [_read_gil(runtime, address, interpreters) for address, interpreters in users.items()]


def _gil_of(runtime: PythonRuntime, interpreter: Interpreter) -> int:
    """Address of the GIL that an interpreter uses; 0 if it has none yet, at start-up."""
    if runtime.layout.abi.gil is GilPlace.RUNTIME:
        return py.PyRuntimeState(runtime.space, runtime.address).gil
    return py.PyInterpreterState(runtime.space, interpreter.address).gil


def _read_gil(runtime: PythonRuntime, address: int, users: list[Interpreter]) -> GilState:
    """The GIL at an address, which the interpreters ``users`` share. Raises BadData, MemoryFault."""
    gil = py.GilRuntimeState(runtime.space, address)
    locked, interval = gil.locked, gil.interval
    if locked not in (-1, 0, 1) or not 0 < interval <= _MAX_INTERVAL:
        raise BadData(f"no GIL at {address:#x}: locked is {locked}, interval {interval} us")
    last = gil.last_holder or None
    changing = recorded_owner(runtime.memory, gil.mutex) or None
    holder = last if locked == 1 and changing is None else None
    state = next((each for each in runtime.thread_states() if each.address == holder), None) if holder else None
    starts = (gil.cond, gil.mutex, gil.switch_cond, gil.switch_mutex, address + py.GilRuntimeState.size(gil.space))
    return GilState(
        address,
        users[0].id,
        tuple(user.id for user in users),
        locked == 1,
        holder,
        runtime.proven_tid(state) if state else None,
        last,
        changing,
        tuple(zip(starts, starts[1:])),
    )


_LOCKED, HAS_PARKED = 1, 2  # bits of a PyMutex (_Py_LOCKED, _Py_HAS_PARKED: cpython/lock.h)


class LockState(NamedTuple):
    """One lock object. ``kind``: LOCK, RLOCK or SIMPLE_QUEUE (locked if threads wait for it). ``word``: the address of
    its sem_t, or of the byte that its waiters are parked on, which identifies the lock. ``waiters``: how many threads
    sleep on it at least. Only an RLock records its owner: ``owner_ident`` is that thread's threading.get_ident(),
    ``owner_tid`` its tid (None if no such thread lives), ``depth`` how often it has taken the lock."""

    address: int
    kind: Waitable
    word: int
    locked: bool
    waiters: int
    owner_ident: int | None = None
    owner_tid: int | None = None
    depth: int = 0


def read_lock(runtime: PythonRuntime, address: int) -> LockState | None:
    """The lock object at ``address``; None for any other object and if it cannot be read."""
    with suppress(GdbextError):
        info = runtime.objects.type_of(address)
        forms = runtime.layout.abi.lock_types_named(info.name)
        form = next((form for form in forms if runtime.layout.size(form.struct) == info.size), None)
        return _read_lock(runtime, address, form) if form else None
    return None


def _read_lock(runtime: PythonRuntime, address: int, lock: LockType) -> LockState:
    """The lock object at an address, by the form that its type has. Raises MemoryFault, LayoutError."""
    word = lock.struct(runtime.space, address).value(lock.word)
    owner = depth = 0
    if lock.form is LockForm.SEMAPHORE:
        semaphore = runtime.memory.u64(word)
        state = LockState(address, lock.kind, word, locked=not semaphore & 0xFFFFFFFF, waiters=semaphore >> 32)
        if lock.kind is Waitable.RLOCK:
            old = py.RLockObject(runtime.space, address)
            depth = old.rlock_count
            owner = old.rlock_owner if depth else 0
    elif lock.form is LockForm.WAITING_FLAG:
        waiters = runtime.memory.u8(word)
        state = LockState(address, lock.kind, word, waiters != 0, waiters)
    else:
        bits = runtime.memory.u8(word)
        state = LockState(address, lock.kind, word, bool(bits & _LOCKED), int(bool(bits & HAS_PARKED)))
        if lock.form is LockForm.RECURSIVE_MUTEX and state.locked:
            mutex = py.MutexRLockObject(runtime.space, address)
            owner, depth = mutex.thread, mutex.level + 1
    tid = runtime.tid_of_ident(owner) if owner else None
    return state._replace(owner_ident=owner or None, owner_tid=tid, depth=depth)


def waited_words(runtime: PythonRuntime, futex: int) -> tuple[int, ...]:
    """The possible ``LockState.word`` of the lock whose waiter sleeps on ``futex``: that semaphore itself, or the
    address that the thread is parked on. Only a lock that has such a word proves the wait: ``futex`` may be another."""
    if all(lock.form is LockForm.SEMAPHORE for lock in runtime.layout.abi.lock_types):
        return (futex,)
    word = parked_on(runtime, futex)
    return (futex,) if word is None else (futex, word)


def words_of_native_lock(runtime: PythonRuntime, address: int) -> tuple[int, ...]:
    """The words of an object of a C or Cython class named ``…Lock`` or ``…Mutex``, such as h5py's and fastrlock's, one
    of which is the address of a lock of CPython; () for any other object. Raises nothing."""
    try:
        kind = runtime.objects.type_of(address)
        is_lock = "." in kind.name and kind.name.lower().endswith(("lock", "mutex")) and kind.size <= 256
        if not is_lock or read_lock(runtime, address):
            return ()  # CPython's own locks, which may have been released inside of the block, are read by read_lock
        return runtime.memory.words(address, kind.size // 8)
    except GdbextError:
        return ()


def parked_on(runtime: PythonRuntime, futex: int) -> int | None:
    """The address that a thread is parked on, if ``futex`` is the semaphore in its wait entry (_PyParkingLot_Park,
    Python/parking_lot.c); an arbitrary word for any other futex."""
    entry = futex - py.WaitEntry.sema.offset(runtime.space)
    return runtime.memory.try_u64(entry + py.WaitEntry.addr.offset(runtime.space))


def find_lock(runtime: PythonRuntime, futex: int, candidates: Iterable[int]) -> LockState | None:
    """The first lock among the words ``candidates``, which need not be addresses of objects, that a thread sleeping on
    ``futex`` waits for."""
    words = waited_words(runtime, futex)
    locks = (read_lock(runtime, candidate) for candidate in candidates if _may_be_object(candidate))
    return next((lock for lock in locks if lock and lock.word in words), None)


def _may_be_object(word: int) -> bool:
    """True if a word can be the address of a Python object."""
    return not word & 7 and word >= 4096


def lock_candidates(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> Iterator[int]:
    """Addresses of the objects that may be the lock for which frames wait, likeliest first: those on the value stack
    and in variables, then ``self`` of the bound methods and the attributes of the instances among these."""
    for frame in frames:
        values: list[int] = []
        with suppress(GdbextError):
            values += stack_slots(runtime, frame)
        with suppress(GdbextError):
            values += locals_of(runtime, frame).values()
        yield from values
        for address in filter(_may_be_object, values):
            with suppress(GdbextError):
                info = runtime.objects.type_of(address)
                if info.name == "builtin_function_or_method":  # "with lock:" keeps the lock's bound __exit__
                    yield py.PyCFunctionObject(runtime.space, address).m_self
                elif info.name == "method":
                    yield py.PyMethodObject(runtime.space, address).im_self
                elif info.flags & FLAG_HEAP_TYPE:
                    yield from (value for _, value in islice(runtime.dicts.attributes(address), 64))


_SECONDS = 0.015  # longest time by which the walk extends the stop of the process, in seconds


def prepare_walk(target: Target, modules: ModuleTable, symbolizer: Symbolizer) -> Callable[[], None] | None:
    """A function that reads the interpreter's lists and frames at the stop, so that the copy of the process has them
    before running threads overwrite them. None without a Python. Raises nothing but TargetGone.

    To shorten the stop, the interpreter is found, and the code of its functions read, before it; at the stop only if
    the lists were inconsistent each time, because threads come and go.
    """
    memory = Memory(target)
    runtime: PythonRuntime | None = None
    for _ in range(3):
        with suppress(GdbextError):
            runtime = PythonRuntime.detect(memory, modules, symbolizer)
            break
        memory.forget()
    if runtime is not None and not runtime:
        return None
    if runtime:
        with suppress(GdbextError):
            _walk(runtime, time.monotonic() + 10 * _SECONDS)  # so that the code of most functions is known then

    def walk_at_stop() -> None:
        """Read everything again, now that the process is stopped, for at most _SECONDS."""
        memory.forget()
        with suppress(GdbextError):
            present = runtime.anew() if runtime else PythonRuntime.detect(memory, modules, symbolizer)
            if present:
                _walk(present, time.monotonic() + _SECONDS)

    return walk_at_stop


def _walk(runtime: PythonRuntime, deadline: float) -> None:
    """Read the GILs and the frames of all threads, until the deadline (time.monotonic). Raises GdbextError."""
    runtime.sys_hexversion()
    for address in filter(None, (_gil_of(runtime, interpreter) for interpreter in runtime.interpreters())):
        runtime.memory.read(address, runtime.layout.size(py.GilRuntimeState))
    for state in runtime.thread_states():
        runtime.frames.stack(state)
        if time.monotonic() > deadline:
            return
