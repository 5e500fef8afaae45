"""Worker processes whose results a thread waits for: those of multiprocessing.Pool and of ProcessPoolExecutor.

Sources: Lib/multiprocessing/pool.py, Lib/concurrent/futures/process.py, 3.8 to 3.15.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.cpython.abi import stdlib
from gdbext.cpython.sync.at_hand import process_id
from gdbext.cpython.threads.namespaces import attributes, items
from gdbext.cpython.threads.slots import locals_of
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.runtime import PythonRuntime

_DEPTH = 8
"""Innermost frames of a thread in which an executor's manager waits."""
_MAX_ITEMS = 10_000


def pool_workers(runtime: PythonRuntime, result: int) -> tuple[int, ...]:
    """Pids of the workers of the multiprocessing.Pool that owes a result; empty where they cannot be read."""
    pool = attributes(runtime, result).get(stdlib.POOL_PROCESSES, 0)
    processes = attributes(runtime, pool).get(stdlib.POOL_PROCESSES, 0)
    pids = (process_id(runtime, attributes(runtime, each)) for each in items(runtime, processes))
    return tuple(pid for pid in pids if pid)


def executor_workers(runtime: PythonRuntime, future: int) -> tuple[int, ...]:
    """Pids of the workers of the ProcessPoolExecutor that owes a future's result; empty where none does."""
    for manager in _managers(runtime):
        try:
            if future in _futures(runtime, manager.get(stdlib.EXECUTOR_ITEMS, 0)):
                processes = manager.get(stdlib.EXECUTOR_PROCESSES, 0)
                return tuple(runtime.objects.integer(pid) for pid, _ in runtime.dicts.items(processes))
        except GdbextError:
            continue
    return ()


def _managers(runtime: PythonRuntime) -> Iterator[dict[str, int]]:
    """What every executor's manager thread has, by name."""
    for state in runtime.thread_states():
        for frame in runtime.frames.stack(state).frames[:_DEPTH]:
            if (frame.file.rpartition("/")[2], frame.function.rpartition(".")[2]) == stdlib.EXECUTOR_MANAGER_CALL:
                try:
                    yield dict(attributes(runtime, locals_of(runtime, frame).get("self", 0)))
                except GdbextError:
                    continue
            elif frame.function == stdlib.OLD_EXECUTOR_MANAGER:
                try:
                    yield locals_of(runtime, frame)
                except GdbextError:
                    continue


def _futures(runtime: PythonRuntime, pending: int) -> set[int]:
    work = (item for _, item in runtime.dicts.items(pending, _MAX_ITEMS))
    return {attributes(runtime, item).get(stdlib.JOB_FUTURE, 0) for item in work}
