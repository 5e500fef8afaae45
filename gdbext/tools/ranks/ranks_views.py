"""The tree of a job's ranks in graphviz' language: nodes are stretches of frames, with the ranks that are in them.

The report on a job as text: one screen, however many ranks there are.

The report on a job as a page, without scripts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gdbext.engine.rank_sets import fold
from gdbext.engine.terminal import cut
from gdbext.engine.vocabulary import or_unknown
from gdbext.render import Style, counted, escape
from gdbext.render.page import NO_ORIGIN, Origin, Page, facts, text, verdict_box
from gdbext.tools.ranks.job_report import (
    CollectiveMatch,
    GroupState,
    JobReport,
    RankReport,
    RasAnswer,
    TreeNode,
    chains,
    kind_words,
    ranks_of,
)
from gdbext.tools.ranks.job_sentences import NAMED

_ODD = 4
_GROUPS = 4
_TREE = 14
_NOTES = 3
_RAS = 40
_WIDTH = 118
_SET = 24
"""Characters of a set of ranks that are shown before a frame."""


def render(report: JobReport, color: bool = False) -> str:
    """The whole text, ending in a newline."""
    return "\n".join(_lines(report, Style(color))) + "\n"


def _lines(report: JobReport, style: Style) -> Iterator[str]:
    is_known = bool(report.reports)  # else the verdict names what was not reached
    heading = f"{report.verdict.heading}: " if is_known else ""
    yield style(escape(f"{heading}{report.verdict.summary}"), "bold")
    if is_known:
        yield ""
        yield escape(_headline(report))
    unreached = [_unreached(each.where, each.reason) for each in report.unreached]
    yield from _short("Not reached", unreached if is_known or len(unreached) > NAMED else [], style)
    for advice in list(dict.fromkeys(each.help for each in report.unreached[:_NOTES] if each.help))[:1]:
        yield _cut(f"  try: {advice}")
    yield from _short("Note", list(report.notes), style)
    yield from (escape(line) for line in _known(report))
    yield from _odd(report.odd, style)
    if report.collectives:
        yield ""
        yield style("Collectives", "bold")
        for match in report.collectives[:_GROUPS]:
            yield from (f"  {_cut(line)}" for line in _match(match))
        if len(report.collectives) > _GROUPS:
            yield f"  … and {len(report.collectives) - _GROUPS} more groups: --json"
    yield from _tree(report.tree, style)
    yield from _ras(report.ras, style)


def _ras(answer: RasAnswer | None, style: Style) -> Iterator[str]:
    """The second witness, as it words it; the verdict is ours."""
    if not answer:
        return
    yield ""
    by = "" if answer.user is None else f" (a process of user {answer.user})"
    place = f"{escape(answer.address)}{by}"
    yield style(f"NCCL's RAS at {place}, a second witness, which the verdict does not follow", "bold")
    if answer.problem:
        yield _cut(f"  no answer: {answer.problem}")
    if answer.says_ok:
        yield "  It says OK of all communicators, as it also does where all ranks have launched what does not end."
    yield from (_cut(f"  {line}") for line in answer.lines[:_RAS])
    if len(answer.lines) > _RAS:
        yield f"  … and {len(answer.lines) - _RAS} more lines: --json"


def _headline(report: JobReport) -> str:
    known = ranks_of(report.reports)
    unknown = len(report.reports) - len(known)
    text = counted(len(report.reports), "process") + (f", ranks {_set(known)}" if known else "")
    text += f" of {report.size}" if report.size is not None else ""
    text += f", {unknown} of unknown rank" if unknown else ""
    hosts = {each.host for each in report.reports if each.host}
    text += f", on {len(hosts)} host{'s' if len(hosts) > 1 else ''}" if hosts else ""
    text += f"; no report of ranks {_set(report.missing)}" if report.missing else ""
    return text + (f"; job {report.job}" if report.job else "")


def _unreached(where: str, reason: str) -> str:
    return f"{where}: {reason}"


def _short(title: str, lines: Sequence[str], style: Style) -> Iterator[str]:
    for line in lines[:_NOTES]:
        yield style(title, "yellow") + _cut(f": {line}")
    if len(lines) > _NOTES:
        yield f"  … and {len(lines) - _NOTES} more: --json"


def _known(report: JobReport) -> Iterator[str]:
    """A line for each known bug, with the ranks that show it."""
    found: dict[str, list[RankReport]] = {}
    for each in report.reports:
        for bug in each.known:
            found.setdefault(bug, []).append(each)
    for bug, showing in found.items():
        ranks = ranks_of(showing)
        who = f"ranks {_set(ranks)}" if ranks else f"{len(showing)} of unknown rank"
        yield f"Known ({who}): {bug}"


def _odd(reports: Sequence[RankReport], style: Style) -> Iterator[str]:
    if reports:
        yield ""
        yield style("The odd ones", "bold")
    for report in reports[:_ODD]:
        where = f" on {report.host}" if report.host and report.rank is not None else ""
        pid = f" (pid {report.pid}{where})" if report.rank is not None else ""
        yield f"  {_cut(f'{report.label}{pid}: {kind_words(report.kind)}: {report.summary}')}"
        for frame in report.path[-4:][::-1]:
            yield f"      {_cut(frame)}"
    if len(reports) > _ODD:
        yield f"  … and {len(reports) - _ODD} more"


def _match(match: CollectiveMatch) -> Iterator[str]:
    yield f"group {match.group} ({_set(match.members)}), #{match.seq}: {match.state.words}"
    for variant in match.variants[:4]:
        yield f"  {_set(variant.ranks):{_SET}} {variant.op}"
    parts = (("pending", match.pending), ("completed", match.completed), ("never enqueued", match.never_enqueued))
    known = [f"{name} {_set(ranks)}" for name, ranks in parts if ranks]
    if match.missing:
        known.append(f"no report of {_set(match.missing)}")
    yield f"  {'; '.join(known)}"


def _tree(nodes: Sequence[TreeNode], style: Style) -> Iterator[str]:
    if not nodes:
        return
    yield ""
    yield style("Where they are (outermost first; equal paths folded)", "bold")
    lines = list(chains(nodes))
    for depth, frames, node in lines[:_TREE]:
        shown = frames if len(frames) < 4 else (frames[0], "…", *frames[-2:])
        who = _set(node.ranks) + (f" +{node.unranked} of unknown rank" if node.unranked else "")
        yield _cut(f"  {who:{_SET}} {'  ' * depth}{' > '.join(shown)}")
    if len(lines) > _TREE:
        yield f"  … and {len(lines) - _TREE} more branches: --json, --html FILE, --dot FILE"


def _set(ranks: Collection[int]) -> str:
    """A set of ranks, cut where it is long."""
    text = fold(ranks)
    return text if len(text) <= _SET else f"{text[: _SET - 2].rpartition(',')[0]},… ({len(ranks)})"


def _cut(text: str) -> str:
    text = escape(text)
    return cut(text, _WIDTH)


_ROWS = 2000
"""Rows of the table of ranks; a browser shows no more in reasonable time."""


def render_page(report: JobReport, origin: Origin = NO_ORIGIN) -> str:
    """The page, ending in a newline."""
    return Page(_page_title(report)).whole(_body(report, origin))


def _page_title(report: JobReport) -> str:
    return f"Diagnosis of {f'job {report.job}' if report.job else 'a job'}: {report.verdict.heading}"


def _body(report: JobReport, origin: Origin) -> Iterator[str]:
    yield f"<h1>{text(_page_title(report))}</h1>"
    yield verdict_box("good" if report.verdict.is_fine else "hangs", report.verdict.heading, report.verdict.summary)
    yield from facts((("looked at", _headline(report)), *origin.facts))
    yield from (f'<p class="warning">{text(line)}</p>' for line in _known(report))
    yield from (f'<p class="warning">Note: {text(note)}</p>' for note in report.notes)
    yield from (
        f'<p class="warning">Not reached: {text(each.where)}: {text(each.reason)}</p>' for each in report.unreached
    )
    yield "<h2>The odd ones</h2>"
    for each in report.odd:
        frames = "<br>".join(text(frame) for frame in each.path)
        yield f"<details open><summary>{text(each.label)}: {text(each.summary)}</summary>"
        yield f'<div class="frames">{frames}</div></details>'
    yield from _collectives(report.collectives)
    yield "<h2>Where they are</h2>"
    yield from _tree_html(report)
    yield from _table(report)


def _collectives(matches: Sequence[CollectiveMatch]) -> Iterator[str]:
    if not matches:
        return
    yield '<h2>Collectives</h2><div class="searched">'
    yield "<table><tr><th>group<th>number<th>state<th>issued<th>pending<th>never enqueued</tr>"
    for match in matches:
        issued = "<br>".join(f"{_ranks(each.ranks)} {text(each.op)}" for each in match.variants)
        yield f"<tr><td>{text(match.group)}<td>#{match.seq}<td>{match.state.words}<td>{issued}"
        yield f"<td>{_ranks(match.pending)}<td>{_ranks(match.never_enqueued)}</tr>"
    yield "</table></div>"


def _tree_html(report: JobReport) -> Iterator[str]:
    """Stretches without a branch, nested as they branch."""
    depths: list[int] = []
    odd = set(report.verdict.ranks)
    for depth, frames, node in chains(report.tree):
        while depths and depths[-1] >= depth:
            depths.pop()
            yield "</div></details>"
        mark = ' class="odd"' if odd and set(node.ranks) <= odd else ""
        unknown = f" and {node.unranked} of unknown rank" if node.unranked else ""
        yield f"<details open{mark}><summary>{_ranks(node.ranks)}{unknown} <code>{text(frames[-1])}</code></summary>"
        yield f'<div class="branch"><div class="frames">{"<br>".join(text(frame) for frame in frames)}</div>'
        depths.append(depth)
    yield from ("</div></details>" for _ in depths)


def _table(report: JobReport) -> Iterator[str]:
    """Ranks × the last numbers of their groups."""
    names = list(dict.fromkeys(group.label for each in report.reports for group in each.groups))[:12]
    heads = "".join(f"<th>{text(name)}" for name in names)
    yield f'<h2>Ranks</h2><div class="searched"><table><tr><th>rank<th>host<th>pid<th>verdict{heads}</tr>'
    blamed = set(report.verdict.ranks)
    for each in report.reports[:_ROWS]:
        yield _row(each, names, each.rank in blamed)
    yield "</table></div>"
    if len(report.reports) > _ROWS:
        yield f"<p>… and {len(report.reports) - _ROWS} more</p>"


def _row(report: RankReport, names: Sequence[str], is_odd: bool) -> str:
    groups = {group.label: group for group in report.groups}
    cells = "".join(f"<td>{_counts(groups.get(name))}" for name in names)
    rank = or_unknown(report.rank)
    mark = ' class="odd"' if is_odd else ""
    return f"<tr{mark}><td>{rank}<td>{text(report.host or '?')}<td>{report.pid}<td>{text(report.kind)}{cells}</tr>"


def _counts(group: GroupState | None) -> str:
    if not group or group.enqueued is None:
        return ""
    return f"{group.enqueued} / {or_unknown(group.completed)}"


def _ranks(ranks: Collection[int]) -> str:
    return f'<span class="ranks">{fold(ranks)}</span>'


_FRAMES = 3
"""Innermost frames of a stretch that its node shows."""


def render_dot(report: JobReport) -> str:
    """The graph, ending in a newline."""
    return "\n".join(_dot_lines(report)) + "\n"


def _dot_lines(report: JobReport) -> Iterator[str]:
    yield "digraph ranks {"
    yield '  graph [rankdir=LR, label="' + _quoted(f"{report.verdict.heading}: {report.verdict.summary}") + '"];'
    yield '  node [shape=box, fontname="monospace", fontsize=10];'
    above: list[int] = []
    odd = set(report.verdict.ranks)
    for number, (depth, frames, node) in enumerate(chains(report.tree)):
        label = "\\n".join(_quoted(frame) for frame in (fold(node.ranks) or "?", *frames[-_FRAMES:]))
        colour = ", color=red" if odd and set(node.ranks) <= odd else ""
        yield f'  n{number} [label="{label}"{colour}];'
        del above[depth:]
        if above:
            yield f'  n{above[-1]} -> n{number} [label="{_quoted(fold(node.ranks))}"];'
        above.append(number)
    yield "}"


def _quoted(text: str) -> str:
    return escape(text).replace("\\", "\\\\").replace('"', '\\"')
