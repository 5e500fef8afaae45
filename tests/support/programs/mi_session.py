"""gdb as an editor runs it: commands with tokens on its machine interface (gdb manual, GDB/MI)."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from support.programs.debugger_terminal import PipedDebugger
from support.programs.harness import NO_SYMBOLS

WELL_FORMED = re.compile(
    r'\d*\^(done|running|connected|error|exit)(,.*)?|\d*[*=+][a-z-]+(,.*)?|[~&@]"([^"\\]|\\.)*"|\(gdb\) ?'
)
"""A line of MI's output: a result, an asynchronous record, a stream record, the prompt."""


class MiSession(PipedDebugger):
    """One gdb with the commands loaded."""

    def __init__(self, gdb: str, source: str) -> None:
        super().__init__([gdb, "-nx", "-q", "--interpreter=mi3", *NO_SYMBOLS])
        self.lines: list[str] = []
        """Everything that gdb has said, without line feeds."""
        self._rest = b""
        self._token = 0
        self.console(f"source {source}")

    def command(self, text: str, seconds: float = 90) -> list[str]:
        """The lines until a command is over: gdb answers the next one then, and not before."""
        self._token += 2
        first, end = len(self.lines), time.monotonic() + seconds
        self.send(f"{self._token}{text}\n{self._token + 1}-list-features\n")
        while not any(line.startswith(f"{self._token + 1}^") for line in self.lines[first:]):
            left = end - time.monotonic()
            assert left > 0, f"{text} did not end in {seconds} s; there was: {self.lines[first:]}"
            self._read(left)
        return [line for line in self.lines[first:] if not line.startswith(f"{self._token + 1}^")]

    def until(self, text: str, seconds: float = 90) -> None:
        """Wait for a line with that text."""
        end = time.monotonic() + seconds
        while not any(text in line for line in self.lines):
            left = end - time.monotonic()
            assert left > 0, f"no {text} in {seconds} s: {self.lines[-9:]}"
            self._read(left)

    def send(self, text: str) -> None:
        self.write(text.encode())

    def console(self, command: str, seconds: float = 90) -> list[str]:
        """A command of gdb's console, as editors run it."""
        return self.command(f'-interpreter-exec console "{command}"', seconds)

    def result(self, lines: Sequence[str]) -> str:
        """The class of the last command's result: done, running, error; "" where there was none."""
        found = [line for line in lines if line.startswith(f"{self._token}^")]
        return found[-1].partition("^")[2].partition(",")[0] if found else ""

    def _read(self, seconds: float) -> None:
        *lines, self._rest = (self._rest + self.read(seconds)).split(b"\n")
        self.lines += [line.decode(errors="replace") for line in lines]


def console_text(lines: Sequence[str]) -> str:
    """What a console would have shown of these lines."""
    pieces = [line[2:-1] for line in lines if line.startswith('~"')]
    return "".join(pieces).replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\"", '"')
