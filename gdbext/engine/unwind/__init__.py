"""Walks a stack: from a thread's registers to all frames further out.

The step to the caller is prepared once per code address (frame_steps.py). Without call frame information (generated
code) weaker methods are tried, and ``how`` of the resulting frame names them: it is likely, never proven. Each such
guess must give a return address in executable memory, right behind a call instruction.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.unwind.emulation_unwind import EmulationUnwinder
from gdbext.engine.unwind.frame_steps import FrameStep, FrameSteps, NativeFrame
from gdbext.engine.unwind.unwind_row import MASK, Registers, UnwindRow, compile_row, preserved
from gdbext.errors import BadData, MemoryFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.modules import ModuleTable
    from gdbext.engine.process.symbolizer import Function, Symbolizer
    from gdbext.engine.unwind.unwind_row import ReadMemory

END_OF_STACK = "end of stack"


class Unwinder:
    """Walks stacks. One instance serves all threads of a stopped target, as long as its module map stays the same."""

    def __init__(self, memory: Memory, modules: ModuleTable, steps: FrameSteps | None = None) -> None:
        """``steps``: the prepared steps of that process, shared with other unwinders (default: new ones)."""
        architecture = memory.architecture
        self.stopped = ""  # why the last walk ended: END_OF_STACK, or a sentence
        self.steps = steps or FrameSteps(memory, modules)
        self._read = memory.read
        self._pc, self._sp = architecture.program_counter, architecture.stack_pointer
        self._tracked = frozenset((*architecture.dwarf_registers, self._pc))
        self._least_growth = architecture.call_pushes
        """Least bytes between the stack pointers of a frame and its caller, except for an exact address: at longjmp's
        end the stack pointer is already the target's."""
        self._guesser = FallbackUnwinder(memory, modules, self.steps)

    def frames(self, registers: Mapping[str, int], limit: int = 1_000_000) -> Iterator[NativeFrame]:
        """All frames of the thread with these registers, innermost first; at least one. Never raises for a damaged
        stack: ``stopped`` tells why the walk ended. Memory use does not grow with the number of frames."""
        tracked = {name: value for name, value in registers.items() if name in self._tracked}
        return self.walk(tracked, self._read, limit)

    def walk(
        self, registers: Registers, read: ReadMemory, limit: int = 1_000_000, exact: bool = True, guess: bool = True
    ) -> Iterator[NativeFrame]:
        """The frame with these registers, then its callers, ``limit`` at most; at the end ``stopped`` tells why there
        are no more.

        ``read`` reads the stack. ``exact``: the program counter is the next instruction to run, not a return address.
        Without ``guess`` only call frame information is used.
        """
        self.stopped = "not finished"
        pc, sp, at, how = self._pc, self._sp, self.steps.at, "registers" if exact else "cfi"
        trampolines: set[int] = set()
        for level in range(limit):
            step = at(registers[pc], exact)
            row = step.row
            is_signal = row is not None and row.is_signal
            if row:
                next_how = "signal" if is_signal else "cfi"
                try:
                    cfa, callers = row.caller(registers, read)
                    reason = END_OF_STACK if row.ends else self._objection(registers, callers, exact, row, trampolines)
                except KeyError as error:
                    next_how = "call"
                    cfa, callers = self._by_call(step, registers, read)
                    reason = self._objection(registers, callers, exact=False, row=row) if callers else _problem(error)
                except (MemoryFault, BadData) as error:
                    cfa, callers, reason = 0, {}, _problem(error)
            elif exact or step.is_code:
                guessed = self._guesser.caller(registers, exact, step.is_code) if guess else None
                cfa, callers, next_how = guessed or (0, {}, "")
                reason = self._objection(registers, callers, exact) if guessed else step.problem
            else:
                address = registers[pc]
                self.stopped = f"return address {address:#x} is not in executable memory" if address else END_OF_STACK
                return
            end = cfa if reason else callers[sp]
            yield NativeFrame(
                level, registers[pc], registers[sp], registers, end, how, is_signal, step.lookup_pc, step.module
            )
            if reason:
                self.stopped = reason
                return
            registers, how, exact = callers, next_how, is_signal
        self.stopped = f"truncated at {limit} frames"

    def _by_call(self, step: FrameStep, registers: Registers, read: ReadMemory) -> tuple[int, Registers]:
        """(CFA, the caller's registers) if the register is unknown from which ``step`` computes the CFA: found by the
        only return address on the stack whose call leads to this function. (0, {}) if there is not just one."""
        start = self.steps.function_start(step.lookup_pc)
        cfa = self._guesser.cfa_by_call(registers[self._sp], start) if start else 0
        if cfa and step.row:
            with suppress(MemoryFault, KeyError, BadData):
                return step.row.caller(registers, read, cfa)
        return 0, {}

    def _objection(
        self,
        registers: Registers,
        callers: Registers,
        exact: bool,
        row: UnwindRow | None = None,
        trampolines: set[int] | None = None,
    ) -> str:
        """Why ``callers`` cannot be the caller's registers, or must not be followed; "" if they are plausible.
        ``trampolines`` collects the stack pointers of the walk's signal frames, to stop at a cycle of them."""
        pc, sp = self._pc, self._sp
        if pc not in callers or sp not in callers:
            return "the return address is not known"
        if row and row.is_signal and trampolines is not None:
            if registers[sp] in trampolines:
                return f"signal frames form a cycle at {registers[sp]:#x}"
            trampolines.add(registers[sp])
        elif callers[sp] < registers[sp] + (0 if exact else self._least_growth):
            return f"the stack does not grow at {registers[pc]:#x} (damaged)"
        return ""


def _problem(error: Exception) -> str:
    """The sentence for an error in computing the caller's registers; a KeyError names a register that is unknown."""
    if isinstance(error, MemoryFault):
        return f"stack memory at {error.address:#x} cannot be read"
    if isinstance(error, BadData):
        return error.what
    return f"{error.args[0]}, which is needed to unwind, is unknown here"


MAX_FRAMES = 200_000
"""Most frames of one stack. An 8 MB stack holds at most 500,000 frames of 16 bytes; real ones are far larger."""


class NativeStack:
    """Frames innermost first; functions are looked up on demand."""

    def __init__(self, frames: list[NativeFrame], outer: str | None, symbolizer: Symbolizer) -> None:
        """``outer``: why outer frames are missing ("no CFI at 0x…", "truncated at N frames"); None for a whole
        stack."""
        self.frames = frames
        self.outer = outer
        self.floats: Callable[[], Mapping[str, int]] = dict
        """Reads the vector registers of the innermost frame: name → low 8 bytes."""
        self._symbolizer = symbolizer

    @classmethod
    def walk(
        cls, registers: Mapping[str, int], unwinder: Unwinder, symbolizer: Symbolizer, most: int | None = None
    ) -> NativeStack:
        """Unwind from ``registers``, at most ``most`` frames (default: MAX_FRAMES). Never raises for a damaged stack:
        ``outer`` tells why the walk ended."""
        frames = list(unwinder.frames(registers, MAX_FRAMES if most is None else most))
        return cls(frames, None if unwinder.stopped is END_OF_STACK else unwinder.stopped, symbolizer)

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def is_truncated(self) -> bool:
        return len(self.frames) >= MAX_FRAMES

    @cached_property
    def path(self) -> tuple[int, ...]:
        """The program counters, a key for caches: threads of a pool often share them."""
        return tuple(frame.pc for frame in self.frames)

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """(lookup_pc of the frame, lookup_pc of its caller) of each frame but the outermost."""
        lookups = [frame.lookup_pc for frame in self.frames]
        return list(zip(lookups, lookups[1:]))

    @cached_property
    def distinct_places(self) -> Mapping[tuple[int, int], int]:
        """Each of ``places`` once → the level of one of its frames: a recursion has few."""
        return dict(zip(self.places, range(len(self.places))))

    def function(self, level: int) -> Function | None:
        """The function of frame ``level``, None if no symbol covers its pc."""
        return self._symbolizer.function(self.frames[level].lookup_pc)


MAX_FRAME = 1 << 20  # most bytes between the stack pointer and the frame pointer if the stack's mapping is unknown
_SEARCHED = 1 << 13
"""Bytes above the stack pointer that are searched for a function's return address; beyond are only other calls'."""
_REACH = 1 << 31  # bytes that a direct call reaches
_EDGE = 16  # bytes of code around pc that decide whether it is at a function's edge


class Guess(NamedTuple):
    """A likely caller of a frame without call frame information."""

    cfa: int  # of the frame
    registers: Registers  # the caller's
    how: str  # the method, as in NativeFrame.how


class FallbackUnwinder:
    """Finds callers by the return address at the top of the stack, by following the code, or by the frame pointer."""

    def __init__(self, memory: Memory, modules: ModuleTable, steps: FrameSteps) -> None:
        """``steps`` tells where functions start, and reads code."""
        self._architecture = memory.architecture
        self._pc, self._sp = self._architecture.program_counter, self._architecture.stack_pointer
        self._memory = memory
        self._modules = modules
        self._code = steps.code
        self._emulation = EmulationUnwinder(
            self._architecture, self._code, lambda address: steps.function_start(address) == address
        )

    def caller(self, registers: Registers, exact: bool, is_code: bool) -> Guess | None:
        """A plausible caller of the frame with these registers, else None. ``exact``: pc is the next instruction to run
        (innermost frame, or interrupted by a signal); ``is_code``: pc is in executable memory, else a call to an
        invalid address has just pushed the return address."""
        guess, pc = None, registers[self._pc]
        if exact:
            offset: int | None = 0
            if is_code:
                before = self._code.read_before(pc, _EDGE)
                offset = self._architecture.return_address_offset(self._code.read(pc, _EDGE), before)
            guess = None if offset is None else self._at_stack_top(registers, offset)
        if not guess and is_code:
            guess = self._by_code(registers) or self._by_frame_pointer(registers)
        return guess

    def cfa_by_call(self, sp: int, start: int) -> int:
        """The CFA of the frame of the function at ``start``, by the only return address above ``sp`` whose call leads
        to that function, for a thread with an unknown frame pointer; 0 if there is not just one."""
        pushed = self._architecture.call_pushes
        stack = self._memory.try_read(sp, _SEARCHED) or self._memory.try_read(sp, -sp % 4096)
        if not pushed or not stack:
            return 0
        words = struct.unpack_from(f"<{len(stack) // 8}Q", stack)
        ends = [
            sp + 8 * index + pushed
            for index, word in enumerate(words)
            if abs(word - start) < _REACH
            and self._code.is_code(word - 1)
            and self._architecture.call_target(self._code.read_before(word, 8), word) == start
        ]
        return ends[0] if len(ends) == 1 else 0

    def _at_stack_top(self, registers: Registers, offset: int) -> Guess | None:
        """The caller by the return address ``offset`` bytes above the stack pointer."""
        pushed = self._architecture.call_pushes
        cfa = (registers[self._sp] + offset + pushed) & MASK
        link = self._architecture.dwarf_registers[self._architecture.return_column]
        pc = self._memory.try_u64(cfa - pushed) if pushed else registers.get(link)
        if pc is None or not self._is_return_address(pc):
            return None
        return Guess(cfa, {**preserved(self._architecture, registers), self._pc: pc, self._sp: cfa}, "return-address")

    def _by_code(self, registers: Registers) -> Guess | None:
        """The caller by emulating the code from pc to its returns; plausible results must agree on the CFA."""
        candidates: list[tuple[int, Registers]] = []
        for row in self._emulation.rows(registers[self._pc], registers):
            try:
                cfa, callers = compile_row(self._architecture, row).caller(registers, self._memory.read)
            except (BadData, MemoryFault, KeyError):
                continue
            is_further = cfa > registers[self._sp] if self._architecture.call_pushes else cfa >= registers[self._sp]
            if is_further and self._is_return_address(callers.get(self._pc, 0)):
                candidates.append((cfa, callers))
        if len({cfa for cfa, _ in candidates}) != 1:
            return None
        cfa, first = candidates[0]
        agreed = (name for name, value in first.items() if all(other.get(name) == value for _, other in candidates))
        return Guess(cfa, {name: first[name] for name in agreed}, "code")

    def _by_frame_pointer(self, registers: Registers) -> Guess | None:
        """The caller by the frame record (caller's frame pointer, return address) to which the frame pointer points, if
        that lies in the stack above the stack pointer."""
        frame, sp = registers.get(self._architecture.frame_pointer, 0), registers[self._sp]
        mapping = self._modules.mapping_at(sp)
        if frame % 8 or frame < sp or (frame >= mapping.end if mapping else frame - sp >= MAX_FRAME):
            return None
        record = self._architecture.frame_record
        saved, pc = self._memory.try_u64(frame + record.pointer), self._memory.try_u64(frame + record.returns)
        if pc is None or saved is None or not self._is_return_address(pc):
            return None
        end = frame + record.end
        return Guess(end, {self._pc: pc, self._sp: end, self._architecture.frame_pointer: saved}, "frame-pointer")

    def _is_return_address(self, pc: int) -> bool:
        """True if ``pc`` is in code, right behind a call instruction or one that cannot be read."""
        if not self._code.is_code(pc - 1):
            return False
        before = self._code.read_before(pc, 8)
        return not before or self._architecture.follows_call(before)
