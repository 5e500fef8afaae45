"""Inductor's workers: what each of them compiles, by its own Python stack, and how many jobs a pool waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.cpython.threads.namespaces import attributes
from gdbext.cpython.threads.slots import local_of
from gdbext.errors import GdbextError
from gdbext.inspection.compiling_threads import at_work
from gdbext.model.sections.compile_section import CompilePool, CompilingThread
from gdbext.torch.compile import dynamo_names as names

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.inspection.session import Session

_PENDING = 100_000


def work_of(pid: int) -> CompilingThread | None:
    """What a process compiles, which stands still for some milliseconds for it; None where it compiles nothing, or
    cannot be read."""
    from gdbext.inspection.session import Session
    from gdbext.targets.live.brief_stop import brief_stop

    try:
        target = brief_stop(pid)
    except GdbextError:
        return None
    try:
        return next(_works(Session(target)), None)
    except GdbextError:
        return None
    finally:
        target.close()


def _works(session: Session) -> Iterator[CompilingThread]:
    runtime = session.python
    if runtime is None:
        return
    for tid, frames in python_stacks(session):
        found = at_work(runtime, tid, frames)
        if found is not None:
            yield found


def python_stacks(session: Session) -> Iterator[tuple[int, list[PythonFrame]]]:
    """The Python frames of each thread; one that cannot be read is among the session's errors."""
    table = session.python_threads
    if table is None:
        return
    for thread in session.target.threads():
        try:
            yield thread.tid, table.frames(thread.tid)
        except GdbextError as error:
            session.errors.note(error, f"thread {thread.tid}")


def pool_of(runtime: PythonRuntime, tid: int, frames: list[PythonFrame]) -> CompilePool | None:
    """The pool for whose results a thread waits; None for any other thread."""
    file, function = names.POOL_READER
    for frame in frames:
        if frame.file.endswith(file) and frame.function.rpartition(".")[2] == function:
            return _pool(runtime, tid, local_of(runtime, frame, "self"))
    return None


def _pool(runtime: PythonRuntime, tid: int, address: int) -> CompilePool | None:
    found = attributes(runtime, address) if address else {}
    process = attributes(runtime, found[names.POOL_PROCESS]) if names.POOL_PROCESS in found else {}
    try:
        jobs = found.get(names.POOL_PENDING, 0)
        pending = sum(1 for _ in runtime.dicts.items(jobs, _PENDING)) if jobs else None
        pid = runtime.objects.integer(process["pid"]) if "pid" in process else None
    except GdbextError:
        return None
    return CompilePool(tid, pid, pending)
