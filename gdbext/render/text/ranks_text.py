"""The report on a job as text: one screen, however many ranks there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.jobs.tree import chains
from gdbext.model.job.job_report import CollectiveMatch, JobReport, TreeNode
from gdbext.model.job.rank_report import RankReport
from gdbext.model.rank_set import fold
from gdbext.render.text.style import Style, escape

_ODD = 4
_GROUPS = 4
_TREE = 14
_NOTES = 3
_WIDTH = 118
_SET = 24
"""Characters of a set of ranks that are shown before a frame."""


def render(report: JobReport, color: bool = False) -> str:
    """The whole text, ending in a newline."""
    return "\n".join(_lines(report, Style(color))) + "\n"


def _lines(report: JobReport, style: Style) -> Iterator[str]:
    yield style(escape(f"{report.verdict.kind}: {report.verdict.summary}"), "bold")
    yield ""
    yield escape(_headline(report))
    yield from _short("Not reached", [_unreached(each.where, each.reason) for each in report.unreached], style)
    for advice in list(dict.fromkeys(each.help for each in report.unreached[:_NOTES] if each.help))[:1]:
        yield _cut(f"  try: {advice}")
    yield from _short("Note", list(report.notes), style)
    yield from _odd(report.odd, style)
    if report.collectives:
        yield ""
        yield style("Collectives", "bold")
        for match in report.collectives[:_GROUPS]:
            yield from (f"  {_cut(line)}" for line in _match(match))
        if len(report.collectives) > _GROUPS:
            yield f"  … and {len(report.collectives) - _GROUPS} more groups: --json"
    yield from _tree(report.tree, style)


def _headline(report: JobReport) -> str:
    known = [each.rank for each in report.reports if each.rank is not None]
    unknown = len(report.reports) - len(known)
    text = f"{len(report.reports)} processes" + (f", ranks {_set(known)}" if known else "")
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


def _odd(reports: Sequence[RankReport], style: Style) -> Iterator[str]:
    if reports:
        yield ""
        yield style("The odd ones", "bold")
    for report in reports[:_ODD]:
        where = f" on {report.host}" if report.host and report.rank is not None else ""
        pid = f" (pid {report.pid}{where})" if report.rank is not None else ""
        yield f"  {_cut(f'{report.label}{pid}: {report.kind}: {report.summary}')}"
        for frame in report.path[-4:][::-1]:
            yield f"      {_cut(frame)}"
    if len(reports) > _ODD:
        yield f"  … and {len(reports) - _ODD} more"


def _match(match: CollectiveMatch) -> Iterator[str]:
    yield f"group {match.group} ({_set(match.members)}), #{match.seq}: {match.state.value}"
    for variant in match.variants[:4]:
        yield f"  {_set(variant.ranks):{_SET}} {variant.text}"
    parts = (("pending", match.waiting), ("completed", match.completed), ("never enqueued", match.never))
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


def _set(ranks: Sequence[int]) -> str:
    """A set of ranks, cut where it is long."""
    text = fold(ranks)
    return text if len(text) <= _SET else f"{text[: _SET - 2].rpartition(',')[0]},… ({len(ranks)})"


def _cut(text: str) -> str:
    text = escape(text)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
