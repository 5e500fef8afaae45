"""The wait of a thread according to its innermost Python frames: the waits of ``threading``, ``queue`` and
``concurrent.futures`` are written in Python, so their frames have the object as ``self``.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import FrameObjects, assumed_names
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.sync import helper_threads
from gdbext.cpython.sync.locks import LockState, find_lock, lock_candidates, read_lock, waited_words
from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
from gdbext.cpython.threads.runtime import PythonRuntime, active_threads
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gdbext.cpython.objects.py_ref import PyVariables
    from gdbext.cpython.objects.py_space import PySpace
    from gdbext.cpython.threads.frame_variables import PyStack

    Jobs = Callable[[], Mapping[int, int]]


class PythonWait(NamedTuple):
    """A wait as the Python frames show it.

    ``address`` is that of the object (0 for SHUTDOWN), ``frame`` the one that waits. ``lock`` is the lock that the
    thread sleeps on, if known. ``reacquiring``: a condition was notified and takes its lock back. ``owner_ident`` and
    ``owner_tid`` are those of the thread that must act: an RLock's owner, a joined thread, the one that runs a future's
    job; None if it is not recorded.
    """

    kind: Waitable
    address: int
    frame: PythonFrame
    lock: LockState | None = None
    reacquiring: bool = False
    owner_ident: int | None = None
    owner_tid: int | None = None
    pids: tuple[int, ...] = ()  # the worker processes that owe the result
    helpers: tuple[
        helper_threads.PoolHelper, ...
    ] = ()  # threads of this process that the pool needs to deliver the result
    lacks_workers: bool = False  # a ProcessPoolExecutor owes the result and has no worker process
    exhausted: tuple[int, ...] = ()  # tids of the pool's workers, if all of them wait for results of the same pool
    awaited: tuple[int, ...] = ()  # tids that run jobs of several futures, or that the exiting interpreter joins
    lacks: str = ""  # the progress that is missing, for people: ``2 of 3 threads have arrived``


def python_wait(
    runtime: PythonRuntime, state: ThreadState, futex: int = 0, jobs: Jobs | None = None
) -> PythonWait | None:
    """The wait of the thread according to its Python frames; None if they show none.

    ``futex`` is the address that the thread sleeps on, 0 if unknown. It proves which lock the thread waits for, and
    that it has not just been woken. ``jobs`` returns the (cached) answer of ``running_jobs``.
    """
    stack = runtime.stack_of([state]).innermost(8)  # Barrier.wait has three frames above its caller
    wait = _wait_of_frames(runtime, stack, futex, jobs or (lambda: running_jobs(runtime)))
    if wait or not futex or not stack:
        return wait
    lock = find_lock(runtime, futex, lock_candidates(runtime, stack[:3]))
    if not lock:
        return None
    return PythonWait(lock.kind, lock.address, stack[0], lock, False, lock.owner_ident, lock.owner_tid)


def _wait_of_frames(runtime: PythonRuntime, stack: PyStack, futex: int, jobs: Jobs) -> PythonWait | None:
    """The wait for the outermost object among the innermost waiting frames: Queue.get, not the Condition it uses."""
    outermost: tuple[Waitable, PyRef, PythonFrame] | None = None
    lock: LockState | None = None
    reacquiring = False
    for frame in stack:
        if frame.call not in assumed_names.WAITING_FUNCTIONS:
            pending = helper_threads.pending_futures(stack, frame) if outermost else ()
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
    lacks = _progress_text(kind, value, frame)
    wait = PythonWait(kind, value.address, frame, lock, reacquiring, owner, tid, lacks=lacks)
    if kind is Waitable.POOL_RESULT:
        return wait._replace(
            pids=helper_threads.pool_workers(value), helpers=helper_threads.pool_helpers(runtime, value)
        )
    if kind in _CALLED_BACK and not reacquiring:  # the jobs after which a method of the object is called
        idents = dict.fromkeys(ident for job, ident in jobs().items() if _calls_back(PyRef(runtime, job), value))
        return wait._replace(awaited=tuple(filter(None, map(runtime.tid_of_ident, idents))))
    return wait


_CALLED_BACK = (Waitable.QUEUE, Waitable.SIMPLE_QUEUE, Waitable.EVENT, Waitable.CONDITION, Waitable.SEMAPHORE)
"""Kinds of objects whose methods programs pass to Future.add_done_callback()."""


def _calls_back(future: PyRef, value: PyRef) -> bool:
    """True if a done-callback of the future is a method of the object ``value``, or has it in its closure."""
    callbacks = future.var(assumed_names.FUTURE_CALLBACKS).parts()
    return any(value == callback["__self__"] or value in callback.closure for callback in callbacks)


def _progress_text(kind: Waitable, value: PyRef, frame: PythonFrame) -> str:
    """The progress of a queue or barrier, ``2 of 3 threads have arrived``; "" for other objects. ``frame``: waits."""
    numbers = [value.var(name).int() for name in assumed_names.COUNTS.get(kind, ())]
    if not numbers or None in numbers:
        return ""
    if kind is Waitable.BARRIER:
        return f"{numbers[0]} of {numbers[1]} threads have arrived"
    if frame.name == assumed_names.QUEUE_JOIN:
        return f"{numbers[0]} task{'s' if numbers[0] != 1 else ''} without task_done()"
    return f"full, maxsize {numbers[1]}" if frame.name == assumed_names.QUEUE_PUT else ""


def _for_futures(
    runtime: PythonRuntime, frame: PythonFrame, pending: Sequence[PyRef], jobs: Mapping[int, int]
) -> PythonWait:
    """The wait for one or more futures (concurrent.futures.wait, as_completed). ``jobs``: result of running_jobs()."""
    running = [future for future in pending if future.address in jobs]
    first = (running or pending)[0]
    if len(pending) == 1:
        return _for_future(runtime, first, frame, jobs.get(first.address))
    idents = dict.fromkeys(jobs[future.address] for future in running)
    tids = tuple(runtime.tid_of_ident(ident) or 0 for ident in idents)
    return PythonWait(Waitable.FUTURE, first.address, frame, awaited=tids, lacks=f"{len(pending)} of them are pending")


def for_polled(runtime: PythonRuntime, polled: Sequence[PyRef], jobs: Mapping[int, int]) -> PythonWait | None:
    """The wait of a loop that polls futures, or results of a multiprocessing.Pool; None if ``polled`` has neither."""
    no_frame = PythonFrame(function="", file="", line=None, address=0, code=0)
    results = [value for value in polled if _kind_of(value) is Waitable.POOL_RESULT]
    if results:
        pids = dict.fromkeys(pid for result in results for pid in helper_threads.pool_workers(result))
        return PythonWait(Waitable.POOL_RESULT, results[0].address, no_frame, pids=tuple(pids))
    futures = [value for value in polled if _kind_of(value) is Waitable.FUTURE and helper_threads.is_pending(value)]
    return _for_futures(runtime, no_frame, futures, jobs) if futures else None


def _for_future(
    runtime: PythonRuntime, future: PyRef, frame: PythonFrame, owner: int | None, lock: LockState | None = None
) -> PythonWait:
    """The wait for a future. ``owner``: ident of the thread that runs its job, None if no worker has begun it."""
    wait = PythonWait(Waitable.FUTURE, future.address, frame, lock, owner_ident=owner)
    if owner is not None:
        return wait._replace(owner_tid=runtime.tid_of_ident(owner) if owner else None)
    pids = helper_threads.executor_workers(runtime, future)
    if pids is not None:
        return wait._replace(pids=pids, lacks_workers=not pids)
    # all of the workers or none: an ident may have no thread, or the same as another one
    idents = helper_threads.exhausted_workers(runtime, future)
    tids = tuple(filter(None, map(runtime.tid_of_ident, idents)))
    if idents:
        return wait._replace(exhausted=tids if len(set(tids)) == len(idents) else ())
    workers = map(runtime.tid_of_ident, helper_threads.workers_owing(runtime, future))
    return wait._replace(awaited=tuple(filter(None, workers)))


def _kind_of(value: PyRef) -> Waitable | None:
    """The kind of a waitable object, by its attributes (assumed_names.OBJECT_KINDS); None for any other object."""
    return value.python.once(_kind_at, value.address) if value else None


def _kind_at(python: PySpace, address: int) -> Waitable | None:
    own = PyRef(python, address).vars()
    names = () if own.fault else own.keys()
    return next((kind for kind, wanted in assumed_names.OBJECT_KINDS if all(name in names for name in wanted)), None)


def _condition_lock(runtime: PythonRuntime, own: PyVariables, futex: int) -> tuple[LockState | None, bool]:
    """(the lock that Condition.wait, whose locals are ``own``, sleeps on; True if that is the condition's own lock,
    which is taken back after notify(), and not the ``waiter`` that notify() releases)."""
    waiter = read_lock(runtime, own[assumed_names.CONDITION_WAITER].address)
    words = waited_words(runtime, futex) if futex else ()
    if not futex or (waiter and waiter.word in words):
        return waiter, False
    lock = read_lock(runtime, own["self"].var(assumed_names.CONDITION_LOCK).address)
    return (lock, True) if lock and lock.word in words else (None, False)


def _owner_of(kind: Waitable, value: PyRef, lock: LockState | None) -> int | None:
    """Ident of the thread that must act: the one that is joined, the owner of the lock; None if it is not recorded."""
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
        for frame in stack[-12:]:  # a pool's worker runs a job below its five outermost frames
            if frame.name == assumed_names.JOB_RUN and frame.file.endswith(assumed_names.FUTURES_FILE):
                future = stack.locals(frame)["self"].var(assumed_names.JOB_FUTURE)
                if future:
                    idents.setdefault(future.address, state.ident)
    return idents


_SEM_VALUE_MAX = 0x7FFF_FFFF
"""The ``maxvalue`` that SemLock gets for a Semaphore, however many tokens that has (synchronize.py)."""


def is_taken_elsewhere(runtime: PythonRuntime, state: ThreadState, semaphore: int) -> bool:
    """True if the thread waits for a lock of multiprocessing with this sem_t that another process has taken. Raises
    nothing.

    A sem_t records no owner and no initial value. That of a Lock or RLock had one token, that of a BoundedSemaphore
    ``maxvalue``: if none is left, a process took it. A Semaphore may have begun with 0, as do those inside an Event,
    Condition, Barrier or JoinableQueue.
    """
    stack = runtime.stack_of([state]).innermost(3)  # the method of the object, and its caller
    for frame in stack:
        own = stack.locals(frame)
        for value in chain(stack.slots(frame), own.values(), own["self"].attributes().values()):
            lock = value["__self__"] or value  # a method of the lock counts, too
            if lock.type == "_multiprocessing.SemLock":
                structure = py.SemLockObject(runtime.space, lock.address)
                with suppress(GdbextError):
                    if structure.handle == semaphore:
                        return not structure.count and structure.maxvalue != _SEM_VALUE_MAX  # not ours
    return False


def in_signal_handler(runtime: PythonRuntime, state: ThreadState) -> bool:
    """True if one of the thread's innermost functions is a signal handler, or was called by one: a handler gets a
    number and the frame object of its caller as arguments (Modules/signalmodule.c). Raises nothing."""
    stack = runtime.stack_of([state]).innermost(32)
    for handler, caller in zip(stack, stack[1:]):
        arguments: list[PyRef] = []
        for value in list(stack.locals(handler).values())[:3]:  # the first locals are the arguments
            arguments += [value, *(value.elements(64) if value.type == "tuple" else ())]
        for number, value in zip(arguments, arguments[1:]):
            if _is_frame_object(value, caller) and number.int() is not None:
                return True
    return False


def _is_frame_object(value: PyRef, frame: PythonFrame) -> bool:
    """True for the PyFrameObject of that frame (Include/internal/pycore_frame.h: f_frame, since 3.11)."""
    if value.type != "frame" or not value.python:
        return False
    if isinstance(value.python.layout.abi.frames, FrameObjects):
        return value.address == frame.address
    return value.read_or(lambda python, at: py.PyFrameObject(python.space, at).f_frame == frame.address, default=False)


def awaited_at_exit(runtime: PythonRuntime) -> list[int]:
    """Idents of the non-daemon threads, main thread included, which the interpreter joins before it exits (_shutdown of
    Lib/threading.py). Raises nothing."""
    threads = active_threads(runtime)
    idents = (ident.int() for ident, thread in threads if thread.var(assumed_names.THREAD_DAEMON).int() == 0)
    return [ident for ident in idents if ident is not None]
