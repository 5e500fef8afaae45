"""The parts that all tools put into their reports: the target, and what could not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.report import CutCall, LayoutReport, PythonReport, Report, TargetReport, TorchReport
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.threads.frame_locals import FrameLocals
from gdbext.diagnosis.threads.python_call_arguments import PythonCallArguments
from gdbext.diagnosis.threads.source_lines import NO_SOURCES, SourceLines
from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.diagnosis.verdict.clauses import listed
from gdbext.engine.vocabulary import ErrorReport
from gdbext.torch import layout_choice

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from gdbext.diagnosis.report import Ending
    from gdbext.diagnosis.report.finding import Finding, Verdict
    from gdbext.diagnosis.report.wait import Wait
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import Tool
    from gdbext.engine.targets.base_target import Target
    from gdbext.engine.unwind import NativeStack
    from gdbext.engine.vocabulary import Section
    from gdbext.render.page import Origin


_ORIGIN = "origin"
"""The name of a recording's text with the program and the machine."""


def keep_origin(session: Session) -> None:
    """Let a recording store its program and machine, for a page that is made from it."""
    session.target.origin.files.store_text(_ORIGIN, lambda: "\n".join(_program_and_machine(session)))


def _program_and_machine(session: Session) -> tuple[str, str]:
    """The process's program and machine; "" each if unknown."""
    files = session.target.origin.files
    if not session.procfs:
        return "", ""
    if not files.are_here:
        program, _, machine = files.stored_text(_ORIGIN).partition("\n")
        return program, machine
    return session.procfs.process(session.target.pid).command, files.host()


def page_origin(session: Session, command: str) -> Origin:
    """The facts about the making of a page: date, version, program, machine and ``command``."""
    from gdbext.render.page import origin_now  # 7 ms, for pages

    return origin_now(*_program_and_machine(session), command)


def unknown_in_core(threads: Sequence[ThreadReport]) -> list[str]:
    """Clauses on facts that only the kernel of a live process has (file descriptors, processes, files and clocks), each
    with the threads whose waits it would explain."""
    waiting = [(thread, thread.wait) for thread in threads if thread.wait and thread.state is not RunState.IDLE]
    unknown: list[str] = []

    def note(what: str, is_concerned: Callable[[Wait], bool]) -> None:
        labels = [thread.label for thread, wait in waiting if is_concerned(wait)]
        if labels:
            unknown.append(f"{what}, for {listed(labels)}")

    def lacks_store(wait: Wait) -> bool:
        collective = wait.detail.collective
        return collective is not None and collective.is_store and not collective.server

    def is_sleep_of_unknown_length(wait: Wait) -> bool:
        return wait.kind is WaitKind.SLEEP and wait.timed and wait.detail.seconds is None

    def is_in_shared_memory(wait: Wait) -> bool:
        return wait.external and wait.kind.traits.needs_thread

    def may_result_from_fork(wait: Wait) -> bool:
        missing = wait.detail.missing_workers
        lacks_owner = wait.kind.traits.is_lock and not wait.owners and not wait.being_released
        return lacks_owner or (missing is not None and not missing.forked)

    peers = "what file descriptors refer to, and which process is at their other end"
    note(peers, lambda wait: wait.kind is WaitKind.IO)
    note("where the store is", lacks_store)
    note("whether files exist, and which process has locked them", lambda wait: wait.detail.polls_file)
    note("which other processes share the memory of the lock", is_in_shared_memory)
    note("how long a sleep still lasts", is_sleep_of_unknown_length)
    pids = sorted({child.pid for _, wait in waiting for child in wait.detail.children})
    if pids:
        names = listed([str(pid) for pid in pids])
        unknown.append(f"the state of process{'es' if len(pids) > 1 else ''} {names}")
    if any(wait.kind is WaitKind.CHILD_PROCESS and not wait.detail.children for _, wait in waiting):
        unknown.append("which child processes there are, and what they do")
    if len(threads) == 1 and any(may_result_from_fork(wait) for _, wait in waiting):
        unknown.append("whether the process was forked from another one, whose threads it lacks")
    return unknown


def report_target(session: Session) -> TargetReport:
    """The report's section on the process: PyTorch, Python, the stop, and threads that ran meanwhile."""
    target, layout, version = session.target, session.layout_if_known, torch_version(session)
    layout_report = LayoutReport(layout.id, layout.match) if layout else LayoutReport(None, "none")
    return TargetReport(
        kind=target.origin.kind,
        pid=target.pid,
        debugger=target.debugger,
        architecture=target.architecture.name,
        torch=TorchReport(version, layout_report) if version is not None else None,
        python=PythonReport(session.python.version) if session.python.version else None,
        paused_ms=None if target.moment.paused_ms is None else round(target.moment.paused_ms, 3),
        moved=tuple(target.moment.threads_that_ran()),
        stops=target.moment.stops,
        cut_short=tuple(CutCall(tid, call) for tid, call in sorted(target.moment.cut_short().items())),
        recording=target.origin.recorded,
    )


def target_errors(target: Target) -> tuple[ErrorReport, ...]:
    """Errors that concern every command: a core's end, unreadable memory, what a recording does not have."""
    again = "take a new one with: gcore PID; the disk may have been full, or ulimit -c too low"
    damage = tuple(ErrorReport(what, "core", again) for what in target.origin.damage())
    if target.origin.unreadable:
        kernel = "it must leave the kernel first; until then its Python and torch state cannot be read"
        damage = (
            ErrorReport(f"the kernel does not let any process read {target.origin.unreadable}", "process", kernel),
        )
    lacks = target.origin.missing_from_recording()
    again = "record the process again with the same command: a recording holds only what was read"
    return (*damage, ErrorReport(f"it lacks {lacks}", "recording", again)) if lacks else damage


def core_errors(target: Target, threads: Sequence[ThreadReport]) -> tuple[ErrorReport, ...]:
    """Errors on what is unknown of the threads' waits because the target is a core; () for any other target."""
    unknown = unknown_in_core(threads) if target.origin.is_core else ()
    instead = "examine the live process (scripts/dispatch -p PID); --record FILE saves all of this next to a core"
    return (ErrorReport(f"not in a core: {'; '.join(unknown)}", "core", instead),) if unknown else ()


def torch_version(session: Session) -> str | None:
    """The version like torch.__version__, "unknown" if nothing shows it, None without torch."""
    if not session.has_torch:
        return None
    layout = session.layout_if_known
    measured = layout.version if layout and layout.match == "exact" else ""
    return layout_choice.torch_version(session.modules) or measured or "unknown"


def make_report(
    tool: Tool,
    session: Session,
    args: Namespace,
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
    """The report of a tool. ``errors``: those that are not in the session; ``ending``: of a live command's run;
    ``target``: as it was before the run, if that may have changed it."""
    shown = target or report_target(session)
    threads = [thread.without_values() if thread.tid in shown.moved else thread for thread in threads]
    leaves_process = ending is None or ending.kind.leaves_process
    unread = session.errors.reports() if leaves_process else ()  # nothing is missing of an exited process
    failed = () if not ending or not ending.error else (ErrorReport.of(ending.error, tool.name),)
    if session.target.origin.is_truncated and not args.why:
        errors = unread = ()  # each may be for what the core lacks
    files = (
        {frame.file for thread in threads for frame in thread.python_frames} if session.target.origin.is_core else ()
    )
    return Report(
        command=tool.name,
        target=shown._replace(withheld_sources=sum(map(session.target.origin.foreign.is_unproven_source, files))),
        view=tool.view,
        threads=tuple(threads),
        verdict=verdict,
        findings=tuple(findings),
        errors=(*failed, *errors, *unread, *target_errors(session.target)),
        sections=tuple(sections),
        why=args.why,
        sources=sources,
    )


def make_report_alone(tool: Tool, args: Namespace, sections: Sequence[Section]) -> Report:
    """The report of a tool that needed no process."""
    return Report(tool.name, None, view=tool.view, sections=tuple(sections), why=args.why)


def dispatcher_errors(session: Session) -> tuple[ErrorReport, ...]:
    """The reason why the dispatcher cannot be read; () if it can."""
    error = None if session.target.origin.unreadable else session.dispatcher_error
    return (ErrorReport.of(error, "torch"),) if error else ()


def with_arguments(
    session: Session, report: ThreadReport, stack: NativeStack, statistics: bool = False, limit: int | None = None
) -> ThreadReport:
    """A thread's report with the arguments of its ``limit`` innermost dispatcher frames (all by default); unchanged if
    no layout fits. ``statistics``: with statistics of the tensors among them."""
    if session.dispatcher_error:
        return report
    steps = ArgumentReporter(session, statistics).frames(stack, limit)
    dispatch = (
        old if old.arguments == new.arguments else old._replace(arguments=new.arguments)
        for old, new in zip(report.dispatch, steps)
    )
    report = report._replace(dispatch=tuple(dispatch))
    if not report.python_frames:
        return report
    return FrameLocals(session).with_kernel_arguments(PythonCallArguments(session).completed(report, stack))
