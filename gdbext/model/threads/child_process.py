"""ChildProcess: another process that a thread may wait for."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class ProcessState(Enum):
    """What the system says of a process that does not just run or wait; the value is for people."""

    STOPPED = "stopped"
    TRACED = "traced"
    ENDED = "ended, not waited for"
    UNINTERRUPTIBLE = "in uninterruptible sleep"


class PipeWait(NamedTuple):
    """A process is blocked in read(2) or write(2) on a pipe that the examined process has open, too."""

    pipe: str
    """As /proc names it: ``pipe:[77]``."""
    writes: bool

    @property
    def phrase(self) -> str:
        """``waits to write to pipe:[77], which this process has open, too``."""
        return f"waits to {'write to' if self.writes else 'read from'} {self.pipe}, which this process has open, too"


class ChildProcess(NamedTuple):
    """A child of the examined process."""

    pid: int
    name: str = ""
    state: ProcessState | None = None
    waits_for_us: PipeWait | None = None

    @property
    def label(self) -> str:
        """``124 (python, stopped)``."""
        state = self.state.value if self.state is not None else ""
        waits = self.waits_for_us.phrase if self.waits_for_us is not None else ""
        details = ", ".join(filter(None, (self.name, state, waits)))
        return f"{self.pid} ({details})" if details else str(self.pid)

    @property
    def is_stopped(self) -> bool:
        """A signal or a debugger stopped it, and SIGCONT lets it go on."""
        return self.state is ProcessState.STOPPED

    @property
    def writes_to_us(self) -> bool:
        """It is blocked until the examined process reads from a pipe."""
        return self.waits_for_us is not None and self.waits_for_us.writes
