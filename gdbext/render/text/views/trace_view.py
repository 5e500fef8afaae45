"""The end of a ``dispatch-trace`` as text: why it ended, and what had not come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gdbext.model.report import Report
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """One line on the trace, then each thread that is still inside a traced operator."""
    trace = report.extra["trace"]
    count = trace["count"]
    what = f"{count} dispatch{'es' if count != 1 else ''} traced"
    where = f", in {escape(trace['output'])}" if trace["output"] else ""
    yield style(f"{what}{where}; ended: {escape(_reason(trace['ending']))}", "bold")
    for note in trace["notes"]:
        yield f"  note: {escape(note)}"
    for thread in trace["open"]:
        yield from _open(thread, style)


def _reason(ending: Mapping[str, Any]) -> str:
    return str(ending["text"] or "it was asked for")


def _open(thread: Mapping[str, Any], style: Style) -> Iterator[str]:
    yield style(f"thread {thread['tid']} has not come back from:", "yellow")
    for one in thread["open"]:
        yield f"  [{one['event']}] op=[{escape(one['op'])}], key=[{one['key']}]  last step seen: {one['last']}"
    step = thread["stopped_in"]
    if step:
        kernel = f", kernel {escape(step['kernel'])}" if step["kernel"] else ""
        yield f"  now in: {escape(step['op'])}, key {step['key'] or 'unknown'}, {step['stage']}{kernel}"
    if thread["meaning"]:
        yield f"  that means: {thread['meaning']}"
