"""The unwinder: from a frame's registers to all frames further out, by call frame information alone.

What a code address decides is prepared once (frame_steps.py). Where there is no CFI (generated code) weaker means are
tried, and the frame they find says so in ``how``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gdbext.errors import BadData, MemoryFault
from gdbext.process.memory import Memory
from gdbext.process.modules import ModuleTable
from gdbext.unwind.fallback_unwind import FallbackUnwinder
from gdbext.unwind.frame_steps import FrameStep, FrameSteps
from gdbext.unwind.known_path import KnownPaths
from gdbext.unwind.native_frame import NativeFrame
from gdbext.unwind.unwind_row import ReadMemory, Registers, UnwindRow

END_OF_STACK = "end of stack"

WalkedFrame = tuple[FrameStep, Registers, int, str]
"""A frame on the way: the step at its pc, its registers, its CFA (0 where it is not known), how it was found."""


class Unwinder:
    """Walks stacks. One instance serves all threads of a stopped target, as long as its module map stays the same."""

    def __init__(self, memory: Memory, modules: ModuleTable, steps: FrameSteps | None = None) -> None:
        architecture = memory.architecture
        self.stopped = ""
        """Why the last walk ended: "end of stack", or a sentence."""
        self._steps = steps or FrameSteps(memory, modules)
        self._read = memory.read
        self._pc, self._sp = architecture.program_counter, architecture.stack_pointer
        self._kept = frozenset((*architecture.dwarf_registers, self._pc))
        self._least_growth = architecture.call_pushes
        """Nothing at an exact address: longjmp's end has its target's stack pointer already."""
        self._paths = KnownPaths(self._steps, self._pc, self._sp)
        self._guesser = FallbackUnwinder(memory, modules, self._steps.code, self._steps.starts_function)

    def step(self, pc: int, exact: bool) -> FrameStep:
        """What is known of a code address (see FrameSteps.at)."""
        return self._steps.at(pc, exact)

    def frames(self, registers: Mapping[str, int], limit: int = 1_000_000) -> Iterator[NativeFrame]:
        """All frames of the thread with these registers, innermost first; at least one.

        Never raises for anything that is on the stack: ``stopped`` then says why the walk ended. Memory use does not
        grow with the number of frames.
        """
        return self._numbered(self.walk(self._followed(registers), self._read), 0, limit)

    def stack(self, registers: Mapping[str, int], limit: int = 1_000_000) -> list[NativeFrame]:
        """The same frames at once. Of a stack that begins like an earlier one the rest alone is walked."""
        current = self._followed(registers)
        known = self._paths.begin(current, self._read, limit)
        if known is None:
            frames = list(self._numbered(self.walk(current, self._read), 0, limit))
        else:
            rest = self.walk(known.registers(known.count), self._read, exact=False)
            frames = [*known.frames(), *self._numbered(rest, known.count, limit)]
        if known is None or not known.is_whole:
            self._paths.learn(current, frames)
        return frames

    def _followed(self, registers: Mapping[str, int]) -> Registers:
        return {name: value for name, value in registers.items() if name in self._kept}

    def _numbered(self, walk: Iterator[WalkedFrame], first: int, limit: int) -> Iterator[NativeFrame]:
        pc, sp = self._pc, self._sp
        for level, (step, known, cfa, how) in enumerate(walk, first):
            if level == limit:
                self.stopped = f"truncated at {limit} frames"
                return
            signal = step.row is not None and step.row.is_signal
            yield NativeFrame(level, known[pc], known[sp], known, cfa, how, signal, step.lookup_pc, step.module)

    def walk(
        self, registers: Registers, read: ReadMemory, exact: bool = True, guess: bool = True
    ) -> Iterator[WalkedFrame]:
        """The frame with these registers, then its callers; ``stopped`` says at the end why there are no more.

        ``read`` reads the stack. ``exact`` where the program counter is the next instruction to run, not where a call
        returns to. Without ``guess`` only call frame information counts, and what is found by it.
        """
        self.stopped = "not finished"
        pc, at, how = self._pc, self._steps.at, "registers" if exact else "cfi"
        trampolines: set[int] = set()
        while True:
            step = at(registers[pc], exact)
            row = step.row
            if row is None:
                if not exact and not step.is_code:
                    self.stopped = _no_code(registers[pc])
                    return
                guessed = self._guesser.caller(registers, exact, step.is_code) if guess else None
                cfa, callers, next_how = guessed or (0, {}, "")
                reason = self._objection(registers, callers, exact) if guessed else step.problem
            else:
                next_how = "signal" if row.is_signal else "cfi"
                try:
                    cfa, callers = row.caller(registers, read)
                except (MemoryFault, KeyError, BadData) as error:
                    cfa, callers, reason = 0, {}, _problem(error)
                else:
                    reason = END_OF_STACK if row.ends else self._objection(registers, callers, exact, row, trampolines)
            yield step, registers, cfa if reason else callers[self._sp], how
            if reason:
                self.stopped = reason
                return
            registers, how, exact = callers, next_how, row is not None and row.is_signal

    def _objection(
        self,
        registers: Registers,
        callers: Registers,
        exact: bool,
        row: UnwindRow | None = None,
        trampolines: set[int] | None = None,
    ) -> str:
        """Why these cannot be the caller's registers, or why it is not followed; "" where all is well.

        ``trampolines`` are the stack pointers of the signal frames that were met so far.
        """
        pc, sp = self._pc, self._sp
        if pc not in callers or sp not in callers:
            return "the return address is not known"
        if row is not None and row.is_signal and trampolines is not None:
            if registers[sp] in trampolines:
                return f"signal frames go round in a circle at {registers[sp]:#x}"
            trampolines.add(registers[sp])
        elif callers[sp] < registers[sp] + (0 if exact else self._least_growth):
            return f"the stack does not grow at {registers[pc]:#x} (damaged)"
        return ""


def _problem(error: Exception) -> str:
    if isinstance(error, MemoryFault):
        return f"stack memory at {error.address:#x} cannot be read"
    if isinstance(error, BadData):
        return error.what
    return f"{error.args[0]} is needed to unwind and is not known here"


def _no_code(pc: int) -> str:
    return END_OF_STACK if pc == 0 else f"return address {pc:#x} is not in executable memory"
