"""``all-threads`` as text: findings first, then each thread on one or two lines, equal ones folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.model.judgement.finding import Finding
from gdbext.model.judgement.verdict import Verdict
from gdbext.model.report import Report
from gdbext.model.sections.dot_section import DotSection
from gdbext.model.threads.source_line import NO_SOURCES, SourceLines
from gdbext.model.threads.thread_report import RunState, ThreadReport
from gdbext.render.text.style import Style, escape
from gdbext.render.text.views.bt_view import source_text, thread_lines, title
from gdbext.verdict import phrasing

_MAX_NAMES = 6
_MAX_FRAMES = 14
_MAX_TASKS = 200


def render(report: Report, style: Style) -> Iterator[str]:
    """Verdict, findings, threads."""
    if report.verdict is not None:
        yield from verdict_lines(report.verdict, style)
    for finding in report.findings:
        if report.verdict is None or not report.verdict.is_about(finding):
            yield from finding_lines(finding, style, report.why)
    yield ""
    yield from threads_lines(report.threads, style, report.why)
    dot = report.find_section(DotSection)
    if dot is not None:
        yield ""
        yield f"The wait-for graph is in {escape(', '.join(dot.files))}."


def verdict_lines(verdict: Verdict, style: Style) -> Iterator[str]:
    """``deadlock: …``."""
    finding, traits = verdict.finding, verdict.finding.kind.traits
    color = "red" if traits.is_defect else "yellow" if traits.is_hang else "green"
    yield style(f"{finding.kind.value}: ", "bold", color) + escape(finding.summary)


def finding_lines(finding: Finding, style: Style, why: bool) -> Iterator[str]:
    """One finding that is not the verdict."""
    yield style(f"{finding.kind.value}: ", "bold") + escape(finding.summary)
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
    if thread.pool is not None:
        return ("pool", thread.pool)
    if thread.signal or thread.holds or thread.loop is not None or not thread.stack_key or thread.notes:
        return thread.tid
    wait = thread.wait
    kind = (wait.resource.kind, wait.resource.name, wait.owners, wait.handover) if wait is not None else None
    address = wait.resource.address if wait is not None and wait.owners else 0
    return (thread.stack_key, thread.state, kind, address)


def _group_lines(
    group: Sequence[ThreadReport], threads: Sequence[ThreadReport], style: Style, why: bool
) -> Iterator[str]:
    first = group[0]
    if first.pool is not None:
        yield f"{style(_title(group), 'bold')}: idle, {escape(first.pool.value)} worker{'s' if len(group) > 1 else ''}"
        return
    yield style(_title(group), "bold") + f": {escape(state_text(first, threads))}"
    if first.dispatch:
        yield f"    in {escape(step_text(first))}"
    yield from (f"    {line}" for line in python_lines(first, style))
    if first.holds:
        yield f"    holds {escape(phrasing.listed([held.phrase for held in first.holds], 8))}"
    yield from (f"    {line}" for line in _task_lines(first))
    if first.wait is not None and why:
        for text in first.wait.evidence:
            yield style(f"    because: {escape(text)}", "dim")
    for note in first.notes:
        yield style(f"    note: {escape(note)}", "yellow")
    if first.frames:
        yield from list(thread_lines(first, style, why))[1:]


def _task_lines(thread: ThreadReport) -> Iterator[str]:
    """The tasks of the thread's event loop: what each does, and where."""
    loop = thread.loop
    if loop is None:
        return
    ready = f", {loop.ready} callbacks due" if loop.ready is not None else ""
    yield f"event loop ({escape(loop.kind)}): {len(loop.tasks)} task{'s' if len(loop.tasks) != 1 else ''}{ready}"
    for task in loop.tasks[:_MAX_TASKS]:
        yield f"  {escape(task.name)}: {escape(task.awaits or task.state.value)}"
        for number, frame in enumerate(task.frames):
            yield f"      {'from' if number else 'at'} {escape(frame.place)}"
    if len(loop.tasks) > _MAX_TASKS:
        yield f"  … and {len(loop.tasks) - _MAX_TASKS} more"


def python_lines(thread: ThreadReport, style: Style, sources: SourceLines = NO_SOURCES) -> Iterator[str]:
    """``at FILE:LINE (FUNCTION)``, and the user's own line where that is another one; each with its source."""
    innermost, own = thread.python[0] if thread.python else None, thread.user_frame
    if innermost is not None:
        yield f"at {escape(innermost.place)}"
        yield from source_text(innermost, style, sources)
    if own is not None and own is not innermost:
        yield f"from {escape(own.place)}"
        yield from source_text(own, style, sources)


def python_stack_lines(thread: ThreadReport, style: Style, sources: SourceLines = NO_SOURCES) -> Iterator[str]:
    """The Python frames from the innermost one on, each with its source; of a long stack those in the middle are left
    out."""
    frames = thread.python
    left_out = len(frames) - _MAX_FRAMES
    for number, frame in enumerate(frames):
        if left_out > 1 and _MAX_FRAMES // 2 <= number < _MAX_FRAMES // 2 + left_out:
            if number == _MAX_FRAMES // 2:
                yield f"… {left_out} more: dispatch-bt --native --thread {thread.tid}"
            continue
        yield f"{'from' if number else 'at'} {escape(frame.place)}"
        yield from source_text(frame, style, sources)


def _title(group: Sequence[ThreadReport]) -> str:
    if len(group) == 1:
        return title(group[0])
    tids = ", ".join(str(thread.tid) for thread in group[:_MAX_NAMES])
    more = f" and {len(group) - _MAX_NAMES} more" if len(group) > _MAX_NAMES else ""
    return f"{len(group)} threads (tids {tids}{more})"


def state_text(thread: ThreadReport, threads: Sequence[ThreadReport]) -> str:
    """``waits for the GIL, which MainThread (tid 1) holds``, ``runs``."""
    if thread.wait is None:
        if thread.signal:
            return f"stopped by {thread.signal}"
        return "runs" if thread.state is RunState.RUNNING else thread.state.value
    known = {each.tid: each for each in threads}
    text = thread.wait.phrase
    if thread.wait.missing is not None:
        return f"{text}, but {thread.wait.missing.sentence}"
    if any(owner.tid == thread.tid for owner in thread.wait.owners):
        return f"{text}, which it holds itself"
    return text + phrasing.owner_clause(thread.wait, known)


def step_text(thread: ThreadReport) -> str:
    """``aten::mm, key Meta, in-kernel (3 levels)``."""
    step = thread.dispatch[0]
    key = f", key {step.key}" if step.key else ""
    keyset = f", DispatchKeySet({', '.join(step.keyset.keys)})" if step.keyset is not None else ""
    callers = [each for each in dict.fromkeys(s.qualified for s in thread.dispatch[1:]) if each != step.qualified]
    below = f"; called from {phrasing.listed(callers)}" if callers else ""
    return f"{step.qualified}{key}, {step.stage.value}{keyset}{below}"
