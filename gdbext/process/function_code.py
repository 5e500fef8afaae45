"""The decoded code of functions: each one once, with every place that a jump leads to."""

from __future__ import annotations

from gdbext.arch.argument_flow import jump_targets
from gdbext.arch.instruction import Instruction
from gdbext.model.record import Record
from gdbext.process.memory import Memory
from gdbext.process.symbols import Function, Symbolizer

MAX_SIZE = 1 << 15
"""Bytes of a function that are decoded; ``at::_ops`` and VariableType functions have 300 to 6,000."""
_COLD = ".cold"


class Decoded(Record):
    """Instructions of one function, and the targets of all jumps in it and in its cold part."""

    instructions: tuple[Instruction, ...]
    labels: frozenset[int]

    def up_to(self, pc: int) -> list[Instruction]:
        """The instructions that end at ``pc`` or before; [] where none ends just there."""
        before = [found for found in self.instructions if found.end <= pc]
        return before if before and before[-1].end == pc else []

    @property
    def calls(self) -> list[Instruction]:
        """All call instructions."""
        return [found for found in self.instructions if found.is_call]


EMPTY = Decoded((), frozenset())


class FunctionCode:
    """Decodes functions of one process and keeps them."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._decoded: dict[int, Decoded] = {}

    def of(self, function: Function | None) -> Decoded:
        """The function's code; EMPTY where it cannot be read or is too large."""
        if function is None:
            return EMPTY
        found = self._decoded.get(function.start)
        if found is None:
            found = self._decoded[function.start] = self._decode(function)
        return found

    def is_constant(self, address: int) -> bool:
        """The 8 bytes there are part of a file and cannot be written to."""
        module = self._symbolizer.modules.find(address)
        image = module.image if module is not None else None
        return module is not None and image is not None and image.is_read_only(module.vaddr(address), 8)

    def _decode(self, function: Function) -> Decoded:
        if not 0 < function.size <= MAX_SIZE:
            return EMPTY
        code = self._memory.try_read(function.start, function.size)
        found = tuple(self._memory.architecture.decode(code or b"", function.start))
        cold = self._cold_part(function)
        return Decoded(found, frozenset(jump_targets(found) | jump_targets(cold)))

    def _cold_part(self, function: Function) -> tuple[Instruction, ...]:
        """GCC moves unlikely code to ``NAME.cold``, which may jump back."""
        for name in function.names:
            start = self._symbolizer.address_of(name + _COLD, function.module.name)
            cold = self._symbolizer.function(start) if start is not None else None
            if cold is not None and cold.start == start and 0 < cold.size <= MAX_SIZE:
                code = self._memory.try_read(cold.start, cold.size) or b""
                return tuple(self._memory.architecture.decode(code, cold.start))
        return ()
