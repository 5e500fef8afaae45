"""What there is before a program was started: dispatch-break is pending then, and dispatch-trace starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gdbext.arch.registry import by_name
from gdbext.errors import MemoryFault
from gdbext.targets.base import MemoryMapping, Target, Thread


class NoProcess(Target):
    """A target without memory, threads or modules."""

    kind = "live"
    pid = 0

    def __init__(self, debugger: str) -> None:
        """The program will be one of this machine. Raises ForeignArchitecture."""
        self.debugger = debugger
        self.architecture = by_name(os.uname().machine)

    def read(self, address: int, size: int) -> bytes:
        """Always raises MemoryFault."""
        raise MemoryFault(address, size, "there is no process yet")

    def threads(self) -> Sequence[Thread]:
        """None."""
        return ()

    def selected_thread(self) -> Thread | None:
        """None."""
        return None

    def maps(self) -> Sequence[MemoryMapping]:
        """None."""
        return ()

    def auxv(self) -> Mapping[int, int]:
        """None."""
        return {}

    def local_path(self, path: str) -> str:
        """The path itself."""
        return path
