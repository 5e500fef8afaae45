"""Threads that objects of Python need, by what these record themselves: who runs a pool, an executor, an event loop.

threading keeps every Thread in a weak set, ``_dangling``, those that run in ``_active``. fork leaves all threads but
one behind, and takes the others out of ``_active``. The function of a thread that has ended is no longer kept
(Thread.run deletes it). The name of a thread without one of its own has it, ``Thread-3 (consume)`` (3.10 and later);
that of a subclass is its method ``run``.

Sources: Lib/threading.py, concurrent/futures/thread.py and process.py, multiprocessing/pool.py, 3.8 to 3.15.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.objects.py_ref import PyRef, integer
from gdbext.cpython.sync.pools import futures_in_queue, jobs_in_queue
from gdbext.cpython.threads.runtime import active_threads, module_globals
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from gdbext.cpython.objects.code import PythonFunction
    from gdbext.cpython.objects.py_ref import PyVariables
    from gdbext.cpython.threads.frame_reader import ThreadState
    from gdbext.cpython.threads.py_stack import PyStack
    from gdbext.cpython.threads.runtime import PythonRuntime

_NAME = re.compile(r"Thread-\d+ \((.+)\)\Z", re.ASCII)
"""The name that Thread.__init__ makes of a number and the function's ``__name__``."""
_THREADS = 4096
_FRAMES = 12
_ATTRIBUTES, _NAME_LENGTH = 64, 256
"""Most attributes of an object, and characters of a name, that are read."""


class ThreadObject(NamedTuple):
    """One Thread. ``ident`` and ``native_id`` are 0 where it never had any."""

    value: PyRef
    name: str
    runs: bool
    """It is among the threads that run."""
    began: bool
    """Its own code has run: it has told so."""
    ident: int
    native_id: int
    target: PyRef
    """The function that it runs, or its method ``run`` in a class of its own; missing where that is not known any
    more."""
    function: str
    """The name of that function, "" where it is not known."""
    started: PyRef
    """The event that it sets when it begins, for which Thread.start() waits."""

    @property
    def has_ended(self) -> bool:
        """It began, and runs no more in this process."""
        return self.began and not self.runs


def running_threads(runtime: PythonRuntime) -> frozenset[PyRef]:
    """The Thread objects that threading counts as running."""
    return frozenset(thread for _, thread in active_threads(runtime))


def thread_objects(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    """All Thread objects that are still in memory. Raises nothing."""
    return runtime.once(_thread_objects)


def _thread_objects(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    running = running_threads(runtime)
    found = (thread_object(each, running) for each in _in_weak_set(runtime, *_DANGLING)[:_THREADS])
    return [each for each in found if each]


def ended_threads(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    """Those that began, and run no more: of the others, of which there may be thousands, nothing is read. Raises
    nothing."""
    return [each for each in runtime.once(_threads_at_rest) if each.has_ended]


def _threads_at_rest(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    """Those that do not count as running: they have not begun, or have ended."""
    running = running_threads(runtime)
    others = [each for each in _in_weak_set(runtime, *_DANGLING) if each not in running]
    found = (thread_object(each, running) for each in others[:_THREADS])
    return [each for each in found if each]


_DANGLING = (assumed_names.THREADING, assumed_names.DANGLING_THREADS)


def _in_weak_set(runtime: PythonRuntime, module: str, name: str) -> list[PyRef]:
    sets = module_globals(runtime, module, name)
    return list(dict.fromkeys(found for weak in sets for each in weak["data"] if (found := each.referent)))


class EndedProcess(NamedTuple):
    """A multiprocessing.Process that has ended, and whose object is still in memory."""

    name: str
    pid: int
    status: int
    """The exit status as multiprocessing has it: negative for a signal."""


def ended_processes(runtime: PythonRuntime) -> Iterator[EndedProcess]:
    """The processes that have ended and were waited for, of those that multiprocessing started. Raises nothing."""
    for process in _in_weak_set(runtime, *assumed_names.DANGLING_PROCESSES):
        own = process.attributes(_ATTRIBUTES)
        popen = own[assumed_names.PROCESS_POPEN].attributes(_ATTRIBUTES)
        status, pid = popen["returncode"].int(), popen[assumed_names.POPEN_PID].int()
        if status is not None and pid is not None:  # else it runs
            yield EndedProcess(own["_name"].str(_NAME_LENGTH), pid, status)


def thread_object(thread: PyRef, running: Collection[PyRef]) -> ThreadObject | None:
    """The Thread that an object is, None for what is none; ``running`` are those that run."""
    own = thread.attributes(_ATTRIBUTES)
    ident, started = own[assumed_names.THREAD_IDENT], own[assumed_names.THREAD_STARTED]
    if not ident or not started:
        return None
    name, target = own[assumed_names.THREAD_NAME].str(_NAME_LENGTH), own[assumed_names.THREAD_TARGET]
    source = target.function
    if not source or source.kind != "function":
        target, source = _own_run(thread)
    made = _NAME.match(name)
    function = source.qualname if source else made.group(1) if made else ""
    return ThreadObject(
        thread,
        name,
        thread in running,
        bool(started.attributes(_ATTRIBUTES)[assumed_names.EVENT_FLAG].int()),
        ident.int() or 0,
        own[assumed_names.THREAD_NATIVE_ID].int() or 0,
        target,
        function,
        started,
    )


def _own_run(thread: PyRef) -> tuple[PyRef, PythonFunction | None]:
    """The method ``run`` of a subclass; that of threading.Thread itself tells nothing."""
    source = thread.inherited("run").function
    if not source or source.file is None or source.file.endswith(f"/{assumed_names.THREADING_FILE}"):
        return PyRef(thread.python, 0), None
    return PyRef(thread.python, source.address), source


class PoolHelper(NamedTuple):
    """A thread of this process without which a multiprocessing.Pool delivers no result."""

    does: str
    """The work that it does for a result: ``hands out the jobs``."""
    tid: int | None
    thread: ThreadObject
    """The Thread object of the helper, which may have ended."""

    @property
    def only_replaces(self) -> bool:
        """It only makes new workers: those that there are go on without it."""
        return self.does == assumed_names.POOL_HELPERS[-1][1]


def pool_helpers(runtime: PythonRuntime, result: PyRef) -> tuple[PoolHelper, ...]:
    """The helpers of the pool that owes a result; those that cannot be read are left out."""
    pool = result.attributes(_ATTRIBUTES)[assumed_names.POOL_PROCESSES].attributes(_ATTRIBUTES)
    running = running_threads(runtime)
    found = []
    for name, does in assumed_names.POOL_HELPERS:
        thread = thread_object(pool[name], running)
        if thread:
            tid = runtime.tid_of_ident(thread.ident) if thread.runs and thread.ident else None
            found.append(PoolHelper(does, tid, thread))
    return tuple(found)


class LostHelpers(NamedTuple):
    """Threads that an executor needs for a job, none of which runs."""

    threads: tuple[ThreadObject, ...]
    """Empty where no Thread object of them is left."""
    does: str


_HANDS_OUT = "hands the jobs of its ProcessPoolExecutor to the workers"


def lost_executor(runtime: PythonRuntime, future: PyRef) -> LostHelpers | None:
    """The workers of the executor in whose queue a future's job is, where none of them runs, or the thread that hands
    its jobs to processes; None where one runs, or the future is of no executor. Raises nothing."""
    for thread in thread_objects(runtime):
        pending = thread.value.attributes(_ATTRIBUTES)[assumed_names.EXECUTOR_ITEMS] if not thread.runs else None
        if pending and future in futures_in_queue(pending):
            return LostHelpers((thread,), _HANDS_OUT)
    return _lost_workers(runtime, future)


def _lost_workers(runtime: PythonRuntime, future: PyRef) -> LostHelpers | None:
    running = running_threads(runtime)
    workers: dict[PyRef, list[ThreadObject]] = {}
    for thread, queue in _threads_queues(runtime):
        found = thread_object(thread, running)
        if found:
            workers.setdefault(queue, []).append(found)
    for queue, threads in workers.items():
        if not any(each.runs for each in threads) and future in jobs_in_queue(queue):
            return LostHelpers(tuple(threads), "should run its job")
    return None


def _threads_queues(runtime: PythonRuntime) -> Iterator[tuple[PyRef, PyRef]]:
    """concurrent.futures.thread._threads_queues: each worker of every ThreadPoolExecutor with its queue of jobs."""
    for weak in module_globals(runtime, "concurrent.futures.thread", "_threads_queues"):
        for reference, queue in weak["data"].items():
            if reference.referent:
                yield reference.referent, queue


_STEPS = 3
"""Attributes, arguments or items from one object to another that it reaches, at most."""
_REACHED = 400
"""Objects that are reached from a thread, or from the frames of one, at most."""


def lost_users(runtime: PythonRuntime, value: PyRef) -> tuple[ThreadObject, ...]:
    """The threads that run no more and still have the object at hand: among what their function was given, or among
    the attributes of what that belongs to. A thread that a fork left behind keeps all of that; one that has ended, the
    attributes of a class of its own. Raises nothing."""
    return tuple(each for each in ended_threads(runtime) if value in _reached((each.value,), _STEPS))


def lost_callers(runtime: PythonRuntime, value: PyRef, methods: Collection[str]) -> tuple[ThreadObject, ...]:
    """The threads that run no more and have one of these methods of the object among their attributes, as a Timer has
    the function that it calls. Raises nothing."""
    return tuple(
        each
        for each in ended_threads(runtime)
        if any(_is_method_of(own, value, methods) for own in each.value.attributes(_ATTRIBUTES).values())
    )


def _is_method_of(method: PyRef, value: PyRef, methods: Collection[str]) -> bool:
    source = method.function if method.type == "method" and method["__self__"] == value else None
    return bool(source and source.qualname.rpartition(".")[2] in methods)


def _reached(start: Iterable[PyRef], steps: int) -> dict[PyRef, None]:
    """The objects that some objects reach by attributes, items, closures and methods. Raises nothing."""
    found = dict.fromkeys(start)
    layer = list(found)
    for _ in range(steps):
        inner = dict.fromkeys(each for value in layer for each in _parts(value))
        layer = [each for each in inner if each not in found]
        found.update(dict.fromkeys(layer[: max(0, _REACHED - len(found))]))
    return found


def _parts(value: PyRef) -> Iterator[PyRef]:
    yield from value.attributes(_ATTRIBUTES).values()
    yield from value.parts()
    if value.type == "method":
        yield value["__self__"]
    yield from value.closure


class LostPool(NamedTuple):
    """A pool of threads that has jobs, and none of the threads that should do them."""

    kind: str
    """The class of the pool."""
    jobs: int
    helpers: LostHelpers


def lost_pool(runtime: PythonRuntime, stack: PyStack) -> LostPool | None:
    """The pool with jobs and without threads that functions have at hand; None without one. Raises nothing."""
    running, seen = running_threads(runtime), set[PyRef]()
    for frame in stack[:_FRAMES]:  # each by itself: the outermost one has modules at hand, and all in them
        near = _reached(stack.variables(frame).values(), _STEPS)
        for value in near.keys() - seen:
            own = value.attributes(_ATTRIBUTES)
            finders = (_of_pool, _of_executor, _of_processes)
            found = next((pool for find in finders if (pool := find(own, running))), None)
            if found:
                return found._replace(kind=value.type.rpartition(".")[2])
        seen |= near.keys()
    return None


def _of_pool(own: PyVariables, running: Collection[PyRef]) -> LostPool | None:
    """A multiprocessing.Pool, one of threads included: its dict ``_cache`` has the results that are not there yet."""
    jobs = len(own[assumed_names.POOL_RESULTS].parts())
    for name, does in assumed_names.POOL_HELPERS[:2] if jobs else ():
        thread = thread_object(own[name], running)
        if thread and thread.has_ended:
            return LostPool("", jobs, LostHelpers((thread,), does))
    return None


def _of_executor(own: PyVariables, running: Collection[PyRef]) -> LostPool | None:
    """A ThreadPoolExecutor: jobs are in its queue, and each of its workers has ended."""
    known = [thread_object(each, running) for each in own[assumed_names.EXECUTOR_THREADS]]
    threads = tuple(each for each in known if each and each.has_ended)
    has_ended = threads and len(threads) == len(known)
    jobs = len(jobs_in_queue(own[assumed_names.EXECUTOR_QUEUE])) if has_ended else 0
    return LostPool("", jobs, LostHelpers(threads, "should run them")) if jobs else None


def _of_processes(own: PyVariables, running: Collection[PyRef]) -> LostPool | None:
    """A ProcessPoolExecutor, or one of loky: jobs are pending, and the thread that hands them out has ended."""
    thread = thread_object(own[assumed_names.EXECUTOR_MANAGER], running)
    if not thread or not thread.has_ended:
        return None
    jobs = len(thread.value.attributes(_ATTRIBUTES)[assumed_names.EXECUTOR_ITEMS].parts())
    return LostPool("", jobs, LostHelpers((thread,), _HANDS_OUT)) if jobs else None


def never_began(runtime: PythonRuntime, event: PyRef) -> ThreadObject | None:
    """The thread that Thread.start() waits for at an event, where no thread of the process can be it: each one that has
    a state of the interpreter runs a Thread of its own. None for any other event. Raises nothing. A thread counts as
    running only after it has told that it began (Thread._bootstrap_inner)."""
    thread = next((each for each in runtime.once(_threads_at_rest) if each.started == event), None)
    if not thread or thread.began:
        return None
    try:
        known = runtime.once(_active_idents)
        states: Sequence[ThreadState] = runtime.thread_states()
    except GdbextError:
        return None
    idents = [state.ident for state in states]
    return thread if all(ident in known for ident in idents) and len(set(idents)) == len(idents) else None


def _active_idents(runtime: PythonRuntime) -> frozenset[int]:
    """The idents that threading counts as running. Raises GdbextError."""
    return frozenset(ident.read(integer) for ident, _ in active_threads(runtime))


def lost_loop(runtime: PythonRuntime, state: ThreadState, future: PyRef) -> LostHelpers | None:
    """The thread of the event loop that should complete a future, where no thread runs it; None for any other future.
    ``state``: the thread that waits, whose variables may have the loop. Raises nothing."""
    from gdbext.cpython.tasks.loops import loop_at, owes  # 3 ms, for threads of executors alone

    ended = ended_threads(runtime)
    at_hand = [*_of_threads(ended), *_of_frames(runtime.stack_of([state]))]
    for value in filter(None, dict.fromkeys(at_hand)):
        loop = loop_at(runtime, value.address)
        if not loop or (loop.ident and runtime.state_of_ident(loop.ident)) or not owes(runtime, loop, future):
            continue
        threads = tuple(each for each in ended if loop.ident and each.ident == loop.ident)
        return LostHelpers(threads[:1], "runs the event loop that should complete it")
    return None


def _of_threads(threads: Iterable[ThreadObject]) -> Iterator[PyRef]:
    """Objects that the functions and arguments of threads have: a thread that a fork left behind still has them."""
    for thread in threads:
        own = thread.value.attributes(_ATTRIBUTES)
        yield from own["_args"].parts()
        yield own[assumed_names.THREAD_TARGET]["__self__"]


def _of_frames(stack: PyStack) -> Iterator[PyRef]:
    """The objects among the variables of a thread's functions, and their attributes."""
    for frame in stack[:_FRAMES]:
        for value in stack.variables(frame).values():
            yield value
            yield from value.attributes(_ATTRIBUTES).values()
