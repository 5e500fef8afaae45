"""The graph of a backward pass: all nodes that can be reached from one; as text, or in graphviz' language with a
picture."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.commands.dot_graph import draw, quoted, write_text
from gdbext.errors import GdbextError, UsageError
from gdbext.render import escape
from gdbext.tools.autograd.autograd_section import (
    NOTHING_SAVED,
    AutogradSection,
    GraphNode,
    NodeReference,
    SavedTensor,
    StaleTensor,
)
from gdbext.tools.autograd.node_reporter import NodeReporter
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.tools.tensor.tensor_tool import tensor_named
from gdbext.torch.state.tensor import FoundEdge, NodeReader

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread

NODE_LIMIT = 10_000


def reachable(nodes: NodeReader, root: int, limit: int = NODE_LIMIT) -> tuple[dict[int, tuple[FoundEdge, ...]], bool]:
    """(edges by node, breadth first from ``root``; whether there are more than ``limit`` nodes). A node that cannot be
    read has no edges. Raises nothing."""
    edges_of: dict[int, tuple[FoundEdge, ...]] = {root: ()}
    waiting = deque([root])
    truncated = False
    while waiting:
        node = waiting.popleft()
        with suppress(GdbextError):
            edges_of[node] = nodes.edges(node)
        for edge in edges_of[node]:
            if not edge.node or edge.node in edges_of:
                continue
            if len(edges_of) >= limit:
                truncated = True
                continue
            edges_of[edge.node] = ()
            waiting.append(edge.node)
    return edges_of, truncated


class AutogradGraph(NamedTuple):
    """``nodes``, the root first. ``saved_known``: what the nodes of this release save was measured."""

    nodes: tuple[GraphNode, ...]
    truncated: bool
    saved_known: bool

    @property
    def stale(self) -> tuple[StaleTensor, ...]:
        """Saved tensors that were modified in place since."""
        saved = ((node.node, saved) for node in self.nodes for saved in node.saved or ())
        return tuple(StaleTensor(node, tensor) for node, tensor in saved if tensor.is_stale)


def graph_from(reporter: NodeReporter, root: int) -> AutogradGraph:
    """The nodes that can be reached from ``root``, at most NODE_LIMIT. Raises BadData if there is no node."""
    reporter.reference(root)
    edges_of, truncated = reachable(reporter.nodes, root)
    nodes = []
    for address, edges in edges_of.items():
        node, saved = NodeReference("unreadable", address, None, None), None
        with suppress(GdbextError):
            node = reporter.reference(address)
        with suppress(GdbextError):
            saved = reporter.saved(address) if reporter.saved_is_known else None
        nodes.append(GraphNode(node, edges, saved))
    return AutogradGraph(tuple(nodes), truncated, reporter.saved_is_known)


def running_node(section: AutogradSection) -> int:
    """The node of the first thread that runs one. Raises UsageError."""
    for thread in section.threads:
        if thread.node:
            return thread.node.address
    raise UsageError(
        "no thread runs a node, so that it is not known which graph is meant",
        help="name a tensor that the graph belongs to: dispatch-autograd --graph FILE --py loss",
    )


def node_of_tensor(session: Session, name: str, thread: TargetThread | None) -> int:
    """The grad_fn of a Python variable. Raises UsageError, with the nearest names."""
    reporter = TensorReporter(session)
    node = reporter.fields.grad_node(tensor_named(session, reporter, name, thread)[0])
    if not node:
        raise UsageError(f"{name} has no grad_fn", why="it is a leaf, or was made while grad mode was off")
    return node


_NO_NUMBER = (1 << 64) - 1


def write(path: str, nodes: Sequence[GraphNode]) -> tuple[str, ...]:
    """Write the graph to ``path``, as text if it ends in .txt, else as DOT with a picture. Returns the files. Raises
    UsageError."""
    is_text = path.endswith(".txt")
    text = "\n".join(text_lines(nodes) if is_text else dot_lines(nodes)) + "\n"
    write_text(path, text, "--graph")
    picture = draw(path, text) if not is_text and len(nodes) <= 1000 else None  # graphviz takes a second or two
    return (path, picture) if picture else (path,)


def dot_lines(nodes: Sequence[GraphNode]) -> Iterator[str]:
    """A digraph: leaves are ellipses, nodes whose saved tensors were modified since are red; an edge to another input
    than the first has its number."""
    yield "digraph autograd {"
    yield '  node [fontname="monospace", fontsize=10, shape=box];'
    for graph_node in nodes:
        node = graph_node.node
        look = ", shape=ellipse" if node.variable else ""
        if any(saved.is_stale for saved in graph_node.saved or ()):
            look += ", color=red, fontcolor=red"
        suffix = node.variable or ("" if node.sequence_nr in (None, _NO_NUMBER) else str(node.sequence_nr))
        label = "\n".join([node.name, *([suffix] if suffix else []), *_saved_texts(graph_node)])
        yield f"  n{node.address:x} [label={quoted(label)}{look}];"
    for graph_node in nodes:
        for address, number in graph_node.next_functions:
            if address:
                numbered = f' [label="{number}"]' if number else ""
                yield f"  n{graph_node.node.address:x} -> n{address:x}{numbered};"
    yield "}"


def text_lines(nodes: Sequence[GraphNode]) -> Iterator[str]:
    """A line for each node, with the nodes that it passes gradients to, and lines for what it has saved."""
    names: dict[int, str] = {int(graph_node.node.address): _name(graph_node.node) for graph_node in nodes}
    for graph_node in nodes:
        addresses = [address for address, _ in graph_node.next_functions]
        after = (names.get(address, f"{address:#x}") if address else "none" for address in addresses)
        yield f"{escape(_name(graph_node.node))} -> {escape(', '.join(after)) or 'nothing'}"
        yield from (f"    saved {text}" for text in _saved_texts(graph_node))


def _saved_texts(node: GraphNode) -> list[str]:
    return [escape(saved_text(saved)) for saved in node.saved or () if saved.tensor != NOTHING_SAVED]


def saved_text(saved: SavedTensor) -> str:
    """``self: f32[2, 3] cpu, version 0``, and what happened to it since."""
    version = f", version {saved.saved_version}" if saved.saved_version is not None else ""
    stale = f": modified in place since, it is at version {saved.version} now" if saved.is_stale else ""
    return f"{saved.name}: {saved.tensor}{version}{stale}"


def _name(node: NodeReference) -> str:
    number = "" if node.sequence_nr in (None, _NO_NUMBER) else f" {node.sequence_nr}"
    return f"{node.name} of {node.variable}" if node.variable else f"{node.name}{number}"
