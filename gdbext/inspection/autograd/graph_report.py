"""The graph of a backward pass as a file has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import GdbextError, UsageError
from gdbext.inspection.autograd.node_reporter import NodeReporter
from gdbext.model.hexadecimal import Hexadecimal
from gdbext.model.record import Record
from gdbext.model.sections.autograd_section import (
    AutogradSection,
    GraphNode,
    NodeReference,
    SavedTensor,
    StaleTensor,
)
from gdbext.torch.autograd.graph import reachable

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.targets.base import Thread


class AutogradGraph(Record):
    """``nodes``, the root first. ``saved_known``: what the nodes of this release save was measured."""

    nodes: tuple[GraphNode, ...]
    truncated: bool
    saved_known: bool

    @property
    def stale(self) -> tuple[StaleTensor, ...]:
        """Saved tensors that were modified in place since."""
        return tuple(
            StaleTensor(each.node, saved) for each in self.nodes for saved in each.saved or () if saved.is_stale
        )


def graph_from(reporter: NodeReporter, root: int) -> AutogradGraph:
    """All nodes that can be reached from ``root``, at most 10,000. Raises BadData where there is no node."""
    reporter.reference(root)
    found = reachable(reporter.nodes, root)
    nodes = tuple(
        GraphNode(_reference(reporter, node), edges or (), _saved(reporter, node))
        for node, edges in found.edges.items()
    )
    return AutogradGraph(nodes, found.truncated, reporter.saved_is_known)


def _saved(reporter: NodeReporter, node: int) -> tuple[SavedTensor, ...] | None:
    try:
        return reporter.saved(node) if reporter.saved_is_known else None
    except GdbextError:
        return None


def _reference(reporter: NodeReporter, node: int) -> NodeReference:
    try:
        return reporter.reference(node)
    except GdbextError:
        return NodeReference("unreadable", Hexadecimal(node), None, None)


def running_node(section: AutogradSection) -> int:
    """The node that the first of the threads in a backward pass runs. Raises UsageError."""
    for thread in section.threads:
        if thread.node is not None:
            return thread.node.address
    raise UsageError(
        "no thread runs a node, so that it is not known which graph is meant",
        help="name a tensor that the graph belongs to: dispatch-autograd --graph FILE --py loss",
    )


def node_of_tensor(session: Session, name: str, thread: Thread | None) -> int:
    """The grad_fn of a Python variable. Raises UsageError, with the nearest names."""
    from gdbext.inspection.tensors.tensor_choice import tensor_named
    from gdbext.inspection.tensors.tensor_report import TensorReporter

    reporter = TensorReporter(session)
    node = reporter.fields.grad_node(tensor_named(session, reporter, name, thread))
    if not node:
        raise UsageError(f"{name} has no grad_fn", why="it is a leaf, or was made while grad mode was off")
    return node
