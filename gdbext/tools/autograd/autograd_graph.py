"""The graph of a backward pass: all nodes that can be reached from one, breadth first, bounded; as text, or in
graphviz' language, with a picture where graphviz is installed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.commands.dot_graph import draw, quoted, write_text
from gdbext.errors import GdbextError, UsageError
from gdbext.render import escape
from gdbext.tools.autograd import autograd_section
from gdbext.tools.autograd.node_reporter import NodeReporter
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.tools.tensor.tensor_tool import tensor_named
from gdbext.torch.state.tensor import FoundEdge, NodeReader

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread

NODE_LIMIT = 10_000


class NodeGraph(NamedTuple):
    """``edges`` by node, in the order in which the nodes were reached; None for one that cannot be read."""

    root: int
    edges: dict[int, tuple[FoundEdge, ...] | None]
    truncated: bool


def reachable(nodes: NodeReader, root: int, limit: int = NODE_LIMIT) -> NodeGraph:
    """The graph from ``root`` on. Raises nothing."""
    found: dict[int, tuple[FoundEdge, ...] | None] = {root: None}
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


class AutogradGraph(NamedTuple):
    """``nodes``, the root first. ``saved_known``: what the nodes of this release save was measured."""

    nodes: tuple[autograd_section.GraphNode, ...]
    truncated: bool
    saved_known: bool

    @property
    def stale(self) -> tuple[autograd_section.StaleTensor, ...]:
        """Saved tensors that were modified in place since."""
        return tuple(
            autograd_section.StaleTensor(each.node, saved)
            for each in self.nodes
            for saved in each.saved or ()
            if saved.is_stale
        )


def graph_from(reporter: NodeReporter, root: int) -> AutogradGraph:
    """All nodes that can be reached from ``root``, at most 10,000. Raises BadData where there is no node."""
    reporter.reference(root)
    found = reachable(reporter.nodes, root)
    nodes = tuple(
        autograd_section.GraphNode(_reference(reporter, node), edges or (), _saved(reporter, node))
        for node, edges in found.edges.items()
    )
    return AutogradGraph(nodes, found.truncated, reporter.saved_is_known)


def _saved(reporter: NodeReporter, node: int) -> tuple[autograd_section.SavedTensor, ...] | None:
    try:
        return reporter.saved(node) if reporter.saved_is_known else None
    except GdbextError:
        return None


def _reference(reporter: NodeReporter, node: int) -> autograd_section.NodeReference:
    try:
        return reporter.reference(node)
    except GdbextError:
        return autograd_section.NodeReference("unreadable", node, None, None)


def running_node(section: autograd_section.AutogradSection) -> int:
    """The node that the first of the threads in a backward pass runs. Raises UsageError."""
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
_DRAWN = 1000
"""Nodes that graphviz places in a second or two."""


def write(path: str, nodes: Sequence[autograd_section.GraphNode]) -> tuple[str, ...]:
    """Write the graph to ``path``, as text if it ends in .txt. Returns the files. Raises UsageError."""
    lines = text_lines(nodes) if path.endswith(".txt") else dot_lines(nodes)
    text = "\n".join(lines) + "\n"
    write_text(path, text, "--graph")
    picture = draw(path, text) if not path.endswith(".txt") and len(nodes) <= _DRAWN else None
    return (path, picture) if picture else (path,)


def dot_lines(nodes: Sequence[autograd_section.GraphNode]) -> Iterator[str]:
    """A digraph: leaves are ellipses, nodes that have saved what was modified since are red; an edge that goes to
    another input than the first has its number."""
    yield "digraph autograd {"
    yield '  node [fontname="monospace", fontsize=10, shape=box];'
    for each in nodes:
        look = ", shape=ellipse" if each.node.variable else ""
        if any(saved.is_stale for saved in each.saved or ()):
            look += ", color=red, fontcolor=red"
        label = "\n".join([_label(each.node), *(_escaped(saved) for saved in _tensors(each))])
        yield f"  n{each.node.address:x} [label={quoted(label)}{look}];"
    for each in nodes:
        for address, number in each.next_functions:
            if address:
                numbered = f' [label="{number}"]' if number else ""
                yield f"  n{each.node.address:x} -> n{address:x}{numbered};"
    yield "}"


def text_lines(nodes: Sequence[autograd_section.GraphNode]) -> Iterator[str]:
    """A line each, with what it passes its gradients on to."""
    names: dict[int, str] = {int(each.node.address): _name(each.node) for each in nodes}
    for each in nodes:
        after = (names.get(address, f"{address:#x}") if address else "none" for address, _ in each.next_functions)
        yield f"{escape(_name(each.node))} -> {escape(', '.join(after)) or 'nothing'}"
        yield from (f"    saved {_escaped(saved)}" for saved in _tensors(each))


def _tensors(node: autograd_section.GraphNode) -> tuple[autograd_section.SavedTensor, ...]:
    return tuple(saved for saved in node.saved or () if saved.tensor != autograd_section.NOTHING_SAVED)


def saved_text(saved: autograd_section.SavedTensor) -> str:
    """``self: f32[2, 3] cpu, version 0``, and what happened to it since."""
    version = f", version {saved.saved_version}" if saved.saved_version is not None else ""
    stale = f": modified in place since, it is at version {saved.version} now" if saved.is_stale else ""
    return f"{saved.name}: {saved.tensor}{version}{stale}"


def _escaped(saved: autograd_section.SavedTensor) -> str:
    return escape(saved_text(saved))


def _name(node: autograd_section.NodeReference) -> str:
    number = "" if node.sequence_nr in (None, _NO_NUMBER) else f" {node.sequence_nr}"
    return f"{node.name} of {node.variable}" if node.variable else f"{node.name}{number}"


def _label(node: autograd_section.NodeReference) -> str:
    if node.variable:
        return f"{node.name}\n{node.variable}"
    return node.name if node.sequence_nr in (None, _NO_NUMBER) else f"{node.name}\n{node.sequence_nr}"
