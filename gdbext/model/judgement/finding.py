"""Finding: one thing worth saying about a process, by reference to what it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.model.dispatch.dispatch_frame import DispatchFrame
    from gdbext.model.judgement.finding_kind import FindingKind
    from gdbext.model.threads.wait import Wait
    from gdbext.model.threads.wait_edge import WaitEdge


class Finding(Record):
    """One finding. ``summary`` is its sentence, for people only; the other fields say what it is about."""

    kind: FindingKind
    summary: str
    threads: tuple[int, ...] = ()
    """Ids of the threads, in the order in which the sentence names them."""
    evidence: tuple[str, ...] = ()
    step: DispatchFrame | None = None
    """The operator that it is about."""
    cycle: tuple[WaitEdge, ...] = ()
    """The waits that close the circle of a deadlock."""
    wait: Wait | None = None
    """The wait at the end of the chain."""
    process_stopped: bool = False
    """The whole process was stopped by a signal (SIGSTOP, Ctrl+Z) and goes on when it is let."""
    id: str = ""
    """Unique in a report (``deadlock-1``); "" for a finding that is not listed."""
