"""``all-threads``: what each thread does and waits for, which thread holds that, and findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.diagnosis.commands.bt import source_text, thread_lines, title
from gdbext.diagnosis.inspect import inspect_threads
from gdbext.diagnosis.report import DotSection, Report
from gdbext.diagnosis.report.finding import Finding, Verdict
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import OwnerCertainty
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.reporting import core_errors, dispatcher_errors, make_report
from gdbext.diagnosis.threads.source_lines import NO_SOURCES, SourceLines
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_mode import Mode
from gdbext.diagnosis.verdict.clauses import holds_verb, listed, owner_clause, tasks_clause
from gdbext.engine.terminal import IN_A_DEBUGGER, CommandLine
from gdbext.engine.vocabulary import counted
from gdbext.render import Style, escape

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.engine.vocabulary import Section


class AllThreads(Tool):
    """The command ``all-threads`` as a tool."""

    name = "all-threads"
    summary = "Show what each thread does and waits for, which thread holds it, and deadlocks."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        add, tasks = parser.add_argument, "also show the tasks of asyncio's event loops, and what each awaits"
        add("--stacks", action="store_true", help="also show all frames of all threads; equal stacks are shown once")
        add("--tasks", action="store_true", help=tasks)
        add("--dot", metavar="FILE", help="write the wait-for graph (and an SVG next to it if graphviz is installed)")

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:  # noqa: ARG002
        """Inspect all threads and judge; with --dot, draw them."""
        session, inspection = session.read_consistently(lambda session: inspect_threads(session, frames=args.stacks))
        threads = inspection.threads
        sections: list[Section] = []
        if args.dot:
            from gdbext.diagnosis.commands import dot_graph  # 3 ms, for --dot

            sections.append(dot_graph.write(args.dot, threads))
        return make_report(
            self,
            session,
            args,
            threads=threads if args.tasks else [thread._replace(loop=None) for thread in threads],
            verdict=inspection.judgement.verdict,
            findings=inspection.judgement.findings,
            errors=(*dispatcher_errors(session), *core_errors(session.target, threads)),
            sections=sections,
        )

    def view(self, report: Report, style: Style) -> Iterator[str]:
        return render(report, style)


_MAX_NAMES = 6
_MAX_FRAMES = 14
_MAX_TASKS = 200


def render(report: Report, style: Style) -> Iterator[str]:
    """The verdict, the findings, and the threads: idle pools, and threads with equal stacks and waits, are folded."""
    if report.verdict:
        yield verdict_line(report.verdict, style)
    for finding in report.findings:
        if not report.verdict or not report.verdict.is_about(finding):
            yield from finding_lines(finding, style, report.why)
    yield ""
    for group in folded(report.threads):
        yield from _group_lines(group, report.threads, style, report.why)
    dot = report.find_section(DotSection)
    if dot:
        yield ""
        yield f"The wait-for graph is in {escape(', '.join(dot.files))}."


def verdict_line(verdict: Verdict, style: Style) -> str:
    """The heading and the sentence of the verdict: ``deadlock: …``, ``sleeps: …``; defects in red, hangs in yellow."""
    kind = verdict.finding.kind
    return _finding_line(verdict.finding, style, "red" if kind.is_defect else "yellow" if kind.is_hang else "green")


def _finding_line(finding: Finding, style: Style, *colors: str) -> str:
    if finding.kind.is_in_summary:
        return style(escape(finding.summary), "bold", *colors)
    return style(f"{finding.heading}: ", "bold", *colors) + escape(finding.summary)


def finding_lines(finding: Finding, style: Style, why: bool) -> Iterator[str]:
    """The line of a finding that is not the verdict; with ``why`` also its evidence."""
    yield _finding_line(finding, style)
    if why:
        for text in finding.evidence:
            yield f"    {escape(text)}"


def folded(threads: Sequence[ThreadReport]) -> list[list[ThreadReport]]:
    """Groups of threads that one line can describe: equal stacks and waits, or idle workers of one pool."""

    def key(thread: ThreadReport) -> object:
        """Equal for threads that one line can describe."""
        if thread.pool:
            return ("pool", thread.pool)
        if thread.signal or thread.holds or thread.loop or not thread.stack_key or thread.notes:
            return thread.tid
        wait = thread.wait
        if not wait:
            return (thread.stack_key, thread.state)
        # How long a sleep still lasts differs, and so do numbers and addresses of fds whose other ends are alike. An
        # epoll instance, or a set of fds, is another one than that with another number.
        resource, peer = wait.resource, wait.detail.peer
        common: tuple[object, ...] = (resource.kind, resource.name)
        if resource.kind is WaitKind.SLEEP:
            common = (resource.kind, wait.detail.looks_for)
        elif resource.kind is WaitKind.IO and peer and not wait.detail.watches_several:
            common = (resource.kind, peer.kind, peer.state, peer.own, *(process.pid for process in peer.processes))
        address = resource.address if wait.owners else 0
        return (thread.stack_key, thread.state, *common, wait.owners, wait.being_released, address)

    groups: dict[object, list[ThreadReport]] = {}
    for thread in threads:
        groups.setdefault(key(thread), []).append(thread)
    return list(groups.values())


def whose_numbers(group: Sequence[ThreadReport]) -> str:
    """`` (as in thread 7)``: the thread whose fds and seconds are shown, if they differ within the group; else ""."""
    numbers = {(thread.wait.name, thread.wait.detail.seconds) for thread in group if thread.wait}
    return f" (as in thread {group[0].tid})" if len(numbers) > 1 else ""


def _group_lines(
    group: Sequence[ThreadReport], threads: Sequence[ThreadReport], style: Style, why: bool
) -> Iterator[str]:
    """The lines of a group of equal threads; ``threads``: all of the report, to name owners."""
    first = group[0]
    if first.pool:
        yield f"{style(_title(group), 'bold')}: idle, {escape(first.pool.name)} worker{'s' if len(group) > 1 else ''}"
        return
    yield style(_title(group), "bold") + f": {escape(state_text(first, threads) + whose_numbers(group))}"
    if first.dispatch:
        yield f"    in {escape(step_text(first))}"
    yield from (f"    {line}" for line in python_lines(first, style))
    waits = (thread.wait for thread in threads if thread.wait)
    inferred = (wait for wait in waits if wait.certainty is OwnerCertainty.INFERRED)
    guessed = {wait.resource for wait in inferred if first.tid in wait.owner_tids}
    phrases: dict[str, list[str]] = {}  # by verb
    for resource in sorted(first.holds, key=guessed.__contains__):
        phrases.setdefault(holds_verb(resource.kind, resource not in guessed), []).append(resource.phrase)
    for verb, held in phrases.items():
        yield f"    {verb} {escape(listed(held, 8))}"
    loop = first.loop
    if loop:
        ready = f", {counted(loop.ready, 'callback')} due" if loop.ready is not None else ""
        count = f"{len(loop.tasks)} task{'s' if len(loop.tasks) != 1 else ''}"
        yield f"    event loop ({escape(loop.kind)}): {count}{ready}"
        groups = [*([[loop.current]] if loop.current else []), *loop.groups]
        for tasks in groups[:_MAX_TASKS]:
            task = tasks[0]
            alone = f"{task.name}: {task.awaits or task.state.value}"
            yield f"      {escape(tasks_clause(tasks) if len(tasks) > 1 else alone)}"
            for number, frame in enumerate(task.frames):
                yield f"          {'from' if number else 'at'} {escape(frame.place)}"
        if len(groups) > _MAX_TASKS:
            yield f"      … and {sum(map(len, groups[_MAX_TASKS:]))} more"
    if first.wait and why:
        for text in first.wait.evidence:
            yield style(f"    because: {escape(text)}", "dim")
    for note in first.notes:
        yield style(f"    note: {escape(note)}", "yellow")
    if first.frames:
        yield from list(thread_lines(first, style, why))[1:]


def python_lines(thread: ThreadReport, style: Style, sources: SourceLines = NO_SOURCES) -> Iterator[str]:
    """``at FILE:LINE (FUNCTION)``, and the user's own line if that is another one; each with its source."""
    innermost, own = thread.python_frames[0] if thread.python_frames else None, thread.user_frame
    if innermost:
        yield f"at {escape(innermost.place)}"
        yield from source_text(innermost, style, sources)
    if own and own is not innermost:
        yield f"from {escape(own.place)}"
        yield from source_text(own, style, sources)


def python_stack_lines(
    thread: ThreadReport,
    style: Style,
    sources: SourceLines = NO_SOURCES,
    called: CommandLine = IN_A_DEBUGGER,
    between: Sequence[tuple[int, Sequence[str]]] = (),
) -> Iterator[str]:
    """The Python frames, innermost first, each with its source; the middle of a long stack is omitted.
    ``between``: (native level, lines) to insert before the first frame at that level or further out."""
    frames = thread.python_frames
    left_out = len(frames) - _MAX_FRAMES
    pending = sorted(between, key=lambda item: item[0])
    for number, frame in enumerate(frames):
        while pending and frame.level >= pending[0][0]:
            yield from pending.pop(0)[1]
        if left_out > 1 and _MAX_FRAMES // 2 <= number < _MAX_FRAMES // 2 + left_out:
            if number == _MAX_FRAMES // 2:
                yield f"… {left_out} more: {called.command(f'dispatch-bt --native --thread {thread.tid}')}"
            continue
        yield f"{'from' if number else 'at'} {escape(frame.place)}"
        yield from source_text(frame, style, sources)
    for _, lines in pending:
        yield from lines


def _title(group: Sequence[ThreadReport]) -> str:
    """``Thread 1 "MainThread" (tid 1)`` for one thread, ``40 threads (tids 2, 3, … and 34 more)`` for a group."""
    if len(group) == 1:
        return title(group[0])
    tids = ", ".join(str(thread.tid) for thread in group[:_MAX_NAMES])
    more = f" and {len(group) - _MAX_NAMES} more" if len(group) > _MAX_NAMES else ""
    return f"{counted(len(group), 'thread')} (tids {tids}{more})"


def state_text(thread: ThreadReport, threads: Sequence[ThreadReport]) -> str:
    """What a thread does: ``waits for the GIL, which MainThread (tid 1) holds``. ``threads``: to name the owner."""
    if not thread.wait:
        if thread.signal:
            return f"stopped by {thread.signal}"
        return "runs" if thread.state is RunState.RUNNING else thread.state.value
    text = thread.wait.phrase
    if thread.wait.detail.absence:
        return f"{text}{thread.wait.detail.absence}"
    if thread.tid in thread.wait.owner_tids:
        return f"{text}, which it holds itself"
    return text + owner_clause(thread.wait, {other.tid: other for other in threads})


def step_text(thread: ThreadReport) -> str:
    """``aten::mm, key Meta, in-kernel (3 levels)``."""
    step = thread.dispatch[0]
    key = f", key {step.key}" if step.key else ""
    keyset = f", DispatchKeySet({', '.join(step.keyset.keys)})" if step.keyset else ""
    names = dict.fromkeys(outer.qualified for outer in thread.dispatch[1:])
    callers = [name for name in names if name != step.qualified]
    below = f"; called from {listed(callers)}" if callers else ""
    return f"{step.qualified}{key}, {step.stage.value}{keyset}{below}"
