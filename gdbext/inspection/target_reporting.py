"""The ``target`` of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.inspection.session import Session
from gdbext.model.error_report import ErrorReport
from gdbext.model.target_report import TargetReport
from gdbext.targets.base import Target

if TYPE_CHECKING:
    from gdbext.model.threads.thread_report import ThreadReport

_ASK_THE_PROCESS = (
    "look at the process itself while it lives (scripts/dispatch -p PID); --record FILE keeps all of this beside a core"
)
_TAKE_AGAIN = "take a new one with: gcore PID; the disk may have been full, or ulimit -c too low"
_RECORD_AGAIN = "record the process again with this very command: a recording holds only what was read"


def report_target(session: Session) -> TargetReport:
    """The process, with the torch and the Python in it."""
    target, layout = session.target, session.layout_if_known
    return TargetReport(
        kind=target.kind,
        pid=target.pid,
        debugger=target.debugger,
        torch_version=torch_version(session),
        layout_id=layout.id if layout is not None else None,
        layout_match=layout.match if layout is not None else "none",
        python_version=session.python.version if session.python is not None else None,
        paused_ms=None if target.paused_ms is None else round(target.paused_ms, 3),
        moved=tuple(target.moved()),
        recording=target.recorded,
    )


def target_errors(target: Target) -> tuple[ErrorReport, ...]:
    """What the target lacks, whatever is asked of it: the end of a core; what was asked of a recording and is not in
    it."""
    damage = tuple(ErrorReport(what, "core", _TAKE_AGAIN) for what in target.damage())
    lacks = target.lacks()
    return (*damage, ErrorReport(f"not in the recording: {lacks}", "recording", _RECORD_AGAIN)) if lacks else damage


def core_errors(target: Target, threads: Sequence[ThreadReport]) -> tuple[ErrorReport, ...]:
    """What cannot be told of the threads' waits because the target is a core; empty for any other target."""
    if not target.is_core:
        return ()
    from gdbext.verdict.core_limits import unknown_in_core

    unknown = unknown_in_core(threads)
    return (ErrorReport(f"not in a core: {'; '.join(unknown)}", "core", _ASK_THE_PROCESS),) if unknown else ()


def torch_version(session: Session) -> str | None:
    """As torch.__version__ has it, "unknown" where nothing tells, None without torch."""
    from gdbext.layouts import select

    if not session.has_torch:
        return None
    layout = session.layout_if_known
    measured = layout.version if layout is not None and layout.match == "exact" else ""
    return select.torch_version(session.modules) or measured or "unknown"
