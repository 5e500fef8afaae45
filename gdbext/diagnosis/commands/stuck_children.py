"""A process that only waits, and one of whose descendants is stopped, dead or stuck: that is its verdict, too.

A server's own process looks the same whether its workers work or hang: users know that process, not the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.kinds.outside import KERNEL_WAIT
from gdbext.diagnosis.kinds.state import STOPPED
from gdbext.diagnosis.report.finding import Verdict
from gdbext.diagnosis.report.thread_report import RunState
from gdbext.engine.targets.live.unstopped import UnstoppedProcess
from gdbext.engine.targets.system.peer import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gdbext.diagnosis.commands.diagnose_sections import ChildrenSection, ChildReport
    from gdbext.diagnosis.inspect import Inspection
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.system.peer import ChildProcess

_MOST_EXAMINED = 16
"""Descendants that are examined without being asked for: each takes some hundredths of a second."""


def follows_children(session: Session, inspection: Inspection) -> bool:
    """True if the process only waits, and its descendants may be examined."""
    origin = session.target.origin
    if origin.is_core or origin.recorded or isinstance(session.target, UnstoppedProcess):
        return False
    return _only_waits(inspection)


def suspects(session: Session) -> tuple[int, ...]:
    """PIDs of the descendants to examine, the most suspicious first: stopped ones, then those whose main thread is in a
    futex, which may be a lock; without those that have exited."""
    family = [child for child in _descendants(session) if not child.ending]
    family.sort(key=lambda child: (not child.is_stopped, child.call != "futex"))
    return tuple(child.pid for child in family[:_MOST_EXAMINED])


def _descendants(session: Session) -> Iterator[ChildProcess]:
    yield from session.procfs.children().values()
    for children in session.procfs.grandchildren().values():
        yield from children


def stuck_child(inspection: Inspection, children: ChildrenSection) -> ChildReport | None:
    """The descendant that is stuck by its own diagnosis, if the process itself only waits: an error of the program
    first, then a stopped one; of equal ones the outermost. None if there is none."""
    if not _only_waits(inspection):
        return None
    stuck = [child for child in children.children if child.kind.is_defect or child.kind in (STOPPED, KERNEL_WAIT)]
    return min(stuck, key=lambda child: (not child.kind.is_defect, child.kind is not STOPPED, child.rank), default=None)


def with_stuck_child(session: Session, inspection: Inspection, verdict: Verdict, children: ChildrenSection) -> Verdict:
    """The verdict on the process's stuck descendant, if there is one; else the verdict, after the descendants that were
    killed and that are not reaped."""
    own = inspection.judgement.verdict.finding
    child = stuck_child(inspection, children)
    if child:
        text = f"In its {_relation(child, children.children)} process {child.pid}: {child.summary}"
        summary = f"{text} In process {session.target.pid}: {own.summary}"
        return Verdict.of(verdict.finding._replace(kind=child.kind, summary=summary))
    named = {child.pid for child in own.wait.detail.children} if own.wait else set()
    dead = [child for child in _descendants(session) if child.is_unexpectedly_dead and child.pid not in named]
    if not dead or not _only_waits(inspection) or (own.wait and own.wait.detail.lost):
        return verdict
    plural = "es" if len(dead) > 1 else ""
    text = f"Below it, process{plural} {listed(dead, 4)} {'are' if plural else 'is'} dead."
    return Verdict.of(verdict.finding._replace(summary=f"{text} {own.summary}"))


def _only_waits(inspection: Inspection) -> bool:
    """True if the main thread waits, though not at a prompt, and nothing in the process itself is wrong. A shell at its
    prompt waits for its user, not for the jobs that he has stopped."""
    main = inspection.observations.main if inspection.observations else None
    return inspection.judgement.verdict.finding.kind.is_quiet and main is not None and main.state is RunState.WAITING


def _relation(child: ChildReport, family: Iterable[ChildReport]) -> str:
    """``child``, ``grandchild``, or ``descendant`` by the number of generations between."""
    parents = {each.pid: each.parent for each in family}
    generations, pid = 0, child.parent
    while pid is not None and generations < len(parents):
        generations, pid = generations + 1, parents.get(pid)
    return ("child", "grandchild")[generations] if generations < 2 else "descendant"
