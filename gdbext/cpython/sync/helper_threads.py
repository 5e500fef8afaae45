"""Threads, worker processes and jobs that pools, executors and event loops depend on.

threading keeps every Thread in a weak set, ``_dangling``, and running ones in ``_active``, from which fork removes all
threads but one. A future whose job no worker has taken yet is in its executor's queue.

Sources: Lib/threading.py, concurrent/futures/{_base,thread,process}.py, multiprocessing/pool.py, 3.8 to 3.15.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import is_of_program, package_of
from gdbext.cpython.objects.py_ref import PyRef, PyVariables, integer
from gdbext.cpython.objects.py_space import once
from gdbext.cpython.sync.polled_objects import process_id
from gdbext.cpython.threads.runtime import active_threads, module_globals
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.frame_variables import PyStack
    from gdbext.cpython.threads.runtime import PythonRuntime

_NAME = re.compile(r"Thread-\d+ \((.+)\)\Z", re.ASCII)
"""The name that Thread.__init__ makes of a number and the function's ``__name__`` (3.10 and later)."""
_FRAMES = 12  # innermost frames of a thread that are searched for a pool or a loop
_NAME_LENGTH = 256  # most characters of a name that are read


class ThreadObject(NamedTuple):
    """One threading.Thread. ``ident`` and ``native_id`` are 0 if it never had any. ``target``: the function that it
    runs, or the method ``run`` of its own class; missing after its end, as Thread.run deletes the function."""

    value: PyRef
    name: str
    runs: bool  # it is in threading._active
    began: bool  # its own code has run: it has set ``started_event``
    ident: int
    native_id: int
    target: PyRef
    function: str  # the name of that function, "" if unknown
    started_event: PyRef  # the event that it sets when it begins, for which Thread.start() waits

    @property
    def has_ended(self) -> bool:
        return self.began and not self.runs


def running_threads(runtime: PythonRuntime) -> frozenset[PyRef]:
    """The Thread objects that threading counts as running."""
    return frozenset(thread for _, thread in active_threads(runtime))


def ended_threads(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    """Threads that began and have ended. Raises nothing."""
    return [thread for thread in _other_threads(runtime) if thread.has_ended]


@once
def _other_threads(runtime: PythonRuntime) -> Sequence[ThreadObject]:
    """Threads that have not begun or have ended. Running ones, perhaps thousands, are not read."""
    running = running_threads(runtime)
    members = _weak_set_members(runtime, assumed_names.THREADING, assumed_names.DANGLING_THREADS)
    others = islice((value for value in members if value not in running), 4096)
    return list(filter(None, (thread_object(value, running) for value in others)))


def _weak_set_members(runtime: PythonRuntime, module: str, name: str) -> list[PyRef]:
    """The living members of the weak set that is the module's variable ``name``, in all interpreters."""
    references = (reference for weak_set in module_globals(runtime, module, name) for reference in weak_set["data"])
    return list(dict.fromkeys(filter(None, (reference.referent for reference in references))))


class EndedProcess(NamedTuple):
    """A multiprocessing.Process that has exited, while its object is in memory. ``status`` -9: killed by signal 9."""

    name: str
    pid: int
    status: int


def ended_processes(runtime: PythonRuntime) -> Iterator[EndedProcess]:
    """The processes started by multiprocessing that have exited and were reaped. Raises nothing."""
    for process in _weak_set_members(runtime, *assumed_names.DANGLING_PROCESSES):
        own = process.attributes()
        popen = own[assumed_names.PROCESS_POPEN].attributes()
        status, pid = popen["returncode"].int(), popen[assumed_names.POPEN_PID].int()
        if status is not None and pid is not None:  # else it runs
            yield EndedProcess(own["_name"].str(_NAME_LENGTH), pid, status)


class WorkerProcess(NamedTuple):
    """A process started by multiprocessing, or by a library built on it, whose exit the program has not seen.
    ``sentinel``: the fd of a pipe that is at its end when no process has the other end open; -1 if unknown."""

    name: str
    pid: int
    parent: int
    sentinel: int


def started_processes(runtime: PythonRuntime) -> Iterator[WorkerProcess]:
    """The processes started by multiprocessing whose exit status the program does not have. Raises nothing."""
    for process in _weak_set_members(runtime, *assumed_names.DANGLING_PROCESSES):
        own = process.attributes()
        popen = own[assumed_names.PROCESS_POPEN].attributes()
        pid, sentinel = popen[assumed_names.POPEN_PID].int(), popen[assumed_names.POPEN_SENTINEL].int()
        if pid and popen["returncode"].int() is None:
            parent = own[assumed_names.PROCESS_PARENT].int() or 0
            yield WorkerProcess(own["_name"].str(_NAME_LENGTH), pid, parent, -1 if sentinel is None else sentinel)


class ProcessPool(NamedTuple):
    """A pool of worker processes with ``jobs`` (their number) that are not done; ``kind``: the name of its class."""

    kind: str
    jobs: int
    pids: tuple[int, ...]


def process_pools(stack: PyStack) -> Iterator[ProcessPool]:
    """The pools of worker processes with unfinished jobs that the frames' variables reach. Raises nothing."""
    seen = set[PyRef]()
    for frame in stack[:_FRAMES]:  # each by itself: the outermost one reaches modules, and all in them
        reachable = _reachable(stack.variables(frame).values())
        for value in reachable.keys() - seen:
            own = value.attributes()
            manager = own[assumed_names.EXECUTOR_MANAGER].attributes()
            jobs = len(manager[assumed_names.EXECUTOR_ITEMS].parts())
            pids = tuple(filter(None, (pid.int() for pid, _ in manager[assumed_names.EXECUTOR_PROCESSES].items())))
            if not jobs:
                jobs = len(own[assumed_names.POOL_RESULTS].parts())  # of a multiprocessing.Pool
                processes = own[assumed_names.POOL_PROCESSES].parts() if jobs else ()
                pids = tuple(filter(None, (process_id(process.attributes()) for process in processes)))
            if jobs and pids:
                yield ProcessPool(value.type.rpartition(".")[2], jobs, pids)
        seen |= reachable.keys()


def thread_object(thread: PyRef, running: Collection[PyRef]) -> ThreadObject | None:
    """The record of a threading.Thread; None for any other object. ``running``: the Threads that run."""
    own = thread.attributes()
    ident, started_event = own[assumed_names.THREAD_IDENT], own[assumed_names.THREAD_STARTED]
    if not ident or not started_event:
        return None
    name, target = own[assumed_names.THREAD_NAME].str(_NAME_LENGTH), own[assumed_names.THREAD_TARGET]
    source = target.function
    if not source or source.kind != "function":  # then it is the method ``run`` of a subclass, not threading.Thread's
        source = thread.inherited("run").function
        if source and (source.file is None or source.file.endswith(f"/{assumed_names.THREADING_FILE}")):
            source = None
        target = PyRef(thread.python, source.address if source else 0)
    generated = _NAME.match(name)
    function = generated.group(1) if generated else ""
    return ThreadObject(
        thread,
        name,
        runs=thread in running,
        began=bool(started_event.attributes()[assumed_names.EVENT_FLAG].int()),
        ident=ident.int() or 0,
        native_id=own[assumed_names.THREAD_NATIVE_ID].int() or 0,
        target=target,
        function=source.qualname if source else function,
        started_event=started_event,
    )


class PoolHelper(NamedTuple):
    """A thread of this process without which a multiprocessing.Pool delivers no result. ``tid``: None if it does not
    run."""

    does: str  # the work that it does for a result: ``hands out the jobs``
    tid: int | None
    thread: ThreadObject

    @property
    def only_replaces(self) -> bool:
        """True if it only starts new workers: the present ones work without it."""
        return self.does == assumed_names.POOL_REPLACER[1]


def pool_helpers(runtime: PythonRuntime, result: PyRef) -> tuple[PoolHelper, ...]:
    """The helpers of the pool that owes a result; those that cannot be read are left out."""
    pool = result.attributes()[assumed_names.POOL_PROCESSES].attributes()
    running = running_threads(runtime)
    helpers = []
    for name, does in assumed_names.POOL_HELPERS:
        thread = thread_object(pool[name], running)
        if thread:
            tid = runtime.tid_of_ident(thread.ident) if thread.runs and thread.ident else None
            helpers.append(PoolHelper(does, tid, thread))
    return tuple(helpers)


class DeadWorkers(NamedTuple):
    """Threads that an executor needs for a job, none of which runs; no ``threads`` if their objects are gone. ``does``:
    what they should do: ``should run its job``."""

    threads: tuple[ThreadObject, ...]
    does: str


_HANDS_OUT = "hands the jobs of its ProcessPoolExecutor to the workers"


def lost_executor(runtime: PythonRuntime, future: PyRef) -> DeadWorkers | None:
    """The workers of the executor in whose queue the future's job is, if none of them runs, or the ended thread that
    hands its jobs to processes; None if one runs, or the job is in no queue. Raises nothing."""
    for thread in _other_threads(runtime):
        if future in futures_in_queue(thread.value.attributes()[assumed_names.EXECUTOR_ITEMS]):
            return DeadWorkers((thread,), _HANDS_OUT)
    running = running_threads(runtime)
    workers: dict[PyRef, list[ThreadObject]] = {}  # queue of jobs → the threads that take jobs from it
    for queues in module_globals(runtime, "concurrent.futures.thread", "_threads_queues"):
        for reference, queue in queues["data"].items():
            worker = thread_object(reference.referent, running) if reference.referent else None
            if worker:
                workers.setdefault(queue, []).append(worker)
    for queue, threads in workers.items():
        if not any(thread.runs for thread in threads) and future in jobs_in_queue(queue):
            return DeadWorkers(tuple(threads), "should run its job")
    return None


def dead_threads_reaching(runtime: PythonRuntime, value: PyRef) -> tuple[ThreadObject, ...]:
    """The ended threads that still refer to the object: one that did not survive a fork by its function and arguments,
    any other one by the attributes of its own class. Raises nothing."""
    return tuple(thread for thread in ended_threads(runtime) if value in _reachable((thread.value,)))


def dead_threads_calling(runtime: PythonRuntime, value: PyRef, methods: Collection[str]) -> tuple[ThreadObject, ...]:
    """Ended threads that have one of the object's ``methods`` as an attribute, as a Timer has. Raises nothing."""

    def has_method(thread: ThreadObject) -> bool:
        """True if an attribute of the Thread is one of the methods, bound to the object."""
        own = thread.value.attributes().values()
        bound = (method.function for method in own if method.type == "method" and method["__self__"] == value)
        return any(function and function.qualname.rpartition(".")[2] in methods for function in bound)

    return tuple(filter(has_method, ended_threads(runtime)))


_REACHABLE = 400  # most objects that are read from a thread, or from the frames of one


def _reachable(start: Iterable[PyRef]) -> dict[PyRef, None]:
    """The objects that the ``start`` objects reach in at most three steps by attributes, items, closures and methods,
    nearest first, as the keys of a dict. Raises nothing."""
    reachable = dict.fromkeys(start)
    layer = list(reachable)
    for _ in range(3):
        parts = dict.fromkeys(part for value in layer for part in _direct_parts(value))
        layer = [part for part in parts if part not in reachable]
        reachable.update(dict.fromkeys(layer[: max(0, _REACHABLE - len(reachable))]))
    return reachable


def _direct_parts(value: PyRef) -> Iterator[PyRef]:
    """The objects that one object refers to, as far as ``_reachable`` follows references."""
    yield from value.attributes().values()
    yield from value.parts()
    if value.type == "method":
        yield value["__self__"]
    yield from value.closure


class DeadPool(NamedTuple):
    """A pool that has ``jobs`` (their number) and whose ``helpers`` have ended; ``kind`` is the name of its class."""

    kind: str
    jobs: int
    helpers: DeadWorkers


def lost_pool(runtime: PythonRuntime, stack: PyStack) -> DeadPool | None:
    """The pool with jobs and ended helpers that the frames' variables reach; None without one. Raises nothing."""
    running, seen = running_threads(runtime), set[PyRef]()
    for frame in stack[:_FRAMES]:  # each by itself: the outermost one reaches modules, and all in them
        reachable = _reachable(stack.variables(frame).values())
        for value in reachable.keys() - seen:
            for jobs, threads, does in _helpers_of(value.attributes(), running):
                ended = tuple(thread for thread in threads if thread and thread.has_ended)
                if jobs and ended and len(ended) == len(threads):
                    return DeadPool(value.type.rpartition(".")[2], jobs, DeadWorkers(ended, does))
        seen |= reachable.keys()
    return None


def _helpers_of(
    own: PyVariables, running: Collection[PyRef]
) -> Iterator[tuple[int, Sequence[ThreadObject | None], str]]:
    """(number of unfinished jobs, threads, what they should do) for each group of threads without any of which a pool
    with the attributes ``own`` does no job; nothing for any other object."""
    results = len(own[assumed_names.POOL_RESULTS].parts())  # of a multiprocessing.Pool or ThreadPool
    if results:
        for name, does in assumed_names.NEEDED_POOL_HELPERS:
            yield results, (thread_object(own[name], running),), does
    workers = [thread_object(worker, running) for worker in own[assumed_names.EXECUTOR_THREADS]]
    if workers:  # of a ThreadPoolExecutor
        yield len(jobs_in_queue(own[assumed_names.EXECUTOR_QUEUE])), workers, "should run them"
    manager = thread_object(own[assumed_names.EXECUTOR_MANAGER], running)
    if manager:  # of a ProcessPoolExecutor, or one of loky
        jobs = len(manager.value.attributes()[assumed_names.EXECUTOR_ITEMS].parts())
        yield jobs, (manager,), _HANDS_OUT


def never_began(runtime: PythonRuntime, event: PyRef) -> ThreadObject | None:
    """The unstarted Thread whose _started is ``event``, if every PyThreadState already belongs to another Thread: then
    start() waits forever. None for any other event. Raises nothing."""
    thread = next((thread for thread in _other_threads(runtime) if thread.started_event == event), None)
    if not thread or thread.began:
        return None
    try:
        running_idents = {ident.read(integer) for ident, _ in active_threads(runtime)}
        idents = [state.ident for state in runtime.thread_states()]
    except GdbextError:
        return None
    return thread if running_idents >= set(idents) and len(set(idents)) == len(idents) else None


def lost_loop(runtime: PythonRuntime, state: ThreadState, future: PyRef) -> DeadWorkers | None:
    """The ended thread of the event loop that should complete a future; None if the loop runs, or there is none.
    ``state``: of the waiting thread, whose variables may refer to the loop. Raises nothing."""
    from gdbext.cpython.tasks.loops import loop_at, owes  # 3 ms, for threads of executors alone

    ended = ended_threads(runtime)
    candidates: dict[PyRef, None] = {}
    for thread in ended:  # a thread that did not survive a fork still has its function and arguments
        own = thread.value.attributes()
        candidates.update(dict.fromkeys([*own["_args"].parts(), own[assumed_names.THREAD_TARGET]["__self__"]]))
    stack = runtime.stack_of([state])
    for frame in stack[:_FRAMES]:
        for value in stack.variables(frame).values():
            candidates.update(dict.fromkeys([value, *value.attributes().values()]))
    for value in filter(None, candidates):
        loop = loop_at(runtime, value.address)
        if loop and not (loop.ident and runtime.state_of_ident(loop.ident)) and owes(runtime, loop, future):
            threads = tuple(thread for thread in ended if loop.ident and thread.ident == loop.ident)
            return DeadWorkers(threads[:1], "runs the event loop that should complete it")
    return None


def pending_futures(stack: PyStack, frame: PythonFrame) -> tuple[PyRef, ...]:
    """The unfinished futures that a frame of concurrent.futures.wait() or as_completed() waits for; else empty."""
    variable = {"wait": "not_done", "as_completed": "pending"}.get(frame.name)
    if not variable or not frame.file.endswith("concurrent/futures/_base.py"):
        return ()
    return tuple(filter(is_pending, stack.locals(frame)[variable].elements(256)))


def is_pending(future: PyRef) -> bool:
    return future.var("_state").str(32) in ("PENDING", "RUNNING")


def pool_workers(result: PyRef) -> tuple[int, ...]:
    """Pids of the workers of the multiprocessing.Pool that owes a result; empty if they cannot be read."""
    pool = result.attributes()[assumed_names.POOL_PROCESSES].attributes()
    processes = pool[assumed_names.POOL_PROCESSES].parts()
    return tuple(filter(None, (process_id(process.attributes()) for process in processes)))


def executor_workers(runtime: PythonRuntime, future: PyRef) -> tuple[int, ...] | None:
    """Pids of the workers of the ProcessPoolExecutor that owes a future's result; None if no executor does. The
    executor is found by the stack of its manager thread."""
    for state in runtime.thread_states():
        stack = runtime.stack_of([state]).innermost(8)
        for frame in stack:
            manager = PyVariables(runtime)
            if frame.call == assumed_names.EXECUTOR_MANAGER_CALL:
                manager = stack.locals(frame)["self"].attributes()
            elif frame.function == assumed_names.OLD_EXECUTOR_MANAGER:
                manager = stack.locals(frame)
            if future in futures_in_queue(manager[assumed_names.EXECUTOR_ITEMS]):
                pids = [pid.int() for pid, _ in manager[assumed_names.EXECUTOR_PROCESSES].items()]
                return tuple(pid for pid in pids if pid is not None)
    return None


def futures_in_queue(pending: PyRef) -> set[PyRef]:
    """The futures of the jobs in a ProcessPoolExecutor's dict of pending ones."""
    return {item.attributes()[assumed_names.JOB_FUTURE] for _, item in pending.items(10_000)}


def exhausted_workers(runtime: PythonRuntime, future: PyRef) -> tuple[int, ...]:
    """Idents of all workers of the pool in whose queue the future's job is, if each runs a job that waits for a job in
    that queue: a deadlock. Empty otherwise, and if a worker of the pool was not found: it may become free."""
    for queue, workers in _thread_pools(runtime).items():
        pending = jobs_in_queue(queue)
        if future in pending:
            is_complete = {worker.pool_size for worker in workers} == {len(workers)}
            are_blocked = all(worker.awaited_future in pending for worker in workers)
            return tuple(worker.ident for worker in workers) if is_complete and are_blocked else ()
    return ()


def workers_owing(runtime: PythonRuntime, future: PyRef) -> tuple[int, ...]:
    """Idents of the worker threads of the ThreadPoolExecutor in whose queue the future's job is; empty for none."""
    pools = _thread_pools(runtime).items()
    return next((tuple(worker.ident for worker in own) for queue, own in pools if future in jobs_in_queue(queue)), ())


class _PoolWorker(NamedTuple):
    """A worker thread of a ThreadPoolExecutor. ``awaited_future``: the one that its job waits for, missing for none;
    ``pool_size``: number of workers that its executor has started, 0 if unknown."""

    ident: int
    awaited_future: PyRef
    pool_size: int


def _thread_pools(runtime: PythonRuntime) -> dict[PyRef, list[_PoolWorker]]:
    """The work queue of each ThreadPoolExecutor → its workers."""
    pools: dict[PyRef, list[_PoolWorker]] = {}
    for state in runtime.thread_states():
        stack = runtime.stack_of([state])
        # the pool's loop is among the outermost frames, a wait for a future's result among the innermost ones
        loop = _find_call(stack[-12:], "_worker", assumed_names.FUTURES_FILE)
        if loop:
            own = stack.locals(loop)
            result = _find_call(stack[:8], "result", "futures/_base.py")
            future = stack.locals(result)["self"] if result else PyRef(runtime, 0)
            executor = own["executor_reference"].referent.attributes()
            size = len(executor[assumed_names.EXECUTOR_THREADS].elements())
            pools.setdefault(own["work_queue"], []).append(_PoolWorker(state.ident, future, size))
    return pools


def _find_call(frames: Iterable[PythonFrame], name: str, file: str) -> PythonFrame | None:
    """The first frame of the function ``name`` in a file whose path ends with ``file``."""
    return next((frame for frame in frames if frame.name == name and frame.file.endswith(file)), None)


def jobs_in_queue(queue: PyRef) -> frozenset[PyRef]:
    """The futures of the jobs that wait in a pool's queue."""
    return frozenset(filter(None, (item.var(assumed_names.JOB_FUTURE) for item in queue.elements())))


def takes_jobs(runtime: PythonRuntime, state: ThreadState, folders: Collection[str], address: int) -> bool:
    """True if the thread is an idle worker of code in one of the ``folders``: that code waits in ``get()`` of a
    queue.Queue, and not of the one at ``address``."""
    stack = runtime.stack_of([state]).innermost(_FRAMES)
    for frame, caller in zip(stack, stack[1:]):
        if frame.name == "get" and frame.file.endswith("/queue.py"):
            own = stack.locals(frame)["self"]
            return caller.file.rpartition("/")[0] in folders and own.address not in (0, address)
    return False


def runs_in(runtime: PythonRuntime, state: ThreadState, packages: Collection[str]) -> bool:
    """True if the thread runs code of one of the ``packages`` (folders), and waits for no other thread in it."""
    for frame in runtime.frames.stack(state).frames[:_FRAMES]:
        if frame.call in assumed_names.WAITING_FUNCTIONS:
            return False
        if is_of_program(frame.file):
            return package_of(frame.file) in packages
    return False
