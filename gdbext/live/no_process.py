"""What there is before a program was started: dispatch-break is pending then, and dispatch-trace starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdbext.errors import MemoryFault
from gdbext.targets.base import MemoryMapping, Target, Thread


class NoProcess(Target):
    """A target without memory, threads or modules."""

    kind = "live"
    pid = 0

    def __init__(self, debugger: str) -> None:
        self.debugger = debugger

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
