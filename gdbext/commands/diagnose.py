"""``dispatch-diagnose``: the verdict on one screen, its evidence, and what to try next."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gdbext.commands.reporting import dispatcher_errors, make_report, with_arguments
from gdbext.errors import GdbextError
from gdbext.inspection.target_reporting import core_errors

if TYPE_CHECKING:
    from gdbext.inspection.inspection import Inspection
    from gdbext.inspection.session import Session
    from gdbext.live.host import Host
    from gdbext.model.report import Report
    from gdbext.model.sections.section import Section
    from gdbext.model.threads.thread_report import ThreadReport
    from gdbext.probes.dispatch_pulse import CallCount

NAME = "dispatch-diagnose"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--samples", type=int, metavar="N",
                        help="look N times and tell stuck from slow; lets the process run in between")  # fmt: skip
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default 1)")
    parser.add_argument("--children", action="store_true",
                        help="look at the child processes, too: each is stopped for some milliseconds")  # fmt: skip


def run(session: Session, args: argparse.Namespace, host: Host) -> Report:
    """Inspects all threads, judges, and adds advice."""
    from gdbext.inspection.inspection import inspect_threads

    if args.samples is not None:
        return _sampled(session, args, host)
    return _report(session, args, inspect_threads(session), ())


def _sampled(session: Session, args: argparse.Namespace, host: Host) -> Report:
    """Several looks; the last session is ours to close."""
    from gdbext.live.samples import sample

    counting = _counting(session)
    try:
        last, sampled = sample(session, host, args.samples, args.interval)
        if counting is not None:
            sampled = sampled.with_calls(counting.total())
    finally:
        if counting is not None:
            counting.close()
    try:
        return _report(last, args, sampled.inspection, (sampled.section,))
    finally:
        last.target.close()


def _counting(session: Session) -> CallCount | None:
    """Counts the calls of operators between the samples; None where kernel probes are not permitted."""
    from gdbext.probes.dispatch_pulse import DispatchPulse

    target = session.target
    if target.is_core or target.recorded is not None or not session.has_torch:
        return None
    try:
        return DispatchPulse(session).counting()
    except GdbextError:
        return None


def _report(session: Session, args: argparse.Namespace, found: Inspection, sections: tuple[Section, ...]) -> Report:
    from gdbext.inspection.threads.children import children_of
    from gdbext.inspection.threads.source_lines import source_lines
    from gdbext.verdict.advice import advice

    verdict = found.judgement.verdict
    told = advice(verdict.finding, found.threads, session.target.pid, session.target.is_core)
    threads = _with_innermost_arguments(session, found.threads, verdict.finding.threads)
    shown = {session.target.pid, *verdict.finding.threads}
    involved = [thread for thread in threads if thread.tid in shown]
    children = children_of(session, args.children)
    if children is not None:
        sections = (*sections, children)
    return make_report(
        session,
        args,
        NAME,
        "diagnose",
        threads=threads,
        verdict=verdict._replace(advice=told),
        findings=found.judgement.findings,
        errors=(*dispatcher_errors(session), *core_errors(session.target, found.threads)),
        sections=(*sections, *([found.collectives] if found.collectives is not None else [])),
        sources={} if args.json else source_lines(session.target, involved),
    )


def _with_innermost_arguments(
    session: Session, threads: Sequence[ThreadReport], involved: Collection[int]
) -> list[ThreadReport]:
    """The threads; of those that the verdict is about, the innermost operator with its arguments."""
    return [
        with_arguments(session, thread, limit=1) if thread.tid in involved and thread.dispatch else thread
        for thread in threads
    ]
