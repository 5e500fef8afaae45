"""Why this key won: the keys that each tensor argument of a call on the stack has.

The arguments stand behind the keyset in the call to the kernel (or to its boxing layer). Only what is proven to be a
tensor, by the vtable of its TensorImpl, is shown; the first argument that cannot be placed ends the list.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.errors import GdbextError
from gdbext.model.dispatch.dispatch_frame import DispatchFrame
from gdbext.process.memory import Memory
from gdbext.torch.registry.operators import Dispatcher, Operator
from gdbext.torch.registry.schema_types import schema_types
from gdbext.torch.stack.call_arguments import CallSites
from gdbext.torch.state.tensor import TensorReader
from gdbext.unwind.stack import Stack

_ARGUMENTS = 6
"""Arguments that are followed: hidden result, functor, keyset, and three of the schema's."""
_ONE_WORD = ("Tensor", "int", "bool", "Scalar")
"""Schema types that take one argument register (torchgen/api/cpp.py: references, integers, SymInt by value)."""


class KeySetExplanation:
    """Explains steps of one process."""

    def __init__(self, memory: Memory, sites: CallSites, tensors: TensorReader, dispatcher: Dispatcher) -> None:
        self._memory = memory
        self._sites = sites
        self._tensors = tensors
        self._dispatcher = dispatcher
        self._keys = dispatcher.keys

    def explained(self, stack: Stack, frames: Sequence[DispatchFrame]) -> tuple[DispatchFrame, ...]:
        """The dispatcher's frames of a stack, their evidence joined by why the key won."""
        return tuple(frame._replace(evidence=(*frame.evidence, *self.lines(stack, frame))) for frame in frames)

    def lines(self, stack: Stack, step: DispatchFrame) -> list[str]:
        """Sentences for ``--why``; at least why the key won, where operator and keyset are known."""
        operator = self._dispatcher.by_def(self._dispatcher.names.get(step.qualified, 0))
        if operator is None:
            return []
        if step.keyset is None or step.key is None:
            return []
        found = [f"{step.key} has the highest priority of {self._keys.text(step.keyset.bits)}"]
        try:
            found.extend(self._arguments(stack, step, operator))
        except GdbextError as error:
            found.append(f"the arguments cannot be read: {error.what}")
        return found

    def _arguments(self, stack: Stack, step: DispatchFrame, operator: Operator) -> list[str]:
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

    def _behind_keyset(self, stack: Stack, step: DispatchFrame) -> list[int | None]:
        """The argument registers behind the keyset in the call that the step's frame made."""
        assert step.keyset is not None
        values = self._sites.arguments(stack, step.level, _ARGUMENTS)
        if step.keyset.bits not in values[:4]:
            return []
        return values[values.index(step.keyset.bits) + 1 :]
