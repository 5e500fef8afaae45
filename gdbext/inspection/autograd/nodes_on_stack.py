"""The nodes of backward passes that run on a stack: one for each call of the engine, several where it is reentrant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.inspection.autograd.node_reporter import NodeReporter
from gdbext.model.threads.backward_node import BackwardNode
from gdbext.torch.autograd.engine import EngineReader

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.targets.base import Thread
    from gdbext.unwind.stack import Stack

_APPLY = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply\(")


def nodes_on_stack(session: Session, thread: Thread, stack: Stack, levels: Sequence[int]) -> tuple[BackwardNode, ...]:
    """The nodes that the engine's calls at ``levels`` run. Raises nothing: a node that is not known is left out."""
    innermost = _running(session, thread, levels[0])
    named = [innermost or _named(stack, 0, levels[0])]
    named += [_named(stack, inner + 1, outer) for inner, outer in zip(levels, levels[1:])]
    return tuple(node for node in named if node is not None)


def _running(session: Session, thread: Thread, level: int) -> BackwardNode | None:
    """The one that the engine says this thread runs."""
    try:
        engine = EngineReader(session.memory, session.layout, session.symbolizer)
        node = engine.running(session.memory.architecture.thread_pointer(thread.registers())).node
        found = NodeReporter(session).reference(node) if node else None
    except GdbextError:
        return None
    return BackwardNode(level, found.name, found.sequence_nr, found.variable) if found is not None else None


def _named(stack: Stack, first: int, level: int) -> BackwardNode | None:
    """The one whose method is among the frames that the engine's call at ``level`` made."""
    for inner in range(level - 1, first - 1, -1):
        function = stack.function(inner)
        found = next(filter(None, map(_APPLY.match, function.demangled if function is not None else ())), None)
        if found is not None:
            return BackwardNode(level, found.group(1), None)
    return None
