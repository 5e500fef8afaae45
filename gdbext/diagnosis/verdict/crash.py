"""Crashes: what the fatal signal says, and what is at the address that faulted."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.engine.targets.base_target import MemoryMapping, Signal

if TYPE_CHECKING:
    from gdbext.torch.values.cpp_objects import CxxException

FATAL = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS", "SIGQUIT", "SIGXCPU", "SIGXFSZ"})
"""Signals whose default action is a core dump (signal(7)), without those that debuggers use (SIGTRAP)."""

ABORTS = {
    FunctionTag.PURE_VIRTUAL: "a pure virtual function was called (during construction or destruction, or of a freed "
    "object)",
    FunctionTag.ASSERT: "an assertion of the program failed",
    FunctionTag.TERMINATE: "std::terminate was called (an uncaught C++ exception, or a running std::thread was "
    "destroyed)",
    FunctionTag.OVERRUN: "the program wrote over the end of a buffer, and a check noticed it",
    FunctionTag.PYTHON_FATAL: "Python found a fatal error and aborted",
}
"""The function that ended the program → what that means; the first one found counts."""

NULL_PAGE = 0x10000
"""Addresses below are a null pointer and an offset (vm.mmap_min_addr is 65536 on usual systems)."""

STACK_SLACK = 0x11000
"""Bytes below the stack pointer where a fault may be and still be the stack's: one frame's probe and the guard page."""

SI_KERNEL = 128
"""si_code (asm-generic/siginfo.h): a non-canonical address faults with general protection, of which the kernel knows
no address."""


_MESSAGE_LIMIT = 300


class CrashKind(Enum):
    """The kind of a crash."""

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
        """The thread used up its stack."""
        return self.kind is CrashKind.STACK_OVERFLOW


class SignalStop(NamedTuple):
    """The place and the signal by which a thread was stopped."""

    signal: Signal
    pc: int
    sp: int
    user_limit: int
    """The first address beyond user space."""
    at_trap: bool = False
    """It has just run a breakpoint instruction that stands in memory: the program's own, and no debugger's."""
    aborted_by: FunctionTag | None = None
    """The function on its stack that ended the program, one of ABORTS."""
    thrown: CxxException | None = None
    """The exception that it threw when std::terminate ended the program, None where that is not known."""

    @property
    def is_fatal(self) -> bool:
        """The signal ends the process with a core. SIGTRAP does so where the program itself has such an instruction."""
        if self.signal.name != "SIGTRAP":
            return self.signal.name in FATAL
        return self.at_trap and (self.signal.code is None or self.signal.code > 0)


def describe(tid: int, stop: SignalStop, maps: Sequence[MemoryMapping]) -> Crash:
    """The crash of one thread. ``maps`` may lack anonymous regions; then less is said."""
    signal, address = stop.signal, _fault_address(stop.signal)
    if stop.aborted_by and signal.name == "SIGABRT":
        return Crash(tid, signal.name, None, CrashKind.ABORT, f"{signal.name}: {_abort(stop.aborted_by, stop.thrown)}")
    kind, what = _classify(stop, address, maps)
    at = f" at {address:#x}" if address is not None else ""
    return Crash(tid, signal.name, address, kind, f"{signal.name}{at}: {what}")


def _abort(aborted_by: FunctionTag, thrown: CxxException | None) -> str:
    if not thrown or aborted_by is not FunctionTag.TERMINATE:
        return ABORTS[aborted_by]
    said = next((line for line in map(str.strip, thrown.message.splitlines()) if line), "")
    said = f": {said[:_MESSAGE_LIMIT]}" if said else ""
    return f"std::terminate was called, because nobody caught the exception {thrown.type}{said}"


def _fault_address(signal: Signal) -> int | None:
    """si_addr is set by the kernel for these signals only, and not where another process sent it (si_code <= 0)."""
    if signal.name not in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"):
        return None
    if signal.code is not None and (signal.code <= 0 or signal.code == SI_KERNEL):
        return None
    return signal.address


def _classify(stop: SignalStop, address: int | None, maps: Sequence[MemoryMapping]) -> tuple[CrashKind, str]:
    signal = stop.signal
    if signal.name == "SIGABRT":
        return CrashKind.ABORT, "the program called abort (an uncaught C++ exception, a failed assertion, a heap check)"
    if signal.name == "SIGTRAP":
        return CrashKind.OTHER, "a breakpoint instruction in the program"
    if signal.name == "SIGILL":
        return CrashKind.OTHER, "an instruction that this processor does not have, or a trap in the program"
    if signal.name == "SIGFPE":
        return CrashKind.OTHER, "an integer division by zero or overflow"
    if signal.name == "SIGBUS":
        return CrashKind.BUS, _beyond_the_file(_mapping_at(address, maps) if address is not None else None)
    if signal.name != "SIGSEGV":
        return CrashKind.OTHER, "a signal that ends the process"
    return _segv(stop, address, maps)


def _beyond_the_file(mapping: MemoryMapping | None) -> str:
    """A page of a mapping that the file does not have (any more), or that no memory was left for."""
    if not mapping or not mapping.path.startswith("/"):
        return "memory behind a file that has become shorter, or /dev/shm is full"
    if mapping.path.startswith("/dev/shm/"):
        return f"memory of {mapping.path}: /dev/shm is full, or the file has become shorter"
    return f"memory of the file {mapping.path}, which has become shorter"


def _segv(stop: SignalStop, address: int | None, maps: Sequence[MemoryMapping]) -> tuple[CrashKind, str]:
    signal = stop.signal
    if signal.code is not None and signal.code <= 0:
        return CrashKind.OTHER, "sent by a process (kill), not by a fault"
    if address is None and signal.code == SI_KERNEL:
        return CrashKind.NON_CANONICAL, "a pointer that is not a valid address (overwritten or freed memory)"
    if address is None:
        return CrashKind.OTHER, "the faulting address was not recorded"
    if is_stack_overflow(address, stop.sp, maps):
        return CrashKind.STACK_OVERFLOW, "stack overflow: the guard page below the thread's stack was touched"
    if stop.pc == address:
        return _jump(address, maps)
    if address < NULL_PAGE:
        return CrashKind.NULL, "a null pointer" if address == 0 else f"a null pointer plus {address}"
    if address >= stop.user_limit:
        return CrashKind.NON_CANONICAL, "an address outside user space (overwritten or freed memory)"
    mapping = _mapping_at(address, maps)
    if not mapping:
        return CrashKind.UNMAPPED, "nothing is mapped there (freed memory, or a wild pointer)"
    if mapping.permissions.startswith("r-"):
        return CrashKind.READ_ONLY, f"a write to read-only memory ({_mapping_name(mapping)})"
    if mapping.permissions.startswith("---"):
        return CrashKind.UNMAPPED, "a page that allows no access (a guard page, or memory reserved and not in use)"
    return CrashKind.OTHER, f"in {_mapping_name(mapping)}, mapped {mapping.permissions or 'with unknown permissions'}"


def _jump(address: int, maps: Sequence[MemoryMapping]) -> tuple[CrashKind, str]:
    if address < NULL_PAGE:
        return CrashKind.NULL, "a call through a null function pointer"
    mapping = _mapping_at(address, maps)
    if not mapping:
        return CrashKind.UNMAPPED, "a jump to an address where nothing is mapped"
    return CrashKind.NO_EXEC, f"a jump into memory that is not executable ({_mapping_name(mapping)})"


def is_stack_overflow(address: int, sp: int, maps: Sequence[MemoryMapping]) -> bool:
    """The fault is next to the stack pointer, and below the memory that the stack has.

    A push, a call or a stack probe faults at most STACK_SLACK from the stack pointer. Where that itself has left
    writable memory (a large frame), the stack has run over, too.
    """
    if not sp or abs(address - sp) > STACK_SLACK:
        return False
    at_fault = _mapping_at(address, maps)
    if at_fault and "w" in at_fault.permissions:
        return False
    stack = _mapping_at(sp, maps)
    return stack is None or "w" not in stack.permissions or address < stack.start


def _mapping_at(address: int, maps: Sequence[MemoryMapping]) -> MemoryMapping | None:
    return next((mapping for mapping in maps if mapping.start <= address < mapping.end), None)


def _mapping_name(mapping: MemoryMapping) -> str:
    return mapping.path or "anonymous memory"
