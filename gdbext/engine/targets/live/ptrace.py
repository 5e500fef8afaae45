"""The few ptrace requests that stop a thread, read its registers and detach. None of them writes to the target.

All requests on a thread must come from the one thread of ours that seized it (ptrace(2)). Numbers from
sys/ptrace.h of glibc 2.36 and linux/ptrace.h of Linux 6.1.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import lru_cache
from typing import Any, NamedTuple

from gdbext.engine import libc
from gdbext.engine.arch import Architecture
from gdbext.engine.targets.system.linux import STOP_SIGNALS
from gdbext.errors import TargetError, TargetGone

PTRACE_CONT = 7
PTRACE_DETACH = 17
PTRACE_GETSIGINFO = 0x4202
PTRACE_GETREGSET = 0x4204
PTRACE_SEIZE = 0x4206
PTRACE_INTERRUPT = 0x4207
WALL = 0x40000000
"""waitpid: children made by clone, too. Not in Python's os module."""


class PtraceStop(NamedTuple):
    """The result of waitpid(2): a traced thread has stopped, or ``exited``."""

    exited: bool
    signal: int
    """The signal that is held back from the thread and must be passed on at its resumption; 0 for none."""
    stopped_by: int = 0
    """The signal of the group-stop that the thread was in before, 0 for none."""


@lru_cache(maxsize=1)
def _ptrace() -> Any:
    function = libc.function("ptrace")
    function.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    function.restype = ctypes.c_long
    return function


def _request(request: int, tid: int, address: Any = None, data: Any = None) -> None:
    """One ptrace call. Raises OSError."""
    if _ptrace()(request, tid, address, data) < 0:
        raise libc.last_error()


def seize(tid: int) -> None:
    """Become the thread's tracer without stopping it. Raises OSError (EPERM, ESRCH)."""
    _request(PTRACE_SEIZE, tid)


def interrupt(tid: int) -> None:
    """Ask a seized thread to stop. Raises OSError."""
    _request(PTRACE_INTERRUPT, tid)


def detach(tid: int, signal: int = 0) -> None:
    """Resume a stopped thread untraced, with the signal that was held back. Raises OSError (ESRCH: it has exited)."""
    _request(PTRACE_DETACH, tid, None, signal or None)


def resume(tid: int) -> None:
    """Resume a stopped thread, still traced, without the signal that it stopped for. Raises OSError (ESRCH)."""
    _request(PTRACE_CONT, tid)


def peek_stop(tid: int | None = None) -> tuple[int, int] | None:
    """Peek (WNOWAIT) at a pending stop: (tid, signal or event << 8 | SIGTRAP), None if there is none. ``tid`` None: any
    tracee. Raises ChildProcessError if it has exited."""
    kind, number = (os.P_ALL, 0) if tid is None else (os.P_PID, tid)
    status = os.waitid(kind, number, os.WSTOPPED | os.WNOWAIT | os.WNOHANG | WALL)
    return (status.si_pid, status.si_status) if status else None


def poll(tid: int) -> PtraceStop | None:
    """Fetch the stop or exit of a seized thread; None while it runs. Raises ChildProcessError."""
    reported_tid, status = os.waitpid(tid, os.WNOHANG | WALL)
    if reported_tid == 0:
        return None
    if not os.WIFSTOPPED(status):
        return PtraceStop(exited=True, signal=0)
    # With PTRACE_EVENT_STOP the number is SIGTRAP (our interrupt) or the signal of a group-stop, which stays in
    # force by itself. Anything else is a signal on its way to the program.
    event = status >> 16
    number = os.WSTOPSIG(status)
    return PtraceStop(False, 0 if event else number, number if event and number in STOP_SIGNALS else 0)


def registers(tid: int, architecture: Architecture) -> dict[str, int]:
    """All register sets of the architecture, of a stopped thread. Raises TargetGone, TargetError."""
    values: dict[str, int] = {}
    for kind, names in architecture.register_sets.items():
        values |= architecture.unpack_registers(kind, _register_set(tid, kind, 8 * len(names)))
    return values


def float_registers(tid: int, architecture: Architecture) -> dict[str, int]:
    """The low 8 bytes of the vector registers of a stopped thread. Raises TargetGone, TargetError."""
    floats = architecture.float_registers
    return architecture.unpack_floats(_register_set(tid, floats.kind, floats.size)) if floats else {}


def _register_set(tid: int, kind: int, size: int) -> bytes:
    """At most ``size`` bytes of a register set; ``kind`` is its NT_ number. Raises TargetGone, TargetError."""
    buffer = ctypes.create_string_buffer(size)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), size)  # struct iovec: iov_base, iov_len
    try:
        _request(PTRACE_GETREGSET, tid, kind, ctypes.byref(vector))
    except OSError as error:
        if error.errno == errno.ESRCH:
            raise TargetGone(f"thread {tid} exited while it was examined") from error
        raise TargetError(f"cannot read the registers of thread {tid}: {error.strerror}") from error
    return buffer.raw[: vector[1]]


def signal_information(tid: int) -> tuple[int, int] | None:
    """(si_code, si_addr) of the signal that is held back, None if unknown."""
    buffer = ctypes.create_string_buffer(128)
    try:
        _request(PTRACE_GETSIGINFO, tid, None, ctypes.cast(buffer, ctypes.c_void_p))
    except OSError:
        return None
    code, address = struct.unpack_from("<i4xQ", buffer.raw, 8)
    return code, address
