"""The paths of all ranks as one tree: equal frames are folded, each node has the set of ranks that share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.model.job.job_report import TreeNode
from gdbext.model.job.rank_report import RankReport


def fold(reports: Sequence[RankReport], level: int = 0) -> tuple[TreeNode, ...]:
    """The nodes below a common path of ``level`` frames, the largest first."""
    found: dict[str, list[RankReport]] = {}
    for report in reports:
        if level < len(report.path):
            found.setdefault(report.path[level], []).append(report)
    nodes = (_node(frame, below, level) for frame, below in found.items())
    return tuple(sorted(nodes, key=lambda node: (-len(node.ranks) - node.unranked, node.ranks, node.frame)))


def _node(frame: str, reports: Sequence[RankReport], level: int) -> TreeNode:
    ranks = tuple(sorted({report.rank for report in reports if report.rank is not None}))
    return TreeNode(frame, ranks, sum(report.rank is None for report in reports), fold(reports, level + 1))


def chains(nodes: Sequence[TreeNode], depth: int = 0) -> Iterator[tuple[int, tuple[str, ...], TreeNode]]:
    """(depth, frames, last node) of each stretch without a branch, in order: what one line of a picture shows."""
    for node in nodes:
        frames, last = [node.frame], node
        while len(last.children) == 1 and _alike(last, last.children[0]):
            last = last.children[0]
            frames.append(last.frame)
        yield depth, tuple(frames), last
        yield from chains(last.children, depth + 1)


def _alike(node: TreeNode, child: TreeNode) -> bool:
    return node.ranks == child.ranks and node.unranked == child.unranked
