"""The child processes of the examined one: what each of them does, and with ``--children`` its own verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.sections.children_section import ChildrenSection, ChildReport
    from gdbext.model.threads.child_process import ChildProcess

MAX_EXAMINED = 64
"""Children that are looked at: each stands still for some milliseconds."""


def children_of(session: Session, examine: bool) -> ChildrenSection | None:
    """The children; None where there are none, or nobody knows (a core). ``examine``: each is stopped, read and let go
    again, as the process itself is."""
    known = session.procfs.children() if session.procfs is not None else {}
    children = [known[pid] for pid in sorted(known)]
    if not children:
        return None
    from gdbext.model.sections.children_section import ChildrenSection

    assert session.procfs is not None
    theirs = session.procfs.grandchildren()
    family: list[tuple[ChildProcess, int | None]] = []
    for child in children:
        family += [(child, None), *((each, child.pid) for each in theirs.get(child.pid, ()))]
    reports = (
        _examined(each, parent) if examine and number < MAX_EXAMINED else _report(each, parent)
        for number, (each, parent) in enumerate(family)
    )
    return ChildrenSection(tuple(reports))


def _report(child: ChildProcess, parent: int | None) -> ChildReport:
    from gdbext.model.sections.children_section import ChildReport

    return ChildReport(child.pid, child.command or child.name, child.doing, parent=parent)


def _examined(child: ChildProcess, parent: int | None) -> ChildReport:
    from dataclasses import replace

    from gdbext.inspection.inspection import inspect_settled
    from gdbext.inspection.session import Session
    from gdbext.targets.live.brief_stop import brief_stop

    known = _report(child, parent)
    if child.ending:
        return known
    try:
        target = brief_stop(child.pid)
    except GdbextError as error:
        return replace(known, summary=error.what)
    try:
        _, found = inspect_settled(Session(target))
    except GdbextError as error:
        return replace(known, summary=error.what)
    finally:
        target.close()
    main = next((thread for thread in found.threads if thread.tid == child.pid), None)
    line = (main.user_line or main.python_line) if main is not None else ""
    finding = found.judgement.verdict.finding
    return replace(known, verdict=finding.kind.value, summary=finding.summary, line=line)
