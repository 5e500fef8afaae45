"""``dispatch-diagnose`` as text: one screen that answers "why does it hang?", in jstack's manner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.commands.all_threads import (
    finding_lines,
    folded,
    python_lines,
    python_stack_lines,
    state_text,
    verdict_line,
    whose_numbers,
)
from gdbext.diagnosis.commands.bt import headline, node_lines, thread_lines
from gdbext.diagnosis.commands.diagnose_sections import ChildrenSection, KnownBugsSection, PageSection
from gdbext.diagnosis.report.thread_report import FrameKind, ThreadReport
from gdbext.diagnosis.verdict.clauses import relation_clause
from gdbext.engine.terminal import cut
from gdbext.render import Style, counted, escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.report.wait import WaitEdge

_MAX_OTHERS = 12
MAX_PATHS = 2
"""Threads of the verdict whose path through the dispatcher is shown."""
_MAX_FINDINGS = 5
_MAX_CHILDREN = 16
_MAX_PATH_LINES = 48


def render(report: Report, style: Style) -> Iterator[str]:
    """Verdict, cycle or chain, operator path, the other findings and threads, advice."""
    verdict = report.verdict
    if not verdict:
        return
    yield verdict_line(verdict, style)
    yield from map(escape, known_bug_lines(report))
    by_tid = {thread.tid: thread for thread in report.threads}
    involved = [by_tid[tid] for tid in verdict.finding.threads if tid in by_tid]
    if verdict.finding.cycle:
        yield ""
        yield from _cycle_lines(verdict.finding.cycle, by_tid, style)
    yield from _titled("What may slow it down", explanation_lines(report), style)
    if report.why:
        texts = [text for thread in involved if thread.wait for text in thread.wait.evidence]
        for finding in filter(verdict.is_about, report.findings):
            shown = set(texts)
            texts += (evidence for evidence in dict.fromkeys(finding.evidence) if evidence not in shown)
        yield from _titled("Evidence", (f"  {text}" for text in texts), style)
    yield from _titled("The device, as seen from the host", device_lines(report), style)
    yield from _paths(involved, style, report)
    others = [finding for finding in report.findings if not verdict.covers(finding)]
    if others:
        yield ""
        yield style("Also found", "bold")
        for finding in others[:_MAX_FINDINGS]:
            yield from (f"  {line}" for line in finding_lines(finding, style, report.why))
        if len(others) > _MAX_FINDINGS:
            yield f"  … and {len(others) - _MAX_FINDINGS} more: {report.called.command('all-threads')}"
    yield from _other_threads(report, involved, style)
    yield from _titled("Child processes", child_lines(report), style)
    yield from _titled("What to try next", (f"  - {line}" for line in verdict.advice), style)
    page = report.find_section(PageSection)
    if page:
        yield ""
        yield f"The whole report is in the page {escape(page.file)}."


def known_bug_lines(report: Report) -> Iterator[str]:
    """A line for each known bug; with --why also which threads show it."""
    section = report.find_section(KnownBugsSection)
    for bug in section.reports if section else ():
        yield f"Known bug {bug.line}"
        if report.why:
            yield from (f"    {text}" for text in bug.matched)


def explanation_lines(report: Report) -> Iterator[str]:
    """Explanations why the process is slow; with --why also the proven ones, which the verdict states."""
    if not report.has("explanations"):
        return
    from gdbext.diagnosis.verdict.slowness import ExplanationsSection  # 11 ms, if something is slow

    section = report.find_section(ExplanationsSection)
    explanations = [row for row in section.found if report.why or not row.proven] if section else []
    for explanation in explanations[:_MAX_FINDINGS]:
        yield f"  - {explanation.summary}"
        if report.why:
            yield from (f"      for: {text}" for text in explanation.for_)
            yield from (f"      against: {text}" for text in explanation.against)


def device_lines(report: Report) -> Iterator[str]:
    """The lines on devices that threads wait for: PyTorch's own bookkeeping, and what the system reports."""
    if any(section.name.startswith("device") for section in report.sections):
        from gdbext.diagnosis.job.devices import DeviceSection, DeviceSystemSection  # 12 ms, in a wait for a device

        for section in (report.find_section(DeviceSection), report.find_section(DeviceSystemSection)):
            yield from section.lines if section else ()


def _titled(title: str, lines: Iterable[str], style: Style) -> Iterator[str]:
    """A blank line, the title and the lines; nothing if there are no lines."""
    shown = list(lines)
    if shown:
        yield ""
        yield style(title, "bold")
        yield from map(escape, shown)


def child_lines(report: Report) -> Iterator[str]:
    """What each child process does, and its verdict if it was examined."""
    section = report.find_section(ChildrenSection)
    if not section:
        return
    for child in section.children[:_MAX_CHILDREN]:
        indent = "  " if child.parent is None else "    "
        yield f"{indent}{child.pid}: {child.doing}; {cut(child.command, 160)}"
        if child.summary:
            yield f"{indent}    {child.heading + ': ' if child.heading else ''}{child.summary}"
        if child.line:
            yield f"{indent}    at {child.line}"
    if len(section.children) > _MAX_CHILDREN:
        yield f"  … and {len(section.children) - _MAX_CHILDREN} more"


def _cycle_lines(cycle: Sequence[WaitEdge], by_tid: dict[int, ThreadReport], style: Style) -> Iterator[str]:
    """The waits of a deadlock's cycle: for each thread, what it waits for and which thread holds that."""
    for edge in cycle:
        wait = edge.wait
        held = relation_clause(wait, f'"{by_tid[edge.held_by].label}"')
        by_stack = "" if wait.certainty.is_proven or not wait.kind.traits.relation.is_possession else ", by its stack"
        yield style(f'"{escape(by_tid[edge.tid].label)}"', "bold") + ":"
        yield f"  {escape(wait.phrase)}"
        taken = f", taken at {wait.detail.taken_at}" if wait.detail.taken_at else ""
        yield f"  {escape(held + by_stack + taken)}"


def _paths(involved: Sequence[ThreadReport], style: Style, report: Report) -> Iterator[str]:
    """The dispatcher's path and the Python lines of the verdict's threads; the main thread last."""
    for thread in [thread for thread in involved if thread.dispatch][:MAX_PATHS]:
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
    main = [thread for thread in report.threads if thread.tid == pid and thread not in involved]
    for thread, others in _folded_threads([*involved, *main], pid):
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
    """The innermost native frames of a thread outside of the dispatcher: 15, or 10 if Python frames follow."""
    native = tuple(frame for frame in thread.frames if frame.kind is FrameKind.NATIVE)
    heading, *lines = thread_lines(thread._replace(python_frames=(), frames=native), style, report.why, report.sources)
    most = 11 if thread.python_frames else 16
    yield heading
    yield from lines[:most]
    if len(lines) > most:
        more = counted(len(lines) - most, "more frame")
        yield f"      … {more}: {report.called.command(f'dispatch-bt --native --thread {thread.tid}')}"


def _folded_threads(threads: Sequence[ThreadReport], pid: int) -> Iterator[tuple[ThreadReport, int]]:
    """(thread, number of later threads that are like it): the main thread and native stacks are not folded."""
    groups = folded([thread for thread in threads if thread.tid != pid and not thread.frames])
    others = {group[0].tid: len(group) - 1 for group in groups}
    for thread in threads:
        if thread.tid == pid or thread.frames or thread.tid in others:
            yield thread, others.get(thread.tid, 0)


def _other_threads(report: Report, involved: Sequence[ThreadReport], style: Style) -> Iterator[str]:
    """The threads that the verdict is not about: those in the program's own files first, idle workers last."""
    shown, threads = {thread.tid for thread in involved}, report.threads
    groups = folded([thread for thread in threads if thread.tid not in shown])
    groups.sort(key=lambda group: (group[0].pool is not None, not group[0].user_line))
    count, total = sum(map(len, groups)), len(threads)
    if count == 1:
        yield ""
        yield style("The only thread" if total == 1 else "The other thread", "bold")
    elif groups:
        yield ""
        heading = f"The {count:,} threads" if count == total else f"The other {count} of {counted(total, 'thread')}"
        yield style(heading, "bold")
    for group in groups[:_MAX_OTHERS]:
        first = group[0]
        if first.pool:
            what, line = f"idle {first.pool.name}{first.pool.worker}{'s' if len(group) > 1 else ''}", ""
        else:
            what = state_text(first, threads) + whose_numbers(group)
            line = f", at {first.user_line}" if first.user_line else ""
        operator = f", in {first.dispatch[0].qualified}" if first.dispatch else ""
        subject = f"{len(group)} × " if len(group) > 1 else f"{first.label}: "
        yield f"  {escape(subject + what + operator + line)}"
    if len(groups) > _MAX_OTHERS:
        yield f"  … and {sum(map(len, groups[_MAX_OTHERS:]))} more: {report.called.command('all-threads')}"
