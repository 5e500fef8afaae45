"""Finding: one thing worth saying about a process, by reference to what it is about."""

from __future__ import annotations

from dataclasses import dataclass

from gdbext.model.dispatch_frame import DispatchFrame
from gdbext.model.finding_kind import FindingKind
from gdbext.model.wait import Resource


@dataclass(frozen=True)
class CycleEdge:
    """Thread ``tid`` waits for ``waits_for``, which thread ``held_by`` holds."""

    tid: int
    waits_for: Resource
    held_by: int


@dataclass(frozen=True)
class Finding:
    """One finding. ``summary`` is its sentence, for people only; the other fields say what it is about."""

    kind: FindingKind
    summary: str
    threads: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    step: DispatchFrame | None = None
    """The operator that it is about."""
    cycle: tuple[CycleEdge, ...] = ()
    process_stopped: bool = False
    """The whole process was stopped by a signal (SIGSTOP, Ctrl+Z) and goes on when it is let."""
    id: str = ""
    """Unique in a report: ``deadlock-1``; "" for a finding that is not listed."""
