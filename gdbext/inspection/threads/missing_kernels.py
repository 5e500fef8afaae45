"""Threads stopped where the dispatcher complains of a missing kernel: what is registered instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.errors import GdbextError
from gdbext.inspection.session import Session
from gdbext.model.dispatch.dispatch_frame import DispatchFrame
from gdbext.model.judgement.finding import Finding
from gdbext.model.judgement.finding_kind import FindingKind
from gdbext.model.threads.thread_report import ThreadReport
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.snapshot import ProcessSnapshot, ThreadSnapshot


def missing_kernels(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Iterator[Finding]:
    """A note for each such thread."""
    for thread in threads:
        snapshot = process.thread(thread.tid)
        frame = _complaining(snapshot) if snapshot is not None else None
        if frame is None or frame.op is None:
            continue
        for_key = f" for {frame.key}" if frame.key else ""
        text = f"{thread.label} is where the dispatcher finds no kernel{for_key} of {frame.qualified}"
        keys = ", ".join(_registered(session, frame.op, frame.overload)) or "no key"
        yield Finding(FindingKind.NOTE, f"{text}; there are kernels for {keys}.", (thread.tid,))


def _complaining(snapshot: ThreadSnapshot) -> DispatchFrame | None:
    """The dispatcher's frame that found no kernel."""
    level = snapshot.first(FunctionTag.NO_KERNEL)
    if level is None:
        return None
    return next((frame for frame in snapshot.dispatch if frame.level >= level), None)


def _registered(session: Session, op: str, overload: str) -> list[str]:
    """The keys that have a kernel of the operator."""
    try:
        for operator in session.dispatcher.find(op):
            if operator.overload == overload:
                return [each.key for each in session.tables.registrations(operator) if each.active]
    except GdbextError as error:
        session.errors.note(error, f"registrations of {op}")
    return []
