"""The parts that all tools put into their reports: the target, and what could not be read.

A core cannot tell everything of the waits in it: descriptors, processes, files and clocks are known to the system
alone, while the process lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.report import CutCall, LayoutReport, PythonReport, Report, TargetReport, TorchReport
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.session import NO_EXTRAS, Extras
from gdbext.diagnosis.threads.frame_locals import with_kernel_arguments
from gdbext.diagnosis.threads.source_lines import NO_SOURCES, SourceLines
from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.diagnosis.verdict.clauses import listed
from gdbext.engine.vocabulary import ErrorReport
from gdbext.torch import layout_choice

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from gdbext.diagnosis.report import Ending
    from gdbext.diagnosis.report.finding import Finding, Verdict
    from gdbext.diagnosis.report.thread_report import BackwardNode
    from gdbext.diagnosis.report.wait import Wait
    from gdbext.diagnosis.session import CallCounter, Session
    from gdbext.diagnosis.tool import Tool
    from gdbext.engine.targets.base_target import Target, TargetThread
    from gdbext.engine.unwind import NativeStack
    from gdbext.engine.vocabulary import Section
    from gdbext.render.page import Origin
    from gdbext.torch.values.value_text import Statistics


_ORIGIN = "origin"
"""The text of a recording that has program and machine."""


def keep_origin(session: Session) -> None:
    """Have a recording keep which program this is, and on which machine: a page that is made of it says so."""
    session.target.origin.files.keep(_ORIGIN, lambda: "\n".join(_program_and_machine(session)))


def _program_and_machine(session: Session) -> tuple[str, str]:
    """The program that was looked at and its machine; "" each where that is not known."""
    files = session.target.origin.files
    if not session.procfs:
        return "", ""
    if not files.are_here:
        program, _, machine = files.kept(_ORIGIN).partition("\n")
        return program, machine
    return session.procfs.process(session.target.pid).command, files.host()


def page_origin(session: Session, command: str) -> Origin:
    """The facts of a page that is made now, by ``command``."""
    from gdbext.render.page import origin_now  # 7 ms, for pages

    return origin_now(*_program_and_machine(session), command)


def unknown_in_core(threads: Sequence[ThreadReport]) -> list[str]:
    """The facts that a core lacks, each with the threads whose waits it would explain; empty where nothing
    is."""
    waiting = [thread for thread in threads if thread.wait and thread.state is not RunState.IDLE]
    found = []
    for concerns, what in _LIMITS:
        concerned = [thread for thread in waiting if thread.wait and concerns(thread.wait)]
        if concerned:
            found.append(f"{what}, for {listed([thread.label for thread in concerned])}")
    found += _children(waiting)
    if len(threads) == 1 and any(thread.wait and _may_come_of_fork(thread.wait) for thread in waiting):
        found.append("whether the process was forked from another one, whose threads it lacks")
    return found


def _children(waiting: Sequence[ThreadReport]) -> Iterator[str]:
    waits = [thread.wait for thread in waiting if thread.wait]
    pids = sorted({child.pid for wait in waits for child in wait.detail.children})
    if pids:
        names = listed([str(pid) for pid in pids])
        yield f"what process{'es' if len(pids) > 1 else ''} {names} do{'' if len(pids) > 1 else 'es'}"
    if any(wait.kind is WaitKind.CHILD_PROCESS and not wait.detail.children for wait in waits):
        yield "which child processes there are, and what they do"


def _is_on_descriptors(wait: Wait) -> bool:
    return wait.kind is WaitKind.IO


def _looks_at_files(wait: Wait) -> bool:
    return wait.detail.looks_at_files


def _has_unknown_end(wait: Wait) -> bool:
    return wait.kind is WaitKind.SLEEP and wait.timed and wait.detail.seconds is None


def _is_shared(wait: Wait) -> bool:
    return wait.external and wait.kind.traits.needs_thread


def _may_come_of_fork(wait: Wait) -> bool:
    missing = wait.detail.missing_workers
    lacks_workers = missing is not None and not missing.forked
    return lacks_workers or (wait.kind.traits.is_lock and not wait.owners and not wait.being_released)


def _is_for_store(wait: Wait) -> bool:
    collective = wait.detail.collective
    return collective is not None and collective.is_store and not collective.server


_LIMITS: tuple[tuple[Callable[[Wait], bool], str], ...] = (
    (_is_on_descriptors, "what file descriptors refer to and which process is at their other end"),
    (_is_for_store, "where the store is"),
    (_looks_at_files, "whether files exist and who has locked them"),
    (_is_shared, "which other processes share the memory that is waited on"),
    (_has_unknown_end, "how long a sleep still lasts"),
)


_ASK_THE_PROCESS = (
    "look at the process itself while it lives (scripts/dispatch -p PID); --record FILE keeps all of this beside a core"
)
_LOOK_AT_THE_KERNEL = "what keeps it there has to end first; what Python and torch do in it cannot be told until then"
_TAKE_AGAIN = "take a new one with: gcore PID; the disk may have been full, or ulimit -c too low"
_RECORD_AGAIN = "record the process again with this very command: a recording holds only what was read"


def report_target(session: Session) -> TargetReport:
    """The process, with the torch and the Python in it."""
    target, layout, version = session.target, session.layout_if_known, torch_version(session)
    found = LayoutReport(layout.id, layout.match) if layout else LayoutReport(None, "none")
    return TargetReport(
        kind=target.origin.kind,
        pid=target.pid,
        debugger=target.debugger,
        architecture=target.architecture.name,
        torch=TorchReport(version, found) if version is not None else None,
        python=PythonReport(session.python.version) if session.python.version else None,
        paused_ms=None if target.moment.paused_ms is None else round(target.moment.paused_ms, 3),
        moved=tuple(target.moment.threads_that_ran()),
        stops=target.moment.stops,
        cut_short=tuple(CutCall(tid, call) for tid, call in sorted(target.moment.cut_short().items())),
        recording=target.origin.recorded,
    )


def target_errors(target: Target) -> tuple[ErrorReport, ...]:
    """Errors on what the target lacks, whatever is asked of it: the end of a core; what was asked of a recording and is
    not in it."""
    damage = tuple(ErrorReport(what, "core", _TAKE_AGAIN) for what in target.origin.damage())
    if target.origin.unreadable:
        damage = (
            ErrorReport(f"the kernel lets nobody read {target.origin.unreadable}", "process", _LOOK_AT_THE_KERNEL),
        )
    lacks = target.origin.missing_from_recording()
    return (*damage, ErrorReport(f"not in the recording: {lacks}", "recording", _RECORD_AGAIN)) if lacks else damage


def core_errors(target: Target, threads: Sequence[ThreadReport]) -> tuple[ErrorReport, ...]:
    """Errors on what cannot be told of the threads' waits because the target is a core; empty for any other target."""
    if not target.origin.is_core:
        return ()

    unknown = unknown_in_core(threads)
    return (ErrorReport(f"not in a core: {'; '.join(unknown)}", "core", _ASK_THE_PROCESS),) if unknown else ()


def torch_version(session: Session) -> str | None:
    """The version as torch.__version__ has it, "unknown" where nothing tells, None without torch."""
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
    """The report of a tool: what it found, on which target, and everything that could not be read on the way.

    ``errors`` are those that the session does not know.
    A live command gives the ``ending`` of its run, and the ``target`` as it was if it may have changed since.
    """
    shown = target or report_target(session)
    threads = [each.of_two_moments() if each.tid in shown.moved else each for each in threads]
    leaves_process = ending is None or ending.kind.leaves_process
    unread = session.errors.reports() if leaves_process else ()  # of a process that has ended nothing is missed
    failed = () if not ending or not ending.error else (ErrorReport.of(ending.error, tool.name),)
    if session.target.origin.is_truncated and not args.why:
        errors = unread = ()  # each may be for what the core lacks
    return Report(
        command=tool.name,
        target=shown._replace(withheld_sources=_withheld(session.target, threads)),
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
    """The report of a tool that was asked for nothing of a process."""
    return Report(tool.name, None, view=tool.view, sections=tuple(sections), why=args.why)


def _withheld(target: Target, threads: Sequence[ThreadReport]) -> int:
    if not target.origin.is_core:
        return 0
    return sum(
        map(target.origin.foreign.withholds, {frame.file for thread in threads for frame in thread.python_frames})
    )


def dispatcher_errors(session: Session) -> tuple[ErrorReport, ...]:
    """The reason why nothing is known of the dispatcher; empty where it can be read."""
    error = None if session.target.origin.unreadable else session.dispatcher_error
    return (ErrorReport.of(error, "torch"),) if error else ()


def with_arguments(
    session: Session, report: ThreadReport, stack: NativeStack, statistics: bool = False, limit: int | None = None
) -> ThreadReport:
    """A thread's report with the arguments of its ``limit`` innermost dispatcher frames; as it is where no layout fits.

    ``statistics``: of the tensors among them.
    """
    if session.dispatcher_error:
        return report
    found = ArgumentReporter(session, statistics).frames(stack, limit)
    frames = (
        old if old.arguments == new.arguments else old._replace(arguments=new.arguments)
        for old, new in zip(report.dispatch, found)
    )
    return with_kernel_arguments(session, report._replace(dispatch=tuple(frames)))


class ToolExtras(Extras):
    """Asks whichever tool offers it; ``offered`` gives its function."""

    def __init__(self, offered: Callable[[str], Callable[..., Any] | None]) -> None:
        self._offered = offered

    def backward_nodes(
        self, session: Session, thread: TargetThread, stack: NativeStack, levels: Sequence[int]
    ) -> tuple[BackwardNode, ...]:
        """The nodes, as the tool finds them."""
        offer = self._offered("backward_nodes") or NO_EXTRAS.backward_nodes
        found: tuple[BackwardNode, ...] = offer(session, thread, stack, levels)
        return found

    def call_count(self, session: Session) -> CallCounter | None:
        """The count by the tool's own means; None where it has none."""
        offer = self._offered("call_count") or NO_EXTRAS.call_count
        found: CallCounter | None = offer(session)
        return found

    def tensor_statistics(self, session: Session) -> Callable[[int], Statistics | None]:
        """Statistics of all elements, as the tool has them."""
        offer = self._offered("tensor_statistics") or NO_EXTRAS.tensor_statistics
        found: Callable[[int], Statistics | None] = offer(session)
        return found
