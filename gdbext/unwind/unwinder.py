"""The unwinder: from a frame's registers to all frames further out, by call frame information alone.

What a code address decides is prepared once (frame_steps.py). Where there is no CFI (generated code) weaker means are
tried, and the frame they find says so in ``how``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gdbext.errors import BadData, MemoryFault
from gdbext.process.memory import Memory
from gdbext.process.modules import Module, ModuleTable
from gdbext.unwind.fallback_unwind import FallbackUnwinder
from gdbext.unwind.frame_steps import FrameStep, FrameSteps
from gdbext.unwind.unwind_row import ReadMemory, Registers, UnwindRow

END_OF_STACK = "end of stack"

WalkedFrame = tuple[FrameStep, Registers, int, str]
"""A frame on the way: the step at its pc, its registers, its CFA (0 where it is not known), how it was found."""


class NativeFrame:
    """One frame of a native stack.

    ``level`` counts from 0, innermost. ``pc`` and ``sp`` are program counter and stack pointer in this frame; ``cfa``
    is the caller's stack pointer after the return, 0 where it is not known (the last frame of a walk that ended for
    want of CFI). ``registers`` are these two and the callee-saved ones as they were in this frame, fewer where one
    cannot be known; level 0 and a frame that a signal interrupted have all. ``how`` tells by what this frame was found:

    - ``registers``: the thread's own registers (level 0);
    - ``cfi``: call frame information of the inner frame;
    - ``signal``: the registers that the kernel saved, so ``pc`` is where the signal hit;
    - ``return-address``: the word that a call has just pushed (a call to nowhere, code at a function's edge);
    - ``code``: code without CFI was followed to its return: next to certain, but not proven;
    - ``frame-pointer``: the frame pointer, in code without CFI: likely, not proven.

    ``lookup_pc`` is the address for symbols: ``pc - 1`` after a call (which may be a function's last instruction),
    else ``pc``. ``is_signal`` marks the trampoline that a signal handler returns to.
    """

    __slots__ = ("cfa", "how", "is_signal", "level", "lookup_pc", "module", "pc", "registers", "sp")

    def __init__(
        self,
        level: int,
        pc: int,
        sp: int,
        registers: Registers,
        cfa: int,
        how: str,
        is_signal: bool,
        lookup_pc: int,
        module: Module | None,
    ) -> None:
        self.level = level
        self.pc = pc
        self.sp = sp
        self.cfa = cfa
        self.registers = registers
        self.how = how
        self.is_signal = is_signal
        self.lookup_pc = lookup_pc
        self.module = module

    def __repr__(self) -> str:
        return f"NativeFrame({self.level}, pc={self.pc:#x}, sp={self.sp:#x}, cfa={self.cfa:#x}, how={self.how!r})"


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
        self._guesser = FallbackUnwinder(memory, modules, self._steps.code, self._steps.starts_function)

    def step(self, pc: int, exact: bool) -> FrameStep:
        """What is known of a code address (see FrameSteps.at)."""
        return self._steps.at(pc, exact)

    def frames(self, registers: Mapping[str, int], limit: int = 1_000_000) -> Iterator[NativeFrame]:
        """All frames of the thread with these registers, innermost first; at least one.

        Never raises for anything that is on the stack: ``stopped`` then says why the walk ended. Memory use does not
        grow with the number of frames.
        """
        pc, sp = self._pc, self._sp
        current = {name: value for name, value in registers.items() if name in self._kept}
        for level, (step, known, cfa, how) in enumerate(self.walk(current, self._read)):
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
        pc, at, how = self._pc, self._steps.at, "registers"
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
