"""The other end of a wait: a socket, a pipe, a lock of a file, a store, or a child process."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.vocabulary import json_member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.engine.vocabulary import Internal, Sparse


class ProcessState(Enum):
    """The state of a process that does not just run or wait; the value is for people."""

    STOPPED = "stopped"
    TRACED = "traced"
    ENDED = "zombie"
    UNINTERRUPTIBLE = "in uninterruptible sleep"


class PipeWait(NamedTuple):
    """A process is blocked in read(2) or write(2) on a pipe that the examined process has open, too."""

    pipe: str
    """The pipe as /proc names it: ``pipe:[77]``."""
    writes: bool
    """It is blocked in write(2)."""

    @property
    def phrase(self) -> str:
        verb = "writing to" if self.writes else "reading from"
        return f"blocked {verb} {self.pipe}, which this process also has open"


class ChildProcess(NamedTuple):
    """A process of this machine: a child of the examined process, or one at the other end of a wait."""

    pid: int
    name: str = ""
    state: ProcessState | None = None
    waits_for_us: PipeWait | None = None
    ending: str = ""
    """How it exited: ``killed by SIGKILL``, ``exit status 1``; "" if it has not."""
    command: str = ""
    call: str = ""
    """The system call that its main thread is in, "" if it runs or that is unknown."""
    asks_at: str = ""
    """The terminal that its main thread reads from; "" for none."""

    @property
    def label(self) -> str:
        """``124 (python, stopped)``."""
        state = ", now a ".join(filter(None, (self.ending, self.state.value if self.state else "")))
        details = ", ".join(filter(None, (self.name, state, *self._waits)))
        return f"{self.pid} ({details})" if details else str(self.pid)

    @property
    def _waits(self) -> list[str]:
        """Verb phrases: what it waits for as far as that concerns the examined process or a user."""
        pipes = [self.waits_for_us.phrase] if self.waits_for_us else []
        return [*pipes, f"reads from the terminal {self.asks_at}"] if self.asks_at else pipes

    @property
    def doing(self) -> str:
        """Its activity, for people: ``in futex``, ``stopped``, ``zombie: killed by SIGKILL``."""
        if self.state:
            return f"{self.state.value}: {self.ending}" if self.ending else self.state.value
        return next(iter(self._waits), f"in {self.call}" if self.call else "runs")

    @property
    def has_failed(self) -> bool:
        """It is a zombie that was killed, or exited with another status than 0."""
        return self.state is ProcessState.ENDED and bool(self.ending) and self.ending != "exit status 0"

    @property
    def is_killed(self) -> bool:
        """It is a zombie that a signal has ended."""
        return self.state is ProcessState.ENDED and self.ending.startswith("killed by ")

    @property
    def is_unexpectedly_dead(self) -> bool:
        """It is a zombie that another signal has ended than those by which programs end their children."""
        return self.is_killed and not self.ending.endswith(("SIGTERM", "SIGINT", "SIGHUP"))

    @property
    def is_stopped(self) -> bool:
        """A signal stopped it, and SIGCONT resumes it."""
        return self.state is ProcessState.STOPPED

    @property
    def reads_from_us(self) -> bool:
        """It is blocked until the examined process, or another one that has the pipe open, writes into it."""
        return bool(self.waits_for_us and not self.waits_for_us.writes)

    @property
    def writes_to_us(self) -> bool:
        """It is blocked until the examined process reads from a pipe."""
        return bool(self.waits_for_us and self.waits_for_us.writes)


def listed(processes: Sequence[ChildProcess], limit: int = 8) -> str:
    """The processes' labels as a list for people: ``124 (python), 125 and 126``."""
    labels = [process.label for process in processes[:limit]]
    labels += [f"{len(processes) - limit} more"] if len(processes) > limit else []
    return " and ".join(filter(None, (", ".join(labels[:-1]), *labels[-1:])))


class PeerKind(Enum):
    """What the other end of a wait is; the value is the word of the JSON report."""

    SOCKET = "socket"
    PIPE = "pipe"
    FILE_LOCK = "file-lock"
    FILE = "file"
    PROCESS = "process"
    STORE = "store"
    RANK = "rank"


class Peer(NamedTuple):
    """The other end, as far as it is known."""

    kind: PeerKind
    text: Internal[str] = ""
    """A relative clause about the fd: ``with process 77 (python) at the other end``; for people."""
    processes: Internal[tuple[ChildProcess, ...]] = ()
    """Local processes there, except the examined one."""
    address: Sparse[str] = ""
    """The address of a socket: ``127.0.0.1:29500``."""
    state: Sparse[str] = ""
    """The state of a connection: ``ESTABLISHED``."""
    name: Sparse[str] = ""
    """The path of a file, the key of a store."""
    own: bool = False
    """Only the examined process itself has that end."""
    is_queued: Internal[bool] = False
    """A connection that only the examined process itself could accept, and it has not."""

    @json_member(after="name")
    def pids(self) -> tuple[int, ...]:
        """The PIDs of the local processes there."""
        return tuple(process.pid for process in self.processes)

    @property
    def is_listening(self) -> bool:
        """It is a socket that others connect to."""
        return self.state == "LISTEN"
