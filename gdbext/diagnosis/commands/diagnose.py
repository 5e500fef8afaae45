"""``dispatch-diagnose``: the verdict on one screen, its evidence, what to try next, and what the child processes do."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from gdbext.diagnosis.commands.diagnose_sections import ChildrenSection, ChildReport, KnownBugsSection, PageSection
from gdbext.diagnosis.commands.diagnose_view import MAX_PATHS, render
from gdbext.diagnosis.commands.stuck_children import follows_children, stuck_child, suspects, with_stuck_child
from gdbext.diagnosis.inspect import inspect_threads, with_known_bugs
from gdbext.diagnosis.job import is_one_of_several
from gdbext.diagnosis.kinds.crashed import CRASH
from gdbext.diagnosis.kinds.lost import advice_on_child
from gdbext.diagnosis.kinds.state import IDLE
from gdbext.diagnosis.report.finding import Verdict
from gdbext.diagnosis.report.suggestion import CHILDREN, SAMPLES, Suggestion
from gdbext.diagnosis.reporting import (
    core_errors,
    dispatcher_errors,
    keep_origin,
    make_report,
    page_origin,
    with_arguments,
)
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.threads.frame_locals import FrameLocals
from gdbext.diagnosis.threads.source_lines import source_lines
from gdbext.diagnosis.threads.thread_reporting import all_frames, with_nodes
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_mode import Mode
from gdbext.diagnosis.verdict.advice import advice, advice_on_children, advice_on_ranks
from gdbext.engine.glibc.pthread import briefly_stopped
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
    from gdbext.engine.targets.system.peer import ChildProcess
    from gdbext.engine.terminal import CommandLine
    from gdbext.engine.vocabulary import Section
    from gdbext.render import Style


HANGS, CRASHED = 3, 4
"""The exit statuses of --exit-code for a hung process and a crashed one."""
MAX_EXAMINED = 64
"""Children that are examined: each is stopped for some milliseconds."""


class Diagnose(Tool):
    """The command ``dispatch-diagnose`` as a tool."""

    name = "dispatch-diagnose"
    summary = "Say why the process hangs or crashed, with evidence and what to try next."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        samples_help = "take N samples to tell stuck from slow; the process runs in between"
        add("--samples", type=integer, metavar="N", help=samples_help)
        add("--interval", type=float, default=1.0, metavar="S", help="seconds between samples (default: 1)")
        children_help = "also diagnose the child processes; each is stopped for a few milliseconds"
        add("--children", action="store_true", help=children_help)
        add("--device", action="store_true", help="also query NVIDIA's driver and the kernel log")
        add("--exit-code", action="store_true", help=f"exit {HANGS} if hung, {CRASHED} if crashed, else 0")
        page_help = "also write a page to share: verdict, drawing, all threads, what to try; it needs no network"
        add("--html", metavar="FILE", help=page_help)
        without_help = "omit variables, arguments and source lines from the --html page"
        add("--without-values", action="store_true", help=without_help)

    def exit_status(self, report: Report, args: Namespace) -> int:
        """With --exit-code: CRASHED, HANGS for a defect, else 0."""
        if not args.exit_code or not report.verdict:
            return 0
        kind = report.verdict.finding.kind
        return CRASHED if kind is CRASH else HANGS if kind.is_defect else 0

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Inspect and judge, once or with --samples; the report has what the text and the page show."""
        if args.samples is not None:
            return self._report_samples(session, args, host)
        few = args.only_text and not args.html and not session.target.memory.records
        session, inspection = session.read_consistently(partial(_inspected, few=few))
        keep_origin(session)
        return self._report(session, args, inspection, (), host.called)

    def _report_samples(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """The report on several samples; closes their sessions."""
        from gdbext.diagnosis.samples import sample  # 16 ms, for --samples

        counting = session.extras.call_count(session)
        try:
            count_calls = counting.total if counting is not None else lambda: None
            last, inspection, section = sample(session, host.pause, args.samples, args.interval, count_calls)
        finally:
            if counting is not None:
                counting.close()
        try:
            return self._report(last, args, _completed(last, inspection), (section,), host.called)
        finally:
            last.target.close()

    def _report(
        self,
        session: Session,
        args: Namespace,
        inspection: Inspection,
        sections: tuple[Section, ...],
        called: CommandLine,
    ) -> Report:
        """The report with sections on children, devices, known bugs and slowness, and advice; writes --html."""
        verdict = inspection.judgement.verdict
        shown = {session.target.pid, *verdict.finding.threads}
        involved = [thread for thread in inspection.threads if thread.tid in shown]
        examined = awaited_children(session, verdict.finding)
        if follows_children(session, inspection):
            examined = (*examined, *suspects(session))
        children = children_of(session, args.children, examined)
        more: list[Section] = [children] if children else []
        if children:
            verdict = with_cause(verdict, children)
            verdict = with_stuck_child(session, inspection, verdict, children)
        if args.device:
            from gdbext.diagnosis.job.devices import system_section  # 12 ms, for --device

            more.append(system_section(session.target, session.procfs))
        more += [KnownBugsSection(inspection.known)] if inspection.known else []
        more += inspection.slowness.sections if inspection.slowness else ()
        more += [*inspection.sections, *([PageSection(args.html)] if args.html else [])]
        steps = _advice(session, inspection, args, called, children)
        steps = (*steps, *(line for section in inspection.sections for line in section.advice))
        report = make_report(
            self,
            session,
            args,
            threads=inspection.threads,
            verdict=Verdict.of(verdict.finding, steps),
            findings=inspection.judgement.findings,
            errors=(*dispatcher_errors(session), *core_errors(session.target, inspection.threads)),
            sections=(*sections, *more),
            sources={} if args.json else source_lines(session.target, involved),
        )
        if args.html:
            from gdbext.diagnosis.commands.diagnose_page import write_page  # 10 ms, for --html

            origin = page_origin(session, called.command("dispatch-diagnose"))
            whole = report._replace(sources=source_lines(session.target, report.threads))
            write_page(args.html, whole, origin, not args.without_values)
        return report

    def view(self, report: Report, style: Style) -> Iterator[str]:
        return render(report, style)


def _advice(
    session: Session, inspection: Inspection, args: Namespace, called: CommandLine, children: ChildrenSection | None
) -> tuple[str, ...]:
    """The steps to try; for a rank or a launcher of ranks, the first is to examine all ranks."""
    used = [option for option, given in ((SAMPLES, args.samples is not None), (CHILDREN, args.children)) if given]
    finding, target = inspection.judgement.verdict.finding, session.target
    stop = next((other.stop for other in inspection.judgement.findings if other.stop), None)
    steps = advice(finding, inspection.threads, target.pid, target.origin.is_core, called, target.debugger, stop, used)
    if children:
        if not all(child.summary for child in children.children):
            steps = (*advice_on_children(finding, called, used), *steps)
        awaited = {child.pid for child in finding.wait.detail.children} if finding.wait else set()
        steps = (*advice_on_child(child.kind for child in children.children if child.pid in awaited), *steps)
    followed = stuck_child(inspection, children) if children else None
    if followed and called.may_run:
        examine = Suggestion("Examine that process with the same command", "", followed.pid).text(called)
        steps = (examine, *advice_on_child((followed.kind,)), *steps)
    is_stopped = finding.kind.is_hang or finding.kind is IDLE
    if is_stopped and called.may_run and not target.origin.is_core and _is_of_job(session, children):
        steps = tuple(dict.fromkeys((advice_on_ranks(target.pid, called), *steps)))
    return steps


def _is_of_job(session: Session, children: ChildrenSection | None) -> bool:
    """True if the process, or one of its children, is a rank of a job with several."""
    if is_one_of_several(session.target.origin.environ()):
        return True
    if not children or session.target.origin.recorded:  # the children in a recording are not on this machine
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


def _inspected(session: Session, few: bool = False) -> Inspection:
    return _completed(session, inspect_threads(session), few)


def _completed(session: Session, inspection: Inspection, few: bool = False) -> Inspection:
    """The inspection with known bugs, and with what the verdict's threads hold: arguments of their innermost operators
    (``few``: only of those that the text shows), native frames, autograd nodes and variables."""
    inspection = with_known_bugs(session, inspection)
    finding, main = inspection.judgement.verdict.finding, session.target.pid
    process, reader, is_crash = session.threads.all(), FrameLocals(session), finding.kind is CRASH
    inside = {thread.tid for thread in inspection.threads if thread.dispatch}
    in_operators = [tid for tid in finding.threads if tid in inside][: MAX_PATHS if few else None]
    # The last three threads of a chain, which may end on one of torch's own: outside the dispatcher, stacks explain it.
    outside = {*[tid for tid in finding.threads if is_crash or tid != main][-3:]} - inside
    targets = {thread.tid: thread for thread in session.target.memory.threads() if thread.tid in outside}
    with_variables = {*finding.threads[:4], main}

    def completed(thread: ThreadReport) -> ThreadReport:
        """The report of one thread with what the verdict needs of it."""
        snapshot = process.thread(thread.tid)
        if snapshot and thread.tid in in_operators:
            thread = with_arguments(session, thread, snapshot.stack, limit=1)
        if snapshot and thread.tid in targets:
            with suppress(GdbextError):
                thread = with_nodes(session, targets[thread.tid], thread)
                if is_crash or not thread.python_frames:
                    thread = thread._replace(frames=all_frames(session, snapshot))
        return reader.with_variables(thread) if thread.tid in with_variables else thread

    return inspection._replace(threads=tuple(map(completed, inspection.threads)))


def awaited_children(session: Session, finding: Finding) -> tuple[int, ...]:
    """Pids of up to three children that the verdict's wait is for, the stuck ones first; () if no process may be
    examined: in a core, in a recording, and if none may be stopped."""
    target = session.target
    children = finding.wait.detail.children if finding.wait else ()
    if target.origin.is_core or target.origin.recorded or isinstance(target, UnstoppedProcess):
        return ()
    return tuple(child.pid for child in children if not child.ending)[:3]


def with_cause(verdict: Verdict, children: ChildrenSection) -> Verdict:
    """The verdict with the cause that was found in a child for which the process waits, or, if it waits for only one
    child, with that child's line or verdict."""
    wait = verdict.finding.wait
    awaited = {child.pid for child in wait.detail.children} if wait else set()
    examined = [child for child in children.children if child.pid in awaited and child.verdict]
    stuck = [child for child in examined if child.is_stuck]
    if stuck:
        child = min(stuck, key=lambda child: (child.rank, not child.stands))
        text = f"{verdict.finding.summary} In process {child.pid}: {child.summary}"
    elif len(awaited) == 1 and examined and examined[0].line:
        text = f"{verdict.finding.summary} {examined[0].sentence}"
    else:
        return verdict
    return Verdict.of(verdict.finding._replace(summary=text))


def children_of(session: Session, examine: bool, awaited: Collection[int] = ()) -> ChildrenSection | None:
    """Children and grandchildren; None if there are none, or they are unknown (a core). ``examine``: inspect each,
    which stops it unless it sleeps; otherwise only those whose pids are ``awaited``."""
    children = session.procfs.children()
    if not children:
        return None
    grandchildren = session.procfs.grandchildren()
    family: list[tuple[ChildProcess, int | None]] = []
    for pid in sorted(children):
        pending: list[tuple[ChildProcess, int | None]] = [(children[pid], None)]
        while pending:
            child, parent = pending.pop(0)
            family.append((child, parent))
            pending = [*((grandchild, child.pid) for grandchild in grandchildren.get(child.pid, ())), *pending]
    reports = (
        _examined(child, parent)
        if number < MAX_EXAMINED and (examine or child.pid in awaited)
        else _child_report(child, parent)
        for number, (child, parent) in enumerate(family)
    )
    return ChildrenSection(tuple(reports))


def _child_report(child: ChildProcess, parent: int | None) -> ChildReport:
    return ChildReport(child.pid, child.command or child.name, child.doing, parent=parent)


def _examined(child: ChildProcess, parent: int | None) -> ChildReport:
    """The report on a child process after an inspection of it, by a helper process if reading it may block."""
    report = _child_report(child, parent)
    if child.ending:
        return report
    if not supervision.may_block_readers(child.pid):
        return _inspected_child(report)
    # Reading it may block, so a child process of gdbext does that.
    data = supervision.run_in_child(
        lambda: json.dumps(plain(_inspected_child(report))).encode(), supervision.STUCK_SECONDS
    )
    if not data:
        return report._replace(
            summary=f"the kernel does not let any process read it ({supervision.thread_states_text(child.pid)})"
        )
    return report._replace(**json.loads(data))


def _inspected_child(report: ChildReport) -> ChildReport:
    """The report with the child's verdict and line, or with the reason why it cannot be read."""
    try:
        target = briefly_stopped(report.pid)
    except GdbextError as error:
        return report._replace(summary=error.what)
    try:
        _, inspection = Session(target).read_consistently(inspect_threads)
    except GdbextError as error:
        return report._replace(summary=error.what)
    finally:
        target.close()
    main = next((thread for thread in inspection.threads if thread.tid == report.pid), None)
    finding = inspection.judgement.verdict.finding
    return report._replace(
        verdict=finding.kind.value,
        summary=finding.summary,
        line=(main.user_line or main.python_line) if main else "",
        stands=main is not None and main.waits_in_user_code,
        is_rank=any(section.name == "collectives" for section in inspection.sections),
    )
