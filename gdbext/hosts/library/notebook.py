"""Tables by which objects of the library show themselves in a notebook, in which all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.thread_report import Frame, ThreadReport
from gdbext.render.page import text
from gdbext.torch.stack import DispatchFrame

if TYPE_CHECKING:
    from gdbext.diagnosis.report.finding import Finding, Verdict

Row = Sequence[str]


def table(headings: Row, rows: Iterable[Row], title: str = "") -> str:
    """An HTML table of unescaped text; without a row of headings if all are empty."""
    head = f"<tr>{''.join(f'<th>{text(heading)}</th>' for heading in headings)}</tr>" if any(headings) else ""
    cells = ("".join(f'<td style="text-align: left">{text(words)}</td>' for words in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"{f'<b>{text(title)}</b>' if title else ''}<table>{head}{body}</table>"


def threads(reports: Iterable[ThreadReport]) -> str:
    """A table with a line for each thread."""
    rows = []
    for report in reports:
        operator = report.dispatch[0].qualified if report.dispatch else ""
        name = report.python_name or report.name or ""
        rows.append((str(report.tid), name, report.state.value, _doing(report), operator))
    return table(("tid", "name", "state", "doing", "operator"), rows)


def thread(report: ThreadReport) -> str:
    """A table of the thread's state, wait and locks, and one of its stacks."""
    held = ", ".join(resource.phrase for resource in report.holds)
    rows = [("state", report.state.value), ("doing", _doing(report)), ("holds", held)]
    head = table(("", ""), [row for row in rows if row[1]], title=report.label)
    return head + stack((*report.dispatch, *report.python_frames))


def _doing(report: ThreadReport) -> str:
    return report.wait.phrase if report.wait else ""


def stack(frames: Iterable[object]) -> str:
    """A table of dispatch frames and other frames, in their order; "" without any."""
    rows: list[Row] = []
    for frame in frames:
        if isinstance(frame, DispatchFrame):
            key = f"key {frame.key or 'unknown'}, {frame.stage.value}, {frame.confidence.value}"
            rows.append((str(frame.level), f"[{frame.event_name}] {frame.qualified}", key))
        elif isinstance(frame, Frame):
            line = f":{frame.line}" if frame.line is not None else ""
            rows.append((str(frame.level), frame.function, f"{frame.file}{line}" if frame.file else frame.module))
    return table(("level", "frame", "where"), rows) if rows else ""


def findings(verdict: Verdict, all_findings: Sequence[Finding] = ()) -> str:
    """A table of the verdict and what to try, and one with a line for each finding."""
    facts = [("verdict", verdict.kind.value), ("", verdict.summary), *(("try", advice) for advice in verdict.advice)]
    rows = [(finding.kind.value, finding.summary) for finding in all_findings]
    return table(("", ""), facts) + (table(("kind", "what"), rows) if rows else "")
