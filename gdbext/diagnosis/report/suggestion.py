"""Suggestion: a command that shows more, as part of advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gdbext.engine.terminal import CommandLine


class Suggestion(NamedTuple):
    """What a command shows, and the command itself, as a debugger accepts it."""

    shows: str
    command: str
    pid: int | None = None
    """The process of the command; None for the examined one."""
    shell: str = ""
    """A shell command in place of one of gdbext's."""
    option: str = ""
    """The option of dispatch-diagnose that the command recommends."""

    def needs_process(self) -> bool:
        """True if the command needs a live process on this machine, not a core or a recording."""
        return self.pid is not None or bool(self.shell) or self.option == CHILDREN

    def text(self, called: CommandLine) -> str:
        """One line that ends with the command to paste."""
        if self.shell:
            return f"{self.shows}: {self.shell}"
        on_other = f"-p {self.pid} {self.command}".rstrip()
        words = called.command(self.command) if self.pid is None else called.outside(on_other)
        return f"{self.shows}: {words}"


CHILDREN, SAMPLES = "--children", "--samples"
ALL_CHILDREN = Suggestion("What each of its child processes does", "dispatch-diagnose --children", option=CHILDREN)
MORE_SAMPLES = Suggestion(
    "Stuck or only slow? Take several samples", "dispatch-diagnose --samples 5 --interval 1", option=SAMPLES
)
