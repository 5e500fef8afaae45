"""The straight road: snapshots of all threads → what each waits for and holds → reports → verdict."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gdbext.errors import GdbextError
from gdbext.inspection.collective_waits import is_rank, name_collectives
from gdbext.inspection.error_log import ErrorLog
from gdbext.inspection.missing_kernels import missing_kernels
from gdbext.inspection.observe import observe
from gdbext.inspection.session import Session
from gdbext.inspection.thread_reporting import all_frames, report_thread
from gdbext.model.threads.thread_report import ThreadReport
from gdbext.targets.procfs import ProcFs
from gdbext.verdict.judge import Judgement, judge
from gdbext.verdict.progress import Place
from gdbext.waits.holdings import held_resources
from gdbext.waits.recognise import State, state_of
from gdbext.waits.snapshot import ProcessSnapshot, ThreadSnapshot

if TYPE_CHECKING:
    from gdbext.model.sections.collectives_section import CollectivesSection

_PLACED = 200
"""Outermost frames that tell where a thread is; deeper ones differ only in recursions."""


class Inspection(NamedTuple):
    """Everything that all-threads and dispatch-diagnose report."""

    threads: tuple[ThreadReport, ...]
    judgement: Judgement
    collectives: CollectivesSection | None = None
    """What the process knows of its job; None where it is no rank of one, or nothing of that can be read."""
    places: Mapping[int, Place] = MappingProxyType({})
    """Where each thread is, to compare several samples by; empty for a core."""


def inspect_threads(session: Session, frames: bool = False) -> Inspection:
    """Inspects every thread, ``frames``: with its whole stack. What cannot be read is in the session's errors."""
    process = session.threads.all()
    states = {thread.tid: _state(thread, session.errors) for thread in process.threads}
    collectives = None
    if is_rank(session.target, process, states):
        collectives = name_collectives(session, process, states)
    threads = _report_threads(session, process, states, frames)
    judgement = judge(observe(process, threads, session.target.maps))
    notes = tuple(missing_kernels(session, process, threads))
    judgement = judgement._replace(findings=judgement.findings + notes)
    return Inspection(threads, judgement, collectives, _places(process, session.procfs))


def _report_threads(
    session: Session, process: ProcessSnapshot, states: Mapping[int, State | None], frames: bool
) -> tuple[ThreadReport, ...]:
    held = held_resources((state.wait for state in states.values() if state is not None), process.gils)
    return tuple(
        report_thread(
            thread,
            states[thread.tid],
            held.get(thread.tid, ()),
            all_frames(session, thread) if frames else (),
        )
        for thread in process.threads
    )


def _state(thread: ThreadSnapshot, errors: ErrorLog) -> State | None:
    """What a thread does, None where its wait cannot be read."""
    try:
        return state_of(thread)
    except GdbextError as error:
        errors.note(error, f"wait of thread {thread.tid}")
        return None


def _places(process: ProcessSnapshot, procfs: ProcFs | None) -> dict[int, Place]:
    if procfs is None:
        return {}
    return {thread.tid: _place(thread, procfs.processor_seconds(thread.tid)) for thread in process.threads}


def _place(thread: ThreadSnapshot, processor_seconds: float | None) -> Place:
    addresses = tuple(frame.pc for frame in reversed(thread.frames[-_PLACED:]))
    python = tuple((frame.function, frame.line) for frame in thread.python)
    return Place(addresses, python, processor_seconds)
