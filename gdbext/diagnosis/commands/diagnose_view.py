"""``dispatch-diagnose`` as text: one screen that answers "why does it hang?", in jstack's manner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.commands.all_threads import (
    finding_lines,
    folded,
    python_lines,
    python_stack_lines,
    state_text,
    verdict_lines,
    whose_numbers,
)
from gdbext.diagnosis.commands.bt import headline, node_lines, thread_lines
from gdbext.diagnosis.commands.diagnose_sections import ChildrenSection, KnownBugsSection, PageSection
from gdbext.diagnosis.report.thread_report import FrameKind, ThreadReport
from gdbext.diagnosis.report.wait_kind import Relation
from gdbext.engine.terminal import cut
from gdbext.render import Style, counted, escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.report.wait import Wait, WaitEdge
    from gdbext.diagnosis.waits.pool_table import Pool

_MAX_OTHERS = 12
MAX_PATHS = 2
"""Threads of the verdict whose path through the dispatcher is shown."""
_MAX_FINDINGS = 5
_MAX_CHILDREN = 16
_MAX_COMMAND = 160
_MAX_PATH_LINES = 48
_MAX_STACK_LINES = 16
_MAX_CRASH_LINES = 11
"""The innermost ten frames, and the line that there is no dispatcher in them."""


def render(report: Report, style: Style) -> Iterator[str]:
    """Verdict, cycle or chain, operator path, the other findings and threads, advice."""
    verdict = report.verdict
    if not verdict:
        return
    yield from verdict_lines(verdict, style)
    yield from map(escape, known_bug_lines(report))
    known = {thread.tid: thread for thread in report.threads}
    involved = [known[tid] for tid in verdict.finding.threads if tid in known]
    if verdict.finding.cycle:
        yield ""
        yield from _cycle_lines(verdict.finding.cycle, known, style)
    yield from _titled("What may slow it down", explanation_lines(report), style)
    yield from _evidence(report, involved, style)
    yield from _titled("The device, as the host knows it", device_lines(report), style)
    yield from _paths(involved, style, report)
    yield from _other_findings(report, style)
    yield from _other_threads(report, involved, style)
    yield from _titled("Child processes", child_lines(report), style)
    if verdict.advice:
        yield ""
        yield style("What to try next", "bold")
        for line in verdict.advice:
            yield f"  - {escape(line)}"
    yield from _page(report)


def _page(report: Report) -> Iterator[str]:
    if not report.has("page"):
        return
    section = report.find_section(PageSection)
    if section:
        yield ""
        yield f"The page with all of this is {escape(section.file)}."


def known_bug_lines(report: Report) -> Iterator[str]:
    """A line for each known bug; with --why also which threads show it."""
    if not report.has("known"):
        return
    section = report.find_section(KnownBugsSection)
    for bug in section.reports if section else ():
        yield f"Known: {bug.line}"
        if report.why:
            yield from (f"    {text}" for text in bug.matched)


def explanation_lines(report: Report) -> Iterator[str]:
    """Explanations besides those that are proven, which stand in the verdict."""
    if not report.has("explanations"):
        return
    from gdbext.diagnosis.verdict.slowness import ExplanationsSection  # 11 ms, where something is slow

    section = report.find_section(ExplanationsSection)
    listed = [each for each in section.found if report.why or not each.proven] if section else []
    for each in listed[:_MAX_FINDINGS]:
        yield f"  - {each.summary}"
        if report.why:
            yield from (f"      for: {text}" for text in each.for_)
            yield from (f"      against: {text}" for text in each.against)


def device_lines(report: Report) -> tuple[str, ...]:
    """The lines on devices that threads wait for: PyTorch's own bookkeeping, and the system's words."""
    if not any(each.name.startswith("device") for each in report.sections):
        return ()
    from gdbext.diagnosis.job.devices import DeviceSection, DeviceSystemSection  # 12 ms, where a device is waited for

    found = (report.find_section(DeviceSection), report.find_section(DeviceSystemSection))
    return tuple(line for each in found if each for line in each.lines)


def _titled(title: str, lines: Iterable[str], style: Style) -> Iterator[str]:
    """A section, where it has lines."""
    shown = list(lines)
    if shown:
        yield ""
        yield style(title, "bold")
        yield from map(escape, shown)


def child_lines(report: Report) -> Iterator[str]:
    """The child processes with what each of them does."""
    if not report.has("children"):
        return
    section = report.find_section(ChildrenSection)
    if not section:
        return
    for child in section.children[:_MAX_CHILDREN]:
        indent = "  " if child.parent is None else "    "
        yield f"{indent}{child.pid}: {child.doing}; {cut(child.command, _MAX_COMMAND)}"
        if child.summary:
            yield f"{indent}    {child.heading + ': ' if child.heading else ''}{child.summary}"
        if child.line:
            yield f"{indent}    at {child.line}"
    if len(section.children) > _MAX_CHILDREN:
        yield f"  … and {len(section.children) - _MAX_CHILDREN} more"


def _cycle_lines(cycle: Sequence[WaitEdge], known: dict[int, ThreadReport], style: Style) -> Iterator[str]:
    for edge in cycle:
        yield style(f'"{escape(known[edge.tid].label)}"', "bold") + ":"
        yield f"  {escape(edge.wait.phrase)}"
        taken = f", taken at {edge.wait.detail.taken_at}" if edge.wait.detail.taken_at else ""
        yield f"  {_how_held(edge.wait, escape(known[edge.held_by].label))}{escape(taken)}"


def _how_held(wait: Wait, owner: str) -> str:
    relation = wait.kind.traits.relation
    if relation in (Relation.IS, Relation.OWES):
        return f'which {"is" if relation is Relation.IS else "needs"} "{owner}"'
    return f'which "{owner}" holds' if wait.certainty.is_proven else f'which "{owner}" seems to hold, by its stack'


def _evidence(report: Report, involved: Sequence[ThreadReport], style: Style) -> Iterator[str]:
    if not report.why:
        return
    texts = [text for thread in involved if thread.wait for text in thread.wait.evidence]
    for finding in report.findings:
        if report.verdict and report.verdict.is_about(finding):
            known = set(texts)
            texts += (each for each in dict.fromkeys(finding.evidence) if each not in known)
    if texts:
        yield ""
        yield style("Evidence", "bold")
        for text in texts:
            yield f"  {escape(text)}"


def _paths(involved: Sequence[ThreadReport], style: Style, report: Report) -> Iterator[str]:
    """The dispatcher's path of the threads that the verdict is about, and their Python lines."""
    inside = [thread for thread in involved if thread.dispatch]
    for thread in inside[:MAX_PATHS]:
        yield ""
        lines = list(thread_lines(thread, style, report.why, report.sources))
        yield from lines[:_MAX_PATH_LINES]
        if len(lines) > _MAX_PATH_LINES:
            more = counted(len(lines) - _MAX_PATH_LINES, "more line")
            yield f"      … {more}: {report.called.command(f'dispatch-bt --thread {thread.tid}')}"
    for thread in involved:
        if thread.frames and not thread.dispatch:
            yield ""
            yield from _stack(thread, style, report)
    pid = report.target.pid if report.target else 0
    for thread, others in _alike(_with_main(involved, report.threads, pid), pid):
        if not thread.dispatch and thread.python_line:
            if not thread.frames:
                yield ""
                yield style(headline(thread), "bold") + (f", and {counted(others, 'thread')} like it" if others else "")
            if thread.tid == pid:
                nodes = [(node.level, node_lines(node, style)) for node in thread.backward]
                lines = list(python_stack_lines(thread, style, report.sources, report.called, nodes))
            else:
                lines = list(python_lines(thread, style, report.sources))
                lines += [line for node in thread.backward for line in node_lines(node, style)]
            yield from (f"      {line}" for line in lines)


def _stack(thread: ThreadReport, style: Style, report: Report) -> Iterator[str]:
    """The innermost native frames; of a thread that has Python frames, too, fewer: these follow."""
    native = tuple(frame for frame in thread.frames if frame.kind is FrameKind.NATIVE)
    heading, *lines = thread_lines(thread._replace(python_frames=(), frames=native), style, report.why, report.sources)
    most = _MAX_CRASH_LINES if thread.python_frames else _MAX_STACK_LINES
    yield heading
    yield from lines[:most]
    if len(lines) > most:
        more = counted(len(lines) - most, "more frame")
        yield f"      … {more}: {report.called.command(f'dispatch-bt --native --thread {thread.tid}')}"


def _alike(threads: Sequence[ThreadReport], pid: int) -> Iterator[tuple[ThreadReport, int]]:
    """Each thread with the number of those like it, which are not shown; the main thread, and those whose native frames
    are shown, stand alone."""
    alike = folded([each for each in threads if each.tid != pid and not each.frames])
    others = {group[0].tid: len(group) - 1 for group in alike}
    for thread in threads:
        if thread.tid == pid or thread.frames or thread.tid in others:
            yield thread, others.get(thread.tid, 0)


def _with_main(involved: Sequence[ThreadReport], threads: Sequence[ThreadReport], pid: int) -> list[ThreadReport]:
    """The threads, and the main thread behind them: what it does is what a user came for."""
    main = [thread for thread in threads if thread.tid == pid and thread not in involved]
    return [*involved, *main]


def _other_findings(report: Report, style: Style) -> Iterator[str]:
    others = [each for each in report.findings if not report.verdict or not report.verdict.says(each)]
    if others:
        yield ""
        yield style("Also found", "bold")
    for finding in others[:_MAX_FINDINGS]:
        for line in finding_lines(finding, style, report.why):
            yield f"  {line}"
    if len(others) > _MAX_FINDINGS:
        yield f"  … and {len(others) - _MAX_FINDINGS} more: {report.called.command('all-threads')}"


def _idle_workers(pool: Pool, count: int) -> str:
    return f"idle {pool.name} worker{'s' if count > 1 else ''}"


def _others_heading(count: int, total: int) -> str:
    if count == 1:
        return "The only thread" if total == 1 else "The other thread"
    return f"The {count:,} threads" if count == total else f"The other {count} of {counted(total, 'thread')}"


def _matters_less(group: Sequence[ThreadReport]) -> tuple[bool, bool]:
    """Threads in the program's own files come first, idle workers last."""
    return group[0].pool is not None, not group[0].user_line


def _other_threads(report: Report, involved: Sequence[ThreadReport], style: Style) -> Iterator[str]:
    seen, threads = {thread.tid for thread in involved}, report.threads
    groups = sorted(folded([thread for thread in threads if thread.tid not in seen]), key=_matters_less)
    if groups:
        yield ""
        yield style(_others_heading(sum(map(len, groups)), len(threads)), "bold")
    for group in groups[:_MAX_OTHERS]:
        first = group[0]
        what = _idle_workers(first.pool, len(group)) if first.pool else state_text(first, threads)
        what += "" if first.pool else whose_numbers(group)
        operator = f", in {first.dispatch[0].qualified}" if first.dispatch else ""
        who = f"{len(group)} × " if len(group) > 1 else f"{first.label}: "
        line = f", at {first.user_line}" if not first.pool and first.user_line else ""
        yield f"  {escape(who + what + operator + line)}"
    if len(groups) > _MAX_OTHERS:
        yield f"  … and {sum(map(len, groups[_MAX_OTHERS:]))} more: {report.called.command('all-threads')}"
