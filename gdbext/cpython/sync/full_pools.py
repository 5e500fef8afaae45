"""Pools of threads whose threads all run jobs, while others wait for one: their size, users and queue, by their own
objects. What frameworks add to Python's executors is data: LIMITED_THREADS and SERVERS.

Sources: Lib/concurrent/futures/thread.py, 3.8 to 3.15; anyio 3.0 to 4.16, anyio/_backends/_asyncio.py; trio 0.22 to
0.35, trio/_threads.py; grpcio 1.40 to 1.85, grpc/{_server,_channel}.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.sync.helper_threads import jobs_in_queue
from gdbext.cpython.threads.frame_variables import PyStack

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from gdbext.cpython.objects.code import PythonFunction
    from gdbext.cpython.tasks.loops import RunningTask
    from gdbext.cpython.threads.runtime import PythonRuntime


class LimitedThreads(NamedTuple):
    """The functions of a library that runs functions in threads, as many as a limiter allows. Names of functions are
    without their class."""

    name: str
    """The pool in reports: ``anyio's limiter``."""
    package: str
    """The package in front of the limiter's class."""
    file: str
    """The end of the path of the file with the functions."""
    runs: str
    """The coroutine function that runs a function in a thread and awaits its end."""
    function: str
    """The variable of ``runs`` with that function."""
    acquires: str = ""
    """The method of the limiter in which tasks wait for a thread; "" if its users are not read."""
    worker: str = ""
    """The main function of the threads."""
    future: str = ""
    """The variable, of ``runs`` and of ``worker``, with the future of the result."""
    users: str = ""
    """The attribute of the limiter with the set of tasks that have a thread."""
    size: str = ""
    """The attribute of the limiter with the number of threads that it allows."""
    queue: str = ""
    """The attribute of the limiter with the dict of tasks that wait for a thread."""


class Server(NamedTuple):
    """A framework's server whose requests are jobs of a ThreadPoolExecutor."""

    name: str
    file: str
    """The end of the path of the file with the functions that are the jobs."""
    calls_in: tuple[str, str]
    """(end of a file's path, function) of the client's call that waits for an answer."""
    limit: str
    """The variable of that call with its time limit, None for none."""
    target: str
    """The attribute of the call's ``self`` with the address that is called, a bytes object."""
    main: str
    """The main function of the thread that each server has."""


LIMITED_THREADS = (
    LimitedThreads(
        name="anyio's limiter",
        package="anyio",
        file="/anyio/_backends/_asyncio.py",
        runs="run_sync_in_worker_thread",
        function="func",
        acquires="acquire_on_behalf_of",
        worker="run",
        future="future",
        users="_borrowers",
        size="_total_tokens",
        queue="_wait_queue",
    ),
    LimitedThreads("trio's limiter", "trio", "/trio/_threads.py", "to_thread_run_sync", "sync_fn"),
)
SERVERS = (
    Server(
        name="gRPC's server",
        file="/grpc/_server.py",
        calls_in=("/grpc/_channel.py", "_blocking"),
        limit="timeout",
        target="_target",
        main="_serve",
    ),
)
_EXECUTOR = "ThreadPoolExecutor"
_MAX_WORKERS = "_max_workers"  # attribute of a ThreadPoolExecutor with its size
_FRAMES = 12  # frames of a thread that are searched, from either end
_TASKS = 10_000  # most tasks of a limiter that are read


class FullPool(NamedTuple):
    """A pool of threads that all run jobs. ``name``: in reports; ``tids``: its threads; ``waiting``: addresses of the
    futures of the ``jobs``, or of the ``tasks``, that wait for one of the threads (``unit``: that word)."""

    name: str
    tids: tuple[int, ...]
    waiting: frozenset[int]
    unit: str


def read_full_pools(runtime: PythonRuntime, tasks: Sequence[RunningTask]) -> list[FullPool]:
    """The full pools of the process. ``tasks``: of all event loops. Raises nothing."""
    return [*_full_executors(runtime), *_full_limiters(runtime, tasks)]


def _full_executors(runtime: PythonRuntime) -> Iterator[FullPool]:
    """The ThreadPoolExecutors with jobs in their queues that have as many threads as they may, all of which run one."""
    workers: dict[tuple[PyRef, PyRef], list[tuple[int, str]]] = {}  # (executor, queue) → (tid, name) of busy threads
    for state in runtime.thread_states():
        stack = runtime.stack_of([state])
        # A thread's main function calls _WorkItem.run, which calls the job.
        outer = [frame for frame in stack[-_FRAMES:] if frame.file.endswith(assumed_names.FUTURES_FILE)]
        tid = runtime.tid_of_ident(state.ident)
        if tid is not None and [frame.name for frame in outer[-2:]] == [assumed_names.JOB_RUN, "_worker"]:
            own = stack.locals(outer[-1])
            job = stack[: stack.index(outer[-2])][-1:]
            name = next((row.name for row in SERVERS if job and job[0].file.endswith(row.file)), _EXECUTOR)
            workers.setdefault((own["executor_reference"].referent, own["work_queue"]), []).append((tid, name))
    for (executor, queue), busy in workers.items():
        own = executor.attributes()
        size, waiting = own[_MAX_WORKERS].int(), jobs_in_queue(queue)
        if waiting and size == len(busy) == len(own[assumed_names.EXECUTOR_THREADS].elements()):
            tids = tuple(tid for tid, _ in busy)
            yield FullPool(busy[0][1], tids, frozenset(future.address for future in waiting), "job")


def _full_limiters(runtime: PythonRuntime, tasks: Sequence[RunningTask]) -> Iterator[FullPool]:
    """The limiters for which tasks wait, if each of their users has a thread."""
    for row in LIMITED_THREADS:
        limiters: dict[PyRef, None] = {}
        futures: dict[int, int] = {}  # address of a task → of the future that its thread will complete
        for task in tasks:
            stack = PyStack(runtime, task.frames)
            for frame in stack:
                if not row.acquires or not frame.file.endswith(row.file):
                    continue
                if frame.name == row.acquires:
                    limiters[stack.locals(frame)["self"]] = None
                elif frame.name == row.runs:
                    futures[task.address] = stack.locals(frame)[row.future].address
        threads = _threads_by_future(runtime, row) if limiters else {}
        for limiter in limiters:
            own = limiter.attributes()
            users = own[row.users].elements(_TASKS)
            waiting = frozenset(task.address for task in own[row.queue].keys(_TASKS))
            tids = {threads.get(futures.get(user.address, 0), 0) for user in users} - {0}
            if waiting and own[row.size].int() == len(tids):
                yield FullPool(row.name, tuple(tids), waiting, "task")


def _threads_by_future(runtime: PythonRuntime, row: LimitedThreads) -> dict[int, int]:
    """Address of the future of a function → tid of the thread that runs it."""
    tids = {}
    for state in runtime.thread_states():
        stack = runtime.stack_of([state])
        outer = (frame for frame in stack[-_FRAMES:] if frame.name == row.worker)
        worker = next((frame for frame in outer if frame.file.endswith(row.file)), None)
        future = stack.locals(worker)[row.future] if worker else None
        tid = runtime.tid_of_ident(state.ident) if future else None
        if future and tid is not None:
            tids[future.address] = tid
    return tids


def thread_function(runtime: PythonRuntime, task: RunningTask) -> PythonFunction | None:
    """The function that a thread runs, or shall run, for a task; None for a task that awaits no such function."""
    for frame in task.frames:
        for row in LIMITED_THREADS:
            if frame.name == row.runs and frame.file.endswith(row.file):
                return PyStack(runtime, task.frames).locals(frame)[row.function].function
    return None


def completing_task(future: PyRef, tasks: Collection[int]) -> int:
    """The one of ``tasks``, addresses, that completes a concurrent.futures.Future (_chain_future of
    Lib/asyncio/futures.py); 0 if none does."""
    callbacks = future.attributes()[assumed_names.FUTURE_CALLBACKS].elements(64)
    values = (value.address for callback in callbacks for value in callback.closure)
    return next((address for address in values if address in tasks), 0)


def called_address(runtime: PythonRuntime, stack: PyStack) -> str:
    """The address that the innermost frames call without a time limit, ``localhost:50051``, by a client of a framework
    of which this process runs one server; "" if there is no such call, or it cannot be read."""
    for frame in stack[:_FRAMES]:
        for row in SERVERS:
            if frame.name != row.calls_in[1] or not frame.file.endswith(row.calls_in[0]):
                continue
            own = stack.locals(frame)
            target = own["self"][row.target].bytes(256)
            if target and own[row.limit].is_none and _runs_one(runtime, row):
                return target.decode(errors="replace")
    return ""


def _runs_one(runtime: PythonRuntime, row: Server) -> bool:
    """True if exactly one thread is the main thread of such a server."""
    stacks = (runtime.stack_of([state])[-_FRAMES:] for state in runtime.thread_states())
    mains = [frame for stack in stacks for frame in stack if frame.name == row.main and frame.file.endswith(row.file)]
    return len(mains) == 1
