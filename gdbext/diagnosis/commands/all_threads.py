"""``all-threads``: what each thread does and waits for, who holds it, and what is wrong with that.

As text: findings first, then each thread on one or two lines, equal ones folded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.diagnosis.commands.bt import source_text, thread_lines, title
from gdbext.diagnosis.inspect import inspect_threads
from gdbext.diagnosis.report import DotSection, Report
from gdbext.diagnosis.report.finding import Finding, Verdict
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import OwnerCertainty, Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.reporting import core_errors, dispatcher_errors, make_report
from gdbext.diagnosis.threads.source_lines import NO_SOURCES, SourceLines
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_mode import Mode
from gdbext.diagnosis.verdict.clauses import listed, owner_clause
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
    summary = "Show what each thread does and waits for, who holds that, and deadlocks."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the options: what is shown besides the threads' waits."""
        parser.add_argument(
            "--stacks", action="store_true", help="also show all frames of all threads; equal stacks are shown once"
        )
        parser.add_argument(
            "--tasks", action="store_true", help="also show the tasks of asyncio's event loops, and what each awaits"
        )
        parser.add_argument(
            "--dot", metavar="FILE", help="write the wait-for graph (and an SVG beside it where graphviz is there)"
        )

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:  # noqa: ARG002
        """Inspect all threads and judge; with --dot, draw them."""
        session, found = session.settled(lambda each: inspect_threads(each, frames=args.stacks))
        sections: list[Section] = []
        if args.dot:
            from gdbext.diagnosis.commands import dot_graph  # 3 ms, for --dot

            sections.append(dot_graph.write(args.dot, found.threads))
        return make_report(
            self,
            session,
            args,
            threads=found.threads if args.tasks else [thread._replace(loop=None) for thread in found.threads],
            verdict=found.judgement.verdict,
            findings=found.judgement.findings,
            errors=(*dispatcher_errors(session), *core_errors(session.target, found.threads)),
            sections=sections,
        )

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""

        return render(report, style)


_MAX_NAMES = 6
_MAX_FRAMES = 14
_MAX_TASKS = 200


def render(report: Report, style: Style) -> Iterator[str]:
    """Render the verdict, the findings and all threads."""
    if report.verdict:
        yield from verdict_lines(report.verdict, style)
    for finding in report.findings:
        if not report.verdict or not report.verdict.is_about(finding):
            yield from finding_lines(finding, style, report.why)
    yield ""
    yield from threads_lines(report.threads, style, report.why)
    dot = report.find_section(DotSection)
    if dot:
        yield ""
        yield f"The wait-for graph is in {escape(', '.join(dot.files))}."


def verdict_lines(verdict: Verdict, style: Style) -> Iterator[str]:
    """The verdict with what it is: ``deadlock: …``, ``sleeps: …``."""
    finding, kind = verdict.finding, verdict.finding.kind
    color = "red" if kind.is_defect else "yellow" if kind.is_hang else "green"
    yield _said(finding, style, color)


def _said(finding: Finding, style: Style, *colors: str) -> str:
    """The finding in one line."""
    if finding.kind.is_in_summary:
        return style(escape(finding.summary), "bold", *colors)
    return style(f"{finding.heading}: ", "bold", *colors) + escape(finding.summary)


def finding_lines(finding: Finding, style: Style, why: bool) -> Iterator[str]:
    """One finding that is not the verdict."""
    yield _said(finding, style)
    if why:
        for text in finding.evidence:
            yield f"    {escape(text)}"


def threads_lines(threads: Sequence[ThreadReport], style: Style, why: bool) -> Iterator[str]:
    """Threads in the debugger's order; idle pools, and threads with equal stacks and waits, together."""
    for group in folded(threads):
        yield from _group_lines(group, threads, style, why)


def folded(threads: Sequence[ThreadReport]) -> list[list[ThreadReport]]:
    """Groups of threads that one line can tell, in order of their first thread."""
    groups: dict[object, list[ThreadReport]] = {}
    for thread in threads:
        groups.setdefault(_fold_key(thread), []).append(thread)
    return list(groups.values())


def _fold_key(thread: ThreadReport) -> object:
    if thread.pool:
        return ("pool", thread.pool)
    if thread.signal or thread.holds or thread.loop or not thread.stack_key or thread.notes:
        return thread.tid
    wait = thread.wait
    kind = (*_what(wait), wait.owners, wait.being_released) if wait else None
    address = wait.resource.address if wait and wait.owners else 0
    return (thread.stack_key, thread.state, kind, address)


def _what(wait: Wait) -> tuple[object, ...]:
    """The wait as far as threads of one line have it in common. How long a sleep still lasts differs, and so do numbers
    and addresses of descriptors whose other ends are alike."""
    resource, peer = wait.resource, wait.detail.peer
    if resource.kind is WaitKind.SLEEP:
        return (resource.kind, wait.detail.looks_for)
    if resource.kind is WaitKind.IO and peer:
        return (resource.kind, peer.kind, peer.state, peer.own, *(each.pid for each in peer.processes))
    return (resource.kind, resource.name)


def whose_numbers(group: Sequence[ThreadReport]) -> str:
    """The thread whose descriptors and seconds are shown for all of a group, where those of others differ."""
    told = {(each.wait.name, each.wait.detail.seconds) for each in group if each.wait}
    return f" (numbers of {group[0].tid})" if len(told) > 1 else ""


def _group_lines(
    group: Sequence[ThreadReport], threads: Sequence[ThreadReport], style: Style, why: bool
) -> Iterator[str]:
    first = group[0]
    if first.pool:
        yield f"{style(_title(group), 'bold')}: idle, {escape(first.pool.name)} worker{'s' if len(group) > 1 else ''}"
        return
    yield style(_title(group), "bold") + f": {escape(state_text(first, threads) + whose_numbers(group))}"
    if first.dispatch:
        yield f"    in {escape(step_text(first))}"
    yield from (f"    {line}" for line in python_lines(first, style))
    guessed = {wait.resource for wait in _waits(threads) if _is_guessed_owner(wait, first.tid)}
    for word, held in (
        ("holds", [each for each in first.holds if each not in guessed]),
        ("seems to hold", [each for each in first.holds if each in guessed]),
    ):
        if held:
            yield f"    {word} {escape(listed([each.phrase for each in held], 8))}"
    yield from (f"    {line}" for line in _task_lines(first))
    if first.wait and why:
        for text in first.wait.evidence:
            yield style(f"    because: {escape(text)}", "dim")
    for note in first.notes:
        yield style(f"    note: {escape(note)}", "yellow")
    if first.frames:
        yield from list(thread_lines(first, style, why))[1:]


def _task_lines(thread: ThreadReport) -> Iterator[str]:
    """The tasks of the thread's event loop: what each does, and where."""
    loop = thread.loop
    if not loop:
        return
    ready = f", {counted(loop.ready, 'callback')} due" if loop.ready is not None else ""
    yield f"event loop ({escape(loop.kind)}): {len(loop.tasks)} task{'s' if len(loop.tasks) != 1 else ''}{ready}"
    for task in loop.tasks[:_MAX_TASKS]:
        yield f"  {escape(task.name)}: {escape(task.awaits or task.state.value)}"
        for number, frame in enumerate(task.frames):
            yield f"      {'from' if number else 'at'} {escape(frame.place)}"
    if len(loop.tasks) > _MAX_TASKS:
        yield f"  … and {len(loop.tasks) - _MAX_TASKS} more"


def python_lines(thread: ThreadReport, style: Style, sources: SourceLines = NO_SOURCES) -> Iterator[str]:
    """``at FILE:LINE (FUNCTION)``, and the user's own line where that is another one; each with its source."""
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
    """The Python frames from the innermost one on, each with its source; of a long stack those in the middle are left
    out. ``between``: lines that stand before the first frame that is not inside of their native frame."""
    frames = thread.python_frames
    left_out = len(frames) - _MAX_FRAMES
    more = sorted(between, key=lambda each: each[0])
    for number, frame in enumerate(frames):
        while more and frame.level >= more[0][0]:
            yield from more.pop(0)[1]
        if left_out > 1 and _MAX_FRAMES // 2 <= number < _MAX_FRAMES // 2 + left_out:
            if number == _MAX_FRAMES // 2:
                yield f"… {left_out} more: {called.command(f'dispatch-bt --native --thread {thread.tid}')}"
            continue
        yield f"{'from' if number else 'at'} {escape(frame.place)}"
        yield from source_text(frame, style, sources)
    for _, lines in more:
        yield from lines


def _waits(threads: Sequence[ThreadReport]) -> Iterator[Wait]:
    yield from (thread.wait for thread in threads if thread.wait)


def _is_guessed_owner(wait: Wait, tid: int) -> bool:
    """The thread has what is waited for, by its stack only."""
    return wait.certainty is OwnerCertainty.INFERRED and tid in wait.owner_tids


def _title(group: Sequence[ThreadReport]) -> str:
    if len(group) == 1:
        return title(group[0])
    tids = ", ".join(str(thread.tid) for thread in group[:_MAX_NAMES])
    more = f" and {len(group) - _MAX_NAMES} more" if len(group) > _MAX_NAMES else ""
    return f"{counted(len(group), 'thread')} (tids {tids}{more})"


def state_text(thread: ThreadReport, threads: Sequence[ThreadReport]) -> str:
    """``waits for the GIL, which MainThread (tid 1) holds``, ``runs``."""
    if not thread.wait:
        if thread.signal:
            return f"stopped by {thread.signal}"
        return "runs" if thread.state is RunState.RUNNING else thread.state.value
    known = {each.tid: each for each in threads}
    text = thread.wait.phrase
    if thread.wait.detail.absence:
        return f"{text}{thread.wait.detail.absence}"
    if thread.tid in thread.wait.owner_tids:
        return f"{text}, which it holds itself"
    return text + owner_clause(thread.wait, known)


def step_text(thread: ThreadReport) -> str:
    """``aten::mm, key Meta, in-kernel (3 levels)``."""
    step = thread.dispatch[0]
    key = f", key {step.key}" if step.key else ""
    keyset = f", DispatchKeySet({', '.join(step.keyset.keys)})" if step.keyset else ""
    callers = [each for each in dict.fromkeys(s.qualified for s in thread.dispatch[1:]) if each != step.qualified]
    below = f"; called from {listed(callers)}" if callers else ""
    return f"{step.qualified}{key}, {step.stage.value}{keyset}{below}"
