"""The operators that a trace is about: those that are named, also when they are defined later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdbext.torch.registry.operator_names import matcher

if TYPE_CHECKING:
    from gdbext.errors import UsageError
    from gdbext.torch.registry.operators import Dispatcher, Operator


@dataclass(frozen=True)
class TraceRequest:
    """``everything``: all calls of all operators. ``returns``: also stop where dispatches end.

    ``boxed``: also stop in ``Dispatcher::callBoxed``, which all operators share. ``limit`` dispatches and ``depth``
    levels, 0 for any number; ``tid`` one thread only; ``key``: by probes only dispatches to
    that key. The trace begins with the first dispatch of ``since``.
    """

    patterns: Sequence[str]
    everything: bool = False
    verbose: bool = False
    returns: bool = False
    boxed: bool = False
    limit: int = 0
    depth: int = 0
    tid: int | None = None
    since: str = ""
    key: str = ""


class TracedOperators:
    """``named`` are registered already; ``since`` are those whose first dispatch begins the trace.

    ``unknown`` has an error with the closest names for each pattern that means none yet.
    """

    def __init__(self, dispatcher: Dispatcher, request: TraceRequest) -> None:
        """Resolve the patterns. Raises UsageError, MemoryFault."""
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
