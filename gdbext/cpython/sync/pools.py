"""Pools of threads and processes: jobs that no worker can run, futures that are waited for, workers that owe results.

Source: Lib/concurrent/futures/thread.py, 3.8 to 3.15: ``_worker`` takes a _WorkItem from ``work_queue`` and calls its
``run``; a future whose job no worker has taken yet is in that queue. A future may also be made by hand, or by asyncio.

``concurrent.futures.wait`` and ``as_completed`` (Lib/concurrent/futures/_base.py, 3.8 to 3.15) sleep on an event of
their own and keep the futures in a set.

Worker processes of multiprocessing.Pool and of ProcessPoolExecutor: Lib/multiprocessing/pool.py,
Lib/concurrent/futures/process.py, 3.8 to 3.15.
"""

from __future__ import annotations

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import is_of_program, package_of
from gdbext.cpython.threads.frame_variables import attributes, items, local_of, locals_of, referent
from gdbext.engine.record import Record
from gdbext.errors import GdbextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

_SETS = {"wait": "not_done", "as_completed": "pending"}
"""Function: the local variable with the futures that are not done."""
_FILE = "concurrent/futures/_base.py"
_STATE = "_state"
_NOT_DONE = ("PENDING", "RUNNING")
_LIMIT = 256


def pending_futures(runtime: PythonRuntime, frame: PythonFrame) -> tuple[int, ...]:
    """Addresses of the futures; empty where the frame is none of these functions, or they cannot be read."""
    name = _SETS.get(frame.function.rpartition(".")[2]) if frame.file.endswith(_FILE) else None
    if name is None:
        return ()
    try:
        from gdbext.cpython.objects.object_items import set_items

        container = locals_of(runtime, frame).get(name, 0)
        found = set_items(runtime, container)[:_LIMIT] if container else []
    except GdbextError:
        return ()
    return tuple(future for future in found if is_pending(runtime, future))


def is_pending(runtime: PythonRuntime, future: int) -> bool:
    """True for a future whose job is not done."""
    try:
        state = runtime.dicts.attribute(future, _STATE)
        return state is not None and any(runtime.objects.text_equals(state, each) for each in _NOT_DONE)
    except GdbextError:
        return False


_DEPTH = 8
"""Innermost frames of a thread in which an executor's manager waits."""
_MAX_ITEMS = 10_000


def pool_workers(runtime: PythonRuntime, result: int) -> tuple[int, ...]:
    """Pids of the workers of the multiprocessing.Pool that owes a result; empty where they cannot be read."""
    from gdbext.cpython.sync.polled_objects import process_id

    pool = attributes(runtime, result).get(assumed_names.POOL_PROCESSES, 0)
    processes = attributes(runtime, pool).get(assumed_names.POOL_PROCESSES, 0)
    pids = (process_id(runtime, attributes(runtime, each)) for each in items(runtime, processes))
    return tuple(pid for pid in pids if pid)


def executor_workers(runtime: PythonRuntime, future: int) -> tuple[int, ...] | None:
    """Pids of the workers of the ProcessPoolExecutor that owes a future's result; None where none does."""
    for manager in _managers(runtime):
        try:
            if future in futures_in_queue(runtime, manager.get(assumed_names.EXECUTOR_ITEMS, 0)):
                processes = manager.get(assumed_names.EXECUTOR_PROCESSES, 0)
                return tuple(runtime.objects.integer(pid) for pid, _ in runtime.dicts.items(processes))
        except GdbextError:
            continue
    return None


def _managers(runtime: PythonRuntime) -> Iterator[dict[str, int]]:
    """The variables of every executor's manager thread, by name."""
    for state in runtime.thread_states():
        for frame in runtime.frames.stack(state).frames[:_DEPTH]:
            if (
                frame.file.rpartition("/")[2],
                frame.function.rpartition(".")[2],
            ) == assumed_names.EXECUTOR_MANAGER_CALL:
                try:
                    yield dict(attributes(runtime, locals_of(runtime, frame).get("self", 0)))
                except GdbextError:
                    continue
            elif frame.function == assumed_names.OLD_EXECUTOR_MANAGER:
                try:
                    yield locals_of(runtime, frame)
                except GdbextError:
                    continue


def futures_in_queue(runtime: PythonRuntime, pending: int) -> set[int]:
    """The futures of the jobs in a ProcessPoolExecutor's dict of pending ones. Raises MemoryFault, BadData."""
    work = (item for _, item in runtime.dicts.items(pending, _MAX_ITEMS))
    return {attributes(runtime, item).get(assumed_names.JOB_FUTURE, 0) for item in work}


_INNER, _OUTER = 8, 12
"""Innermost frames in which a worker waits for a future, and outermost ones in which the pool's loop is."""


def exhausted_workers(runtime: PythonRuntime, future: int) -> tuple[int, ...]:
    """Idents of the workers of the pool in whose queue the future's job is, where each of them runs a job that waits
    for a job in that queue; empty otherwise: any worker that goes on may run it. Raises nothing.

    Each of them: as many as the pool itself has started. One whose stack cannot be read may be anywhere.
    """
    pools = _pools(runtime)
    queue = next((queue for queue in pools if future in jobs_in_queue(runtime, queue)), None)
    if queue is None:
        return ()
    pending = jobs_in_queue(runtime, queue)
    workers = pools[queue]
    are_all = {worker.pool_size for worker in workers} == {len(workers)}
    return tuple(w.ident for w in workers) if are_all and all(w.waits_for in pending for w in workers) else ()


class _PoolWorker(Record):
    """A thread in its pool's loop."""

    ident: int
    waits_for: int
    """A future, 0 for none."""
    pool_size: int
    """Number of workers that its executor has started; 0 where that cannot be read."""


def _pools(runtime: PythonRuntime) -> dict[int, list[_PoolWorker]]:
    """The work queue of each pool → its workers."""
    pools: dict[int, list[_PoolWorker]] = {}
    for state in runtime.thread_states():
        frames = runtime.frames.stack(state).frames
        loop = next((frame for frame in frames[-_OUTER:] if _is(frame, assumed_names.FUTURES_FILE, "_worker")), None)
        if loop is None:
            continue
        waits = next((frame for frame in frames[:_INNER] if _is(frame, "futures/_base.py", "result")), None)
        future = local_of(runtime, waits, "self") if waits is not None else 0
        worker = _PoolWorker(state.ident, future, _pool_size(runtime, loop))
        pools.setdefault(local_of(runtime, loop, "work_queue"), []).append(worker)
    return pools


def _pool_size(runtime: PythonRuntime, loop: PythonFrame) -> int:
    from gdbext.cpython.objects.object_items import set_items

    executor = referent(runtime, local_of(runtime, loop, "executor_reference"))
    try:
        threads = attributes(runtime, executor).get(assumed_names.EXECUTOR_THREADS, 0) if executor else 0
        return len(set_items(runtime, threads)) if threads else 0
    except GdbextError:
        return 0


def jobs_in_queue(runtime: PythonRuntime, queue: int) -> frozenset[int]:
    """The futures of the jobs that wait in a pool's queue."""
    from gdbext.cpython.objects.object_items import queued

    try:
        items = queued(runtime, queue) if queue else ()
    except GdbextError:
        return frozenset()
    return frozenset(runtime.dicts.attribute(item, assumed_names.JOB_FUTURE) or 0 for item in items) - {0}


def _is(frame: PythonFrame, file: str, function: str) -> bool:
    return frame.function.rpartition(".")[2] == function and frame.file.endswith(file)


_FRAMES = 12
"""Innermost Python frames that are read."""


def takes_jobs(runtime: PythonRuntime, state: ThreadState, folders: Collection[str], address: int) -> bool:
    """A thread waits in ``get()`` of another queue.Queue, called by code of one of these folders."""
    frames = runtime.frames.stack(state).frames[:_FRAMES]
    for frame, caller in zip(frames, frames[1:]):
        if frame.function.rpartition(".")[2] == "get" and frame.file.endswith("/queue.py"):
            return caller.file.rpartition("/")[0] in folders and local_of(runtime, frame, "self") not in (0, address)
    return False


def goes_on_in(runtime: PythonRuntime, state: ThreadState, packages: Collection[str]) -> bool:
    """A thread stands in code of one of these packages and waits for no other thread: for a peer, perhaps."""
    for frame in runtime.frames.stack(state).frames[:_FRAMES]:
        if (frame.file.rpartition("/")[2], frame.function.rpartition(".")[2]) in assumed_names.WAITING_FUNCTIONS:
            return False
        if is_of_program(frame.file):
            return package_of(frame.file) in packages
    return False
