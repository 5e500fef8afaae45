"""Counts how often a thread returns to an address, without a stop and without a change of its memory.

The kernel counts by a breakpoint of the CPU, which it sets only while that thread runs: PERF_TYPE_BREAKPOINT of
perf_event_open(2), ``struct perf_event_attr`` in include/uapi/linux/perf_event.h, HW_BREAKPOINT_X in hw_breakpoint.h.
Users may count their own processes unless perf_event_paranoid is above 2. A CPU has few breakpoints, so a thread that a
debugger traces is not counted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from gdbext.engine import libc
from gdbext.engine.arch import architectures
from gdbext.engine.targets.live.proc_checks import foreign_tracer
from gdbext.errors import ForeignArchitecture

_ATTRIBUTES = struct.Struct("<2I5Q2I2Q")
"""Type, size, config, period, formats of samples and of read(), flags, wakeup, then the breakpoint's type, address and
length."""
_SIZE = 112
_BREAKPOINT, _EXECUTED, _LENGTH = 5, 4, 8
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 5, 1 << 6
"""The other flags are 0: it is not inherited by the thread's children, and counts from the start."""
_CLOSE_ON_EXEC = 8
_DISABLE = 0x2401
"""PERF_EVENT_IOC_DISABLE."""


class ReturnCounter:
    """The count of one thread and address."""

    def __init__(self, tid: int, address: int) -> None:
        """Raises OSError if the kernel refuses it, the thread is gone, or another process traces it."""
        if other := foreign_tracer(tid):
            raise OSError(errno.EBUSY, f"thread {tid} is traced by process {other}")
        try:
            number = architectures.by_name(os.uname().machine).probing.perf_call
        except ForeignArchitecture as error:
            raise OSError(str(error)) from error
        flags = _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
        words = (_BREAKPOINT, _SIZE, 0, 0, 0, 0, flags, 0, _EXECUTED, address, _LENGTH)
        attributes = _ATTRIBUTES.pack(*words).ljust(_SIZE, b"\0")
        self._fd = libc.function("syscall")(number, attributes, tid, -1, -1, _CLOSE_ON_EXEC)
        if self._fd < 0:
            raise libc.last_error()

    def count(self) -> int:
        """How often the thread has executed the instruction there since the counter was made."""
        return int(struct.unpack("<Q", os.read(self._fd, 8))[0])

    def close(self) -> None:
        """Remove the breakpoint, also while a forked process has the descriptor, too."""
        try:
            fcntl.ioctl(self._fd, _DISABLE)
        finally:
            os.close(self._fd)
