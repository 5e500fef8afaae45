"""Asks tools for what they add to reports of the diagnosis, by the rows of their table; nothing where none offers
it."""

from __future__ import annotations

from gdbext.diagnosis.session import NO_EXTRAS, CallCounter, Extras

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gdbext.diagnosis.report.thread_report import BackwardNode
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread
    from gdbext.engine.unwind.unwinder import NativeStack
    from gdbext.torch.values.value_text import Statistics


class ToolExtras(Extras):
    """Asks whichever tool offers it; ``offered`` gives its function."""

    def __init__(self, offered: Callable[[str], Callable[..., Any] | None]) -> None:
        self._offered = offered

    def backward_nodes(
        self, session: Session, thread: TargetThread, stack: NativeStack, levels: Sequence[int]
    ) -> tuple[BackwardNode, ...]:
        """The nodes, as the tool finds them."""
        offer = self._offered("backward_nodes") or NO_EXTRAS.backward_nodes
        found: tuple[BackwardNode, ...] = offer(session, thread, stack, levels)
        return found

    def call_count(self, session: Session) -> CallCounter | None:
        """The count by the tool's own means; None where it has none."""
        offer = self._offered("call_count") or NO_EXTRAS.call_count
        found: CallCounter | None = offer(session)
        return found

    def tensor_statistics(self, session: Session) -> Callable[[int], Statistics | None]:
        """Statistics of all elements, as the tool has them."""
        offer = self._offered("tensor_statistics") or NO_EXTRAS.tensor_statistics
        found: Callable[[int], Statistics | None] = offer(session)
        return found
