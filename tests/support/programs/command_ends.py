"""The ways in which a command that runs a debugger of ours can end, other than by itself."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol


class EndableCommand(Protocol):
    """A command that runs. ``reader``: our end of the pipe or terminal that it writes to, for us to close;
    ``debuggers``: the processes of its debugger, the debugger itself first."""

    @property
    def process(self) -> subprocess.Popen[bytes]: ...
    @property
    def reader(self) -> int: ...
    @property
    def debuggers(self) -> Sequence[int]: ...


End = Callable[[EndableCommand], None]


def by_signal(number: int) -> End:
    return lambda command: command.process.send_signal(number)


def close_reader(command: EndableCommand) -> None:
    os.close(command.reader)


def signal_debuggers(command: EndableCommand, number: int) -> None:
    for pid in command.debuggers:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


ENDS: dict[str, End] = {
    "TERM": by_signal(signal.SIGTERM),
    "HUP": by_signal(signal.SIGHUP),
    "QUIT": by_signal(signal.SIGQUIT),
    "closed-pipe": close_reader,
    "closed-terminal": close_reader,
    "killed-launcher": by_signal(signal.SIGKILL),
}
"""Those that must leave the examined process as it was."""
