"""Tensors that a calling C++ function holds, by where their elements are.

Code that Inductor generated keeps handles of tensors (``AtenTensorHandle``, an at::Tensor*) in variables of the
function that calls a kernel, and references to handles of constants (torch/csrc/inductor/aoti_runtime/model_base.h,
utils.h, 2.13.0). So any word of its frame is tried as such a handle, or as the address of one: a live tensor whose
elements are just where the kernel was pointed to is the one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.unwind.stack import Stack

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.inspection.tensors.tensor_report import TensorReporter
    from gdbext.torch.state.tensor import TensorFacts

_FRAME_LIMIT = 1 << 17
"""Bytes of a frame that are searched; models of a thousand buffers have frames of tens of thousands."""


class CallerTensors:
    """Searches the frames of one session's process. The library of the calling code is one that the session knows."""

    def __init__(self, session: Session, reporter: TensorReporter) -> None:
        self._session = session
        self._memory = session.memory
        self._reporter = reporter

    def at(self, registers: Mapping[str, int], wanted: Collection[int]) -> dict[int, list[TensorFacts]]:
        """Address of elements → the tensors that begin there, of the function that called the one at whose first
        instruction the ``registers`` are. Raises MemoryFault."""
        found: dict[int, list[TensorFacts]] = {address: [] for address in wanted}
        seen = set()
        for word in self._words(registers):
            for handle in (word, self._pointed(word)):
                implementation = self._pointed(handle)
                if implementation and implementation not in seen:
                    seen.add(implementation)
                    facts, start = self._tensor(implementation)
                    if facts is not None and start in found:
                        found[start].append(facts)
        return found

    def _words(self, registers: Mapping[str, int]) -> Iterator[int]:
        session, architecture = self._session, self._memory.architecture
        yield from (registers[name] for name in architecture.callee_saved)
        frames = Stack.walk(registers, session.unwinder, session.symbolizer, 2).frames
        if len(frames) < 2:
            return
        size = min(max(frames[1].cfa - frames[1].sp, 0), _FRAME_LIMIT)
        yield from dict.fromkeys(self._memory.words(frames[1].sp, size // 8))

    def _pointed(self, address: int) -> int:
        """The word at an address; 0 where there is none that may point to something."""
        if not address or address & 7 or address >= self._memory.architecture.user_limit:
            return 0
        return self._memory.try_u64(address) or 0

    def _tensor(self, address: int) -> tuple[TensorFacts | None, int]:
        """The live tensor at an address, and where its elements begin."""
        if address & 7 or not self._pointed(address) or not self._reporter.is_tensor(address):
            return None, 0
        try:
            facts = self._reporter.facts(address)
            return facts, self._reporter.contents(facts).geometry.address
        except GdbextError:
            return None, 0
