"""The key that an innermost kernel was expected to go to and did not reach: where the trace would have stopped."""

from __future__ import annotations

from gdbext.errors import GdbextError
from gdbext.process.function_code import FunctionCode
from gdbext.process.memory import Memory
from gdbext.process.symbols import Symbolizer
from gdbext.torch.registry.dispatch_table import DispatchTables
from gdbext.torch.registry.operators import Operator
from gdbext.torch.registry.redispatch_chain import EXPECTED, ExpectedLookup, RedispatchPredictor
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.stack.dispatch_calls import DispatchCall
from gdbext.torch.stack.recovery import RecoveredCall
from gdbext.torch.stack.roles import Role, classify
from gdbext.unwind.stack import Stack


class PendingRedispatch:
    """Answers for the innermost dispatch call of a stack only: further out, the next call is on the stack."""

    def __init__(self, tables: DispatchTables, memory: Memory, symbolizer: Symbolizer) -> None:
        self._tables = tables
        self._chains = RedispatchPredictor(tables)
        self._memory = memory
        self._symbolizer = symbolizer
        self._links: dict[tuple[int, int, int], ExpectedLookup] = {}
        """By operator, keyset and table index: threads of a pool wait in the same kernel."""
        self._redispatching: dict[int, bool] = {}
        """By the target of a call."""

    def next_key(self, stack: Stack, call: DispatchCall, recovered: RecoveredCall, code: FunctionCode) -> str | None:
        """The expected next key, None where none is expected or the kernel may have come back from it already.

        Evidence is added to ``recovered``. Before the kernel is entered, it is the looked-up key itself.
        """
        if recovered.operator is None or recovered.keyset is None or recovered.index is None:
            return None
        keys = self._tables.dispatcher.keys
        if call.kernel is None:
            return keys.key_of_index(recovered.index)
        try:
            link = self._link(recovered.operator, recovered.keyset, recovered.index)
        except GdbextError as error:
            recovered.evidence.append(f"the expected next key is unknown: {error.what}")
            return None
        if link.certainty != EXPECTED or link.next_keyset is None:
            return None
        place = self._redispatch_ahead(stack, call.kernel, code)
        if place is None:
            return None
        key = keys.key_of_index(keys.table_index(link.next_keyset))
        recovered.evidence.append(f"{key} was not entered: {link.why}; its redispatch at {place:#x} is still ahead")
        return key

    def _link(self, operator: Operator, keyset: int, index: int) -> ExpectedLookup:
        place = (operator.address, keyset, index)
        link = self._links.get(place)
        if link is None:
            entry = self._tables.entry(operator, index)
            link = self._links[place] = self._chains.link(operator, keyset, entry)
        return link

    def _redispatch_ahead(self, stack: Stack, kernel: int, code: FunctionCode) -> int | None:
        """Where the kernel's code redispatches, if every place that does lies behind where it stands now."""
        for level in range(kernel, -1, -1):
            calls = code.of(stack.function(level)).calls
            places = [call.end for call in calls if call.target is not None and self._redispatches_at(call.target)]
            if places:
                return places[0] if min(places) > stack.frames[level].pc else None
        return None

    def _redispatches_at(self, target: int) -> bool:
        found = self._redispatching.get(target)
        if found is None:
            found = self._redispatching[target] = self._enters_dispatcher(target)
        return found

    def _enters_dispatcher(self, target: int) -> bool:
        start = follow_stub(self._memory, target)
        function = self._symbolizer.function(start) if start is not None else None
        if function is None or function.start != start:
            return False
        role = classify(function)
        return role.role in (Role.OPERATOR, Role.DISPATCHER) and role.event.startswith("redispatch")
