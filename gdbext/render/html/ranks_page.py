"""The report on a job as a page, without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.jobs.tree import chains
from gdbext.model.job.job_report import CollectiveMatch, JobReport
from gdbext.model.job.rank_report import GroupState, RankReport
from gdbext.model.rank_set import fold
from gdbext.render.html.page import Page, text

_ROWS = 2000
"""Rows of the table of ranks; a browser shows no more in reasonable time."""


def render(report: JobReport) -> str:
    """The page, ending in a newline."""
    title = f"{report.verdict.kind}: {report.job or 'job'}"
    return Page(title).whole(_body(report))


def _body(report: JobReport) -> Iterator[str]:
    yield f"<h1>{text(report.verdict.kind)}</h1><p>{text(report.verdict.summary)}</p>"
    yield from (f"<p>Note: {text(note)}</p>" for note in report.notes)
    yield from (f"<p>Not reached: {text(each.where)}: {text(each.reason)}</p>" for each in report.unreached)
    yield "<h2>The odd ones</h2>"
    for each in report.odd:
        frames = "<br>".join(text(frame) for frame in each.path)
        yield f"<details open><summary>{text(each.label)}: {text(each.summary)}</summary>"
        yield f'<div class="frames">{frames}</div></details>'
    yield from _collectives(report.collectives)
    yield "<h2>Where they are</h2>"
    yield from _tree(report)
    yield from _table(report)


def _collectives(matches: Sequence[CollectiveMatch]) -> Iterator[str]:
    yield "<h2>Collectives</h2><table><tr><th>group<th>number<th>state<th>issued<th>pending<th>never enqueued</tr>"
    for match in matches:
        issued = "<br>".join(f"{_ranks(each.ranks)} {text(each.text)}" for each in match.variants)
        yield f"<tr><td>{text(match.group)}<td>#{match.seq}<td>{match.state.value}<td>{issued}"
        yield f"<td>{_ranks(match.waiting)}<td>{_ranks(match.never)}</tr>"
    yield "</table>"


def _tree(report: JobReport) -> Iterator[str]:
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
    yield f"<h2>Ranks</h2><table><tr><th>rank<th>host<th>pid<th>verdict{heads}</tr>"
    blamed = set(report.verdict.ranks)
    for each in report.reports[:_ROWS]:
        yield _row(each, names, each.rank in blamed)
    yield "</table>"
    if len(report.reports) > _ROWS:
        yield f"<p>… and {len(report.reports) - _ROWS} more</p>"


def _row(report: RankReport, names: Sequence[str], is_odd: bool) -> str:
    groups = {group.label: group for group in report.groups}
    cells = "".join(f"<td>{_counts(groups.get(name))}" for name in names)
    rank = "?" if report.rank is None else report.rank
    mark = ' class="odd"' if is_odd else ""
    return f"<tr{mark}><td>{rank}<td>{text(report.host or '?')}<td>{report.pid}<td>{text(report.kind)}{cells}</tr>"


def _counts(group: GroupState | None) -> str:
    if group is None or group.enqueued is None:
        return ""
    return f"{group.enqueued} / {'?' if group.completed is None else group.completed}"


def _ranks(ranks: Sequence[int]) -> str:
    return f'<span class="ranks">{fold(ranks)}</span>'
