"""The arguments of the operators on a stack, as reports have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import BadData, GdbextError
from gdbext.model.dispatch.argument import Argument, ArgumentTensor
from gdbext.torch.stack.argument_recovery import ArgumentRecovery, FoundArgument
from gdbext.torch.symbols import UNDEFINED_TENSOR
from gdbext.torch.values.cpp_values import CppValues
from gdbext.torch.values.dtype import short_name

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.inspection.tensors.tensor_report import TensorReporter
    from gdbext.model.dispatch.dispatch_frame import DispatchFrame
    from gdbext.torch.state.tensor import TensorFacts
    from gdbext.unwind.stack import Stack

UNDEFINED = "undefined"
"""How an at::Tensor without a tensor reads."""


class ArgumentReporter:
    """Finds and describes arguments in one session."""

    def __init__(self, session: Session, statistics: bool = False) -> None:
        """``statistics``: of each tensor, too. Raises NotTorch, LayoutError."""
        self._tensors = session.tensors
        self._statistics = _statistics(session) if statistics else None
        self._reader = session.dispatch_stacks
        self._recovery = ArgumentRecovery(
            session.memory,
            session.symbolizer,
            self._reader.sites,
            self._reader.code,
            CppValues(session.memory, session.layout, self._tensor_text),
        )

    def frames(self, stack: Stack, limit: int | None = None) -> tuple[DispatchFrame, ...]:
        """The dispatcher's frames of a stack with their arguments; only the innermost ``limit`` have them."""
        found = []
        for number, (frame, call, recovered) in enumerate(self._reader.calls(stack)):
            if limit is not None and number >= limit:
                found.append(frame)
                continue
            try:
                arguments = self._recovery.find(stack, call, recovered)
            except GdbextError:
                arguments = ()
            found.append(frame._replace(arguments=tuple(map(self._described, arguments))))
        return tuple(found)

    def _described(self, found: FoundArgument) -> Argument:
        if found.value is None:
            return Argument(found.name, found.type, "", found.certainty)
        tensors = tuple(self._tensor(address) for address in found.value.tensors)
        return Argument(found.name, found.type, found.value.text, found.certainty, tensors)

    def _tensor(self, address: int) -> ArgumentTensor:
        if not address:
            return ArgumentTensor(0, "None")
        statistics = self._statistics.statistics(address) if self._statistics is not None else None
        return ArgumentTensor(address, self._tensor_text(address), statistics)

    def _tensor_text(self, address: int) -> str:
        """Raises BadData where there is no tensor."""
        if address & 7 or not address:
            raise BadData(f"there is no tensor at {address:#x}")
        return tensor_text(self._tensors.read_alive(address))


def _statistics(session: Session) -> TensorReporter:
    """Reads elements; most reports show none."""
    from gdbext.inspection.tensors.tensor_report import TensorReporter

    return TensorReporter(session)


def tensor_text(facts: TensorFacts) -> str:
    """``f32[4, 4] cpu``."""
    if facts.implementation == UNDEFINED_TENSOR:
        return UNDEFINED
    sizes = "?" if facts.sizes is None else ", ".join(map(str, facts.sizes))
    return f"{short_name(facts.dtype)}[{sizes}] {facts.device or facts.backend}".rstrip()
