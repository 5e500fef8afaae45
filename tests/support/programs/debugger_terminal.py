"""A debugger at a terminal of its own, driven as a user does; or by pipes, as an editor does."""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import select
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class DebuggerTerminal:
    """``command`` starts it; ``prompt`` is what it shows when it waits for the user."""

    def __init__(self, command: Sequence[str | Path], prompt: str, kind: str = "dumb") -> None:
        self.prompt = prompt
        ours, theirs = pty.openpty()
        self._screen = ours
        options: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
        options["preexec_fn"] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.process = subprocess.Popen(command, env={**os.environ, "TERM": kind}, **options)
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def until(self, words: str, seconds: float = 60) -> str:
        seen, end = "", time.monotonic() + seconds
        while words not in seen:
            left = end - time.monotonic()
            if left < 0 or not select.select([self._screen], [], [], left)[0]:
                raise AssertionError(f"{words!r} did not come in {seconds} s; there was: {seen[-2000:]}")
            seen += os.read(self._screen, 1 << 16).decode(errors="replace")
        return seen

    def answer(self, command: str, mark: str = "") -> str:
        """What a command prints, up to ``mark`` (the prompt), which must not stand in it: LLDB repeats what is
        typed."""
        self.type(command + "\n")
        return self.until(mark or self.prompt)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


class PipedDebugger:
    """A debugger that reads and writes pipes. One that aborts leaves no core behind."""

    def __init__(self, words: Sequence[str], stderr: int | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment
        )
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_CORE, (0, hard))

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self, seconds: float) -> bytes:
        """What it has written, or writes in that time; b"" for nothing. Raises AssertionError where it has ended."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return b""
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        assert data, f"the debugger has ended, status {self.process.wait()}"
        return data

    def take(self, data: bytes) -> None:
        raise NotImplementedError

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 90) -> Any:
        """The condition's first true value; its output is read until then."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            left = end - time.monotonic()
            assert left > 0, f"{what} did not come in {seconds} s: {str(vars(self))[-3000:]}"
            self.take(self.read(left))
        return value

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
