"""``dispatch-diagnose --html FILE``: the report as one HTML page to send, without values and source if so requested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from gdbext.diagnosis.commands.all_threads import finding_lines, folded, state_text
from gdbext.diagnosis.commands.bt import headline, thread_lines
from gdbext.diagnosis.commands.diagnose_view import child_lines, explanation_lines, known_bug_lines
from gdbext.diagnosis.commands.dot_graph import write_text
from gdbext.diagnosis.report import Report, TargetReport
from gdbext.diagnosis.report.finding import Verdict
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.threads.source_lines import NO_SOURCES
from gdbext.engine.terminal import cut
from gdbext.render import Style
from gdbext.render.page import Origin, Page, facts, text, verdict_box

MOST_LISTED = 400
"""Groups of equal threads that are shown."""
_WIDTH, _BOX, _STEP, _LANE = 360, 300, 62, 12
"""The drawing in pixels: its width, a box's, from one box to the next, and from one arrow to the next."""
_BOX_HEIGHT, _LETTERS = 44, 38


def render_page(report: Report, origin: Origin, values: bool = True) -> str:
    """The page of a diagnosis as HTML. ``values``: with variables, arguments and lines of source."""
    pid = f" of process {report.target.pid}" if report.target else ""
    kind = report.verdict.finding.heading if report.verdict else "no verdict"
    title = f"Diagnosis{pid}: {kind}"
    shown = report if values else without_values(report)
    others = [finding for finding in report.findings if not report.verdict or not report.verdict.covers(finding)]
    body = (
        (f"<h1>{text(title)}</h1>",),
        _verdict(shown.verdict, shown) if shown.verdict else (),
        facts(_target_facts(report.target, origin)),
        drawing(shown.threads),
        _section("What may slow it down", explanation_lines(shown)),
        _section("Also found", (line for finding in others for line in finding_lines(finding, Style(False), False))),
        _threads(shown),
        _section("Child processes", child_lines(shown)),
        _section("Could not be read", (f"{error.where}: {error.what}" for error in report.errors)),
    )
    return Page(title).whole(chain.from_iterable(body))


def write_page(path: str, report: Report, origin: Origin, values: bool) -> None:
    """Write the page that --html asks for. Raises UsageError."""
    write_text(path, render_page(report, origin, values), "--html")


def without_values(report: Report) -> Report:
    """The report without what the process holds: threads, operators and waits stay."""
    threads = tuple(
        thread._replace(
            dispatch=tuple(step.without_values() for step in thread.dispatch),
            frames=tuple(frame._replace(variables=()) for frame in thread.frames),
            python_frames=tuple(frame._replace(variables=()) for frame in thread.python_frames),
        )
        for thread in report.threads
    )
    return report._replace(threads=threads, sources=NO_SOURCES)


def _target_facts(target: TargetReport | None, origin: Origin) -> Iterator[tuple[str, str]]:
    """(label, value) for the table about the process and the page; an empty value is not shown."""
    yield from origin.facts
    if target:
        kind = "a recording" if target.recording else "a core" if target.kind == "core" else "live"
        yield "target", f"process {target.pid}, {kind}"
        yield "recorded", target.recording.taken if target.recording else ""
        yield "PyTorch", target.torch.version if target.torch else ""
        yield "Python", target.python.version if target.python else ""
        if target.paused_ms:
            yield "stopped for", f"{target.paused_ms:,.1f} ms"


def _verdict(verdict: Verdict, report: Report) -> Iterator[str]:
    """The HTML of the verdict, of known bugs and of the advice."""
    kind = verdict.finding.kind
    weight = "bad" if kind.is_defect else "hangs" if kind.is_hang else "good"
    yield verdict_box(weight, verdict.finding.heading, verdict.finding.summary)
    for line in known_bug_lines(report):
        yield f'<p class="warning">{text(line)}</p>'
    if verdict.advice:
        yield "<h2>What to try next</h2><ul>"
        yield from (f"<li>{text(line)}</li>" for line in verdict.advice)
        yield "</ul>"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """The HTML of a heading and preformatted lines; nothing if there are no lines."""
    shown = list(lines)
    if shown:
        yield f"<h2>{text(title)}</h2>"
        yield f'<pre class="frames">{text_lines(shown)}</pre>'


def text_lines(lines: Sequence[str]) -> str:
    """Lines of a report for a <pre>: a name in them makes no lines of its own."""
    return "\n".join(map(text, lines))


def _threads(report: Report) -> Iterator[str]:
    """Each group of equal threads behind a fold; those of the verdict are open."""
    groups = folded(report.threads)
    involved = set(report.verdict.finding.threads) if report.verdict else set()
    yield f"<h2>{len(report.threads):,} thread{'' if len(report.threads) == 1 else 's'}</h2>"
    for group in groups[:MOST_LISTED]:
        first = group[0]
        is_open = " open" if any(thread.tid in involved for thread in group) else ""
        more = f" and {len(group) - 1:,} more like it" if len(group) > 1 else ""
        _, *lines = thread_lines(first, Style(color=False), why=False, sources=report.sources)
        yield f"<details{is_open}><summary><strong>{text(headline(first))}</strong>{more}"
        yield f'<span class="note"> {text(state_text(first, report.threads))}</span></summary>'
        yield f'<pre class="frames">{text_lines(lines)}</pre></details>'
    if len(groups) > MOST_LISTED:
        yield f'<p class="note">… and {len(groups) - MOST_LISTED:,} more, which all-threads lists</p>'


# --- who waits for whom ------------------------------------------------------------------------------


def drawing(threads: Sequence[ThreadReport]) -> Iterator[str]:
    """Up to 24 threads that wait for each other, with an arrow from each to its owner; nothing if none does."""
    by_tid = {thread.tid: thread for thread in threads}
    edges = [
        (thread.tid, tid)
        for thread in threads
        if thread.wait and not thread.pool
        for tid in thread.wait.owner_tids
        if tid in by_tid
    ]
    connected = list(dict.fromkeys(tid for edge in edges for tid in edge))
    rows = {tid: number for number, tid in enumerate(connected[:24])}
    drawn = [(rows[waiter], rows[owner]) for waiter, owner in edges if waiter in rows and owner in rows]
    if not drawn:
        return
    lanes = 1 + len(drawn)
    width, height = max(_WIDTH, _BOX + _LANE * lanes + 16), _STEP * len(rows)
    yield "<h2>Wait-for graph</h2>"
    yield f'<svg class="waits" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="wait-for graph">'
    yield '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    yield '<path d="M0 0 8 4 0 8z"/></marker></defs>'
    for tid, row in rows.items():
        thread, top = by_tid[tid], row * _STEP + 4
        wait = thread.wait.phrase if thread.wait else thread.state.value
        yield f'<rect x="2" y="{top}" width="{_BOX - 4}" height="{_BOX_HEIGHT}" rx="4"/>'
        yield f'<text x="10" y="{top + 18}">{text(cut(thread.label, _LETTERS))}</text>'
        yield f'<text class="wait" x="10" y="{top + 35}">{text(cut(wait, _LETTERS))}</text>'
    for number, (waiter, owner) in enumerate(drawn, 1):
        start, end = waiter * _STEP + 16, owner * _STEP + (36 if owner != waiter else 40)
        path, edge = f"M{_BOX - 2} {start} H{_BOX + _LANE * number} V{end}", _BOX - 2
        yield f'<path class="arrow" d="{path} H{edge}" marker-end="url(#head)"/>'
    yield "</svg>"
    left_out = len(connected) - len(rows)
    if left_out > 0:
        yield f'<p class="note">… and {left_out:,} more threads that wait for each other</p>'
