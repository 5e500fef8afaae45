"""The tree of a job's ranks in graphviz' language: nodes are stretches of frames, with the ranks that are in them."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.jobs.tree import chains
from gdbext.model.job.job_report import JobReport
from gdbext.model.rank_set import fold
from gdbext.render.text.style import escape

_FRAMES = 3
"""Innermost frames of a stretch that its node shows."""


def render(report: JobReport) -> str:
    """The graph, ending in a newline."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: JobReport) -> Iterator[str]:
    yield "digraph ranks {"
    yield '  graph [rankdir=LR, label="' + _quoted(f"{report.verdict.kind}: {report.verdict.summary}") + '"];'
    yield '  node [shape=box, fontname="monospace", fontsize=10];'
    above: list[int] = []
    odd = set(report.verdict.ranks)
    for number, (depth, frames, node) in enumerate(chains(report.tree)):
        label = "\\n".join(_quoted(frame) for frame in (fold(node.ranks) or "?", *frames[-_FRAMES:]))
        colour = ', color=red' if odd and set(node.ranks) <= odd else ""
        yield f'  n{number} [label="{label}"{colour}];'
        del above[depth:]
        if above:
            yield f'  n{above[-1]} -> n{number} [label="{_quoted(fold(node.ranks))}"];'
        above.append(number)
    yield "}"


def _quoted(text: str) -> str:
    return escape(text).replace("\\", "\\\\").replace('"', '\\"')
