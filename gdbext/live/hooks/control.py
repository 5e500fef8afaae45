"""What a live command needs of a debugger: stops at addresses, and to let the process run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gdbext.errors import GdbextError, TargetError, UsageError
from gdbext.live.hooks.lookup_sites import CfaRule

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

Handler = Callable[[int, int, int], bool]
"""(thread id, CFA of the frame, value) → True: the process stays stopped. May raise GdbextError and OSError, too."""

output = 1
"""The descriptor that text goes to while the process runs; the launcher gives its own standard output."""

alone = False
"""True in a gdb of our own: nobody else lets the process run on after a command."""

finish_program = False
"""What was watched is over, and nobody asked to end the program: one that we started runs on to its own end."""


@dataclass(frozen=True)
class HookSpec:
    """A place to look at. ``register`` "" means that no value is wanted.

    The value is the register's, or with ``load`` the word at register + ``load``.
    """

    address: int
    frame: CfaRule
    handler: Handler
    register: str = ""
    load: int | None = None


@dataclass(frozen=True)
class Ending:
    """Why the process does not run any more, or is not to.

    ``kind``: "asked" (a handler wanted it), "exited", "killed", "interrupted", "signal", "stopped" (a breakpoint of
    the user's, a catchpoint), "replaced" (exec), "failed" (``error`` says why), "gone".
    """

    kind: str
    text: str
    status: int | None = None
    error: GdbextError | None = None

    @property
    def alive(self) -> bool:
        """There is still a process to look at."""
        return self.kind not in ("exited", "killed", "gone")


class Hook(Protocol):
    """A place that is watched."""

    def remove(self) -> None:
        """Take it away; idempotent."""


class Control(Protocol):
    """One debugger's way to run the process. ``close`` takes away everything that was placed."""

    def place(self, spec: HookSpec) -> Hook:
        """Watch a place in all threads. Raises TargetError."""

    def read(self, address: int, size: int) -> bytes:
        """Memory as it is now, also inside a handler. Raises MemoryFault."""

    def register(self, name: str) -> int:
        """A register of the thread that a handler is called for."""

    def run(self) -> Ending:
        """Let the process run until something ends that."""

    def start(self) -> None:
        """Start the program and stop it before its first instruction. Raises TargetError."""

    def session(self) -> Session:
        """A fresh session of the stopped process."""

    def close(self) -> None:
        """Leave nothing behind; idempotent."""


_running: list[str] = []


def begin(name: str) -> None:
    """Only one live command at a time resumes a process. Raises UsageError while another does."""
    if _running:
        raise UsageError(
            f"{_running[0]} is running already",
            why="two traces of one process would stop each other",
            help="end it first with Ctrl+C (or interrupt)",
        )
    _running.append(name)


def end() -> None:
    """The counterpart of begin()."""
    _running.clear()


def control_for(session: Session) -> Control:
    """The debugger's control of that session's process. Raises TargetError (a core), UsageError (no debugger)."""
    if session.target.is_core:
        raise TargetError(
            "a core dump cannot run: there is nothing to trace",
            why="this command resumes the process and looks at what it does",
            help="see what the core was doing: dispatch-bt; or attach to a live process: scripts/dispatch -p PID",
        )
    if session.target.debugger != "gdb":
        raise UsageError("this command needs gdb", help="use --debugger gdb")
    from gdbext.debuggers.gdb.run_control import GdbControl

    return GdbControl()
