"""The graph of a backward pass: all nodes that can be reached from one, breadth first, bounded."""

from __future__ import annotations

from collections import deque

from gdbext.errors import GdbextError
from gdbext.model.record import Record
from gdbext.torch.autograd.nodes import Edge, NodeReader

NODE_LIMIT = 10_000


class NodeGraph(Record):
    """``edges`` by node, in the order in which the nodes were reached; None for one that cannot be read."""

    root: int
    edges: dict[int, tuple[Edge, ...] | None]
    truncated: bool


def reachable(nodes: NodeReader, root: int, limit: int = NODE_LIMIT) -> NodeGraph:
    """The graph from ``root`` on. Raises nothing."""
    found: dict[int, tuple[Edge, ...] | None] = {root: None}
    waiting = deque([root])
    truncated = False
    while waiting:
        node = waiting.popleft()
        try:
            edges = found[node] = nodes.edges(node)
        except GdbextError:
            continue
        for edge in edges:
            if not edge.node or edge.node in found:
                continue
            if len(found) >= limit:
                truncated = True
                continue
            found[edge.node] = None
            waiting.append(edge.node)
    return NodeGraph(root, found, truncated)
