"""The arguments of the calls on a stack, read from where the calling code loaded them.

A caller's frame still holds what it passed: the instructions before the call tell in which callee-saved register or
stack slot. That is where the value is passed, so what is read there is exact, not guessed. The function that was called
may have saved them, too.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch.argument_places import Location, SavedArgument, argument_source, saved_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdbext.engine.arch import Slot
    from gdbext.engine.process.code_reader import FunctionCode, FunctionInstructions
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Function
    from gdbext.engine.unwind import NativeStack
    from gdbext.engine.unwind.frame_steps import FrameTables


class CallSite(NamedTuple):
    """A call instruction."""

    through_pointer: bool | None
    """None if the instruction is unknown."""
    target: int
    """0 if it is unknown."""
    sources: tuple[Location | None, ...]
    """Where its arguments (integers and pointers, by number) came from."""


UNKNOWN = CallSite(None, 0, ())


class CallSites:
    """Decodes call sites (once per return address) and reads arguments out of frames."""

    def __init__(self, memory: Memory, code: FunctionCode, extents: FrameTables | None = None) -> None:
        """``extents``: the bounds of functions without symbols; without it, nothing is known of their calls."""
        self._memory = memory
        self._extents = extents
        self._architecture = memory.architecture
        self._code = code
        self._sites: dict[int, CallSite] = {}
        self._floats: dict[tuple[int, int], Location | None] = {}
        """By return address and number of the argument."""
        self._targets: dict[int, int] = {}
        self._leaving: dict[int, bool] = {}
        """Functions that may end in a jump through a pointer, by their start."""
        self._last_stack: NativeStack | None = None
        self._last_arguments: dict[int, list[int | None]] = {}
        """Arguments by level, of the stack that was asked for last: the operator and its keyset are looked for among
        the same ones."""

    def function(self, stack: NativeStack, level: int) -> Function | None:
        """The function of frame ``level``; one without a name if no symbol, but call frame information covers it."""
        function = stack.function(level)
        if not function and self._extents:
            return self._extents.extent(stack.frames[level].lookup_pc)
        return function

    def function_at(self, address: int) -> Function | None:
        """The function around an address, with a name or without."""
        return self._code.function(address) or (self._extents.extent(address) if self._extents else None)

    def decoded(self, function: Function | None) -> FunctionInstructions:
        """The instructions of a function; none where it cannot be read."""
        return self._code.of(function)

    def code(self, stack: NativeStack, level: int) -> FunctionInstructions:
        """The instructions of the function of frame ``level``; none where it cannot be read."""
        return self._code.of(self.function(stack, level))

    def site(self, stack: NativeStack, level: int) -> CallSite:
        """The call that frame ``level`` made to the next inner frame."""
        frame = stack.frames[level]
        if level == 0 or frame.lookup_pc == frame.pc:
            return UNKNOWN  # nothing is called: innermost, or interrupted by a signal
        if frame.pc not in self._sites:
            code = self.code(stack, level)
            before = code.up_to(frame.pc)
            if not before or not before[-1].is_call:
                self._sites[frame.pc] = UNKNOWN
            else:
                call = before[-1]
                target = call.target
                if not target and call.fixed_operand:  # compiled with -fno-plt: through the slot of an import
                    target = self._memory.try_u64(call.fixed_operand) or 0
                names = self._architecture.argument_registers
                sources = tuple(argument_source(self._architecture, before, name, code.labels) for name in names)
                self._sites[frame.pc] = CallSite(not target, target, sources)
        return self._sites[frame.pc]

    def direct_target(self, stack: NativeStack, level: int) -> int:
        """The target of the direct call that frame ``level`` made, through a PLT stub if need be; 0 if not direct.

        It reads only the call instruction itself, so it is cheap enough for every frame.
        """
        frame = stack.frames[level]
        if level == 0 or frame.lookup_pc == frame.pc:
            return 0
        pc, size = frame.pc, self._architecture.longest_direct_call
        if pc not in self._targets:
            code = self._memory.try_read(pc - size, size)
            slot = self._architecture.call_slot(code, pc) if code else None
            target = self._architecture.call_target(code, pc) if code and not slot else None
            if slot:
                self._targets[pc] = self._memory.try_u64(slot) or 0
            else:
                self._targets[pc] = follow_stub(self._memory, target) if target else 0
        return self._targets[pc]

    def ends_in_pointer(self, stack: NativeStack, level: int) -> bool | None:
        """Frame ``level`` called its inner frame through a pointer: itself, or by a function that left by a jump
        through one (``BoxedKernel::callBoxed`` where it was not inlined). None where the call cannot be read."""
        site = self.site(stack, level)
        if site.through_pointer is not False:
            return site.through_pointer
        target = self.direct_target(stack, level)
        inner = self.function(stack, level - 1)
        if not target or not inner or inner.start == target:
            return False
        if target not in self._leaving:
            called = self.function_at(target)
            code = self._code.of(called).instructions if called and called.start == target else ()
            self._leaving[target] = any(insn.kind == "jmp" and not insn.leads_to_fixed for insn in code)
        return self._leaving[target]

    def is_through_pointer(self, stack: NativeStack, level: int) -> bool:
        """The call that frame ``level`` made is not a direct one, by its instruction alone; False if that is unread."""
        size = self._architecture.longest_direct_call
        code = self._memory.try_read(stack.frames[level].pc - size, size)
        return bool(code) and not self.direct_target(stack, level)

    def argument(self, stack: NativeStack, level: int, number: int) -> int | None:
        """Argument ``number`` (from 0) of the call that frame ``level`` made, None if that is not certain."""
        return self.arguments(stack, level, number + 1)[number]

    def arguments(self, stack: NativeStack, level: int, count: int) -> list[int | None]:
        """The first ``count`` arguments in registers of the call that frame ``level`` made."""
        if stack is not self._last_stack:
            self._last_stack, self._last_arguments = stack, {}
        if level not in self._last_arguments:
            sources = self.site(stack, level).sources
            values = [self._evaluate(source, stack, level) if source else None for source in sources]
            self._last_arguments[level] = values
        values = self._last_arguments[level][:count]
        return values + [None] * (count - len(values))

    def float_argument(self, stack: NativeStack, level: int, number: int) -> int | None:
        """The low 8 bytes of floating-point argument ``number`` in registers, None if that is not certain."""
        pc, names = stack.frames[level].pc, self._architecture.float_argument_registers
        if (pc, number) not in self._floats:
            location = None
            if self.site(stack, level).sources and number < len(names):
                code = self.code(stack, level)
                location = argument_source(self._architecture, code.up_to(pc), names[number], code.labels)
            self._floats[pc, number] = location
        location = self._floats[pc, number]
        return self._evaluate(location, stack, level) if location else None

    def place(self, number: int) -> str:
        """The register in which argument ``number`` is passed."""
        return self._architecture.argument_registers[number]

    def places(self, stack: NativeStack, level: int, number: int) -> frozenset[str | int]:
        """The places of an argument while the call is under way: registers of the frame, addresses of words; none if
        the code itself has it."""
        registers = stack.frames[level].registers

        def places_of(location: Location) -> Iterator[str | int]:
            for part in location.parts:
                yield from places_of(part)
            if location.kind == "fixed":
                yield location.value or 0
            elif location.kind == "memory":
                yield (registers.get(location.register, 0) + location.displacement) & 0xFFFF_FFFF_FFFF_FFFF
            elif location.register:
                yield location.register

        sources = self.site(stack, level).sources
        location = sources[number] if number < len(sources) else None
        return frozenset(places_of(location) if location else ())

    def _evaluate(self, location: Location, stack: NativeStack, level: int) -> int | None:
        """The value at a location, masked to the location's width; None if it is no longer known."""
        registers = stack.frames[level].registers
        value: int | None = None
        if location.kind == "fixed":  # only if no code can have written to it since
            address = location.value or 0
            value = self._memory.try_u64(address) if self._code.is_read_only_word(address) else None
        elif location.kind == "constant":
            value = location.value
        elif location.kind == "and":
            parts = [self._evaluate(part, stack, level) for part in location.parts]
            value = None if None in parts else reduce(and_, (part for part in parts if part is not None))
        else:
            base = registers.get(location.register)
            address = ((base or 0) + location.displacement) & 0xFFFF_FFFF_FFFF_FFFF
            if base is not None and location.kind == "register":
                value = address
            elif base is not None and location.intact(registers):
                value = self._memory.try_u64(address)
        return None if value is None else value & (1 << 8 * location.size) - 1


def follow_stub(memory: Memory, target: int) -> int:
    """``target`` itself, or the function that it jumps to if it is a PLT stub whose slot is bound; 0 if the slot cannot
    be read."""
    slot = memory.architecture.stub_slot(memory.try_read(target, 16), target)  # bytes up to the stub's jump, at most
    return (memory.try_u64(slot) or 0) if slot else target


class SavedArguments:
    """The arguments of ``function`` in frame ``level`` that it has saved, or has still in their registers."""

    def __init__(self, memory: Memory, code: FunctionCode, stack: NativeStack, level: int, function: Function) -> None:
        self._memory = memory
        self._stack = stack
        self._level = level
        self._frame = stack.frames[level]
        architecture = memory.architecture
        self._names = architecture.argument_registers
        self._float_names = architecture.float_argument_registers
        if self._frame.pc == function.start:
            self._saved = {name: SavedArgument(name) for name in (*self._names, *self._float_names)}
        else:
            self._saved = saved_arguments(architecture, code.of(function).instructions, self._frame.pc)

    def argument_word(self, slot: Slot, size: int) -> int | None:
        """Value at function entry of an argument slot (CFA offset, FP or integer register); None if it was overwritten
        since or fewer than ``size`` bytes were saved."""
        if slot.offset is not None:
            return self._memory.try_u64(self._frame.cfa + slot.offset)
        if slot.float_register is not None:
            name = self._float_names[slot.float_register]
        elif slot.register is not None:
            name = self._names[slot.register]
        else:
            return None
        saved = self._saved.get(name)
        if not saved or saved.size < size:
            return None

        def register(name: str) -> int | None:
            """The word in a register of the frame; floating-point ones are known of the innermost frame only."""
            if name in self._float_names:
                return self._stack.floats().get(name) if self._level == 0 else None
            return self._frame.registers.get(name)

        return saved.word(register, self._memory.try_u64, self._frame.cfa)
