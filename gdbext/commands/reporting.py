"""What all commands put into their reports."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.inspection.target_reporting import report_target, target_errors
from gdbext.model.error_report import ErrorReport
from gdbext.model.report import Report
from gdbext.model.threads.source_line import NO_SOURCES, SourceLines

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.ending import Ending
    from gdbext.model.judgement.finding import Finding
    from gdbext.model.judgement.verdict import Verdict
    from gdbext.model.sections.section import Section
    from gdbext.model.target_report import TargetReport
    from gdbext.model.threads.thread_report import ThreadReport


def make_report(
    session: Session,
    args: argparse.Namespace,
    command: str,
    view: str,
    *,
    threads: Sequence[ThreadReport] = (),
    verdict: Verdict | None = None,
    findings: Sequence[Finding] = (),
    errors: Sequence[ErrorReport] = (),
    sections: Sequence[Section] = (),
    sources: SourceLines = NO_SOURCES,
    target: TargetReport | None = None,
    ending: Ending | None = None,
) -> Report:
    """The report of a command: what it found, on which target, and everything that could not be read on the way.

    ``view`` names the text view (a module of render.text.views). ``errors`` are those that the session does not know.
    A live command gives the ``ending`` of its run, and the ``target`` as it was if it may have changed since.
    """
    leaves_process = ending is None or ending.kind.leaves_process
    unread = session.errors.reports() if leaves_process else ()  # of a process that has ended nothing is missed
    failed = () if ending is None or ending.error is None else (ErrorReport.of(ending.error, command),)
    return Report(
        command=command,
        target=target or report_target(session),
        view=view,
        threads=tuple(threads),
        verdict=verdict,
        findings=tuple(findings),
        errors=(*failed, *errors, *unread, *target_errors(session.target)),
        sections=tuple(sections),
        why=args.why,
        sources=sources,
    )


def dispatcher_errors(session: Session) -> tuple[ErrorReport, ...]:
    """Why nothing is known of the dispatcher; empty where it can be read."""
    error = session.dispatcher_error
    return () if error is None else (ErrorReport.of(error, "torch"),)


def with_arguments(
    session: Session, report: ThreadReport, statistics: bool = False, limit: int | None = None
) -> ThreadReport:
    """A thread's report with the arguments of its ``limit`` innermost dispatcher frames; as it is where no layout fits.

    ``statistics``: of the tensors among them.
    """
    from gdbext.inspection.threads.arguments import ArgumentReporter
    from gdbext.inspection.threads.thread_choice import find_thread

    if session.dispatcher_error is not None:
        return report
    stack = session.threads.of(find_thread(session.target, str(report.tid))).stack
    found = ArgumentReporter(session, statistics).frames(stack, limit)
    frames = (old._replace(arguments=new.arguments) for old, new in zip(report.dispatch, found))
    return report._replace(dispatch=tuple(frames))
