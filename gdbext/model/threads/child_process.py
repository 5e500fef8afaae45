"""ChildProcess: another process that a thread may wait for."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from gdbext.model.record import Record


class ProcessState(Enum):
    """What the system says of a process that does not just run or wait; the value is for people."""

    STOPPED = "stopped"
    TRACED = "traced"
    ENDED = "ended, not waited for"
    UNINTERRUPTIBLE = "in uninterruptible sleep"


class PipeWait(Record):
    """A process is blocked in read(2) or write(2) on a pipe that the examined process has open, too."""

    pipe: str
    """As /proc names it: ``pipe:[77]``."""
    writes: bool

    @property
    def phrase(self) -> str:
        """``waits to write to pipe:[77], which this process has open, too``."""
        return f"waits to {'write to' if self.writes else 'read from'} {self.pipe}, which this process has open, too"


class ChildProcess(Record):
    """A child of the examined process."""

    pid: int
    name: str = ""
    state: ProcessState | None = None
    waits_for_us: PipeWait | None = None
    ending: str = ""
    """How it ended, where it has: ``killed by SIGKILL``, ``exit status 1``."""
    command: str = ""
    """Its command line."""
    call: str = ""
    """The system call that its main thread is in, "" where it runs or that is not known."""

    @property
    def label(self) -> str:
        """``124 (python, stopped)``."""
        state = self.state.value if self.state is not None else ""
        waits = self.waits_for_us.phrase if self.waits_for_us is not None else ""
        details = ", ".join(filter(None, (self.name, state, self.ending, waits)))
        return f"{self.pid} ({details})" if details else str(self.pid)

    @property
    def doing(self) -> str:
        """What it does, in a few words: ``in futex``, ``stopped``, ``ended, not waited for: killed by SIGKILL``."""
        if self.state is not None:
            return f"{self.state.value}: {self.ending}" if self.ending else self.state.value
        if self.waits_for_us is not None:
            return self.waits_for_us.phrase
        return f"in {self.call}" if self.call else "runs"

    @property
    def is_stopped(self) -> bool:
        """A signal or a debugger stopped it, and SIGCONT lets it go on."""
        return self.state is ProcessState.STOPPED

    @property
    def reads_from_us(self) -> bool:
        """It is blocked until the examined process, or who else has that pipe, writes into it."""
        return self.waits_for_us is not None and not self.waits_for_us.writes

    @property
    def writes_to_us(self) -> bool:
        """It is blocked until the examined process reads from a pipe."""
        return self.waits_for_us is not None and self.waits_for_us.writes


def listed(processes: Sequence[ChildProcess], limit: int = 8) -> str:
    """``124 (python), 125 and 126``."""
    labels = [each.label for each in processes[:limit]]
    if len(processes) > limit:
        return f"{', '.join(labels)} and {len(processes) - limit} more"
    return " and ".join(filter(None, (", ".join(labels[:-1]), labels[-1]))) if labels else ""
