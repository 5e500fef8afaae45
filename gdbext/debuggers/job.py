"""One command for a debugger of our own: what scripts/dispatch hands over to it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Job:
    """The command, what it is about, and where its result goes.

    ``result`` is the descriptor that takes the outcome, ``output`` that of the launcher's standard output for what a
    live command shows while the process runs (None for other commands), ``terminal`` that of its terminal, if it has
    one, for progress before a process is stopped. ``record`` is the path for a recording. At most one of ``pid`` and
    ``core`` is given; without either the debugger's command line names a program to start.
    """

    __slots__ = (
        "argv", "color", "command", "core", "output", "pid", "record", "result", "sysroot", "terminal",
    )  # fmt: skip

    def __init__(
        self,
        command: str,
        argv: Sequence[str],
        *,
        result: int,
        output: int | None = None,
        terminal: int | None = None,
        pid: int | None = None,
        core: str | None = None,
        sysroot: str = "",
        record: str | None = None,
        color: bool = False,
    ) -> None:
        self.command = command
        self.argv = list(argv)
        self.result = result
        self.output = output
        self.terminal = terminal
        self.pid = pid
        self.core = core
        self.sysroot = sysroot
        self.record = record
        self.color = color

    def expression(self) -> str:
        """Python for making this job again, in ASCII and on one line: it travels on a command line."""
        options = ("result", "output", "terminal", "pid", "core", "sysroot", "record", "color")
        given = ", ".join(f"{name}={getattr(self, name)!a}" for name in options)
        return f"Job({self.command!a}, {self.argv!a}, {given})"
