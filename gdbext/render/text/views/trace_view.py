"""The end of a ``dispatch-trace`` as text: why it ended, and what had not come back."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.report import Report
from gdbext.model.sections.trace_section import OpenThread, TraceSection
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """One line on the trace, then each thread that is still inside a traced operator."""
    trace = report.section(TraceSection)
    what = f"{trace.count} dispatch{'es' if trace.count != 1 else ''} traced"
    where = f", in {escape(trace.output)}" if trace.output else ""
    yield style(f"{what}{where}; ended: {escape(trace.ending.text or 'it was asked for')}", "bold")
    if trace.unseen:
        yield f"  not seen: what {trace.unseen} functions dispatch, in a way that probes do not recognise"
    for note in trace.notes:
        yield f"  note: {escape(note)}"
    for thread in trace.open:
        yield from _open(thread, style)


def _open(thread: OpenThread, style: Style) -> Iterator[str]:
    yield style(f"thread {thread.tid} has not come back from:", "yellow")
    for one in thread.open:
        yield f"  [{one.event}] op=[{escape(one.op)}], key=[{one.key}]  last step seen: {one.last}"
    step = thread.stopped_in
    if step is not None:
        kernel = f", kernel {escape(step.kernel)}" if step.kernel else ""
        yield f"  now in: {escape(step.op)}, key {step.key or 'unknown'}, {step.stage.value}{kernel}"
    if thread.meaning:
        yield f"  that means: {thread.meaning}"
