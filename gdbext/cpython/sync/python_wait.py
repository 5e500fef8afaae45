"""The wait of a thread according to its innermost Python frames.

The waits of ``threading``, ``queue`` and ``concurrent.futures`` are written in Python, so their frames have the
object as ``self``. What kind of object it is, its attributes tell (cpython/abi/assumed_names.py).

Locks of multiprocessing are semaphores that processes share. Such a semaphore keeps no owner, and not what it was made
with. A Lock's or an RLock's had one token, and a BoundedSemaphore's as many as it may have: a thread that waits for one
waits for the process that took it. Those of an Event, a Condition, a Barrier or a JoinableQueue were made with 0, and
no process ever took them; for a Semaphore it cannot be known. SemLockObject (Modules/_multiprocessing/semaphore.c, 3.8
to 3.15): the head, handle, last_tid (8 bytes each), count, maxvalue, kind (4 each).
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import FrameObjects, assumed_names
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.sync.helper_threads import (
    executor_workers,
    exhausted_workers,
    is_pending,
    pending_futures,
    pool_helpers,
    pool_workers,
)
from gdbext.cpython.sync.locks import LockState, find_lock, read_lock, waited_lock, waited_words
from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
from gdbext.cpython.threads.runtime import PythonRuntime, active_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gdbext.cpython.objects.py_ref import PyVariables
    from gdbext.cpython.objects.py_space import PySpace
    from gdbext.cpython.sync.helper_threads import PoolHelper
    from gdbext.cpython.threads.frame_variables import PyStack

    Jobs = Callable[[], Mapping[int, int]]

_DEPTH = 8  # innermost Python frames that are read: Barrier.wait goes through three others

_OUTER = 12  # outermost Python frames in which a pool's worker runs a job; there are five


class PythonWait(NamedTuple):
    """A wait as the Python frames show it.

    ``address`` is that of the object (0 for SHUTDOWN). ``lock`` is the lock that the thread sleeps on, where it is
    known. ``reacquiring``: a condition was notified and its lock is being taken back. ``owner_ident`` and
    ``owner_tid`` are those of the thread that has to do something: an RLock's owner, a joined thread, the one that
    runs a future's job; None where nothing records it.
    """

    kind: Waitable
    address: int
    frame: PythonFrame
    lock: LockState | None = None
    reacquiring: bool = False
    owner_ident: int | None = None
    owner_tid: int | None = None
    pids: tuple[int, ...] = ()  # the worker processes that owe the result
    helpers: tuple[PoolHelper, ...] = ()  # the threads of this process that the pool of the result needs besides
    lacks_workers: bool = False  # A ProcessPoolExecutor owes the result, and has no worker process
    exhausted: tuple[int, ...] = ()
    """Thread ids of the workers of the pool that owes it, where all of them wait for such results."""
    awaited: tuple[int, ...] = ()
    """Thread ids of those whose end the interpreter waits for, or that run jobs of several futures."""
    lacks: str = ""  # what must come before it resumes, for people: ``2 of 3 threads have come``


def python_wait(
    runtime: PythonRuntime, state: ThreadState, futex: int = 0, jobs: Jobs | None = None
) -> PythonWait | None:
    """The wait of the thread according to its Python frames; None where they do not say.

    ``futex`` is the address that the thread sleeps on, 0 where it is unknown: it proves the lock.
    Without it the frames alone speak, and a thread that has just been woken looks the same. ``jobs`` gives what
    ``running_jobs`` has found.
    """
    stack = runtime.stack_of([state]).innermost(_DEPTH)
    wait = _wait_of_frames(runtime, stack, futex, jobs or (lambda: running_jobs(runtime)))
    if wait or not futex or not stack:
        return wait
    lock = waited_lock(runtime, state, futex)
    if not lock:
        return None
    return PythonWait(lock.kind, lock.address, stack[0], lock, False, lock.owner_ident, lock.owner_tid)


def _wait_of_frames(runtime: PythonRuntime, stack: PyStack, futex: int, jobs: Jobs) -> PythonWait | None:
    """The outermost object of an unbroken run of waiting frames: Queue.get, not the Condition it uses."""
    outermost: tuple[Waitable, PyRef, PythonFrame] | None = None
    lock: LockState | None = None
    reacquiring = False
    for frame in stack:
        if frame.call not in assumed_names.WAITING_FUNCTIONS:
            pending = pending_futures(stack, frame) if outermost else ()
            if pending:
                return _for_futures(runtime, frame, pending, jobs())
            break
        own = stack.locals(frame)
        kind = Waitable.SHUTDOWN if frame.name == assumed_names.SHUTDOWN else _kind_of(own["self"])
        if not kind:
            continue
        outermost = kind, own["self"], frame
        if kind is Waitable.CONDITION and not lock:
            lock, reacquiring = _condition_lock(runtime, own, futex)
    if not outermost:
        return None
    kind, value, frame = outermost
    if kind is Waitable.SHUTDOWN:
        tids = (runtime.tid_of_ident(ident) for ident in awaited_at_exit(runtime))
        return PythonWait(kind, 0, frame, awaited=tuple(filter(None, tids)))
    if not lock and futex:
        own = stack.locals(stack[0])
        lock = find_lock(runtime, futex, (each.address for each in (*own.values(), *own["self"].vars().values())))
    if kind is Waitable.FUTURE:
        return _for_future(runtime, value, frame, jobs().get(value.address), lock)._replace(reacquiring=reacquiring)
    owner = _owner_of(kind, value, lock)
    tid = runtime.tid_of_ident(owner) if owner else None
    is_pool = kind is Waitable.POOL_RESULT
    pids = pool_workers(value) if is_pool else ()
    helpers = pool_helpers(runtime, value) if is_pool else ()
    lacks = _progress_text(kind, value, frame)
    awaited: tuple[int, ...] = ()
    if kind in _CALLED_BACK and not reacquiring:  # the jobs at whose end a method of the object is called
        idents = dict.fromkeys(ident for job, ident in jobs().items() if _calls_back(PyRef(runtime, job), value))
        awaited = tuple(filter(None, map(runtime.tid_of_ident, idents)))
    return PythonWait(
        kind, value.address, frame, lock, reacquiring, owner, tid, pids, helpers, awaited=awaited, lacks=lacks
    )


_CALLED_BACK = (Waitable.QUEUE, Waitable.SIMPLE_QUEUE, Waitable.EVENT, Waitable.CONDITION, Waitable.SEMAPHORE)
"""Objects of which programs hand a method to Future.add_done_callback()."""


def _calls_back(future: PyRef, value: PyRef) -> bool:
    callbacks = future.var(assumed_names.FUTURE_CALLBACKS).parts()
    return any(value == each["__self__"] or value in each.closure for each in callbacks)


def _progress_text(kind: Waitable, value: PyRef, frame: PythonFrame) -> str:
    """The progress of a queue or a barrier, by the numbers that it keeps."""
    numbers = [value.var(name).int() for name in assumed_names.COUNTS.get(kind, ())]
    if not numbers or None in numbers:
        return ""
    if kind is Waitable.BARRIER:
        return f"{numbers[0]} of {numbers[1]} threads have come"
    if frame.name == assumed_names.QUEUE_JOIN:
        return f"{numbers[0]} task{'s' if numbers[0] != 1 else ''} without task_done()"
    return f"full, maxsize {numbers[1]}" if frame.name == assumed_names.QUEUE_PUT else ""


def _for_futures(
    runtime: PythonRuntime, frame: PythonFrame, pending: Sequence[PyRef], jobs: Mapping[int, int]
) -> PythonWait:
    """The wait for one or several futures (concurrent.futures.wait, as_completed)."""
    future = next((each for each in pending if each.address in jobs), pending[0])
    if len(pending) == 1:
        return _for_future(runtime, future, frame, jobs.get(future.address))
    idents = dict.fromkeys(jobs[each.address] for each in pending if each.address in jobs)
    tids = tuple(runtime.tid_of_ident(ident) or 0 for ident in idents)
    lacks = f"{len(pending)} of them are pending"
    return PythonWait(Waitable.FUTURE, future.address, frame, awaited=tids, lacks=lacks)


def for_polled(runtime: PythonRuntime, polled: Sequence[PyRef], jobs: Mapping[int, int]) -> PythonWait | None:
    """The wait of a loop that looks whether futures, or results of a multiprocessing.Pool, are there."""
    nowhere = PythonFrame("", "", None, 0, 0)
    pools = [each for each in polled if _kind_of(each) is Waitable.POOL_RESULT]
    if pools:
        pids = dict.fromkeys(pid for each in pools for pid in pool_workers(each))
        return PythonWait(Waitable.POOL_RESULT, pools[0].address, nowhere, pids=tuple(pids))
    futures = [each for each in polled if _kind_of(each) is Waitable.FUTURE and is_pending(each)]
    return _for_futures(runtime, nowhere, futures, jobs) if futures else None


def _for_future(
    runtime: PythonRuntime, future: PyRef, frame: PythonFrame, owner: int | None, lock: LockState | None = None
) -> PythonWait:
    """The wait for a future, whose job the thread with ident ``owner`` runs; else the workers of its pool owe it."""
    wait = PythonWait(Waitable.FUTURE, future.address, frame, lock, owner_ident=owner)
    if owner is not None:
        return wait._replace(owner_tid=runtime.tid_of_ident(owner) if owner else None)
    pids = executor_workers(runtime, future)
    if pids is not None:
        return wait._replace(pids=pids, lacks_workers=not pids)
    # all of the workers, or none: which thread one of them is may be unknown
    tids = [runtime.tid_of_ident(ident) for ident in exhausted_workers(runtime, future)]
    known = tuple(filter(None, tids))
    return wait._replace(exhausted=known if len(set(known)) == len(tids) else ())


def _kind_of(value: PyRef) -> Waitable | None:
    return value.python.once(_kind_at, value.address) if value else None


def _kind_at(python: PySpace, address: int) -> Waitable | None:
    own = PyRef(python, address).vars()
    names = () if own.fault else own.keys()
    return next((kind for kind, wanted in assumed_names.OBJECT_KINDS if all(name in names for name in wanted)), None)


def _condition_lock(runtime: PythonRuntime, own: PyVariables, futex: int) -> tuple[LockState | None, bool]:
    """The lock that Condition.wait sleeps on (its own ``waiter``, or the condition's lock after it was notified)."""
    waiter = read_lock(runtime, own[assumed_names.CONDITION_WAITER].address)
    words = waited_words(runtime, futex) if futex else ()
    if not futex or (waiter and waiter.word in words):
        return waiter, False
    lock = read_lock(runtime, own["self"].var(assumed_names.CONDITION_LOCK).address)
    return (lock, True) if lock and lock.word in words else (None, False)


def _owner_of(kind: Waitable, value: PyRef, lock: LockState | None) -> int | None:
    """Ident of the thread that must act: the one that is joined, the owner of the lock."""
    if kind is Waitable.THREAD:
        return value.var(assumed_names.THREAD_IDENT).int()
    if kind is Waitable.IMPORT:
        return value.var(assumed_names.MODULE_LOCK_OWNER).int()
    if lock and lock.owner_ident:
        return lock.owner_ident
    return value.var(assumed_names.RLOCK_OWNER).int() if kind is Waitable.RLOCK else None


def running_jobs(runtime: PythonRuntime) -> dict[int, int]:
    """Address of a future → ident of the thread that runs its job (_WorkItem.run of concurrent/futures/thread.py)."""
    idents: dict[int, int] = {}
    for state in runtime.thread_states():
        stack = runtime.stack_of([state])
        for frame in stack[-_OUTER:]:
            if frame.name == assumed_names.JOB_RUN and frame.file.endswith(assumed_names.FUTURES_FILE):
                future = stack.locals(frame)["self"].var(assumed_names.JOB_FUTURE)
                if future:
                    idents.setdefault(future.address, state.ident)
    return idents


_SEMAPHORE = "_multiprocessing.SemLock"
_SEM_VALUE_MAX = 0x7FFF_FFFF
"""The ``maxvalue`` that SemLock gets for a Semaphore, however many tokens that has (synchronize.py)."""
_NEAR_CALL = 3  # innermost frames: the method of the object, and its caller


def is_taken_elsewhere(runtime: PythonRuntime, state: ThreadState, semaphore: int) -> bool:
    """The thread waits for a lock of multiprocessing that has this semaphore, was made with all of its tokens, and is
    not one that this very process has taken. Raises nothing."""
    stack = runtime.stack_of([state]).innermost(_NEAR_CALL)
    for frame in stack:
        own = stack.locals(frame)
        for value in chain(stack.slots(frame), own.values(), own["self"].attributes().values()):
            lock = value["__self__"] or value  # a method of the lock counts, too
            if lock.type == _SEMAPHORE:
                handle, count, maxvalue = lock.read_or(_semaphore, (0, 0, 0))
                if handle == semaphore:
                    return not count and maxvalue != _SEM_VALUE_MAX
    return False


def _semaphore(python: PySpace, address: int) -> tuple[int, int, int]:
    """(handle, number of times that this process has taken it, number of tokens that it may have)."""
    lock = py.SemLockObject(python.space, address)
    return lock.handle, lock.count, lock.maxvalue


_HANDLER_FRAMES = 32  # innermost Python frames among which a handler is looked for
_ARGUMENTS = 3  # A method has ``self`` before them


def in_signal_handler(runtime: PythonRuntime, state: ThreadState) -> bool:
    """One of the thread's innermost functions is a signal handler, or was called by one: it has a number and the frame
    object of its caller as arguments. Raises nothing."""
    stack = runtime.stack_of([state]).innermost(_HANDLER_FRAMES)
    for handler, caller in zip(stack, stack[1:]):
        arguments = list(_arguments(stack, handler))
        for number, value in zip(arguments, arguments[1:]):
            if _is_object_of(value, caller) and number.int() is not None:
                return True
    return False


def _arguments(stack: PyStack, frame: PythonFrame) -> Iterator[PyRef]:
    """The first locals, which are the arguments, and what ``*arguments`` has collected."""
    for value in list(stack.locals(frame).values())[:_ARGUMENTS]:
        yield value
        if value.type == "tuple":
            yield from value.elements(64)


def _is_object_of(value: PyRef, frame: PythonFrame) -> bool:
    """It is the PyFrameObject of that frame (Include/internal/pycore_frame.h: f_frame, since 3.11)."""
    if value.type != "frame" or not value.python:
        return False
    if isinstance(value.python.layout.abi.frames, FrameObjects):
        return value.address == frame.address
    return value.read_or(lambda python, at: py.PyFrameObject(python.space, at).f_frame == frame.address, False)


def awaited_at_exit(runtime: PythonRuntime) -> list[int]:
    """Idents of the threads that are no daemons: the interpreter waits for their end before its own (_shutdown of
    Lib/threading.py). The main thread is among them. Raises nothing."""
    threads = active_threads(runtime)
    idents = (ident.int() for ident, thread in threads if thread.var(assumed_names.THREAD_DAEMON).int() == 0)
    return [ident for ident in idents if ident is not None]
