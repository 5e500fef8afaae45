"""Faults for which the kernel called a signal handler, read from the signal frames on a stack.

A handler that raises the signal again (those of PyTorch's DataLoader workers, faulthandler, abseil, ray) or calls
abort() hides the fault: the process dies of a signal that it sent itself. The kernel has left the fault on the stack,
above the handler: ``siginfo_t`` if the handler was installed with SA_SIGINFO, and ``struct sigcontext`` always.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.targets.base_target import Signal
from gdbext.engine.targets.system.linux import fault_address, signal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.engine.process.memory import Memory
    from gdbext.engine.unwind.frame_steps import NativeFrame

SI_KERNEL = 128
"""si_code (asm-generic/siginfo.h) of a general protection fault, as by a non-canonical address: no address is known."""
_SIGSYS = 31
_SIGINFO = struct.Struct("<iii4xQ")
"""si_signo, si_errno, si_code, then the union, whose first word is si_addr if a fault raised the signal."""


class HandledFault(NamedTuple):
    """A fault for which a signal handler was called."""

    signal: Signal
    """The signal that the fault raised; its code is None if the kernel recorded only the exception."""
    level: int
    """The level of the frame whose instruction faulted; the trampoline to which the handler returns is one level
    below."""


def handled_fault(frames: Sequence[NativeFrame], memory: Memory, last_signal: int) -> HandledFault | None:
    """The innermost fault whose handler is on the stack, None if there is none. Signals that a process sent are
    skipped: a handler may be called for the signal that another handler raised. ``last_signal``: the number of the
    signal by which the thread was stopped at last."""
    for trampoline, interrupted in zip(frames, frames[1:]):
        if trampoline.is_signal:
            signal = _fault(memory, trampoline.sp, interrupted.pc, last_signal)
            if signal:
                return HandledFault(signal, interrupted.level)
    return None


def _fault(memory: Memory, sp: int, pc: int, last_signal: int) -> Signal | None:
    """The signal that the fault at ``pc`` raised; ``sp``: the stack pointer in the trampoline. None if a process sent
    the signal, or if nothing shows what raised it."""
    architecture = memory.architecture
    layout = architecture.signal_frame
    trap = memory.try_u64(sp + layout.context + layout.trap)
    page = memory.try_u64(sp + layout.context + layout.fault_address)
    siginfo = memory.try_read(sp + layout.siginfo, _SIGINFO.size)
    if trap is None or page is None or not siginfo:
        return None
    number, errno, code, address = _SIGINFO.unpack(siginfo)
    raised = layout.trap_signals.get(trap, ())
    # Without SA_SIGINFO the words of siginfo_t are what was on the stack before: they count if the context agrees.
    if 0 < number < 65 and not errno and code > 0:
        expected = page if trap == layout.page_fault else pc
        if (number in raised and (code == SI_KERNEL or address == expected)) or (number == _SIGSYS and address == pc):
            return Signal(number, signal_name(number), code, fault_address(number, code, address))
    elif 0 < number < 65 and not errno:
        return None
    if not raised or architecture.is_behind_syscall(memory.try_read, pc):
        return None  # a signal that interrupts a system call was sent
    number = last_signal if last_signal in raised else raised[0]
    if trap == layout.page_fault:
        return Signal(number, signal_name(number), None, page)
    if number == last_signal:
        return Signal(number, signal_name(number), SI_KERNEL if number == 11 else None, None if number == 11 else pc)
    return None
