"""The words that a function was given, where it keeps them while its frame is on the stack."""

from __future__ import annotations

from gdbext.arch.argument_holders import Holder, holders
from gdbext.arch.argument_passing import Slot
from gdbext.process.function_code import FunctionCode
from gdbext.process.memory import Memory
from gdbext.process.symbols import Function
from gdbext.unwind.stack import Stack


class KeptArguments:
    """Those of ``function`` in frame ``level``."""

    def __init__(self, memory: Memory, code: FunctionCode, stack: Stack, level: int, function: Function) -> None:
        self._memory = memory
        self._stack = stack
        self._level = level
        self._frame = stack.frames[level]
        architecture = memory.architecture
        self._names = architecture.argument_registers
        self._float_names = architecture.float_argument_registers
        if self._frame.pc == function.start:
            self._places = {name: Holder(name) for name in (*self._names, *self._float_names)}
        else:
            self._places = holders(architecture, code.of(function).instructions, self._frame.pc)

    def word(self, slot: Slot, size: int) -> int | None:
        """A word of which the low ``size`` bytes matter; None where they are not known any more."""
        if slot.offset is not None:
            return self._memory.try_u64(self._frame.cfa + slot.offset)
        if slot.float_register is not None:
            name = self._float_names[slot.float_register]
        elif slot.register is not None:
            name = self._names[slot.register]
        else:
            return None
        holder = self._places.get(name)
        if holder is None or holder.size < size:
            return None
        return holder.word(self._register, self._memory.try_u64, self._frame.cfa)

    def _register(self, name: str) -> int | None:
        if name in self._float_names:
            return self._stack.floats().get(name) if self._level == 0 else None
        return self._frame.registers.get(name)
