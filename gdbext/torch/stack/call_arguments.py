"""The arguments of the calls on a stack, read from where the calling code loaded them.

A caller's frame still holds what it passed: the instructions before the call tell in which callee-saved register or
stack slot. That is the point where the value is passed, so what is read there is exact, not guessed. The function that
was called may keep them, too.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch.argument_places import Location, SavedArgument, argument_source, saved_arguments
from gdbext.engine.vocabulary import Certainty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gdbext.engine.arch import Slot
    from gdbext.engine.process.code_reader import FunctionCode, FunctionInstructions
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Function
    from gdbext.engine.unwind import NativeStack
    from gdbext.engine.unwind.frame_steps import FrameTables
    from gdbext.torch.values.cpp_values import Value

_STUB_BYTES = 16
"""Code of a stub of a procedure linkage table up to its jump, at most."""


class CallSite(NamedTuple):
    """A call instruction: whether it goes through a pointer, its target (0 if unknown), and where its arguments
    (integers and pointers, by number) came from."""

    through_pointer: bool | None
    target: int
    sources: tuple[Location | None, ...]


UNKNOWN = CallSite(None, 0, ())


class CallSites:
    """Decodes call sites (once per return address) and reads arguments out of frames."""

    def __init__(self, memory: Memory, code: FunctionCode, extents: FrameTables | None = None) -> None:
        """``extents``: where functions without symbols begin and end; without it, nothing is known of their calls."""
        self._memory = memory
        self._extents = extents
        self._architecture = memory.architecture
        self._code = code
        self._sites: dict[int, CallSite] = {}
        self._floats: dict[tuple[int, int], Location | None] = {}
        self._targets: dict[int, int] = {}
        self._leaving: dict[int, bool] = {}
        """Functions that may end in a jump through a pointer, by their start."""
        self._evaluated_of: NativeStack | None = None
        self._evaluated: dict[int, list[int | None]] = {}
        """Values by level, of the stack that was asked for last: the operator and its keyset are looked for among the
        same arguments."""

    def function(self, stack: NativeStack, level: int) -> Function | None:
        """The function of frame ``level``; one without a name where no symbol, but call frame information covers it."""
        found = stack.function(level)
        if not found and self._extents:
            found = self._extents.extent(stack.frames[level].lookup_pc)
        return found

    def function_at(self, address: int) -> Function | None:
        """The function around an address, with a name or without."""
        found = self._code.function(address)
        return found if found or not self._extents else self._extents.extent(address)

    def decoded(self, function: Function | None) -> FunctionInstructions:
        """The instructions of a function; none where it cannot be read."""
        return self._code.of(function)

    def code(self, stack: NativeStack, level: int) -> FunctionInstructions:
        """The decoded function of frame ``level``."""
        return self._code.of(self.function(stack, level))

    def site(self, stack: NativeStack, level: int) -> CallSite:
        """The call that frame ``level`` made to the next inner frame."""
        frame = stack.frames[level]
        if level == 0 or frame.lookup_pc == frame.pc:
            return UNKNOWN  # nothing is called: innermost, or interrupted by a signal
        found = self._sites.get(frame.pc)
        if not found:
            found = self._sites[frame.pc] = self._decode(stack, level)
        return found

    def direct_target(self, stack: NativeStack, level: int) -> int:
        """The target of the direct call that frame ``level`` made, through a PLT stub if need be; 0 if not direct.

        Only looks at the call instruction itself, so it is cheap enough for every frame.
        """
        frame = stack.frames[level]
        if level == 0 or frame.lookup_pc == frame.pc:
            return 0
        if frame.pc not in self._targets:
            self._targets[frame.pc] = self._read_target(frame.pc)
        return self._targets[frame.pc]

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
            self._leaving[target] = any(one.kind == "jmp" and not one.leads_to_fixed for one in code)
        return self._leaving[target]

    def is_through_pointer(self, stack: NativeStack, level: int) -> bool:
        """The call that frame ``level`` made is not a direct one, by its instruction alone; False if that is unread."""
        size = self._architecture.longest_direct_call
        code = self._memory.try_read(stack.frames[level].pc - size, size)
        return bool(code) and not self.direct_target(stack, level)

    def _read_target(self, pc: int) -> int:
        size = self._architecture.longest_direct_call
        code = self._memory.try_read(pc - size, size)
        if not code:
            return 0
        slot = self._architecture.called_slot(code, pc)
        if slot:
            return self._memory.try_u64(slot) or 0
        target = self._architecture.called(code, pc)
        return follow_stub(self._memory, target) if target else 0

    def argument(self, stack: NativeStack, level: int, number: int) -> int | None:
        """Argument ``number`` (from 0) of the call that frame ``level`` made, None where that is not certain."""
        values = self._arguments(stack, level)
        return values[number] if number < len(values) else None

    def arguments(self, stack: NativeStack, level: int, count: int) -> list[int | None]:
        """The first ``count`` arguments in registers of the call that frame ``level`` made."""
        values = self._arguments(stack, level)[:count]
        return values + [None] * (count - len(values))

    def _arguments(self, stack: NativeStack, level: int) -> list[int | None]:
        if stack is not self._evaluated_of:
            self._evaluated_of, self._evaluated = stack, {}
        values = self._evaluated.get(level)
        if values is None:
            sources = self.site(stack, level).sources
            values = [self._evaluate(one, stack, level) if one else None for one in sources]
            self._evaluated[level] = values
        return values

    def float_argument(self, stack: NativeStack, level: int, number: int) -> int | None:
        """The low 8 bytes of floating-point argument ``number`` in registers, None where that is not certain."""
        pc, names = stack.frames[level].pc, self._architecture.float_argument_registers
        if (pc, number) not in self._floats:
            location = None
            if self.site(stack, level).sources and number < len(names):
                code = self.code(stack, level)
                location = argument_source(self._architecture, code.up_to(pc), names[number], code.labels)
            self._floats[pc, number] = location
        found = self._floats[pc, number]
        return self._evaluate(found, stack, level) if found else None

    def place(self, number: int) -> str:
        """The place where argument ``number`` is passed, in words."""
        return self._architecture.argument_registers[number]

    def places(self, stack: NativeStack, level: int, number: int) -> frozenset[str | int]:
        """The places of an argument while the call is under way: registers of the frame, addresses of words; none where
        the code itself has it."""
        sources = self.site(stack, level).sources
        location = sources[number] if number < len(sources) else None
        return frozenset(self._places(location, stack.frames[level].registers) if location else ())

    def _places(self, location: Location, registers: Mapping[str, int]) -> Iterator[str | int]:
        for part in location.parts:
            yield from self._places(part, registers)
        if location.kind == "fixed":
            yield location.value or 0
        elif location.kind == "memory":
            yield (registers.get(location.register, 0) + location.displacement) & 0xFFFF_FFFF_FFFF_FFFF
        elif location.register:
            yield location.register

    def _evaluate(self, location: Location, stack: NativeStack, level: int) -> int | None:
        found = self._whole(location, stack, level)
        return None if found is None else found & (1 << 8 * location.size) - 1

    def _whole(self, location: Location, stack: NativeStack, level: int) -> int | None:
        """All 8 bytes at a place."""
        if location.kind == "fixed":
            return self._fixed(location.value or 0)
        if location.kind == "constant":
            return location.value
        if location.kind == "and":
            values = [self._evaluate(part, stack, level) for part in location.parts]
            return None if None in values else reduce(and_, (value for value in values if value is not None))
        base = stack.frames[level].registers.get(location.register)
        if base is None:
            return None
        if location.kind == "register":
            return (base + location.displacement) & 0xFFFF_FFFF_FFFF_FFFF
        if not location.intact(stack.frames[level].registers):
            return None
        return self._memory.try_u64((base + location.displacement) & 0xFFFF_FFFF_FFFF_FFFF)

    def _fixed(self, address: int) -> int | None:
        """The word at an address, where nobody can have written to it since."""
        return self._memory.try_u64(address) if self._code.is_constant(address) else None

    def _decode(self, stack: NativeStack, level: int) -> CallSite:
        code = self.code(stack, level)
        before = code.up_to(stack.frames[level].pc)
        if not before or not before[-1].is_call:
            return UNKNOWN
        call = before[-1]
        target = call.target
        if not target and call.fixed_operand:  # compiled with -fno-plt: through the slot of an import
            target = self._memory.try_u64(call.fixed_operand) or 0
        registers = self._architecture.argument_registers
        sources = tuple(argument_source(self._architecture, before, name, code.labels) for name in registers)
        return CallSite(not target, target, sources)


def follow_stub(memory: Memory, target: int) -> int:
    """``target`` itself, or the function that it jumps to where it is a PLT stub whose slot is bound; 0 where the slot
    cannot be read."""
    slot = memory.architecture.stub_slot(memory.try_read(target, _STUB_BYTES), target)
    return (memory.try_u64(slot) or 0) if slot else target


class KeptArguments:
    """Arguments that ``function`` in frame ``level`` was called with, where it keeps them."""

    def __init__(self, memory: Memory, code: FunctionCode, stack: NativeStack, level: int, function: Function) -> None:
        self._memory = memory
        self._stack = stack
        self._level = level
        self._frame = stack.frames[level]
        architecture = memory.architecture
        self._names = architecture.argument_registers
        self._float_names = architecture.float_argument_registers
        if self._frame.pc == function.start:
            self._places = {name: SavedArgument(name) for name in (*self._names, *self._float_names)}
        else:
            self._places = saved_arguments(architecture, code.of(function).instructions, self._frame.pc)

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
        if not holder or holder.size < size:
            return None
        return holder.word(self._register, self._memory.try_u64, self._frame.cfa)

    def _register(self, name: str) -> int | None:
        if name in self._float_names:
            return self._stack.floats().get(name) if self._level == 0 else None
        return self._frame.registers.get(name)


# --- what they are ---

AS_IT_IS = "the copy that was passed, as it is now"
"""The place of a value that is not the one that was passed for sure."""


class Sighting(NamedTuple):
    """One argument as one place has it."""

    value: Value
    certainty: Certainty
    place: str
    boxed: bool = False
    """It is what the stack of a boxed kernel holds."""


class FoundArgument(NamedTuple):
    """An argument; ``value`` None where it is unknown."""

    name: str
    type: str
    value: Value | None
    certainty: Certainty
    place: str
    boxed: bool = False


def judged(name: str, kind: str, seen: Sequence[Sighting]) -> FoundArgument:
    """The judgement over all places together: the most certain value; unknown where equally certain ones differ."""
    if not seen:
        return FoundArgument(name, kind, None, Certainty.UNKNOWN, "")
    best = max(sighting.certainty for sighting in seen)
    strongest = [sighting for sighting in seen if sighting.certainty == best]
    if len({sighting.value for sighting in strongest}) > 1:
        return FoundArgument(name, kind, None, Certainty.UNKNOWN, "places that contradict each other")
    found = strongest[0]
    agreeing = [sighting for sighting in seen if sighting.value == found.value]
    if best is Certainty.INFERRED and len(agreeing) > 1 and found.place != AS_IT_IS:
        best = Certainty.VERIFIED
    return FoundArgument(name, kind, found.value, best, found.place, found.boxed)
