"""Waits in a library whose threads a fork left behind in the parent process, of libraries that no row of the table of
pools describes.

fork() copies the stacks of all threads, though it continues only one. glibc keeps the control blocks on them, with the
function that each thread was started with: the library of that function, or of the object that std::thread passed to
its own function (the first word of such an object is the address of its vtable), is the one that started the thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_detail import AbsentWorkers, Unowned
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.diagnosis.waits.pool_table import MissingWorkers, Pool
from gdbext.diagnosis.waits.snapshot import PYTHON_LIBRARIES, RUNTIME_LIBRARIES

if TYPE_CHECKING:
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot

_NEAR = 48
"""Bytes before and after the place where a thread is, in which a loop that spins has its hint for the CPU."""


def with_threads_left_behind(thread: ThreadSnapshot, wait: Wait, level: int) -> Wait:
    """The wait in the library of frame ``level`` with the threads that the library had started before the fork."""
    missing = _missing_threads(thread, thread.module_name(level))
    if not missing:
        return wait
    return wait.with_detail(AbsentWorkers(missing, wait.detail.unowned), *thread.process.fork_evidence)


def spinning_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that spins in a library whose threads were left behind by a fork; None for any other."""
    process = thread.process
    library = thread.module_name(0) if thread.frames else ""
    if not library or library.startswith((*RUNTIME_LIBRARIES, *PYTHON_LIBRARIES)) or not process.fork_evidence:
        return None
    # In the function where the thread is, or in the one that has just called it: that function is often only the hint.
    places = [frame.pc for frame in thread.frames[:2] if frame.module is thread.frames[0].module]
    hint = process.memory.architecture.spin_hint
    if not any(hint in process.memory.try_read(pc - _NEAR, 2 * _NEAR) for pc in places):
        return None
    missing = _missing_threads(thread, library)
    if not missing:
        return None
    evidence = (f"it spins in {library}, and no other thread is in that library", *process.fork_evidence)
    resource = Resource(WaitKind.WORKER_POOL, 0, f"{missing.pool.name}, spinning")
    return Wait(resource, evidence=evidence, detail=AbsentWorkers(missing._replace(spins=True), Unowned()))


def _missing_threads(thread: ThreadSnapshot, library: str) -> MissingWorkers | None:
    """The threads that a library had started in the parent; None if there are none, or another thread here is in it."""
    process = thread.process
    parent = process.procfs.forked_from()
    if parent is None or library.startswith((*RUNTIME_LIBRARIES, *PYTHON_LIBRARIES)):
        return None
    for other in process.threads:
        if other is not thread and any(other.module_name(level) == library for level in range(len(other.frames))):
            return None
    if not any(_library_of(thread, *started) == library for started in process.started_in_parent):
        return None
    if not process.procfs.has_threads(parent):
        return None
    name = library.partition(".")[0]
    advice = f"Or make what starts the threads of {name} (its session, pool or channel) only after the fork."
    pool = Pool(name, workers=f"threads of {name}", advice_when_missing=advice)
    return MissingWorkers(pool, forked=True, parent=parent)


def _library_of(thread: ThreadSnapshot, start_routine: int, argument: int) -> str:
    """The file name of the library that started a thread with these; "" if unknown."""
    process = thread.process
    name = _module_name(thread, start_routine)
    if not name.startswith(RUNTIME_LIBRARIES):
        return name
    vtable = process.memory.try_u64(argument) if argument else None
    return _module_name(thread, vtable) if vtable else ""


def _module_name(thread: ThreadSnapshot, address: int) -> str:
    module = thread.process.modules.find(address)
    return module.name if module else ""
