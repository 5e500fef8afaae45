"""Threads, worker processes and jobs that objects of Python need: of a pool, an executor, an event loop.

threading keeps every Thread in a weak set, ``_dangling``, those that run in ``_active``; fork removes all threads but
one from ``_active``. A future whose job no worker has taken yet is in its executor's queue.

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
    """One threading.Thread. ``ident`` and ``native_id`` are 0 if it never had any."""

    value: PyRef
    name: str
    runs: bool  # threading counts it as running
    began: bool  # its own code has run: it has set its event
    ident: int
    native_id: int
    target: PyRef
    """The function that it runs, or the method ``run`` of its own class; missing after its end, when Thread.run has
    deleted the function."""
    function: str  # the name of that function, "" if it is not known
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
    """Threads that do not count as running: not begun, or ended. The running ones, perhaps thousands, are not read."""
    running = running_threads(runtime)
    members = _weak_set_members(runtime, assumed_names.THREADING, assumed_names.DANGLING_THREADS)
    others = islice((value for value in members if value not in running), 4096)
    return list(filter(None, (thread_object(value, running) for value in others)))


def _weak_set_members(runtime: PythonRuntime, module: str, name: str) -> list[PyRef]:
    """The living members of the weak set that is the module's variable ``name``, in all interpreters."""
    references = (reference for weak_set in module_globals(runtime, module, name) for reference in weak_set["data"])
    return list(dict.fromkeys(filter(None, (reference.referent for reference in references))))


class EndedProcess(NamedTuple):
    """A multiprocessing.Process that has ended and whose object is still in memory. A negative ``status`` is a
    signal's number."""

    name: str
    pid: int
    status: int


def ended_processes(runtime: PythonRuntime) -> Iterator[EndedProcess]:
    """The processes that have ended and were reaped, of those that multiprocessing started. Raises nothing."""
    for process in _weak_set_members(runtime, *assumed_names.DANGLING_PROCESSES):
        own = process.attributes()
        popen = own[assumed_names.PROCESS_POPEN].attributes()
        status, pid = popen["returncode"].int(), popen[assumed_names.POPEN_PID].int()
        if status is not None and pid is not None:  # else it runs
            yield EndedProcess(own["_name"].str(_NAME_LENGTH), pid, status)


def thread_object(thread: PyRef, running: Collection[PyRef]) -> ThreadObject | None:
    """The record of a threading.Thread; None for any other object. ``running``: the Threads that run."""
    own = thread.attributes()
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
        bool(started_event.attributes()[assumed_names.EVENT_FLAG].int()),
        ident.int() or 0,
        own[assumed_names.THREAD_NATIVE_ID].int() or 0,
        target,
        source.qualname if source else generated.group(1) if generated else "",
        started_event,
    )


class PoolHelper(NamedTuple):
    """A thread of this process without which a multiprocessing.Pool delivers no result."""

    does: str  # the work that it does for a result: ``hands out the jobs``
    tid: int | None
    thread: ThreadObject  # the Thread object of the helper, which may have ended

    @property
    def only_replaces(self) -> bool:
        """It only makes new workers: the present ones work without it."""
        return self.does == assumed_names.POOL_HELPERS[-1][1]


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
    """Threads that an executor needs for a job, none of which runs; empty if no Thread object of them is left."""

    threads: tuple[ThreadObject, ...]
    does: str


_HANDS_OUT = "hands the jobs of its ProcessPoolExecutor to the workers"


def lost_executor(runtime: PythonRuntime, future: PyRef) -> DeadWorkers | None:
    """The workers of the executor in whose queue a future's job is, if none of them runs, or the thread that hands
    its jobs to processes; None if one runs, or the future belongs to no executor. Raises nothing."""
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
    """The ended threads that still refer to the object: by the arguments of their function, or by the attributes of the
    object that the function belongs to. A thread that did not survive a fork keeps all of these; one that has ended,
    only the attributes of a class of its own. Raises nothing."""
    return tuple(thread for thread in ended_threads(runtime) if value in _reachable((thread.value,)))


def dead_threads_calling(runtime: PythonRuntime, value: PyRef, methods: Collection[str]) -> tuple[ThreadObject, ...]:
    """Ended threads that have one of the object's ``methods`` as an attribute, as a Timer has. Raises nothing."""
    threads = []
    for thread in ended_threads(runtime):
        own = thread.value.attributes().values()
        bound = (method.function for method in own if method.type == "method" and method["__self__"] == value)
        if any(function and function.qualname.rpartition(".")[2] in methods for function in bound):
            threads.append(thread)
    return tuple(threads)


_REACHABLE = 400  # most objects that are read from a thread, or from the frames of one


def _reachable(start: Iterable[PyRef]) -> dict[PyRef, None]:
    """The objects that some objects reach in at most three steps by attributes, items, closures and methods, as the
    keys of a dict, the nearest first. Raises nothing."""
    reachable = dict.fromkeys(start)
    layer = list(reachable)
    for _ in range(3):
        parts = dict.fromkeys(part for value in layer for part in _direct_parts(value))
        layer = [part for part in parts if part not in reachable]
        reachable.update(dict.fromkeys(layer[: max(0, _REACHABLE - len(reachable))]))
    return reachable


def _direct_parts(value: PyRef) -> Iterator[PyRef]:
    yield from value.attributes().values()
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
    """The pool with jobs and without threads that the frames' variables reach; None without one. Raises nothing."""
    running, seen = running_threads(runtime), set[PyRef]()
    for frame in stack[:_FRAMES]:  # each by itself: the outermost one reaches modules, and all in them
        reachable = _reachable(stack.variables(frame).values())
        for value in reachable.keys() - seen:
            own = value.attributes()
            for read_pool in (_stuck_pool, _stuck_thread_pool, _stuck_process_pool):
                pool = read_pool(own, running)
                if pool:
                    return pool._replace(kind=value.type.rpartition(".")[2])
        seen |= reachable.keys()
    return None


def _stuck_pool(own: PyVariables, running: Collection[PyRef]) -> DeadPool | None:
    """A multiprocessing.Pool or ThreadPool with these attributes whose dict ``_cache`` has unfinished results and one
    of whose helpers has ended; None for any other object."""
    jobs = len(own[assumed_names.POOL_RESULTS].parts())
    for name, does in assumed_names.POOL_HELPERS[:2] if jobs else ():
        thread = thread_object(own[name], running)
        if thread and thread.has_ended:
            return DeadPool("", jobs, DeadWorkers((thread,), does))
    return None


def _stuck_thread_pool(own: PyVariables, running: Collection[PyRef]) -> DeadPool | None:
    """A ThreadPoolExecutor with these attributes that has jobs in its queue, and each of whose workers has ended."""
    workers = [thread_object(each, running) for each in own[assumed_names.EXECUTOR_THREADS]]
    threads = tuple(each for each in workers if each and each.has_ended)
    has_ended = threads and len(threads) == len(workers)
    jobs = len(jobs_in_queue(own[assumed_names.EXECUTOR_QUEUE])) if has_ended else 0
    return DeadPool("", jobs, DeadWorkers(threads, "should run them")) if jobs else None


def _stuck_process_pool(own: PyVariables, running: Collection[PyRef]) -> DeadPool | None:
    """A ProcessPoolExecutor, or one of loky, with pending jobs, and whose thread that hands them out has ended."""
    thread = thread_object(own[assumed_names.EXECUTOR_MANAGER], running)
    if not thread or not thread.has_ended:
        return None
    jobs = len(thread.value.attributes()[assumed_names.EXECUTOR_ITEMS].parts())
    return DeadPool("", jobs, DeadWorkers((thread,), _HANDS_OUT)) if jobs else None


def never_began(runtime: PythonRuntime, event: PyRef) -> ThreadObject | None:
    """The unstarted Thread whose _started is ``event``, if every PyThreadState already belongs to another Thread:
    start() waits for ever. A thread counts as running only after it has set the event (Thread._bootstrap_inner). None
    for any other event. Raises nothing."""
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
    """The thread of the event loop that should complete a future, if no thread runs it; None for any other future.
    ``state``: the thread that waits, whose variables may have the loop. Raises nothing."""
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
    """The futures that are not done of a frame of concurrent.futures.wait() or as_completed(); empty for others."""
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
    """Pids of the workers of the ProcessPoolExecutor that owes a future's result; None if no executor does."""
    for state in runtime.thread_states():
        stack = runtime.stack_of([state]).innermost(8)
        for frame in stack:
            if frame.call == assumed_names.EXECUTOR_MANAGER_CALL:
                manager = stack.locals(frame)["self"].attributes()
            elif frame.function == assumed_names.OLD_EXECUTOR_MANAGER:
                manager = stack.locals(frame)
            else:
                continue
            if future in futures_in_queue(manager[assumed_names.EXECUTOR_ITEMS]):
                pids = [pid.int() for pid, _ in manager[assumed_names.EXECUTOR_PROCESSES].items()]
                return tuple(pid for pid in pids if pid is not None)
    return None


def futures_in_queue(pending: PyRef) -> set[PyRef]:
    """The futures of the jobs in a ProcessPoolExecutor's dict of pending ones."""
    return {item.attributes()[assumed_names.JOB_FUTURE] for _, item in pending.items(10_000)}


def exhausted_workers(runtime: PythonRuntime, future: PyRef) -> tuple[int, ...]:
    """Idents of the workers of the pool in whose queue the future's job is, if each of them runs a job that waits for a
    job in that queue; empty otherwise: any worker that becomes free may run it.

    Each of them: as many as the pool itself has started. One whose stack cannot be read may be anywhere.
    """
    pools = _thread_pools(runtime)
    queue = next((queue for queue in pools if future in jobs_in_queue(queue)), None)
    if queue is None:
        return ()
    pending, workers = jobs_in_queue(queue), pools[queue]
    is_complete = {worker.pool_size for worker in workers} == {len(workers)}
    if not is_complete or any(worker.awaited_future not in pending for worker in workers):
        return ()
    return tuple(worker.ident for worker in workers)


class _PoolWorker(NamedTuple):
    """A thread in its pool's loop."""

    ident: int
    awaited_future: PyRef  # missing for none
    pool_size: int  # number of workers that its executor has started; 0 if that cannot be read


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
    return next((frame for frame in frames if frame.name == name and frame.file.endswith(file)), None)


def jobs_in_queue(queue: PyRef) -> frozenset[PyRef]:
    """The futures of the jobs that wait in a pool's queue."""
    return frozenset(filter(None, (item.var(assumed_names.JOB_FUTURE) for item in queue.elements())))


def takes_jobs(runtime: PythonRuntime, state: ThreadState, folders: Collection[str], address: int) -> bool:
    """True if the thread waits in ``get()`` of a queue.Queue other than the one at ``address``, called by code in one
    of the ``folders``."""
    stack = runtime.stack_of([state]).innermost(_FRAMES)
    for frame, caller in zip(stack, stack[1:]):
        if frame.name == "get" and frame.file.endswith("/queue.py"):
            own = stack.locals(frame)["self"]
            return caller.file.rpartition("/")[0] in folders and own.address not in (0, address)
    return False


def runs_in(runtime: PythonRuntime, state: ThreadState, packages: Collection[str]) -> bool:
    """True if the thread runs code of one of the ``packages`` and waits for no other thread: for a peer, perhaps."""
    for frame in runtime.frames.stack(state).frames[:_FRAMES]:
        if frame.call in assumed_names.WAITING_FUNCTIONS:
            return False
        if is_of_program(frame.file):
            return package_of(frame.file) in packages
    return False
