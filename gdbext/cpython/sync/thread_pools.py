"""Workers of a ThreadPoolExecutor that all wait for jobs which only a worker of that pool could run.

Source: Lib/concurrent/futures/thread.py, 3.8 to 3.15: ``_worker`` takes a _WorkItem from ``work_queue`` and calls its
``run``; a future whose job no worker has taken yet is PENDING.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi import stdlib
from gdbext.cpython.threads.slots import locals_of
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime

_INNER, _OUTER = 8, 12
"""Innermost frames in which a worker waits for a future, and outermost ones in which the pool's loop is."""


def exhausted_workers(runtime: PythonRuntime, future: int) -> tuple[int, ...]:
    """Idents of the workers of the process's only thread pool, where each of them runs a job that waits for a future
    that is pending, as ``future`` is; empty otherwise: any worker that goes on may run it. Raises nothing."""
    if _state(runtime, future) != stdlib.FUTURE_PENDING:
        return ()
    workers: list[int] = []
    queues: set[int] = set()
    for state in runtime.thread_states():
        frames = runtime.frames.stack(state).frames
        loop = next((frame for frame in frames[-_OUTER:] if _is(frame, stdlib.FUTURES_FILE, "_worker")), None)
        if loop is None:
            continue
        queues.add(_local(runtime, loop, "work_queue"))
        waited = next((frame for frame in frames[:_INNER] if _is(frame, "futures/_base.py", "result")), None)
        mine = _local(runtime, waited, "self") if waited is not None else 0
        if not mine or _state(runtime, mine) != stdlib.FUTURE_PENDING:
            return ()
        workers.append(state.ident)
    return tuple(workers) if len(queues) == 1 else ()


def _is(frame: PythonFrame, file: str, function: str) -> bool:
    return frame.function.rpartition(".")[2] == function and frame.file.endswith(file)


def _local(runtime: PythonRuntime, frame: PythonFrame, name: str) -> int:
    try:
        return locals_of(runtime, frame).get(name, 0)
    except GdbextError:
        return 0


def _state(runtime: PythonRuntime, future: int) -> str:
    """The future's ``_state``, "" where it cannot be read."""
    found = runtime.dicts.attribute(future, stdlib.FUTURE_STATE)
    try:
        return runtime.objects.text(found, 32) if found else ""
    except GdbextError:
        return ""
