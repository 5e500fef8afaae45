"""The arguments of the calls on a stack, read from where the calling code loaded them.

A caller's frame still holds what it passed: the instructions before the call tell in which callee-saved register or
stack slot. That is where the value is passed, so what is read there is exact, not guessed. The function that was called
may have saved them, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import and_
from typing import NamedTuple

from gdbext.engine.arch import Slot
from gdbext.engine.arch.argument_places import (
    Location,
    SavedArgument,
    argument_source,
    may_write_slot,
    saved_arguments,
)
from gdbext.engine.process.code_reader import FunctionCode, FunctionInstructions
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.unwind import NativeStack
from gdbext.engine.unwind.frame_steps import FrameTables
from gdbext.torch.memoized import memoized


class CallSite(NamedTuple):
    """A call instruction."""

    through_pointer: bool | None
    """None if the instruction is unknown."""
    target: int
    """Address of the called function; 0 if it is unknown."""
    sources: tuple[Location | None, ...]
    """By argument register: where the calling code took the word from that it put there."""


UNKNOWN = CallSite(through_pointer=None, target=0, sources=())


class CallSites:
    """Decodes call sites (once per return address) and reads arguments out of frames."""

    def __init__(self, memory: Memory, code: FunctionCode, extents: FrameTables | None = None) -> None:
        """``extents``: the bounds of functions without symbols; without it, nothing is known of their calls."""
        self._memory = memory
        self._extents = extents
        self._architecture = memory.architecture
        self._code = code
        self._sites: dict[int, CallSite] = {}  # by return address
        self._last_stack: NativeStack | None = None
        self._last_arguments: dict[int, list[int | None]] = {}
        """Arguments by level, of ``_last_stack``: operator and keyset are looked for among the same ones."""

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
        """The call that frame ``level`` made to the next inner frame; UNKNOWN if it made none: it is the innermost one,
        or was interrupted by a signal."""
        frame = stack.frames[level]
        if level == 0 or frame.lookup_pc == frame.pc:
            return UNKNOWN
        if frame.pc not in self._sites:
            code = self.code(stack, level)
            before = code.up_to(frame.pc)
            site = UNKNOWN
            if before and before[-1].is_call:
                call = before[-1]
                target = call.target
                if not target and call.fixed_operand:  # compiled with -fno-plt: through the slot of an import
                    target = self._memory.try_u64(call.fixed_operand) or 0
                names = self._architecture.argument_registers
                sources = tuple(argument_source(self._architecture, before, name, code.labels) for name in names)
                site = CallSite(not target, target, sources)
            self._sites[frame.pc] = site
        return self._sites[frame.pc]

    def direct_target(self, stack: NativeStack, level: int) -> int:
        """Address of the function that frame ``level`` called directly, behind a PLT stub if need be; 0 if the call is
        not direct. Only the call instruction is read, so it is cheap enough for every frame."""
        frame = stack.frames[level]
        return 0 if level == 0 or frame.lookup_pc == frame.pc else self._target_before(frame.pc)

    @memoized
    def _target_before(self, pc: int) -> int:
        """As ``direct_target``, for the call instruction that ends at ``pc``."""
        size = self._architecture.longest_direct_call
        code = self._memory.try_read(pc - size, size)
        slot = self._architecture.call_slot(code, pc) if code else None
        if slot:
            return self._memory.try_u64(slot) or 0
        target = self._architecture.call_target(code, pc) if code else None
        return follow_stub(self._memory, target) if target else 0

    def ends_in_pointer(self, stack: NativeStack, level: int) -> bool | None:
        """True if frame ``level`` called its inner frame through a pointer: itself, or by a function that left by a
        jump through one (``BoxedKernel::callBoxed`` if not inlined). None if the call cannot be read."""
        site = self.site(stack, level)
        if site.through_pointer is not False:
            return site.through_pointer
        target = self.direct_target(stack, level)
        inner = self.function(stack, level - 1)
        return bool(target and inner and inner.start != target and self._may_jump_through_pointer(target))

    @memoized
    def _may_jump_through_pointer(self, start: int) -> bool:
        """The code of the function at ``start`` has a jump through a register or memory."""
        function = self.function_at(start)
        code = self._code.of(function).instructions if function and function.start == start else ()
        return any(insn.kind == "jmp" and not insn.leads_to_fixed for insn in code)

    def is_through_pointer(self, stack: NativeStack, level: int) -> bool:
        """True if the call that frame ``level`` made is not a direct one, by its instruction alone; False if that
        cannot be read."""
        size = self._architecture.longest_direct_call
        code = self._memory.try_read(stack.frames[level].pc - size, size)
        return bool(code) and not self.direct_target(stack, level)

    def argument(self, stack: NativeStack, level: int, number: int) -> int | None:
        """The word in argument register ``number`` (from 0) at the call that frame ``level`` made, None if that is not
        certain."""
        return self.arguments(stack, level, number + 1)[number]

    def arguments(self, stack: NativeStack, level: int, count: int) -> list[int | None]:
        """The words in the first ``count`` argument registers at the call that frame ``level`` made; None for each that
        is not certain."""
        if stack is not self._last_stack:
            self._last_stack, self._last_arguments = stack, {}
        if level not in self._last_arguments:
            sources = self.site(stack, level).sources
            values = [self._evaluate(source, stack, level) if source else None for source in sources]
            self._last_arguments[level] = values
        values = self._last_arguments[level][:count]
        return values + [None] * (count - len(values))

    def is_own(self, stack: NativeStack, level: int, number: int) -> bool:
        """True if no code but that of frame ``level`` could change the word in argument register ``number`` between its
        load and now: it is from registers, constants, or stack slots of the frame whose address was not passed."""
        sources = self.site(stack, level).sources
        frame, passed = stack.frames[level], self.arguments(stack, level, len(sources))

        def is_kept(location: Location) -> bool:
            """As ``is_own``, for the value at a location."""
            if location.kind == "memory":
                base = frame.registers.get(location.register, 0)
                address = (base + location.displacement) & 0xFFFF_FFFF_FFFF_FFFF
                return frame.sp <= address < (frame.cfa or 1 << 64) and address not in passed
            return all(map(is_kept, location.parts))

        location = sources[number] if number < len(sources) else None
        return location is not None and is_kept(location)

    def float_argument(self, stack: NativeStack, level: int, number: int) -> int | None:
        """The low 8 bytes of floating-point argument register ``number`` at the call that frame ``level`` made, None if
        they are not certain."""
        names = self._architecture.float_argument_registers
        if not self.site(stack, level).sources or number >= len(names):
            return None
        code = self.code(stack, level)
        before = code.up_to(stack.frames[level].pc)
        location = argument_source(self._architecture, before, names[number], code.labels)
        return self._evaluate(location, stack, level) if location else None

    def place(self, number: int) -> str:
        """The name of argument register ``number``."""
        return self._architecture.argument_registers[number]

    def places(self, stack: NativeStack, level: int, number: int) -> frozenset[str | int]:
        """All that the word in argument register ``number`` was computed from, at the call that frame ``level`` made:
        names of registers and addresses of words; empty for a constant in the code. Two disjoint sets are independent
        evidence for one value."""
        registers = stack.frames[level].registers

        def places_of(location: Location) -> Iterator[str | int]:
            """The register or the address of the word at ``location``, and those of its parts."""
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
        """The value that frame ``level`` has at a location, masked to the location's size; None if it may have changed
        since the call."""
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
    """The function that the code at ``target`` jumps to if it is a PLT stub whose slot is bound, else ``target``; 0 if
    the slot cannot be read."""
    slot = memory.architecture.stub_slot(memory.try_read(target, 16), target)  # bytes up to the stub's jump, at most
    return (memory.try_u64(slot) or 0) if slot else target


class SavedArguments:
    """The words that a function was called with, as far as its frame still has them."""

    def __init__(self, memory: Memory, code: FunctionCode, stack: NativeStack, level: int, function: Function) -> None:
        """``function`` is that of frame ``level``."""
        self._memory = memory
        self._stack = stack
        self._level = level
        self._frame = stack.frames[level]
        architecture = memory.architecture
        self._architecture = architecture
        self._start = function.start
        self._code = code.of(function).instructions
        self._names = architecture.argument_registers
        self._float_names = architecture.float_argument_registers
        if self._frame.pc == function.start:
            self._saved = {name: SavedArgument(name) for name in (*self._names, *self._float_names)}
        else:
            self._saved = saved_arguments(architecture, self._code, self._frame.pc)

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
            """The word in a register of the frame; floating-point ones are known for the innermost frame only."""
            if name in self._float_names:
                return self._stack.floats().get(name) if self._level == 0 else None
            return self._frame.registers.get(name)

        return saved.word(register, self._memory.try_u64, self._frame.cfa)

    def keeps_slot(self, address: int) -> bool:
        """True if the function, to which its stack slots belong, has not written to the word at ``address``."""
        if self._frame.pc == self._start:
            return True
        frame = self._frame
        return not may_write_slot(
            self._architecture, self._code, frame.pc, address - frame.cfa, frame.cfa, frame.registers
        )
