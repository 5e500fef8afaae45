"""Tables by which objects of the library show themselves in a notebook, in which all text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.thread_report import Frame, ThreadReport
from gdbext.engine.terminal import escape
from gdbext.render.page import text
from gdbext.torch.stack import DispatchFrame

if TYPE_CHECKING:
    from gdbext.diagnosis.report.finding import Finding, Verdict

Row = Sequence[str]


def plain(words: str) -> str:
    """Words of any origin for a repr: in one line, without anything that a terminal obeys."""
    return escape(words)


def table(headings: Row, rows: Iterable[Row], title: str = "") -> str:
    """A table of text of any origin."""
    head = f"<tr>{''.join(f'<th>{text(heading)}</th>' for heading in headings)}</tr>" if any(headings) else ""
    cells = ("".join(f'<td style="text-align: left">{text(words)}</td>' for words in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"{f'<b>{text(title)}</b>' if title else ''}<table>{head}{body}</table>"


def threads(reports: Iterable[ThreadReport]) -> str:
    """A line for each thread."""
    rows = []
    for each in reports:
        operator = each.dispatch[0].qualified if each.dispatch else ""
        rows.append((str(each.tid), each.python_name or each.name or "", each.state.value, _doing(each), operator))
    return table(("tid", "name", "state", "doing", "operator"), rows)


def thread(report: ThreadReport) -> str:
    """A table of what the thread does, then its stacks."""
    held = ", ".join(resource.phrase for resource in report.holds)
    rows = [("state", report.state.value), ("doing", _doing(report)), ("holds", held)]
    head = table(("", ""), [row for row in rows if row[1]], title=report.label)
    return head + stack((*report.dispatch, *report.python_frames))


def _doing(report: ThreadReport) -> str:
    return report.wait.phrase if report.wait else ""


def stack(frames: Iterable[object]) -> str:
    """Frames of any kind, in their order."""
    rows: list[Row] = []
    for frame in frames:
        if isinstance(frame, DispatchFrame):
            key = f"key {frame.key or 'unknown'}, {frame.stage.value}, {frame.confidence.value}"
            rows.append((str(frame.level), f"[{frame.event_name}] {frame.qualified}", key))
        elif isinstance(frame, Frame):
            line = f":{frame.line}" if frame.line is not None else ""
            rows.append((str(frame.level), frame.function, f"{frame.file}{line}" if frame.file else frame.module))
    return table(("level", "frame", "where"), rows) if rows else ""


def verdict(found: Verdict) -> str:
    """A table of what is wrong and what to try."""
    facts = [("verdict", found.kind.value), ("", found.summary), *(("try", each) for each in found.advice)]
    return table(("", ""), facts)


def facts(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    """A table of what is known of one thing: names and texts."""
    return table(("", ""), pairs, title)


def findings(found: Sequence[Finding]) -> str:
    """A line for each finding."""
    return table(("kind", "what"), [(each.kind.value, each.summary) for each in found]) if found else ""
