"""Pools of threads and processes: jobs that no worker can run, futures that are waited for, workers that owe results.

Source: Lib/concurrent/futures/thread.py, 3.8 to 3.15: ``_worker`` takes a _WorkItem from ``work_queue`` and calls its
``run``; a future whose job no worker has taken yet is in that queue. A future may also be made by hand, or by asyncio.

``concurrent.futures.wait`` and ``as_completed`` (Lib/concurrent/futures/_base.py, 3.8 to 3.15) sleep on an event of
their own and keep the futures in a set.

Worker processes of multiprocessing.Pool and of ProcessPoolExecutor: Lib/multiprocessing/pool.py,
Lib/concurrent/futures/process.py, 3.8 to 3.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import is_of_program, package_of
from gdbext.cpython.objects.py_ref import PyVariables
from gdbext.cpython.sync.polled_objects import process_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gdbext.cpython.objects.py_ref import PyRef
    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.py_stack import PyStack
    from gdbext.cpython.threads.runtime import PythonRuntime


def pending_futures(stack: PyStack, frame: PythonFrame) -> tuple[PyRef, ...]:
    """The futures that are not done; empty unless the frame is one of these functions, and if they cannot be read."""
    variable = {"wait": "not_done", "as_completed": "pending"}.get(frame.name)
    if not variable or not frame.file.endswith("concurrent/futures/_base.py"):
        return ()
    return tuple(filter(is_pending, stack.locals(frame)[variable].elements(256)))


def is_pending(future: PyRef) -> bool:
    """True for a future whose job is not done."""
    return future.var("_state").str(32) in ("PENDING", "RUNNING")


_DEPTH = 8
"""Innermost frames of a thread in which an executor's manager waits."""
_MAX_ITEMS, _ATTRIBUTES = 10_000, 64


def pool_workers(result: PyRef) -> tuple[int, ...]:
    """Pids of the workers of the multiprocessing.Pool that owes a result; empty where they cannot be read."""
    pool = result.attributes(_ATTRIBUTES)[assumed_names.POOL_PROCESSES].attributes(_ATTRIBUTES)
    processes = pool[assumed_names.POOL_PROCESSES].parts()
    return tuple(filter(None, (process_id(each.attributes(_ATTRIBUTES)) for each in processes)))


def executor_workers(runtime: PythonRuntime, future: PyRef) -> tuple[int, ...] | None:
    """Pids of the workers of the ProcessPoolExecutor that owes a future's result; None where none does."""
    for manager in _managers(runtime):
        if future in futures_in_queue(manager[assumed_names.EXECUTOR_ITEMS]):
            pids = [pid.int() for pid, _ in manager[assumed_names.EXECUTOR_PROCESSES].items()]
            return tuple(pid for pid in pids if pid is not None)
    return None


def _managers(runtime: PythonRuntime) -> Iterator[PyVariables]:
    """The variables of every executor's manager thread, by name."""
    for state in runtime.thread_states():
        stack = runtime.stack_of([state]).innermost(_DEPTH)
        for frame in stack:
            if frame.call == assumed_names.EXECUTOR_MANAGER_CALL:
                yield stack.locals(frame)["self"].attributes(_ATTRIBUTES)
            elif frame.function == assumed_names.OLD_EXECUTOR_MANAGER:
                yield stack.locals(frame)


def futures_in_queue(pending: PyRef) -> set[PyRef]:
    """The futures of the jobs in a ProcessPoolExecutor's dict of pending ones."""
    return {item.attributes(_ATTRIBUTES)[assumed_names.JOB_FUTURE] for _, item in pending.items(_MAX_ITEMS)}


_INNER, _OUTER = 8, 12
"""Innermost frames in which a worker waits for a future, and outermost ones in which the pool's loop is."""


def exhausted_workers(runtime: PythonRuntime, future: PyRef) -> tuple[int, ...]:
    """Idents of the workers of the pool in whose queue the future's job is, if each of them runs a job that waits for a
    job in that queue; empty otherwise: any worker that becomes free may run it.

    Each of them: as many as the pool itself has started. One whose stack cannot be read may be anywhere.
    """
    pools = _pools(runtime)
    queue = next((queue for queue in pools if future in jobs_in_queue(queue)), None)
    if queue is None:
        return ()
    pending, workers = jobs_in_queue(queue), pools[queue]
    is_complete = {worker.pool_size for worker in workers} == {len(workers)}
    if not is_complete or any(worker.waits_for not in pending for worker in workers):
        return ()
    return tuple(worker.ident for worker in workers)


class _PoolWorker(NamedTuple):
    """A thread in its pool's loop."""

    ident: int
    waits_for: PyRef
    """A future, missing for none."""
    pool_size: int
    """Number of workers that its executor has started; 0 if that cannot be read."""


def _pools(runtime: PythonRuntime) -> dict[PyRef, list[_PoolWorker]]:
    """The work queue of each pool → its workers."""
    pools: dict[PyRef, list[_PoolWorker]] = {}

    def is_call(frame: PythonFrame, file: str, function: str) -> bool:
        return frame.name == function and frame.file.endswith(file)

    for state in runtime.thread_states():
        stack = runtime.stack_of([state])
        loop = next((frame for frame in stack[-_OUTER:] if is_call(frame, assumed_names.FUTURES_FILE, "_worker")), None)
        if not loop:
            continue
        own = stack.locals(loop)
        waits = next((frame for frame in stack[:_INNER] if is_call(frame, "futures/_base.py", "result")), None)
        future = (stack.locals(waits) if waits else PyVariables(runtime))["self"]
        executor = own["executor_reference"].referent.attributes(_ATTRIBUTES)
        size = len(executor[assumed_names.EXECUTOR_THREADS].elements())
        pools.setdefault(own["work_queue"], []).append(_PoolWorker(state.ident, future, size))
    return pools


def jobs_in_queue(queue: PyRef) -> frozenset[PyRef]:
    """The futures of the jobs that wait in a pool's queue."""
    return frozenset(filter(None, (item.var(assumed_names.JOB_FUTURE) for item in queue.elements())))


_FRAMES = 12
"""Innermost Python frames that are read."""


def takes_jobs(runtime: PythonRuntime, state: ThreadState, folders: Collection[str], address: int) -> bool:
    """A thread waits in ``get()`` of another queue.Queue, called by code of one of these folders."""
    stack = runtime.stack_of([state]).innermost(_FRAMES)
    for frame, caller in zip(stack, stack[1:]):
        if frame.name == "get" and frame.file.endswith("/queue.py"):
            own = stack.locals(frame)["self"]
            return caller.file.rpartition("/")[0] in folders and own.address not in (0, address)
    return False


def runs_in(runtime: PythonRuntime, state: ThreadState, packages: Collection[str]) -> bool:
    """A thread runs code of one of these packages and waits for no other thread: for a peer, perhaps."""
    for frame in runtime.frames.stack(state).frames[:_FRAMES]:
        if frame.call in assumed_names.WAITING_FUNCTIONS:
            return False
        if is_of_program(frame.file):
            return package_of(frame.file) in packages
    return False
