"""Values of a call as launches have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import BadData, GdbextError
from gdbext.inspection.threads.arguments import UNDEFINED, tensor_text
from gdbext.model.dispatch.launch import LaunchTensor, LaunchValue

if TYPE_CHECKING:
    from gdbext.inspection.tensors.tensor_report import TensorReporter
    from gdbext.torch.values.cpp_values import Value

SAMPLE_LIMIT = 1 << 18
"""Elements of a tensor that are looked at while the process stands still; of more, a sample."""


class LaunchValues:
    """Describes values, with the statistics of tensors where they are wanted."""

    def __init__(self, reporter: TensorReporter, statistics: bool) -> None:
        self._reporter = reporter
        self._statistics = statistics

    def described(self, name: str, value: Value | None, kind: str) -> LaunchValue:
        """``value`` None: it is not known."""
        if value is None:
            return LaunchValue(name, "", type=kind)
        if value.text == UNDEFINED:
            return LaunchValue(name, value.text, type=kind)
        is_list = value.text.startswith("[")
        tensors = (
            self._tensor(f"{name}.{number}" if is_list else name, address)
            for number, address in enumerate(value.tensors)
            if address
        )
        return LaunchValue(name, value.text, tuple(each for each in tensors if each is not None), kind)

    def _tensor(self, name: str, address: int) -> LaunchTensor | None:
        try:
            facts = self._reporter.facts(address)
        except GdbextError:
            return None
        statistics = self._reporter.statistics(address, SAMPLE_LIMIT) if self._statistics else None
        return LaunchTensor(name, address, tensor_text(facts), facts.dtype, facts.sizes, statistics)

    def tensor_text(self, address: int) -> str:
        """A tensor in short form. Raises BadData where there is none, MemoryFault."""
        if address & 7 or not address:
            raise BadData(f"there is no tensor at {address:#x}")
        return tensor_text(self._reporter.facts(address))
