"""``dispatch-diagnose``: the verdict on one screen, its evidence, what to try next, and what the child processes do."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from gdbext.diagnosis.commands.bt import with_nodes
from gdbext.diagnosis.commands.diagnose_sections import ChildrenSection, ChildReport, KnownBugsSection, PageSection
from gdbext.diagnosis.commands.diagnose_view import MAX_PATHS, render
from gdbext.diagnosis.inspect import inspect_threads, with_known_bugs
from gdbext.diagnosis.job import is_one_of_several
from gdbext.diagnosis.kinds.crashed import CRASH
from gdbext.diagnosis.kinds.lost import of_child
from gdbext.diagnosis.kinds.state import IDLE
from gdbext.diagnosis.report.finding import Verdict
from gdbext.diagnosis.report.suggestion import CHILDREN, SAMPLES
from gdbext.diagnosis.reporting import (
    core_errors,
    dispatcher_errors,
    keep_origin,
    make_report,
    page_origin,
    with_arguments,
)
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.threads.frame_locals import with_locals
from gdbext.diagnosis.threads.source_lines import source_lines
from gdbext.diagnosis.threads.thread_reporting import all_frames
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_mode import Mode
from gdbext.diagnosis.verdict.advice import advice, of_parent, of_ranks
from gdbext.engine.glibc.pthread import brief_look
from gdbext.engine.numbers import integer
from gdbext.engine.targets.live import supervision
from gdbext.engine.targets.live.local_process import read_file
from gdbext.engine.targets.live.unstopped import UnstoppedProcess
from gdbext.engine.targets.system.linux import parse_environ
from gdbext.errors import GdbextError
from gdbext.render.plain_json import plain

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Collection, Iterator

    from gdbext.diagnosis.inspect import Inspection
    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.report.finding import Finding
    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.engine.targets.base_target import TargetThread
    from gdbext.engine.targets.system.peer import ChildProcess
    from gdbext.engine.terminal import CommandLine
    from gdbext.engine.vocabulary import Section
    from gdbext.render import Style


HANGS, CRASHED = 3, 4
"""The exit statuses of --exit-code for a process that does not go on by itself, and for one that crashed."""


class Diagnose(Tool):
    """The command ``dispatch-diagnose`` as a tool."""

    name = "dispatch-diagnose"
    summary = "Say why the process hangs or crashed, with evidence and what to try next."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Several looks, and child processes."""
        parser.add_argument(
            "--samples",
            type=integer,
            metavar="N",
            help="take N samples to tell stuck from slow; the process runs in between",
        )
        parser.add_argument(
            "--interval", type=float, default=1.0, metavar="S", help="seconds between samples (default: 1)"
        )
        parser.add_argument(
            "--children",
            action="store_true",
            help="also diagnose the child processes; each is stopped for a few milliseconds",
        )

        parser.add_argument("--device", action="store_true", help="also ask NVIDIA's driver and the kernel's log")
        parser.add_argument(
            "--exit-code", action="store_true", help=f"exit {HANGS} if hung, {CRASHED} if crashed, else 0"
        )

        parser.add_argument(
            "--html",
            metavar="FILE",
            help="also write a page to share: verdict, drawing, all threads, what to try; it needs no network",
        )
        parser.add_argument(
            "--without-values",
            action="store_true",
            help="omit variables, arguments and source lines from the --html page",
        )

    def exit_status(self, report: Report, args: Namespace) -> int:
        """The verdict as a number, where --exit-code asks for it."""
        if not args.exit_code or not report.verdict:
            return 0
        kind = report.verdict.finding.kind
        if kind is CRASH:
            return CRASHED
        return HANGS if kind.is_defect else 0

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Inspect all threads, judge, and add advice."""
        if args.samples is not None:
            return self._sampled(session, args, host)
        few = args.only_text and not args.html and not session.target.records
        session, found = session.settled(partial(_inspected, few=few))
        keep_origin(session)
        return self._report(session, args, found, (), host.called)

    def _sampled(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Several looks; the last session is ours to close."""
        from gdbext.diagnosis.samples import sample  # 16 ms, for --samples

        counting = session.extras.call_count(session)
        try:
            last, sampled = sample(session, host, args.samples, args.interval)
            if counting is not None:
                sampled = sampled.with_calls(counting.total())
        finally:
            if counting is not None:
                counting.close()
        try:
            found = _completed(last, sampled.inspection)
            return self._report(last, args, found, (sampled.section,), host.called)
        finally:
            last.target.close()

    def _report(
        self, session: Session, args: Namespace, found: Inspection, sections: tuple[Section, ...], called: CommandLine
    ) -> Report:
        verdict = found.judgement.verdict
        shown = {session.target.pid, *verdict.finding.threads}
        involved = [thread for thread in found.threads if thread.tid in shown]
        children = children_of(session, args.children, awaited_children(session, verdict.finding))
        if children:
            sections = (*sections, children)
            verdict = with_cause(verdict, children)
        if args.device:
            from gdbext.diagnosis.job.devices import system_section  # 12 ms, for --device

            sections = (*sections, system_section(session.target, session.procfs))
        told = _told(session, found, args, called, children)
        told = (*told, *(line for section in found.sections for line in section.advice))
        report = make_report(
            self,
            session,
            args,
            threads=found.threads,
            verdict=Verdict.of(verdict.finding, told),
            findings=found.judgement.findings,
            errors=(*dispatcher_errors(session), *core_errors(session.target, found.threads)),
            sections=(*sections, *_sections(found, args)),
            sources={} if args.json else source_lines(session.target, involved),
        )
        if args.html:
            _write_page(session, args, report, called)
        return report

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        return render(report, style)


def _told(
    session: Session, found: Inspection, args: Namespace, called: CommandLine, children: ChildrenSection | None
) -> tuple[str, ...]:
    """The advice: of a rank or a launcher of ranks to look at all of them, first of all."""
    used = [option for option, given in ((SAMPLES, args.samples is not None), (CHILDREN, args.children)) if given]
    finding, target = found.judgement.verdict.finding, session.target
    stop = next((each.stop for each in found.judgement.findings if each.stop), None)
    told = advice(finding, found.threads, target.pid, target.is_core, called, target.debugger, stop, used)
    if children and not children.are_known:
        told = (*of_parent(finding, called, used), *told)
    if children:
        awaited = {child.pid for child in finding.wait.detail.children} if finding.wait else set()
        told = (*of_child(each.kind for each in children.children if each.pid in awaited), *told)
    stands = finding.kind.is_hang or finding.kind is IDLE
    if stands and called.may_run and not target.is_core and _is_of_job(session, children):
        told = tuple(dict.fromkeys((of_ranks(target.pid, called), *told)))
    return told


def _is_of_job(session: Session, children: ChildrenSection | None) -> bool:
    """A launcher gave it, or one of its children, a rank in a job of several."""
    if is_one_of_several(session.target.environ()):
        return True
    if not children or session.target.recorded:  # those of a recording are none of this machine's
        return False
    if any(child.is_rank for child in children.children):
        return True
    for child in children.children[:MAX_EXAMINED]:
        try:
            if is_one_of_several(parse_environ(read_file(child.pid, "environ"))):
                return True
        except GdbextError:
            continue
    return False


def _sections(found: Inspection, args: Namespace) -> Iterator[Section]:
    if found.known:
        yield KnownBugsSection(found.known)
    if found.slowness:
        yield from found.slowness.sections
    yield from found.sections
    if args.html:
        yield PageSection(args.html)


def _write_page(session: Session, args: Namespace, report: Report, called: CommandLine) -> None:
    """Write the page of --html, with the source lines of all threads. Raises UsageError."""
    from gdbext.diagnosis.commands.diagnose_page import write_page  # 10 ms, for --html

    origin = page_origin(session, called.command("dispatch-diagnose"))
    whole = report._replace(sources=source_lines(session.target, report.threads))
    write_page(args.html, whole, origin, not args.without_values)


def _inspected(session: Session, few: bool = False) -> Inspection:
    return _completed(session, inspect_threads(session), few)


def _completed(session: Session, found: Inspection, few: bool = False) -> Inspection:
    """``few``: the arguments of those operators alone that the text shows."""
    found = with_known_bugs(session, found)
    finding = found.judgement.verdict.finding
    threads = _with_innermost_arguments(session, finding, found.threads, few)
    threads = _with_ends(session, finding, threads)
    return found._replace(threads=_with_variables(session, finding, threads))


MOST_WITH_VARIABLES = 4
"""Threads of the verdict whose variables are read."""


def _with_variables(session: Session, finding: Finding, threads: tuple[ThreadReport, ...]) -> tuple[ThreadReport, ...]:
    """The threads with the variables of the user's innermost frame, those that the report shows frames of."""
    wanted = {*finding.threads[:MOST_WITH_VARIABLES], session.target.pid}
    shown = [thread for thread in threads if thread.tid in wanted and thread.python_frames]
    if not shown:
        return threads
    known = {thread.tid: thread for thread in with_locals(session, shown)}
    return tuple(known.get(thread.tid, thread) for thread in threads)


def _with_innermost_arguments(
    session: Session, finding: Finding, threads: tuple[ThreadReport, ...], few: bool
) -> tuple[ThreadReport, ...]:
    """The threads with the arguments of the innermost operator, those that the verdict is about."""
    inside = {thread.tid for thread in threads if thread.dispatch}
    wanted = [tid for tid in finding.threads if tid in inside]
    if few:
        wanted = wanted[:MAX_PATHS]
    process, shown = session.threads.all(), set(wanted)
    return tuple(
        with_arguments(session, report, thread.stack, limit=1)
        if report.tid in shown and (thread := process.thread(report.tid))
        else report
        for report in threads
    )


def _with_ends(session: Session, finding: Finding, threads: tuple[ThreadReport, ...]) -> tuple[ThreadReport, ...]:
    """The threads with the stacks of those in the verdict that are neither in the dispatcher nor in Python, and with
    the nodes of backward passes: a chain may end on a thread of torch's own. Of a thread that crashed outside of the
    dispatcher the native frames tell where."""
    is_crash = finding.kind is CRASH
    involved = [tid for tid in finding.threads if is_crash or tid != session.target.pid][-_MAX_ENDS:]
    bare = {thread.tid for thread in threads if thread.tid in involved and not thread.dispatch}
    if not bare:
        return threads
    targets = {thread.tid: thread for thread in session.target.threads() if thread.tid in bare}
    return tuple(
        _with_stack(session, thread, targets[thread.tid], is_crash) if thread.tid in targets else thread
        for thread in threads
    )


def _with_stack(session: Session, report: ThreadReport, thread: TargetThread, is_crash: bool) -> ThreadReport:
    try:
        report = with_nodes(session, thread, report)
        if report.python_frames and not is_crash:
            return report
        return report._replace(frames=all_frames(session, session.threads.of(thread)))
    except GdbextError:
        return report


_MAX_ENDS = 3
"""Threads of a chain, from its end on, whose stacks are shown."""
MAX_EXAMINED = 64
"""Children that are looked at: each stands still for some milliseconds."""


MAX_FOLLOWED = 3
"""Children that are looked at by themselves, because the verdict is that the process waits for them."""


def awaited_children(session: Session, finding: Finding) -> tuple[int, ...]:
    """Pids of the children that the verdict's wait is for, the stuck ones first; empty where no process may be looked
    at: in a core, in a recording, and where nobody is to be stopped."""
    target = session.target
    children = finding.wait.detail.children if finding.wait else ()
    if not children or target.is_core or target.recorded:
        return ()
    if isinstance(target, UnstoppedProcess):
        return ()
    return tuple(child.pid for child in children if not child.ending)[:MAX_FOLLOWED]


def with_cause(verdict: Verdict, children: ChildrenSection) -> Verdict:
    """The verdict, with the cause that was found in a child that the process waits for; where it waits for that child
    alone, at least with the program's line that it is at, or with what is said of it."""
    wait = verdict.finding.wait
    awaited = {child.pid for child in wait.detail.children} if wait else set()
    looked_at = [each for each in children.children if each.pid in awaited and each.verdict]
    found = [each for each in looked_at if each.is_stuck]
    if found:
        child = min(found, key=lambda each: each.rank)
        text = f"{verdict.finding.summary} In process {child.pid}: {child.summary}"
    elif len(awaited) == 1 and looked_at and looked_at[0].line:
        text = f"{verdict.finding.summary} {looked_at[0].told}"
    else:
        return verdict
    return Verdict.of(verdict.finding._replace(summary=text))


def children_of(session: Session, examine: bool, awaited: Collection[int] = ()) -> ChildrenSection | None:
    """The children; None where there are none, or nobody knows (a core). ``examine``: each is read as the process
    itself is, and stopped where it does not sleep; else those that are ``awaited``."""
    known = session.procfs.children()
    children = [known[pid] for pid in sorted(known)]
    if not children:
        return None
    theirs = session.procfs.grandchildren()
    family: list[tuple[ChildProcess, int | None]] = []
    for child in children:
        family += [(child, None), *((each, child.pid) for each in theirs.get(child.pid, ()))]
    reports = (
        _examined(each, parent) if number < MAX_EXAMINED and (examine or each.pid in awaited) else _report(each, parent)
        for number, (each, parent) in enumerate(family)
    )
    return ChildrenSection(tuple(reports))


def _report(child: ChildProcess, parent: int | None) -> ChildReport:
    return ChildReport(child.pid, child.command or child.name, child.doing, parent=parent)


def _examined(child: ChildProcess, parent: int | None) -> ChildReport:
    known = _report(child, parent)
    if child.ending:
        return known
    if not supervision.is_suspect(child.pid):
        return _looked_at(known)
    found = supervision.by_child(lambda: json.dumps(plain(_looked_at(known))).encode(), supervision.STUCK_SECONDS)
    if not found:
        return known._replace(summary=f"the kernel lets nobody read it ({supervision.sleepers(child.pid)})")
    return known._replace(**json.loads(found))


def _looked_at(known: ChildReport) -> ChildReport:
    try:
        target = brief_look(known.pid)
    except GdbextError as error:
        return known._replace(summary=error.what)
    try:
        _, found = Session(target).settled(inspect_threads)
    except GdbextError as error:
        return known._replace(summary=error.what)
    finally:
        target.close()
    main = next((thread for thread in found.threads if thread.tid == known.pid), None)
    line = (main.user_line or main.python_line) if main else ""
    finding = found.judgement.verdict.finding
    stands = main is not None and main.stands
    is_rank = any(section.name == "collectives" for section in found.sections)
    return known._replace(
        verdict=finding.kind.value, summary=finding.summary, line=line, stands=stands, is_rank=is_rank
    )
