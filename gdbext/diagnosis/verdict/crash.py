"""Crashes: what the fatal signal says, and what is at the address that faulted."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.suggestion import Suggestion
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.engine.targets.base_target import MemoryMapping, Signal
from gdbext.engine.unwind.handled_fault import SI_KERNEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    function: str = ""
    """The function that crashed or ended the program, with its library: ``decode (libdecode.so)``; "" if unknown."""
    next_steps: tuple[str | Suggestion, ...] = ()
    """Advice that follows from the reason of the crash."""

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
    level: int = 0
    """The level of the frame that crashed."""
    handler: str | None = None
    """The library of the signal handler that hid the fault, "" if unknown; None if there was no handler."""
    last_signal: str = ""
    """The name of the signal that ended the process: another one if a handler called abort()."""
    message: str = ""
    """The message that the C library or Python wrote before it called abort()."""
    refused: str = ""
    """The system call that seccomp refused (SIGSYS)."""
    instruction: str = ""
    """What the instruction is that the CPU refused (SIGILL), "" if unknown."""
    function: str = ""
    """As in Crash."""
    in_malloc: bool = False
    """The fault was inside of malloc, free or the like."""
    without_gil: str = ""
    """The call of Python's API by a thread that does not hold the GIL."""
    repeats: bool = False
    """A function is on the stack many times."""
    frame_size: int = 0
    """Bytes of the largest of the frames around the fault; 0 if unknown."""
    stack_size: int = 0
    """Bytes of the thread's stack, 0 if unknown: the main thread's grows."""
    openmp: tuple[str, ...] = ()
    """The OpenMP libraries of the process, if one of them ended it because there are several."""

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
    signal, address = stop.signal, None
    name, code = signal.name, signal.code
    if name in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE") and (code is None or (code > 0 and code != SI_KERNEL)):
        address = signal.address  # the kernel sets si_addr for these only, and not if a process sent it (si_code <= 0)
    kind, text = _classify(stop, address, maps)
    at = f" at {address:#x}" if address is not None else ""
    sentence = f"{name}{at}: {text}{_handler_clause(stop)}"
    if stop.without_gil:
        sentence += f"; {stop.without_gil}"
    return Crash(tid, name, address, kind, sentence, stop.function, tuple(_next_steps(stop, kind)))


def _handler_clause(stop: SignalStop) -> str:
    """What a signal handler did after the fault, "" if none was called."""
    if stop.handler is None:
        return ""
    whose = f"a handler of {stop.handler}" if stop.handler else "a signal handler"
    if stop.last_signal in ("", stop.signal.name):
        return f"; {whose} raised it again"
    return f"; {whose} then ended the process by {stop.last_signal}"


_HEAP_CHECKS = re.compile(
    r"(free|malloc|realloc|calloc|munmap_chunk|malloc_\w+|mremap_chunk)\(\)|corrupted|double free"
)
"""Messages of the checks of malloc and free (malloc/malloc.c of glibc)."""
_HEAP_ADVICE = (
    "The heap was damaged earlier, perhaps by other code: repeat the run with LD_PRELOAD=libc_malloc_debug.so.0 "
    "MALLOC_CHECK_=3 (before glibc 2.34 without LD_PRELOAD), with PYTHONMALLOC=debug, or under AddressSanitizer."
)


_MISSING_KERNEL = re.compile(r"Could not run '([\w:.]+)' with arguments from the '(\w+)' backend")
"""OperatorEntry::reportError (aten/src/ATen/core/dispatch/OperatorEntry.cpp)."""


def _next_steps(stop: SignalStop, kind: CrashKind) -> Iterator[str | Suggestion]:
    missing = _MISSING_KERNEL.search(stop.thrown.message) if stop.thrown else None
    if missing:
        yield Suggestion(f"Where kernels of {missing[1]} exist", f"dispatch-lookup {missing[1]} {missing[2]}")
    if kind is CrashKind.STACK_OVERFLOW:
        if stop.repeats:
            yield "Unbounded recursion: see what repeats in the stack above."
        else:
            yield (
                "Nothing repeats on the stack, so it is too small: threading.stack_size(BYTES) before the thread "
                "starts, pthread_attr_setstacksize, OMP_STACKSIZE, or ulimit -s for the main thread."
            )
    elif stop.in_malloc or _HEAP_CHECKS.search(stop.message):
        yield _HEAP_ADVICE
    elif stop.aborted_by is FunctionTag.OVERRUN or "smashing" in stop.message or "buffer overflow" in stop.message:
        yield "Build the library of that function with -fsanitize=address: it reports the write that was too long."
    if "deallocating None" in stop.message:
        yield "A C extension has released None too often (Py_DECREF without a reference of its own): look for it there."
    if stop.without_gil:
        yield "Take the GIL around the call: PyGILState_Ensure, pybind11::gil_scoped_acquire."
    if stop.openmp:
        yield (
            "Have one OpenMP library: install all packages from one source (all from pip, or all from conda). "
            "KMP_DUPLICATE_LIB_OK=TRUE only hides the problem."
        )
    if stop.signal.name == "SIGSYS":
        yield "Allow the system call in the container's seccomp profile (docker run --security-opt seccomp=FILE)."
    if stop.signal.name == "SIGILL" and "instruction" in stop.instruction:
        yield "Compare the flags in /proc/cpuinfo with those that the library was built for (-march)."


def _classify_abort(stop: SignalStop) -> str:
    """Why the program called abort(), in words."""
    first_line = next((line for line in map(str.strip, stop.message.splitlines()) if line), "")[:300]
    if stop.openmp:
        return f"OpenMP ended the program: {len(stop.openmp)} OpenMP libraries are loaded ({', '.join(stop.openmp)})"
    if stop.thrown and stop.aborted_by is FunctionTag.TERMINATE:
        lines = map(str.strip, stop.thrown.message.splitlines())
        message = next((line for line in lines if line), "")[:300]
        text = f"std::terminate was called for the uncaught exception {stop.thrown.type}"
        return text + (f": {message}" if message else "")
    if _HEAP_CHECKS.search(first_line):
        return f"the C library found that the heap is damaged ({first_line})"
    if stop.aborted_by:
        return ABORTS[stop.aborted_by] + (f" ({first_line})" if first_line else "")
    if first_line:
        return f"the C library ended the program ({first_line})"
    return "the program called abort (an uncaught C++ exception, a failed assertion, a heap check)"


def _classify(stop: SignalStop, address: int | None, maps: Sequence[MemoryMapping]) -> tuple[CrashKind, str]:
    """(the kind, what happened in words) of the crash with a fault at ``address``, None if unknown."""
    name = stop.signal.name
    if name == "SIGSEGV":
        return _classify_segv(stop, address, maps)
    if name == "SIGABRT":
        return CrashKind.ABORT, _classify_abort(stop)
    if name == "SIGBUS":  # a page of a mapping that the file does not have (any more), or for which memory is lacking
        mapping = _mapping_at(address, maps) if address is not None else None
        if not mapping or not mapping.path.startswith("/"):
            return CrashKind.BUS, "an access to a file that was truncated, or /dev/shm is full"
        if mapping.path.startswith("/dev/shm/"):
            return CrashKind.BUS, f"an access to {mapping.path}: /dev/shm is full, or the file was truncated"
        return CrashKind.BUS, f"an access to the mapped file {mapping.path}, which was truncated"
    others = {
        "SIGTRAP": "a breakpoint instruction in the program",
        "SIGILL": stop.instruction or "an instruction that this CPU does not support, or a trap instruction",
        "SIGFPE": "an integer division by zero or overflow",
        "SIGSYS": f"seccomp refused {stop.refused or 'a system call'}",
    }
    if stop.signal.code is not None and stop.signal.code <= 0:
        return CrashKind.OTHER, "sent by a process (kill), not by a fault"
    return CrashKind.OTHER, others.get(name, "a fatal signal")


def _classify_segv(stop: SignalStop, address: int | None, maps: Sequence[MemoryMapping]) -> tuple[CrashKind, str]:
    """(the kind, what happened in words) of a SIGSEGV; ``address``: that faulted, None if unknown."""
    signal = stop.signal
    if signal.code is not None and signal.code <= 0:
        return CrashKind.OTHER, "sent by a process (kill), not by a fault"
    if address is None and signal.code == SI_KERNEL:
        return CrashKind.NON_CANONICAL, "a non-canonical address (overwritten or freed memory)"
    if address is None:
        return CrashKind.OTHER, "the faulting address was not recorded"
    if _is_stack_overflow(address, stop.sp, stop.frame_size, maps):
        text = "stack overflow: the guard page below the thread's stack was touched"
        if not stop.repeats and stop.frame_size * 4 > stop.stack_size > 0:
            text = f"stack overflow: one frame takes {(stop.frame_size + 512) >> 10:,} kB, and the thread's stack has "
            text += f"{stop.stack_size >> 10:,} kB"
        return CrashKind.STACK_OVERFLOW, text
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


def _is_stack_overflow(address: int, sp: int, frame_size: int, maps: Sequence[MemoryMapping]) -> bool:
    """The fault is next to the stack pointer, and below the memory that the stack has.

    A push, a call or a stack probe faults at most 0x11000 bytes from the stack pointer: one frame's probe and the guard
    page; a frame of ``frame_size`` bytes may be used anywhere. If the stack pointer itself has left writable memory (a
    large frame), the stack has overflown, too.
    """
    if not sp or not -0x11000 <= address - sp <= max(0x11000, frame_size):
        return False
    at_fault = _mapping_at(address, maps)
    if at_fault and "w" in at_fault.permissions:
        return False
    stack = _mapping_at(sp, maps)
    return stack is None or "w" not in stack.permissions or address < stack.start


def _mapping_at(address: int, maps: Sequence[MemoryMapping]) -> MemoryMapping | None:
    return next((mapping for mapping in maps if mapping.start <= address < mapping.end), None)
