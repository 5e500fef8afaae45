"""Memory of our own that is there before a process is stopped, so that copying into it costs no page faults."""

from __future__ import annotations

import os
from typing import Union

from gdbext.errors import MemoryFault
from gdbext.targets.live.proc_reads import read_memory

Piece = Union[bytes, memoryview]
"""What was read of a process."""


class PreparedMemory:
    """``size`` bytes, all of them touched: fresh pages are what takes the kernel most of a large read's time."""

    def __init__(self, size: int) -> None:
        self._left = memoryview(bytearray(b"\xff") * size)

    def read(self, descriptor: int, pid: int, address: int, size: int) -> Piece:
        """Exactly ``size`` bytes through an open /proc/PID/mem; into other memory where too little of this is left.
        Raises MemoryFault, TargetGone."""
        if size > len(self._left):
            return read_memory(descriptor, pid, address, size)
        piece = self._left[:size]
        try:
            found = os.preadv(descriptor, [piece], address)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryFault(address, size, getattr(error, "strerror", "") or "no such address") from error
        if found < size:
            return read_memory(descriptor, pid, address, size)
        self._left = self._left[size:]
        return piece
