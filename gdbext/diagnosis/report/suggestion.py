"""Suggestion: a command that tells more, as advice has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gdbext.engine.terminal import CommandLine


class Suggestion(NamedTuple):
    """A command that tells more: what it shows, and the command itself, as a debugger takes it."""

    shows: str
    command: str
    pid: int | None = None
    """Another process that it is about; None for the one that was looked at."""
    shell: str = ""
    """A command of the shell's in place of one of ours, which changes the process."""
    option: str = ""
    """The option of dispatch-diagnose that the command recommends."""

    def needs_process(self) -> bool:
        """It is for processes as they run: a core or a recording is of what is gone, and perhaps of elsewhere."""
        return self.pid is not None or bool(self.shell) or self.option == CHILDREN

    def text(self, called: CommandLine) -> str:
        """One line that ends with the words to paste."""
        if self.shell:
            return f"{self.shows}: {self.shell}"
        on_other = f"-p {self.pid} {self.command}".rstrip()
        words = called.command(self.command) if self.pid is None else called.outside(on_other)
        return f"{self.shows}: {words}"


CHILDREN, SAMPLES = "--children", "--samples"
ALL_CHILDREN = Suggestion("What each of its child processes does", "dispatch-diagnose --children", option=CHILDREN)
MORE_SAMPLES = Suggestion(
    "Stuck or only slow? Look more than once", "dispatch-diagnose --samples 5 --interval 1", option=SAMPLES
)
