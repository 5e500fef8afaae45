"""Ending: why a live command does not let the process run any longer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gdbext.errors import GdbextError


class EndingKind(Enum):
    """The value is the JSON name."""

    ASKED = "asked"
    """A hook wanted it."""
    EXITED = "exited"
    KILLED = "killed"
    GONE = "gone"
    """The process ended, and nobody saw how."""
    INTERRUPTED = "interrupted"
    """By the user."""
    SIGNAL = "signal"
    """The process got a signal that stops it."""
    STOPPED = "stopped"
    """By a breakpoint or a catchpoint of the user's, or by the debugger."""
    REPLACED = "replaced"
    """The process replaced itself by another program (exec)."""
    LIMIT = "limit"
    """There was as much to see as the user wanted."""
    FAILED = "failed"
    """The ending's ``error`` says why."""

    @property
    def leaves_process(self) -> bool:
        """There is still a process."""
        return self not in (EndingKind.EXITED, EndingKind.KILLED, EndingKind.GONE)

    @property
    def is_by_command(self) -> bool:
        """The command had enough, and the process has nothing to do with that: it may run on."""
        return self in (EndingKind.LIMIT, EndingKind.FAILED, EndingKind.REPLACED)


@dataclass(frozen=True)
class Ending:
    """``status`` is the exit status of a process that exited."""

    kind: EndingKind
    text: str
    status: int | None = None
    error: GdbextError | None = None
