"""Stacks that begin like an earlier one have the frames that walking them gives, whatever is different in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.formats.cfi_program import OFFSET, CfiRow, Rule
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.unwind import Unwinder
from gdbext.engine.unwind.frame_steps import FrameStep, FrameSteps
from gdbext.engine.unwind.unwind_row import UnwindRow, compile_row
from support.fakes.unwind_fakes import STACK, FakeStack, FakeTarget

X86 = by_name("x86_64")
RBX, RBP, RSP = (X86.dwarf_registers.index(name) for name in ("rbx", "rbp", "rsp"))
CODE = 0x40_0000
FRAMES = 24
BASED_ON_RBP = (5, 14)
"""These count their CFA from rbp, which their own callers' frames restore."""
FRAME = 0x50
OTHERS = {"rbx": 3, "r12": 5}


class Steps(FrameSteps):
    """Functions that save rbx, and sometimes rbp, in frames of 0x50 bytes; the outermost returns to 0."""

    def __init__(self) -> None:
        self.code = None  # type: ignore[assignment]

    def at(self, pc: int, exact: bool) -> FrameStep:
        number = (pc - CODE) // 0x100
        if not 0 <= number < 2 * FRAMES:
            return FrameStep(pc, None, None, "no CFI", False)
        return FrameStep(pc if exact else pc - 1, None, self._row(number % FRAMES), "", True)

    def _row(self, number: int) -> UnwindRow:
        rules = {X86.return_column: Rule(OFFSET, -8), RBX: Rule(OFFSET, -0x18), RBP: Rule(OFFSET, -0x10)}
        register, offset = (RBP, 0x10) if number in BASED_ON_RBP else (RSP, FRAME)
        return compile_row(X86, CfiRow(register, offset, None, rules, X86.return_column, False))


class Threads:
    """Threads of one process, each with a stack of its own."""

    def __init__(self) -> None:
        self.target = FakeTarget()
        self.registers: list[dict[str, int]] = []
        self.walker = Unwinder(Memory(self.target), ModuleTable(self.target, Memory(self.target)), Steps())

    def add(self, change: Callable[[FakeStack, int], None] = lambda *_: None, shift: int = 0) -> None:
        """Another thread; its stack begins ``shift`` bytes into a page."""
        place, stack = STACK + 0x10000 * len(self.registers), FakeStack()
        start = place + 0x800 + shift
        for number in range(FRAMES):
            cfa = start + FRAME * (number + 1)
            caller = CODE + 0x100 * (number + 1) + 8 if number + 1 < FRAMES else 0
            stack.put(cfa - place + STACK - 0x18, number + shift, cfa + FRAME - 0x10, caller)
        change(stack, start - place + STACK)
        self.target.add(place, bytes(stack.data), "rw-p")
        rbp = start + FRAME - 0x10
        self.registers.append({"rip": CODE + 8, "rsp": start, "rbp": rbp, **OTHERS, "rbx": shift})

    def check(self) -> list[int]:
        """Both ways give the same for each thread; how many frames those have."""
        return [self._check(registers) for registers in self.registers]

    def _check(self, registers: dict[str, int]) -> int:
        walked = list(self.walker.frames(registers))
        reason = self.walker.stopped
        quick = self.walker.stack(registers)
        assert self.walker.stopped == reason
        assert [parts(frame) for frame in quick] == [parts(frame) for frame in walked]
        return len(quick)


def parts(frame: Any) -> tuple[Any, ...]:
    return (frame.level, frame.pc, frame.sp, frame.cfa, frame.registers, frame.how, frame.lookup_pc, frame.is_signal)


def return_address(number: int, value: int) -> Callable[[FakeStack, int], None]:
    return lambda stack, start: stack.put(start + FRAME * (number + 1) - 8, value)


def test_threads_of_a_pool() -> None:
    threads = Threads()
    for shift in (0, 0x10, 0x7F0, 0x48):
        threads.add(shift=shift)
    assert threads.check() == [FRAMES] * 4
    known = threads.walker._paths.match(threads.registers[3], Memory(threads.target).read, 1000)
    assert known.count == FRAMES - 1  # nothing but the last one is walked


@pytest.mark.parametrize("number", [0, 3, 4, 5, 13, 14, 20, FRAMES - 2])
def test_a_caller_is_another_one(number: int) -> None:
    threads = Threads()
    threads.add()
    threads.add()
    threads.add(return_address(number, CODE + 0x100 * (FRAMES + number + 1) + 0x20))
    threads.add(return_address(number, 0x10))
    threads.add(return_address(number, 0))
    assert threads.check() == [FRAMES, FRAMES, FRAMES, number + 1, number + 1]


def test_memory_that_is_not_there() -> None:
    threads = Threads()
    threads.add()
    threads.add()
    threads.registers.append({**threads.registers[0], "rsp": STACK - 0x5000})
    threads.registers.append({**threads.registers[0], "rsp": (1 << 64) - 8})
    threads.registers.append({"rip": CODE + 8, "rsp": threads.registers[0]["rsp"]})
    assert threads.check()[2:4] == [1, 1]
