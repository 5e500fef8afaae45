"""The operators that a trace is about: those that are named, also when they are defined later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gdbext.torch.registry.operator_names import matcher

if TYPE_CHECKING:
    from gdbext.errors import UsageError
    from gdbext.live.trace.trace_request import TraceRequest
    from gdbext.torch.registry.operators import Dispatcher, Operator


class TracedOperators:
    """``named`` are registered already; ``since`` are those whose first dispatch begins the trace.

    ``unknown`` has an error with the closest names for each pattern that means none yet.
    """

    def __init__(self, dispatcher: Dispatcher, request: TraceRequest) -> None:
        """Raises UsageError, MemoryFault."""
        found = {pattern: dispatcher.find(pattern) for pattern in request.patterns}
        self.unknown: list[UsageError] = [dispatcher.unknown(each) for each, matches in found.items() if not matches]
        self.named: list[Operator] = _distinct(each for matches in found.values() for each in matches)
        self.since: list[Operator] = list(dispatcher.find(request.since)) if request.since else []
        self._everything = request.everything
        self._matchers = [matcher(pattern) for pattern in request.patterns]
        self._addresses = {operator.address for operator in self.named}

    def includes(self, operator: Operator) -> bool:
        """Dispatches of the operator are part of the trace."""
        return self._everything or operator.address in self._addresses

    def has(self, address: int) -> bool:
        """The operator with this OperatorEntry is named."""
        return address in self._addresses

    def add(self, operator: Operator) -> bool:
        """The operator was just defined; whether it is one that is named and that was not known before.

        A kernel that is registered before the schema makes the entry: such an operator is defined and has its hooks.
        """
        if operator.address in self._addresses:
            return False
        wanted = any(matches(operator.qualified) for matches in self._matchers)
        if wanted:
            self._addresses.add(operator.address)
        return wanted

    def all(self) -> list[Operator]:
        """Those that need hooks: named, or the beginning of the trace."""
        return _distinct((*self.named, *self.since))


def _distinct(operators: Iterable[Operator]) -> list[Operator]:
    return list({operator.address: operator for operator in operators}.values())
