"""Crashes: what the fatal signal says, and what is at the address that faulted."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.engine.targets.base_target import MemoryMapping, Signal

if TYPE_CHECKING:
    from gdbext.torch.values.cpp_objects import CxxException


ABORTS = {
    FunctionTag.PURE_VIRTUAL: "a pure virtual function was called (during construction or destruction, or of a freed "
    "object)",
    FunctionTag.ASSERT: "an assertion of the program failed",
    FunctionTag.TERMINATE: "std::terminate was called (an uncaught C++ exception, or a running std::thread was "
    "destroyed)",
    FunctionTag.OVERRUN: "a check found that the program wrote past the end of a buffer",
    FunctionTag.PYTHON_FATAL: "Python found a fatal error and aborted",
}
"""Function that ended the program → what that means; of several on a stack, the first in this order counts."""

_NULL_PAGE = 0x10000
"""Addresses below are a null pointer and an offset (vm.mmap_min_addr is 65536 on usual systems)."""
_SI_KERNEL = 128
"""si_code (asm-generic/siginfo.h) of a general protection fault, as by a non-canonical address: no address is known."""


class CrashKind(Enum):
    STACK_OVERFLOW = "stack-overflow"
    NULL = "null"
    UNMAPPED = "unmapped"
    READ_ONLY = "read-only"
    NO_EXEC = "no-exec"
    NON_CANONICAL = "non-canonical"
    BUS = "bus"
    ABORT = "abort"
    OTHER = "other"


class Crash(NamedTuple):
    """A thread stopped by a fatal signal."""

    tid: int
    signal: str
    address: int | None
    kind: CrashKind
    sentence: str
    """The crash without operator and kernel: "SIGSEGV at 0x8: a null pointer"."""

    @property
    def is_stack_overflow(self) -> bool:
        return self.kind is CrashKind.STACK_OVERFLOW


class SignalStop(NamedTuple):
    """The place and the signal by which a thread was stopped."""

    signal: Signal
    pc: int
    sp: int
    user_limit: int
    """The first address beyond user space."""
    at_trap: bool = False
    """It has just executed a breakpoint instruction of the program's own, not a debugger's."""
    aborted_by: FunctionTag | None = None
    """The function on its stack that ended the program, one of ABORTS."""
    thrown: CxxException | None = None
    """The uncaught exception if std::terminate ended the program, None if unknown."""

    @property
    def is_fatal(self) -> bool:
        """The signal's default action is to kill the process and dump core (signal(7)). SIGTRAP, which debuggers use,
        counts if the program itself has a breakpoint instruction."""
        name = self.signal.name
        if name != "SIGTRAP":
            cores = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS", "SIGQUIT", "SIGXCPU", "SIGXFSZ")
            return name in cores
        return self.at_trap and (self.signal.code is None or self.signal.code > 0)


def describe(tid: int, stop: SignalStop, maps: Sequence[MemoryMapping]) -> Crash:
    """The crash of one thread. ``maps`` may lack anonymous regions; then less is stated."""
    signal, address, aborted_by = stop.signal, None, stop.aborted_by
    name, code = signal.name, signal.code
    if aborted_by and name == "SIGABRT":
        text = ABORTS[aborted_by]
        if stop.thrown and aborted_by is FunctionTag.TERMINATE:
            message = next((line for line in map(str.strip, stop.thrown.message.splitlines()) if line), "")[:300]
            text = f"std::terminate was called for the uncaught exception {stop.thrown.type}"
            text += f": {message}" if message else ""
        return Crash(tid, name, None, CrashKind.ABORT, f"{name}: {text}")
    if name in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE") and (code is None or (code > 0 and code != _SI_KERNEL)):
        address = signal.address  # the kernel sets si_addr for these only, and not if a process sent it (si_code <= 0)
    kind, text = _classify(stop, address, maps)
    at = f" at {address:#x}" if address is not None else ""
    return Crash(tid, name, address, kind, f"{name}{at}: {text}")


def _classify(stop: SignalStop, address: int | None, maps: Sequence[MemoryMapping]) -> tuple[CrashKind, str]:
    """(the kind, what happened in words) of the crash with a fault at ``address``, None if unknown."""
    name = stop.signal.name
    if name == "SIGSEGV":
        return _classify_segv(stop, address, maps)
    if name == "SIGABRT":
        return CrashKind.ABORT, "the program called abort (an uncaught C++ exception, a failed assertion, a heap check)"
    if name == "SIGBUS":  # a page of a mapping that the file does not have (any more), or for which memory is lacking
        mapping = _mapping_at(address, maps) if address is not None else None
        if not mapping or not mapping.path.startswith("/"):
            return CrashKind.BUS, "an access to a file that was truncated, or /dev/shm is full"
        if mapping.path.startswith("/dev/shm/"):
            return CrashKind.BUS, f"an access to {mapping.path}: /dev/shm is full, or the file was truncated"
        return CrashKind.BUS, f"an access to the mapped file {mapping.path}, which was truncated"
    others = {
        "SIGTRAP": "a breakpoint instruction in the program",
        "SIGILL": "an instruction that this CPU does not support, or a trap instruction",
        "SIGFPE": "an integer division by zero or overflow",
    }
    return CrashKind.OTHER, others.get(name, "a fatal signal")


def _classify_segv(stop: SignalStop, address: int | None, maps: Sequence[MemoryMapping]) -> tuple[CrashKind, str]:
    """(the kind, what happened in words) of a SIGSEGV; ``address``: that faulted, None if unknown."""
    signal = stop.signal
    if signal.code is not None and signal.code <= 0:
        return CrashKind.OTHER, "sent by a process (kill), not by a fault"
    if address is None and signal.code == _SI_KERNEL:
        return CrashKind.NON_CANONICAL, "a non-canonical address (overwritten or freed memory)"
    if address is None:
        return CrashKind.OTHER, "the faulting address was not recorded"
    if _is_stack_overflow(address, stop.sp, maps):
        return CrashKind.STACK_OVERFLOW, "stack overflow: the guard page below the thread's stack was touched"
    mapping = _mapping_at(address, maps)
    name = (mapping.path or "anonymous memory") if mapping else ""
    if stop.pc == address:
        if address < _NULL_PAGE:
            return CrashKind.NULL, "a call through a null function pointer"
        if not mapping:
            return CrashKind.UNMAPPED, "a jump to an address where nothing is mapped"
        return CrashKind.NO_EXEC, f"a jump into memory that is not executable ({name})"
    if address < _NULL_PAGE:
        return CrashKind.NULL, "a null pointer" if address == 0 else f"a null pointer plus {address}"
    if address >= stop.user_limit:
        return CrashKind.NON_CANONICAL, "an address outside user space (overwritten or freed memory)"
    if not mapping:
        return CrashKind.UNMAPPED, "nothing is mapped there (freed memory, or a wild pointer)"
    if mapping.permissions.startswith("r-"):
        return CrashKind.READ_ONLY, f"a write to read-only memory ({name})"
    if mapping.permissions.startswith("---"):
        return CrashKind.UNMAPPED, "a page without access permissions (a guard page, or reserved memory)"
    return CrashKind.OTHER, f"in {name}, mapped {mapping.permissions or 'with unknown permissions'}"


def _is_stack_overflow(address: int, sp: int, maps: Sequence[MemoryMapping]) -> bool:
    """True if the fault is next to the stack pointer and below the stack's memory. A push, call or stack probe faults
    at most 0x11000 bytes from the stack pointer (one frame's probe and the guard page). A stack pointer outside
    writable memory (a large frame) is an overflow, too."""
    if not sp or abs(address - sp) > 0x11000:
        return False
    at_fault = _mapping_at(address, maps)
    if at_fault and "w" in at_fault.permissions:
        return False
    stack = _mapping_at(sp, maps)
    return stack is None or "w" not in stack.permissions or address < stack.start


def _mapping_at(address: int, maps: Sequence[MemoryMapping]) -> MemoryMapping | None:
    return next((mapping for mapping in maps if mapping.start <= address < mapping.end), None)
