"""The report on a job as text of one screen, as a page without scripts, and its tree in graphviz' language."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from gdbext.diagnosis.kinds import kind_of
from gdbext.engine.rank_sets import fold
from gdbext.engine.terminal import cut
from gdbext.engine.vocabulary import or_unknown
from gdbext.render import Style, counted, escape
from gdbext.render.page import NO_ORIGIN, Origin, Page, facts, text, verdict_box
from gdbext.tools.ranks import job_report
from gdbext.tools.ranks.job_sentences import NAMED, reports_by_caller

_ODD, _GROUPS, _TREE, _NOTES, _RAS = 4, 4, 14, 3, 40
"""Lines or blocks of each part of the text that are shown at most."""
_LINES = 8
"""Lines of the program that are shown."""
_WIDTH = 118
_SET = 24
"""Characters of a set of ranks that are shown before a frame."""
_ROWS = 2000
"""Rows of the page's table of ranks; a browser shows no more in reasonable time."""


def render(report: job_report.JobReport, color: bool = False) -> str:
    """The whole text, ending in a newline."""
    return "\n".join(_lines(report, Style(color))) + "\n"


def _lines(report: job_report.JobReport, style: Style) -> Iterator[str]:
    """The lines of the text: verdict, headline, then a block for each part of the report."""
    is_known = bool(report.reports)  # else the verdict names what was not reached
    heading = f"{report.verdict.heading}: " if is_known else ""
    yield style(escape(f"{heading}{report.verdict.summary}"), "bold")
    if is_known:
        yield ""
        yield escape(_headline(report))
    unreached = [f"{process.where}: {process.reason}" for process in report.unreached]
    yield from _first_lines("Not reached", unreached if is_known or len(unreached) > NAMED else [], style)
    helps = (process.help for process in report.unreached[:_NOTES] if process.help)
    yield from (_screen_line(f"  try: {advice}") for advice in islice(helps, 1))
    yield from _first_lines("Note", list(report.notes), style)
    yield from map(escape, _known_bugs(report))
    yield from _odd_lines(report.odd, style)
    yield from _caller_lines(report.reports, style)
    if report.collectives:
        yield ""
        yield style("Collectives", "bold")
        for match in report.collectives[:_GROUPS]:
            yield from (f"  {_screen_line(line)}" for line in _match_lines(match))
        if len(report.collectives) > _GROUPS:
            yield f"  … and {len(report.collectives) - _GROUPS} more groups: --json"
    yield from _tree_lines(report.tree, {rank.own_frame for rank in report.reports if rank.line}, style)
    if report.ras:
        yield from _ras_lines(report.ras, style)


def _headline(report: job_report.JobReport) -> str:
    """``4 processes, ranks 0-3 of 8, on 2 hosts; no report of ranks 4-7; job 1``."""
    ranks = job_report.ranks_of(report.reports)
    unknown = len(report.reports) - len(ranks)
    headline = counted(len(report.reports), "process") + (f", ranks {_cut_set(ranks)}" if ranks else "")
    headline += f" of {report.size}" if report.size is not None else ""
    headline += f", {unknown} of unknown rank" if unknown else ""
    hosts = {rank.host for rank in report.reports if rank.host}
    headline += f", on {counted(len(hosts), 'host')}" if hosts else ""
    headline += f"; no report from ranks {_cut_set(report.missing)}" if report.missing else ""
    return headline + (f"; job {report.job}" if report.job else "")


def _first_lines(title: str, lines: Sequence[str], style: Style) -> Iterator[str]:
    """The first _NOTES lines, each after ``title``, and how many more there are."""
    for line in lines[:_NOTES]:
        yield style(title, "yellow") + _screen_line(f": {line}")
    if len(lines) > _NOTES:
        yield f"  … and {len(lines) - _NOTES} more: --json"


def _known_bugs(report: job_report.JobReport) -> Iterator[str]:
    """A line for each known bug, with the ranks that show it."""
    showing: dict[str, list[job_report.RankReport]] = {}
    for rank in report.reports:
        for bug in rank.known:
            showing.setdefault(bug, []).append(rank)
    for bug, reports in showing.items():
        ranks = job_report.ranks_of(reports)
        yield f"Known bug ({f'ranks {_cut_set(ranks)}' if ranks else f'{len(reports)} of unknown rank'}) {bug}"


def _odd_lines(reports: Sequence[job_report.RankReport], style: Style) -> Iterator[str]:
    """The ranks that explain the verdict, each with its innermost frames."""
    if reports:
        yield ""
        yield style("Ranks that differ", "bold")
    for report in reports[:_ODD]:
        where = f" on {report.host}" if report.host and report.rank is not None else ""
        pid = f" (pid {report.pid}{where})" if report.rank is not None else ""
        yield f"  {_screen_line(f'{report.label}{pid}: {kind_of(report.kind).words}: {report.summary}')}"
        for frame in report.path[-4:][::-1]:
            yield f"      {_screen_line(frame)}"
    if len(reports) > _ODD:
        yield f"  … and {len(reports) - _ODD} more"


def _caller_lines(reports: Sequence[job_report.RankReport], style: Style) -> Iterator[str]:
    """The program's line on each side of a wait for other ranks, and what it called there; never shortened."""
    callers = reports_by_caller(reports) if any(report.wait for report in reports) else {}
    if callers:
        yield ""
        yield style("Lines of the program", "bold")
    for caller, ranks in list(callers.items())[:_LINES]:
        yield escape(f"  {_cut_set(job_report.ranks_of(ranks)) or 'unknown rank':{_SET}} {caller}")
    if len(callers) > _LINES:
        yield f"  … and {len(callers) - _LINES} more: --json, --html FILE"


def _match_lines(match: job_report.CollectiveMatch) -> Iterator[str]:
    """A collective by its group and number, what the ranks issued under that number, and how far each rank is."""
    yield f"group {match.group} ({_cut_set(match.members)}), #{match.seq}: {match.state.words}"
    for variant in match.variants[:4]:
        yield f"  {_cut_set(variant.ranks):{_SET}} {variant.op}"
    parts = (
        ("pending", match.pending),
        ("completed", match.completed),
        ("never enqueued", match.never_enqueued),
        ("no report from", match.missing),
    )
    yield f"  {'; '.join(f'{name} {_cut_set(ranks)}' for name, ranks in parts if ranks)}"


def _tree_lines(nodes: Sequence[job_report.TreeNode], own: Collection[str], style: Style) -> Iterator[str]:
    """The tree of paths, a line for each stretch of frames without a branch. ``own``: the innermost frames of the
    program's own code, which are always shown."""
    if not nodes:
        return
    yield ""
    yield style("Where they are (outermost first; equal paths folded)", "bold")
    lines = list(job_report.stretches(nodes))
    for depth, frames, node in lines[:_TREE]:
        ranks = _cut_set(node.ranks) + (f" +{node.unranked} of unknown rank" if node.unranked else "")
        start = f"  {ranks:{_SET}} {'  ' * depth}"
        last = len(frames) - 1
        mine = {index for index, frame in enumerate(frames) if frame in own}
        choices = (set(range(last + 1)) if last < 3 else {0, last - 1, last, *mine}, {last, *mine}, mine or {last})
        lines_of_choices = [start + _shown_frames(frames, choice) for choice in choices]
        fitting = (line for line in lines_of_choices if len(escape(line)) <= _WIDTH)
        yield _screen_line(next(fitting, lines_of_choices[0]))
    if len(lines) > _TREE:
        yield f"  … and {len(lines) - _TREE} more branches: --json, --html FILE, --dot FILE"


def _shown_frames(frames: Sequence[str], shown: Collection[int]) -> str:
    """The frames with these indices, and "…" for those between them."""
    parts: list[str] = []
    for index, frame in enumerate(frames):
        if index in shown:
            parts.append(frame)
        elif not parts or parts[-1] != "…":
            parts.append("…")
    return " > ".join(parts)


def _ras_lines(answer: job_report.RasAnswer, style: Style) -> Iterator[str]:
    """The answer of NCCL's RAS in its own words."""
    yield ""
    by = "" if answer.user is None else f" (a process of user {answer.user})"
    where = f"{escape(answer.address)}{by}"
    yield style(f"NCCL's RAS at {where}: a second opinion, not used for the verdict", "bold")
    if answer.problem:
        yield _screen_line(f"  no answer: {answer.problem}")
    if answer.says_ok:
        yield "  It reports OK for all communicators, as it also does if all ranks launched an operation that hangs."
    yield from (_screen_line(f"  {line}") for line in answer.lines[:_RAS])
    if len(answer.lines) > _RAS:
        yield f"  … and {len(answer.lines) - _RAS} more lines: --json"


def _cut_set(ranks: Collection[int]) -> str:
    """A set of ranks, cut to ``_SET`` characters."""
    whole = fold(ranks)
    return whole if len(whole) <= _SET else f"{whole[: _SET - 2].rpartition(',')[0]},… ({len(ranks)})"


def _screen_line(line: str) -> str:
    """The line, escaped and cut to the width of a terminal."""
    return cut(escape(line), _WIDTH)


def render_page(report: job_report.JobReport, origin: Origin = NO_ORIGIN) -> str:
    """The page, ending in a newline."""
    title = f"Diagnosis of {f'job {report.job}' if report.job else 'a job'}: {report.verdict.heading}"
    return Page(title).whole(_page_body(title, report, origin))


def _page_body(title: str, report: job_report.JobReport, origin: Origin) -> Iterator[str]:
    """The lines of HTML: the same parts as in the text, and a table of all ranks."""
    yield f"<h1>{text(title)}</h1>"
    is_fine = report.verdict.kind in (job_report.JobVerdictKind.ALL_BUSY, job_report.JobVerdictKind.ALL_IDLE)
    yield verdict_box("good" if is_fine else "hangs", report.verdict.heading, report.verdict.summary)
    yield from facts((("examined", _headline(report)), *origin.facts))
    notes = [f"Note: {note}" for note in report.notes]
    silent = [f"Not reached: {process.where}: {process.reason}" for process in report.unreached]
    yield from (f'<p class="warning">{text(line)}</p>' for line in (*_known_bugs(report), *notes, *silent))
    yield "<h2>Ranks that differ</h2>"
    for rank in report.odd:
        frames = "<br>".join(text(frame) for frame in rank.path)
        yield f"<details open><summary>{text(rank.label)}: {text(rank.summary)}</summary>"
        yield f'<div class="frames">{frames}</div></details>'
    if report.collectives:
        yield from _collectives_html(report.collectives)
    yield "<h2>Where they are</h2>"
    yield from _tree_html(report)
    yield from _ranks_table(report)


def _collectives_html(matches: Sequence[job_report.CollectiveMatch]) -> Iterator[str]:
    """The table of collectives: group, number, state, and the ranks of each operation."""
    yield '<h2>Collectives</h2><div class="searched">'
    yield "<table><tr><th>group<th>number<th>state<th>issued<th>pending<th>never enqueued</tr>"
    for match in matches:
        issued = "<br>".join(f"{_ranks_html(variant.ranks)} {text(variant.op)}" for variant in match.variants)
        yield f"<tr><td>{text(match.group)}<td>#{match.seq}<td>{match.state.words}<td>{issued}"
        yield f"<td>{_ranks_html(match.pending)}<td>{_ranks_html(match.never_enqueued)}</tr>"
    yield "</table></div>"


def _tree_html(report: job_report.JobReport) -> Iterator[str]:
    """The tree of paths as nested ``<details>``, one for each stretch of frames without a branch."""
    depths: list[int] = []
    odd = set(report.verdict.ranks)
    for depth, frames, node in job_report.stretches(report.tree):
        while depths and depths[-1] >= depth:
            depths.pop()
            yield "</div></details>"
        mark = ' class="odd"' if odd and set(node.ranks) <= odd else ""
        ranks = _ranks_html(node.ranks) + (f" and {node.unranked} of unknown rank" if node.unranked else "")
        yield f"<details open{mark}><summary>{ranks} <code>{text(frames[-1])}</code></summary>"
        yield f'<div class="branch"><div class="frames">{"<br>".join(text(frame) for frame in frames)}</div>'
        depths.append(depth)
    yield from ("</div></details>" for _ in depths)


def _ranks_table(report: job_report.JobReport) -> Iterator[str]:
    """A table with a row for each rank and, for each group, its last numbers ``enqueued / completed``."""
    names = list(dict.fromkeys(group.label for rank in report.reports for group in rank.groups))[:12]
    heads = "".join(f"<th>{text(name)}" for name in names)
    yield f'<h2>Ranks</h2><div class="searched"><table><tr><th>rank<th>host<th>pid<th>verdict{heads}</tr>'
    blamed = set(report.verdict.ranks)
    for rank in report.reports[:_ROWS]:
        counts = {
            group.label: "" if group.enqueued is None else f"{group.enqueued} / {or_unknown(group.completed)}"
            for group in rank.groups
        }
        cells = "".join(f"<td>{counts.get(name, '')}" for name in names)
        mark = ' class="odd"' if rank.rank in blamed else ""
        row = f"<td>{or_unknown(rank.rank)}<td>{text(rank.host or '?')}<td>{rank.pid}<td>{text(rank.kind)}{cells}"
        yield f"<tr{mark}>{row}</tr>"
    yield "</table></div>"
    if len(report.reports) > _ROWS:
        yield f"<p>… and {len(report.reports) - _ROWS} more</p>"


def _ranks_html(ranks: Collection[int]) -> str:
    """A set of ranks (``0-3,7``) as HTML."""
    return f'<span class="ranks">{fold(ranks)}</span>'


def render_dot(report: job_report.JobReport) -> str:
    """The graph, ending in a newline. Nodes are stretches of frames: their ranks and three innermost frames."""
    verdict = report.verdict
    lines = [
        "digraph ranks {",
        '  graph [rankdir=LR, label="' + _dot_text(f"{verdict.heading}: {verdict.summary}") + '"];',
        '  node [shape=box, fontname="monospace", fontsize=10];',
    ]
    above: list[int] = []
    odd = set(verdict.ranks)
    for number, (depth, frames, node) in enumerate(job_report.stretches(report.tree)):
        label = "\\n".join(_dot_text(frame) for frame in (fold(node.ranks) or "?", *frames[-3:]))
        color = ", color=red" if odd and set(node.ranks) <= odd else ""
        lines.append(f'  n{number} [label="{label}"{color}];')
        del above[depth:]
        if above:
            lines.append(f'  n{above[-1]} -> n{number} [label="{_dot_text(fold(node.ranks))}"];')
        above.append(number)
    return "\n".join([*lines, "}"]) + "\n"


def _dot_text(line: str) -> str:
    """The line, escaped for a quoted string of graphviz's language."""
    return escape(line).replace("\\", "\\\\").replace('"', '\\"')
