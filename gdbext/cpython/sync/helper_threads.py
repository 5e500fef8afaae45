"""Threads that objects of Python need, by what these record themselves: who runs a pool, an executor, an event loop.

threading keeps every Thread in a weak set, ``_dangling``, those that run in ``_active``. fork leaves all threads but
one behind, and takes the others out of ``_active``. The function of a thread that has ended is no longer kept
(Thread.run deletes it). The name of a thread without one of its own has it, ``Thread-3 (consume)`` (3.10 and later);
that of a subclass is its method ``run``.

Sources: Lib/threading.py, concurrent/futures/thread.py and process.py, multiprocessing/pool.py, 3.8 to 3.15.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.objects.py_ref import PyRef, integer
from gdbext.cpython.sync.pools import futures_in_queue, jobs_in_queue
from gdbext.cpython.threads.runtime import active_threads, module_globals
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

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
    """One Thread. ``ident`` and ``native_id`` are 0 if it never had any."""

    value: PyRef
    name: str
    runs: bool
    """It is among the threads that run."""
    began: bool
    """Its own code has run: it has set its event."""
    ident: int
    native_id: int
    target: PyRef
    """The function that it runs, or its method ``run`` in a class of its own; missing if that is not known any more."""
    function: str
    """The name of that function, "" if it is not known."""
    started_event: PyRef
    """The event that it sets when it begins, for which Thread.start() waits."""

    @property
    def has_ended(self) -> bool:
        """It began, and runs no more in this process."""
        return self.began and not self.runs


def running_threads(runtime: PythonRuntime) -> frozenset[PyRef]:
    """The Thread objects that threading counts as running."""
    return frozenset(thread for _, thread in active_threads(runtime))


def ended_threads(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    """Threads that began and have ended. Raises nothing."""
    return [each for each in runtime.once(_other_threads) if each.has_ended]


def _other_threads(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    """Threads that do not count as running: they have not begun, or have ended. The running ones, of which there may be
    thousands, are not read."""
    running = running_threads(runtime)
    objects = (each for each in _weak_set_members(runtime, *_DANGLING) if each not in running)
    return [thread for each in islice(objects, _THREADS) if (thread := thread_object(each, running))]


_DANGLING = (assumed_names.THREADING, assumed_names.DANGLING_THREADS)


def _weak_set_members(runtime: PythonRuntime, module: str, name: str) -> list[PyRef]:
    sets = module_globals(runtime, module, name)
    return list(dict.fromkeys(member for weak in sets for each in weak["data"] if (member := each.referent)))


class EndedProcess(NamedTuple):
    """A multiprocessing.Process that has ended, and whose object is still in memory. ``status`` is negative for a
    signal."""

    name: str
    pid: int
    status: int


def ended_processes(runtime: PythonRuntime) -> Iterator[EndedProcess]:
    """The processes that have ended and were reaped, of those that multiprocessing started. Raises nothing."""
    for process in _weak_set_members(runtime, *assumed_names.DANGLING_PROCESSES):
        own = process.attributes(_ATTRIBUTES)
        popen = own[assumed_names.PROCESS_POPEN].attributes(_ATTRIBUTES)
        status, pid = popen["returncode"].int(), popen[assumed_names.POPEN_PID].int()
        if status is not None and pid is not None:  # else it runs
            yield EndedProcess(own["_name"].str(_NAME_LENGTH), pid, status)


def thread_object(thread: PyRef, running: Collection[PyRef]) -> ThreadObject | None:
    """The Thread that an object is, None if it is none; ``running`` are those that run."""
    own = thread.attributes(_ATTRIBUTES)
    ident, started_event = own[assumed_names.THREAD_IDENT], own[assumed_names.THREAD_STARTED]
    if not ident or not started_event:
        return None
    name, target = own[assumed_names.THREAD_NAME].str(_NAME_LENGTH), own[assumed_names.THREAD_TARGET]
    source = target.function
    if not source or source.kind != "function":  # the method ``run`` of a subclass; threading.Thread's own says nothing
        source = thread.inherited("run").function
        if source and (source.file is None or source.file.endswith(f"/{assumed_names.THREADING_FILE}")):
            source = None
        target = PyRef(thread.python, source.address if source else 0)
    generated = _NAME.match(name)
    return ThreadObject(
        thread,
        name,
        thread in running,
        bool(started_event.attributes(_ATTRIBUTES)[assumed_names.EVENT_FLAG].int()),
        ident.int() or 0,
        own[assumed_names.THREAD_NATIVE_ID].int() or 0,
        target,
        source.qualname if source else generated.group(1) if generated else "",
        started_event,
    )


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


class DeadWorkers(NamedTuple):
    """Threads that an executor needs for a job, none of which runs; empty if no Thread object of them is left."""

    threads: tuple[ThreadObject, ...]
    does: str


_HANDS_OUT = "hands the jobs of its ProcessPoolExecutor to the workers"


def lost_executor(runtime: PythonRuntime, future: PyRef) -> DeadWorkers | None:
    """The workers of the executor in whose queue a future's job is, if none of them runs, or the thread that hands its
    jobs to processes; None if one runs, or the future belongs to no executor. Raises nothing."""
    for thread in runtime.once(_other_threads):
        if future in futures_in_queue(thread.value.attributes(_ATTRIBUTES)[assumed_names.EXECUTOR_ITEMS]):
            return DeadWorkers((thread,), _HANDS_OUT)
    running = running_threads(runtime)
    workers: dict[PyRef, list[ThreadObject]] = {}
    for weak in module_globals(runtime, "concurrent.futures.thread", "_threads_queues"):  # worker → its queue of jobs
        for reference, queue in weak["data"].items():
            worker = thread_object(reference.referent, running) if reference.referent else None
            if worker:
                workers.setdefault(queue, []).append(worker)
    for queue, threads in workers.items():
        if not any(each.runs for each in threads) and future in jobs_in_queue(queue):
            return DeadWorkers(tuple(threads), "should run its job")
    return None


_STEPS = 3
"""Attributes, arguments or items from one object to another that it reaches, at most."""
_REACHED = 400
"""Objects that are reached from a thread, or from the frames of one, at most."""


def dead_threads_reaching(runtime: PythonRuntime, value: PyRef) -> tuple[ThreadObject, ...]:
    """The threads that have ended and still have the object at hand: among the arguments of their function, or among
    the attributes of what that belongs to. A thread that a fork left behind keeps all of that; one that has ended, the
    attributes of a class of its own. Raises nothing."""
    return tuple(each for each in ended_threads(runtime) if value in _reached((each.value,), _STEPS))


def dead_threads_calling(runtime: PythonRuntime, value: PyRef, methods: Collection[str]) -> tuple[ThreadObject, ...]:
    """The threads that have ended and have one of these methods of the object among their attributes, as a Timer has
    the function that it calls. Raises nothing."""
    threads = []
    for thread in ended_threads(runtime):
        own = thread.value.attributes(_ATTRIBUTES).values()
        bound = (each.function for each in own if each.type == "method" and each["__self__"] == value)
        if any(source and source.qualname.rpartition(".")[2] in methods for source in bound):
            threads.append(thread)
    return tuple(threads)


def _reached(start: Iterable[PyRef], steps: int) -> dict[PyRef, None]:
    """The objects that some objects reach by attributes, items, closures and methods. Raises nothing."""
    reached = dict.fromkeys(start)
    layer = list(reached)
    for _ in range(steps):
        inner = dict.fromkeys(each for value in layer for each in _parts(value))
        layer = [each for each in inner if each not in reached]
        reached.update(dict.fromkeys(layer[: max(0, _REACHED - len(reached))]))
    return reached


def _parts(value: PyRef) -> Iterator[PyRef]:
    yield from value.attributes(_ATTRIBUTES).values()
    yield from value.parts()
    if value.type == "method":
        yield value["__self__"]
    yield from value.closure


class DeadPool(NamedTuple):
    """A pool of threads that has jobs, and none of the threads that should do them; ``kind`` is its class."""

    kind: str
    jobs: int
    helpers: DeadWorkers


def lost_pool(runtime: PythonRuntime, stack: PyStack) -> DeadPool | None:
    """The pool with jobs and without threads that functions have at hand; None without one. Raises nothing."""
    running, seen = running_threads(runtime), set[PyRef]()
    for frame in stack[:_FRAMES]:  # each by itself: the outermost one has modules at hand, and all in them
        near = _reached(stack.variables(frame).values(), _STEPS)
        for value in near.keys() - seen:
            own = value.attributes(_ATTRIBUTES)
            finders = (_stuck_pool, _stuck_thread_pool, _stuck_process_pool)
            pool = next(filter(None, (find(own, running) for find in finders)), None)
            if pool:
                return pool._replace(kind=value.type.rpartition(".")[2])
        seen |= near.keys()
    return None


def _stuck_pool(own: PyVariables, running: Collection[PyRef]) -> DeadPool | None:
    """A multiprocessing.Pool or ThreadPool: its dict ``_cache`` has the results that are not there yet."""
    jobs = len(own[assumed_names.POOL_RESULTS].parts())
    for name, does in assumed_names.POOL_HELPERS[:2] if jobs else ():
        thread = thread_object(own[name], running)
        if thread and thread.has_ended:
            return DeadPool("", jobs, DeadWorkers((thread,), does))
    return None


def _stuck_thread_pool(own: PyVariables, running: Collection[PyRef]) -> DeadPool | None:
    """A ThreadPoolExecutor: jobs are in its queue, and each of its workers has ended."""
    workers = [thread_object(each, running) for each in own[assumed_names.EXECUTOR_THREADS]]
    threads = tuple(each for each in workers if each and each.has_ended)
    has_ended = threads and len(threads) == len(workers)
    jobs = len(jobs_in_queue(own[assumed_names.EXECUTOR_QUEUE])) if has_ended else 0
    return DeadPool("", jobs, DeadWorkers(threads, "should run them")) if jobs else None


def _stuck_process_pool(own: PyVariables, running: Collection[PyRef]) -> DeadPool | None:
    """A ProcessPoolExecutor, or one of loky: jobs are pending, and the thread that hands them out has ended."""
    thread = thread_object(own[assumed_names.EXECUTOR_MANAGER], running)
    if not thread or not thread.has_ended:
        return None
    jobs = len(thread.value.attributes(_ATTRIBUTES)[assumed_names.EXECUTOR_ITEMS].parts())
    return DeadPool("", jobs, DeadWorkers((thread,), _HANDS_OUT)) if jobs else None


def never_began(runtime: PythonRuntime, event: PyRef) -> ThreadObject | None:
    """The unstarted Thread whose _started is ``event``, if every PyThreadState already belongs to another Thread:
    start() waits for ever. A thread counts as running only after it has set the event (Thread._bootstrap_inner). None
    for any other event. Raises nothing."""
    thread = next((each for each in runtime.once(_other_threads) if each.started_event == event), None)
    if not thread or thread.began:
        return None
    try:
        known = {ident.read(integer) for ident, _ in active_threads(runtime)}
        idents = [state.ident for state in runtime.thread_states()]
    except GdbextError:
        return None
    return thread if known >= set(idents) and len(set(idents)) == len(idents) else None


def lost_loop(runtime: PythonRuntime, state: ThreadState, future: PyRef) -> DeadWorkers | None:
    """The thread of the event loop that should complete a future, if no thread runs it; None for any other future.
    ``state``: the thread that waits, whose variables may have the loop. Raises nothing."""
    from gdbext.cpython.tasks.loops import loop_at, owes  # 3 ms, for threads of executors alone

    ended = ended_threads(runtime)
    at_hand: dict[PyRef, None] = {}
    for thread in ended:  # a thread that a fork left behind still has its function and arguments
        own = thread.value.attributes(_ATTRIBUTES)
        at_hand.update(dict.fromkeys([*own["_args"].parts(), own[assumed_names.THREAD_TARGET]["__self__"]]))
    stack = runtime.stack_of([state])
    for frame in stack[:_FRAMES]:
        for value in stack.variables(frame).values():
            at_hand.update(dict.fromkeys([value, *value.attributes(_ATTRIBUTES).values()]))
    for value in filter(None, at_hand):
        loop = loop_at(runtime, value.address)
        if not loop or (loop.ident and runtime.state_of_ident(loop.ident)) or not owes(runtime, loop, future):
            continue
        threads = tuple(each for each in ended if loop.ident and each.ident == loop.ident)
        return DeadWorkers(threads[:1], "runs the event loop that should complete it")
    return None
