"""The straight road: snapshots of all threads → what each waits for and holds → reports → verdict."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.inspection.job.job_rank import is_rank
from gdbext.inspection.observe import observe
from gdbext.inspection.threads.missing_kernels import missing_kernels
from gdbext.inspection.threads.thread_reporting import all_frames, report_thread
from gdbext.model.record import Record
from gdbext.verdict.judge import Judgement, judge
from gdbext.verdict.progress import Place
from gdbext.waits.holdings import held_resources
from gdbext.waits.main_chain import explain
from gdbext.waits.recognise import State, state_of

if TYPE_CHECKING:
    from gdbext.inspection.error_log import ErrorLog
    from gdbext.inspection.session import Session
    from gdbext.model.sections.collectives_section import CollectivesSection
    from gdbext.model.threads.event_loop import EventLoop
    from gdbext.model.threads.thread_report import ThreadReport
    from gdbext.torch.values.cxx_exception import CxxException
    from gdbext.waits.snapshot import ProcessSnapshot, ThreadSnapshot

_NAMED = 16
"""Innermost frames whose functions are named, of a thread that runs."""
_PLACED = 200
"""Outermost frames that tell where a thread is; deeper ones differ only in recursions."""


class Inspection(Record):
    """Everything that all-threads and dispatch-diagnose report."""

    threads: tuple[ThreadReport, ...]
    judgement: Judgement
    collectives: CollectivesSection | None = None
    """What the process knows of its job; None where it is no rank of one, or nothing of that can be read."""
    places: Mapping[int, Place] = MappingProxyType({})
    """Where each thread is, to compare several samples by; empty unless asked for."""


def inspect_threads(session: Session, frames: bool = False, placed: bool = False) -> Inspection:
    """Inspects every thread, ``frames``: with its whole stack, ``placed``: with what several samples are compared by.
    What cannot be read is in the session's errors."""
    process = session.threads.all()
    states = {thread.tid: _state(thread, session.errors) for thread in process.threads}
    collectives = _collectives(session, process, states)
    threads = _report_threads(session, process, states, frames)
    judgement = judge(observe(process, threads, session.target, lambda thread: _thrown(session, thread)))
    notes = tuple(missing_kernels(session, process, threads))
    judgement = judgement._replace(findings=judgement.findings + notes)
    return Inspection(threads, judgement, collectives, _places(process) if placed else {})


def _thrown(session: Session, snapshot: ThreadSnapshot) -> CxxException | None:
    from gdbext.inspection.threads.uncaught_exception import uncaught_exception

    return uncaught_exception(session, snapshot)


def inspect_settled(session: Session, placed: bool = False) -> tuple[Session, Inspection]:
    """As ``inspect_threads``, and once more where threads moved during the first look; the session of what counts."""
    found = inspect_threads(session, placed=placed)
    later = session.again()
    return (session, found) if later is None else (later, inspect_threads(later, placed=placed))


def _collectives(
    session: Session, process: ProcessSnapshot, states: dict[int, State | None]
) -> CollectivesSection | None:
    if not is_rank(session.target, process, states):
        return None
    from gdbext.inspection.job.collective_waits import name_collectives

    return name_collectives(session, process, states)


def _report_threads(
    session: Session, process: ProcessSnapshot, states: Mapping[int, State | None], frames: bool
) -> tuple[ThreadReport, ...]:
    states = explain(process, states)
    loops = _event_loops(process)
    held = held_resources((state.wait for state in states.values() if state is not None), process.gils)
    return tuple(
        report_thread(
            thread,
            states[thread.tid],
            held.get(thread.tid, ()),
            all_frames(session, thread) if frames else (),
        )._replace(loop=loops.get(thread.tid))
        for thread in process.threads
    )


def _event_loops(process: ProcessSnapshot) -> Mapping[int, EventLoop]:
    """Thread id → its loop. A process without a frame of asyncio has none that runs."""
    users = [thread.tid for thread in process.threads if any("/asyncio/" in frame.file for frame in thread.python)]
    if not users:
        return {}
    from gdbext.waits.python.event_loops import event_loops

    return event_loops(process, users)


def _state(thread: ThreadSnapshot, errors: ErrorLog) -> State | None:
    """What a thread does, None where its wait cannot be read."""
    try:
        return state_of(thread)
    except GdbextError as error:
        errors.note(error, f"wait of thread {thread.tid}")
        return None


def _places(process: ProcessSnapshot) -> dict[int, Place]:
    return {thread.tid: _place(thread) for thread in process.threads}


def _place(thread: ThreadSnapshot) -> Place:
    addresses = tuple(frame.pc for frame in reversed(thread.frames[-_PLACED:]))
    lines = tuple((frame.function, frame.line) for frame in thread.python)
    python = thread.process.python
    instruction = python.instruction(thread.tid) if python is not None and thread.python else None
    inner = range(min(len(thread.frames), _NAMED)) if thread.syscall is None else ()
    return Place(addresses, lines, instruction, tuple(_function(thread, level) for level in inner))


def _function(thread: ThreadSnapshot, level: int) -> str:
    """``sre_ucs1_match (libpython3.11.so.1.0)``."""
    function = thread.stack.function(level)
    name = function.demangled[0].split("(")[0] if function is not None else "an unnamed function"
    return f"{name} ({thread.module_name(level) or 'no library'})"
