"""gdb as an editor runs it: commands with tokens on its machine interface (gdb manual, GDB/MI)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from support.programs.debugger_terminal import PipedDebugger
from support.programs.harness import NO_SYMBOLS

WELL_FORMED = re.compile(
    r'\d*\^(done|running|connected|error|exit)(,.*)?|\d*[*=+][a-z-]+(,.*)?|[~&@]"([^"\\]|\\.)*"|\(gdb\) ?'
)
"""A line of MI's output: a result, an asynchronous record, a stream record, the prompt."""


class MiSession(PipedDebugger):
    """One gdb with the commands loaded; ``lines``: everything that it has said, without line feeds."""

    def __init__(self, gdb: str, source: str) -> None:
        super().__init__([gdb, "-nx", "-q", "--interpreter=mi3", *NO_SYMBOLS])
        self.lines: list[str] = []
        self._rest = b""
        self._token = 0
        self.console(f"source {source}")

    def command(self, text: str, seconds: float = 90) -> list[str]:
        """The lines until a command is over: gdb answers the next one then, and not before."""
        self._token += 2
        first, over = len(self.lines), f"{self._token + 1}^"
        self.send(f"{self._token}{text}\n{self._token + 1}-list-features\n")
        self.wait(lambda: any(line.startswith(over) for line in self.lines[first:]), f"the end of {text}", seconds)
        return [line for line in self.lines[first:] if not line.startswith(over)]

    def until(self, text: str) -> None:
        self.wait(lambda: any(text in line for line in self.lines), text)

    def send(self, text: str) -> None:
        self.write(text.encode())

    def console(self, command: str, seconds: float = 90) -> list[str]:
        return self.command(f'-interpreter-exec console "{command}"', seconds)

    def result(self, lines: Sequence[str]) -> str:
        """The class of the last command's result: done, running, error; "" where there was none."""
        found = [line for line in lines if line.startswith(f"{self._token}^")]
        return found[-1].partition("^")[2].partition(",")[0] if found else ""

    def take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.lines += [line.decode(errors="replace") for line in lines]


def console_text(lines: Sequence[str]) -> str:
    pieces = [line[2:-1] for line in lines if line.startswith('~"')]
    return "".join(pieces).replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\"", '"')
