"""The key that an innermost kernel was expected to go to and did not reach: where the trace would have stopped.

Why this key won: the keys that each tensor argument of a call on the stack has.

The arguments stand behind the keyset in the call to the kernel (or to its boxing layer). Only what is proven to be a
tensor, by the vtable of its TensorImpl, is shown; the first argument that cannot be placed ends the list.
"""

from __future__ import annotations

from collections.abc import Container

from gdbext.engine.process.code_reader import FunctionCode
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.unwind.unwinder import NativeStack
from gdbext.errors import GdbextError
from gdbext.torch.registry.dispatch_table import DispatchTables
from gdbext.torch.registry.operators import Operator
from gdbext.torch.registry.redispatch_chain import EXPECTED, ExpectedLookup, RedispatchPredictor
from gdbext.torch.registry.schema import schema_types
from gdbext.torch.stack.call_arguments import CallSites, follow_stub
from gdbext.torch.stack.dispatch_calls import DispatchCall
from gdbext.torch.stack.dispatch_frame import DispatchFrame
from gdbext.torch.stack.known_fallbacks import RecoveredCall
from gdbext.torch.stack.roles import Role, classify
from gdbext.torch.state.tensor import TensorReader
from gdbext.torch.values.key_names import KeyNames

Steps = list[tuple[DispatchFrame, DispatchCall, RecoveredCall]]
"""The steps of a stack, each with the frames that it was made of, and what was recovered from them."""
_ARGUMENTS = 6
"""Arguments that are followed: hidden result, functor, keyset, and three of the schema's."""
_ONE_WORD = ("Tensor", "int", "bool", "Scalar")
"""Schema types that take one argument register (torchgen/api/cpp.py: references, integers, SymInt by value)."""


class KeySetExplanation:
    """Explains steps of one process."""

    def __init__(self, memory: Memory, sites: CallSites, tensors: TensorReader, keys: KeyNames) -> None:
        self._memory = memory
        self._sites = sites
        self._tensors = tensors
        self._keys = keys

    def explained(self, stack: NativeStack, steps: Steps, which: Container[int]) -> tuple[DispatchFrame, ...]:
        """The dispatcher's frames of a stack; the evidence of those at the positions ``which`` joined by why the key
        won."""
        return tuple(
            frame._replace(evidence=(*frame.evidence, *self._lines(stack, frame, recovered.operator)))
            if position in which
            else frame
            for position, (frame, _, recovered) in enumerate(steps)
        )

    def _lines(self, stack: NativeStack, step: DispatchFrame, operator: Operator | None) -> list[str]:
        """Sentences for ``--why``; at least why the key won, where operator and keyset are known."""
        if operator is None:
            return []
        if step.keyset is None or step.key is None:
            return []
        highest = self._keys.key_of_index(self._keys.table_index(step.keyset.bits))
        found = [f"{highest} has the highest priority of {self._keys.text(step.keyset.bits)}"]
        try:
            found.extend(self._arguments(stack, step, operator))
        except GdbextError as error:
            found.append(f"which argument brought which key is not known: {error.what}")
        return found

    def _arguments(self, stack: NativeStack, step: DispatchFrame, operator: Operator) -> list[str]:
        schema = operator.schema
        values = self._behind_keyset(stack, step)
        lines: list[str] = []
        for (kind, name), value in zip(schema_types(schema.text) if schema is not None else [], values):
            if kind not in _ONE_WORD or value is None:
                break
            if kind == "Tensor":
                address = self._memory.u64(value)
                keyset = self._tensors.key_set(address)
                short = self._tensors.read(address).short
                lines.append(f"argument {name}: {short} has {self._keys.text(keyset)} {keyset:#x}")
        return lines

    def _behind_keyset(self, stack: NativeStack, step: DispatchFrame) -> list[int | None]:
        """The argument registers behind the keyset in the call that the step's frame made."""
        assert step.keyset is not None
        values = self._sites.arguments(stack, step.level, _ARGUMENTS)
        if step.keyset.bits not in values[:4]:
            return []
        return values[values.index(step.keyset.bits) + 1 :]


class PendingRedispatch:
    """Answers for the innermost dispatch call of a stack only: further out, the next call is on the stack."""

    def __init__(self, tables: DispatchTables, memory: Memory, symbolizer: Symbolizer) -> None:
        self._tables = tables
        self._chains = RedispatchPredictor(tables)
        self._memory = memory
        self._symbolizer = symbolizer
        self._links: dict[tuple[int, int, int], ExpectedLookup] = {}
        """Links by operator, keyset and table index: threads of a pool wait in the same kernel."""
        self._redispatching: dict[int, bool] = {}
        """Answers by the target of a call."""

    def next_key(
        self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, code: FunctionCode
    ) -> str | None:
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

    def _redispatch_ahead(self, stack: NativeStack, kernel: int, code: FunctionCode) -> int | None:
        """The redispatch of the kernel's code, if every place that does one lies behind where it stands now."""
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
