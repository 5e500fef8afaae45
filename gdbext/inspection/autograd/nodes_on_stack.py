"""The nodes of backward passes that run on a stack: one for each call of the engine, several where it is reentrant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.inspection.autograd.node_reporter import NodeReporter
from gdbext.model.sections.autograd_section import NodeReference
from gdbext.model.threads.backward_node import BackwardNode
from gdbext.torch.autograd.engine import EngineReader

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.targets.base import Thread
    from gdbext.unwind.stack import Stack

_APPLY = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply\(")
_PYTHON_NODE = "PyNode"
"""What the method of a node is called that Python defines."""
_FRAME_LIMIT = 1 << 14
"""Bytes of a frame of ``Engine::thread_main`` at most."""


def nodes_on_stack(session: Session, thread: Thread, stack: Stack, levels: Sequence[int]) -> tuple[BackwardNode, ...]:
    """The nodes that the engine's calls at ``levels`` run. Raises nothing: a node that is not known is left out."""
    try:
        reporter = NodeReporter(session)
    except GdbextError:
        found: list[BackwardNode | None] = [
            _named(stack, inner + 1, outer) for inner, outer in zip((-1, *levels), levels)
        ]
        return tuple(node for node in found if node is not None)
    found = [_running(session, reporter, thread, levels[0]) or _named(stack, 0, levels[0])]
    for inner, outer in zip(levels, levels[1:]):
        reference = outer_node(reporter, stack, inner, outer)
        found.append(_node(outer, reference) if reference is not None else _named(stack, inner + 1, outer))
    return tuple(node for node in found if node is not None)


def outer_nodes(reporter: NodeReporter, stack: Stack, levels: Sequence[int]) -> tuple[NodeReference, ...]:
    """The nodes from whose backward the innermost pass was started, innermost first, as far as they are known."""
    found = (outer_node(reporter, stack, inner, outer) for inner, outer in zip(levels, levels[1:]))
    return tuple(node for node in found if node is not None)


def _running(session: Session, reporter: NodeReporter, thread: Thread, level: int) -> BackwardNode | None:
    """The one that the engine says this thread runs."""
    try:
        engine = EngineReader(session.memory, session.layout, session.symbolizer)
        node = engine.running(session.memory.architecture.thread_pointer(thread.registers())).node
        return _node(level, reporter.reference(node)) if node else None
    except GdbextError:
        return None


def _node(level: int, found: NodeReference) -> BackwardNode:
    return BackwardNode(level, found.name, found.sequence_nr, found.variable)


def outer_node(reporter: NodeReporter, stack: Stack, inner: int, outer: int) -> NodeReference | None:
    """The node that the engine's call at ``outer`` runs, from which that at ``inner`` was started; None if unknown.

    ``Engine::thread_main``, which makes both calls, keeps in its frame the node that it runs, and the one that ran
    before it began (engine.cpp, NodeGuard): the node that both frames have is the one.
    """
    both = _nodes_in(reporter, stack, inner + 1) & _nodes_in(reporter, stack, outer + 1)
    try:
        found = reporter.reference(both.pop()) if len(both) == 1 else None
    except GdbextError:
        return None
    named = _named(stack, inner + 1, outer)
    if found is None or (named is not None and named.name not in (found.name.rpartition("::")[2], _PYTHON_NODE)):
        return None
    return found


def _nodes_in(reporter: NodeReporter, stack: Stack, level: int) -> set[int]:
    """Addresses of nodes in the frame at ``level``."""
    frame = stack.frames[level] if level < len(stack) else None
    if frame is None or not 0 < frame.cfa - frame.sp <= _FRAME_LIMIT:
        return set()
    try:
        words = set(reporter.nodes.memory.words(frame.sp, (frame.cfa - frame.sp) // 8))
    except GdbextError:
        return set()
    return {word for word in words if _is_node(reporter, word)}


def _is_node(reporter: NodeReporter, word: int) -> bool:
    if not word or word % 8:
        return False
    try:
        return reporter.nodes.is_node(word)
    except GdbextError:
        return False


def _named(stack: Stack, first: int, level: int) -> BackwardNode | None:
    """The one whose method is among the frames that the engine's call at ``level`` made."""
    for inner in range(level - 1, first - 1, -1):
        function = stack.function(inner)
        found = next(filter(None, map(_APPLY.match, function.demangled if function is not None else ())), None)
        if found is not None:
            return BackwardNode(level, found.group(1), None)
    return None
