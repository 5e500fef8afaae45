"""Threads that objects of Python need, by what these record themselves: who runs a pool, an executor, an event loop.

threading keeps every Thread in a weak set, ``_dangling``, those that run in ``_active``. fork leaves all threads but
one behind, and takes the others out of ``_active``. The function of a thread that has ended is no longer kept
(Thread.run deletes it). The name of a thread without one of its own has it, ``Thread-3 (consume)`` (3.10 and later);
that of a subclass is its method ``run``.

Sources: Lib/threading.py, concurrent/futures/thread.py and process.py, multiprocessing/pool.py, 3.8 to 3.15.
"""

from __future__ import annotations

import re

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.sync.pools import futures_in_queue, jobs_in_queue
from gdbext.cpython.threads.frame_variables import attributes, closure_of, items, method_owner, referent, variables
from gdbext.cpython.threads.runtime import active_threads, module_globals
from gdbext.engine.record import Record
from gdbext.errors import GdbextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gdbext.cpython.objects.code import PythonFunction
    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

_NAME = re.compile(r"Thread-\d+ \((.+)\)\Z", re.ASCII)
"""The name that Thread.__init__ makes of a number and the function's ``__name__``."""
_THREADS = 4096
_FRAMES = 12


class ThreadObject(Record):
    """One Thread. ``ident`` and ``native_id`` are 0 where it never had any."""

    address: int
    name: str
    runs: bool
    """It is among the threads that run."""
    began: bool
    """Its own code has run: it has told so."""
    ident: int
    native_id: int
    target: int
    """Address of the function that it runs, or of its method ``run`` in a class of its own; 0 where that is not known
    any more."""
    function: str
    """The name of that function, "" where it is not known."""
    started: int = 0
    """Address of the event that it sets when it begins, for which Thread.start() waits."""

    @property
    def has_ended(self) -> bool:
        """It began, and runs no more in this process."""
        return self.began and not self.runs


def running_threads(runtime: PythonRuntime) -> frozenset[int]:
    """Addresses of the Thread objects that threading counts as running."""
    return frozenset(thread for _, thread in active_threads(runtime))


def thread_objects(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    """All Thread objects that are still in memory. Raises nothing."""
    return runtime.once(_thread_objects)


def _thread_objects(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    running = running_threads(runtime)
    threads = _in_weak_set(runtime, assumed_names.THREADING, assumed_names.DANGLING_THREADS)
    found = (thread_object(runtime, each, running) for each in list(dict.fromkeys(threads))[:_THREADS])
    return [each for each in found if each is not None]


def ended_threads(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    """Those that began, and run no more: of the others, of which there may be thousands, nothing is read. Raises
    nothing."""
    return [each for each in runtime.once(_threads_at_rest) if each.has_ended]


def _threads_at_rest(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    """Those that do not count as running: they have not begun, or have ended."""
    running = running_threads(runtime)
    threads = _in_weak_set(runtime, assumed_names.THREADING, assumed_names.DANGLING_THREADS)
    others = [each for each in dict.fromkeys(threads) if each not in running][:_THREADS]
    found = (thread_object(runtime, address, running) for address in others)
    return [each for each in found if each is not None]


def _in_weak_set(runtime: PythonRuntime, module: str, name: str) -> Iterator[int]:
    from gdbext.cpython.objects.object_items import set_items

    for weak in module_globals(runtime, module, name):
        try:
            data = attributes(runtime, weak).get("data", 0)
            references = set_items(runtime, data) if data else []
        except GdbextError:
            continue
        yield from (found for each in references if (found := referent(runtime, each)))


class EndedProcess(Record):
    """A multiprocessing.Process that has ended, and whose object is still in memory."""

    name: str
    pid: int
    status: int
    """The exit status as multiprocessing has it: negative for a signal."""


def ended_processes(runtime: PythonRuntime) -> Iterator[EndedProcess]:
    """The processes that have ended and were waited for, of those that multiprocessing started. Raises nothing."""
    for address in _in_weak_set(runtime, *assumed_names.DANGLING_PROCESSES):
        own = attributes(runtime, address)
        popen = attributes(runtime, own.get(assumed_names.PROCESS_POPEN, 0))
        try:
            status = runtime.objects.integer(popen.get("returncode", 0))
            pid = runtime.objects.integer(popen.get(assumed_names.POPEN_PID, 0))
        except GdbextError:
            continue  # it runs: None is no number
        yield EndedProcess(runtime.objects.known_text(own.get("_name", 0), 256), pid, status)


def thread_object(runtime: PythonRuntime, address: int, running: Collection[int]) -> ThreadObject | None:
    """The Thread at an address, None for what is none; ``running`` are those that run."""
    own = attributes(runtime, address) if address else {}
    if assumed_names.THREAD_IDENT not in own or assumed_names.THREAD_STARTED not in own:
        return None
    name = runtime.objects.known_text(own.get(assumed_names.THREAD_NAME, 0), 256)
    flag = attributes(runtime, own[assumed_names.THREAD_STARTED]).get(assumed_names.EVENT_FLAG, 0)
    target = own.get(assumed_names.THREAD_TARGET, 0)
    source = runtime.functions.source(target) if target else None
    if source is None or source.kind != "function":
        target, source = _own_run(runtime, address)
    made = _NAME.match(name)
    function = source.qualname if source is not None else made.group(1) if made else ""
    return ThreadObject(
        address,
        name,
        address in running,
        bool(runtime.objects.known_integer(flag)),
        runtime.objects.known_integer(own[assumed_names.THREAD_IDENT]) or 0,
        runtime.objects.known_integer(own.get(assumed_names.THREAD_NATIVE_ID, 0)) or 0,
        target,
        function,
        own[assumed_names.THREAD_STARTED],
    )


def _own_run(runtime: PythonRuntime, thread: int) -> tuple[int, PythonFunction | None]:
    """The method ``run`` of a subclass; that of threading.Thread itself tells nothing."""
    try:
        method = runtime.dicts.inherited_attribute(runtime.objects.type_of(thread).address, "run")
    except GdbextError:
        return 0, None
    source = runtime.functions.source(method) if method else None
    if source is None or source.file is None or source.file.endswith(f"/{assumed_names.THREADING_FILE}"):
        return 0, None
    return source.address, source


class PoolHelper(Record):
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


def pool_helpers(runtime: PythonRuntime, result: int) -> tuple[PoolHelper, ...]:
    """The helpers of the pool that owes a result; those that cannot be read are left out."""
    pool = attributes(runtime, attributes(runtime, result).get(assumed_names.POOL_PROCESSES, 0))
    running = running_threads(runtime)
    found = []
    for name, does in assumed_names.POOL_HELPERS:
        thread = thread_object(runtime, pool.get(name, 0), running)
        if thread is not None:
            tid = runtime.tid_of_ident(thread.ident) if thread.runs and thread.ident else None
            found.append(PoolHelper(does, tid, thread))
    return tuple(found)


class LostHelpers(Record):
    """Threads that an executor needs for a job, none of which runs."""

    threads: tuple[ThreadObject, ...]
    """Empty where no Thread object of them is left."""
    does: str


_HANDS_OUT = "hands the jobs of its ProcessPoolExecutor to the workers"


def lost_executor(runtime: PythonRuntime, future: int) -> LostHelpers | None:
    """The workers of the executor in whose queue a future's job is, where none of them runs, or the thread that hands
    its jobs to processes; None where one runs, or the future is of no executor. Raises nothing."""
    for thread in thread_objects(runtime):
        if thread.runs:
            continue
        pending = attributes(runtime, thread.address).get(assumed_names.EXECUTOR_ITEMS, 0)
        try:
            if pending and future in futures_in_queue(runtime, pending):
                return LostHelpers((thread,), _HANDS_OUT)
        except GdbextError:
            continue
    return _lost_workers(runtime, future)


def _lost_workers(runtime: PythonRuntime, future: int) -> LostHelpers | None:
    running = running_threads(runtime)
    workers: dict[int, list[ThreadObject]] = {}
    for thread, queue in _threads_queues(runtime):
        found = thread_object(runtime, thread, running)
        if found is not None:
            workers.setdefault(queue, []).append(found)
    for queue, threads in workers.items():
        if not any(each.runs for each in threads) and future in jobs_in_queue(runtime, queue):
            return LostHelpers(tuple(threads), "should run its job")
    return None


def _threads_queues(runtime: PythonRuntime) -> Iterator[tuple[int, int]]:
    """concurrent.futures.thread._threads_queues: each worker of every ThreadPoolExecutor with its queue of jobs."""
    for weak in module_globals(runtime, "concurrent.futures.thread", "_threads_queues"):
        try:
            data = attributes(runtime, weak).get("data", 0)
            for reference, queue in list(runtime.dicts.items(data)) if data else ():
                thread = referent(runtime, reference)
                if thread:
                    yield thread, queue
        except GdbextError:
            continue


_STEPS = 3
"""Attributes, arguments or items from one object to another that it reaches, at most."""
_REACHED = 400
"""Objects that are reached from a thread, or from the frames of one, at most."""


def lost_users(runtime: PythonRuntime, address: int) -> tuple[ThreadObject, ...]:
    """The threads that run no more and still have the object at hand: among what their function was given, or among
    the attributes of what that belongs to. A thread that a fork left behind keeps all of that; one that has ended, the
    attributes of a class of its own. Raises nothing."""
    ended = ended_threads(runtime)
    return tuple(each for each in ended if address in _reached(runtime, (each.address,), _STEPS))


def lost_callers(runtime: PythonRuntime, address: int, methods: Collection[str]) -> tuple[ThreadObject, ...]:
    """The threads that run no more and have one of these methods of the object among their attributes, as a Timer has
    the function that it calls. Raises nothing."""
    ended = ended_threads(runtime)
    return tuple(
        each
        for each in ended
        if any(_is_method_of(runtime, value, address, methods) for value in attributes(runtime, each.address).values())
    )


def _is_method_of(runtime: PythonRuntime, value: int, address: int, methods: Collection[str]) -> bool:
    if address not in method_owner(runtime, value):
        return False
    source = runtime.functions.source(value)
    return source is not None and source.qualname.rpartition(".")[2] in methods


def _reached(runtime: PythonRuntime, start: Iterable[int], steps: int) -> dict[int, None]:
    """The objects that some objects reach by attributes, items, closures and methods. Raises nothing."""
    found = dict.fromkeys(start)
    layer = list(found)
    for _ in range(steps):
        inner = dict.fromkeys(each for address in layer for each in _parts(runtime, address))
        layer = [each for each in inner if each not in found]
        found.update(dict.fromkeys(layer[: max(0, _REACHED - len(found))]))
    return found


def _parts(runtime: PythonRuntime, address: int) -> Iterator[int]:
    yield from attributes(runtime, address).values()
    yield from items(runtime, address)
    yield from method_owner(runtime, address)
    yield from closure_of(runtime, address)


class LostPool(Record):
    """A pool of threads that has jobs, and none of the threads that should do them."""

    kind: str
    """The class of the pool."""
    jobs: int
    helpers: LostHelpers


def lost_pool(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> LostPool | None:
    """The pool with jobs and without threads that functions have at hand; None without one. Raises nothing."""
    running, seen = running_threads(runtime), set[int]()
    for frame in list(frames)[:_FRAMES]:  # each by itself: the outermost one has modules at hand, and all in them
        near = _reached(runtime, variables(runtime, frame).values(), _STEPS)
        for address in near.keys() - seen:
            own = attributes(runtime, address)
            finders = (_of_pool, _of_executor, _of_processes)
            found = next((pool for find in finders if (pool := find(runtime, own, running)) is not None), None)
            if found is not None:
                return found._replace(kind=runtime.objects.type_of(address).name.rpartition(".")[2])
        seen |= near.keys()
    return None


def _of_pool(runtime: PythonRuntime, own: Mapping[str, int], running: Collection[int]) -> LostPool | None:
    """A multiprocessing.Pool, one of threads included: its dict ``_cache`` has the results that are not there yet."""
    jobs = len(items(runtime, own.get(assumed_names.POOL_RESULTS, 0)))
    for name, does in assumed_names.POOL_HELPERS[:2] if jobs else ():
        thread = thread_object(runtime, own.get(name, 0), running)
        if thread is not None and thread.has_ended:
            return LostPool("", jobs, LostHelpers((thread,), does))
    return None


def _of_executor(runtime: PythonRuntime, own: Mapping[str, int], running: Collection[int]) -> LostPool | None:
    """A ThreadPoolExecutor: jobs are in its queue, and each of its workers has ended."""
    from gdbext.cpython.objects.object_items import set_items

    workers, queue = own.get(assumed_names.EXECUTOR_THREADS, 0), own.get(assumed_names.EXECUTOR_QUEUE, 0)
    try:
        known = [thread_object(runtime, each, running) for each in set_items(runtime, workers)] if workers else []
    except GdbextError:
        return None
    threads = tuple(each for each in known if each is not None and each.has_ended)
    jobs = len(jobs_in_queue(runtime, queue)) if threads and len(threads) == len(known) and queue else 0
    return LostPool("", jobs, LostHelpers(threads, "should run them")) if jobs else None


def _of_processes(runtime: PythonRuntime, own: Mapping[str, int], running: Collection[int]) -> LostPool | None:
    """A ProcessPoolExecutor, or one of loky: jobs are pending, and the thread that hands them out has ended."""
    manager = own.get(assumed_names.EXECUTOR_MANAGER, 0)
    thread = thread_object(runtime, manager, running) if manager else None
    if thread is None or not thread.has_ended:
        return None
    jobs = len(items(runtime, attributes(runtime, manager).get(assumed_names.EXECUTOR_ITEMS, 0)))
    return LostPool("", jobs, LostHelpers((thread,), _HANDS_OUT)) if jobs else None


def never_began(runtime: PythonRuntime, event: int) -> ThreadObject | None:
    """The thread that Thread.start() waits for at an event, where no thread of the process can be it: each one that has
    a state of the interpreter runs a Thread of its own. None for any other event. Raises nothing. A thread counts as
    running only after it has told that it began (Thread._bootstrap_inner)."""
    thread = next((each for each in runtime.once(_threads_at_rest) if each.started == event), None)
    if thread is None or thread.began:
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
    return frozenset(runtime.objects.integer(ident) for ident, _ in active_threads(runtime))


def lost_loop(runtime: PythonRuntime, state: ThreadState, future: int) -> LostHelpers | None:
    """The thread of the event loop that should complete a future, where no thread runs it; None for any other future.
    ``state``: the thread that waits, whose variables may have the loop. Raises nothing."""
    from gdbext.cpython.tasks.loops import loop_at, owes

    ended = ended_threads(runtime)
    for address in dict.fromkeys([*_of_threads(runtime, ended), *_of_frames(runtime, state)]):
        loop = loop_at(runtime, address)
        if loop is None or (loop.ident and runtime.state_of_ident(loop.ident)) or not owes(runtime, loop, future):
            continue
        threads = tuple(each for each in ended if loop.ident and each.ident == loop.ident)
        return LostHelpers(threads[:1], "runs the event loop that should complete it")
    return None


def _of_threads(runtime: PythonRuntime, threads: Iterable[ThreadObject]) -> Iterator[int]:
    """Objects that the functions and arguments of threads have: a thread that a fork left behind still has them."""
    for thread in threads:
        own = attributes(runtime, thread.address)
        yield from items(runtime, own.get("_args", 0))
        method = own.get(assumed_names.THREAD_TARGET, 0)
        yield from method_owner(runtime, method)


def _of_frames(runtime: PythonRuntime, state: ThreadState) -> Iterator[int]:
    """The objects among the variables of a thread's functions, and their attributes."""
    for frame in runtime.frames.stack(state).frames[:_FRAMES]:
        for value in variables(runtime, frame).values():
            yield value
            yield from attributes(runtime, value).values()
