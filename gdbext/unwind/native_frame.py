"""NativeFrame: one frame of a native stack."""

from __future__ import annotations

from collections.abc import Callable

from gdbext.process.modules import Module
from gdbext.unwind.unwind_row import Registers


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

    __slots__ = ("_registers", "cfa", "how", "is_signal", "level", "lookup_pc", "module", "pc", "sp")

    def __init__(
        self,
        level: int,
        pc: int,
        sp: int,
        registers: Registers | Callable[[int], Registers],
        cfa: int,
        how: str,
        is_signal: bool,
        lookup_pc: int,
        module: Module | None,
    ) -> None:
        """``registers``: or what gives those of a level when they are first wanted."""
        self.level = level
        self.pc = pc
        self.sp = sp
        self.cfa = cfa
        self._registers = registers
        self.how = how
        self.is_signal = is_signal
        self.lookup_pc = lookup_pc
        self.module = module

    @property
    def registers(self) -> Registers:
        """Those that are known in this frame, by name."""
        known = self._registers
        if not isinstance(known, dict):
            known = self._registers = known(self.level)
        return known

    def __repr__(self) -> str:
        return f"NativeFrame({self.level}, pc={self.pc:#x}, sp={self.sp:#x}, cfa={self.cfa:#x}, how={self.how!r})"
