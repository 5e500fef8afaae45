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
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"{f'<b>{text(title)}</b>' if title else ''}<table>{head}{body}</table>"


def _cell(words: str) -> str:
    return f'<td style="text-align: left">{text(words)}</td>'


def threads(found: Iterable[ThreadReport]) -> str:
    """A line for each thread."""
    rows = [(str(each.tid), _name(each), each.state.value, _doing(each), _operator(each)) for each in found]
    return table(("tid", "name", "state", "doing", "operator"), rows)


def thread(found: ThreadReport) -> str:
    """A table of what the thread does, then its stacks."""
    facts = [("state", found.state.value), ("doing", _doing(found)), ("holds", _held(found))]
    head = table(("", ""), [fact for fact in facts if fact[1]], title=found.label)
    return head + stack((*found.dispatch, *found.python_frames))


def stack(frames: Iterable[object]) -> str:
    """Frames of any kind, in their order."""
    rows = [row for row in map(_frame, frames) if row]
    return table(("level", "frame", "where"), rows) if rows else ""


def _frame(frame: object) -> Row:
    if isinstance(frame, DispatchFrame):
        key = f"key {frame.key or 'unknown'}, {frame.stage.value}, {frame.confidence.value}"
        return str(frame.level), f"[{frame.event_name}] {frame.qualified}", key
    if isinstance(frame, Frame):
        line = f":{frame.line}" if frame.line is not None else ""
        return str(frame.level), frame.function, f"{frame.file}{line}" if frame.file else frame.module
    return ()


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


def _name(found: ThreadReport) -> str:
    return found.python_name or found.name or ""


def _doing(found: ThreadReport) -> str:
    return found.wait.phrase if found.wait else ""


def _held(found: ThreadReport) -> str:
    return ", ".join(resource.phrase for resource in found.holds)


def _operator(found: ThreadReport) -> str:
    return found.dispatch[0].qualified if found.dispatch else ""
