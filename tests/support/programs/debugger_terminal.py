"""A debugger at a terminal of its own, driven as a user does."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Sequence


class DebuggerTerminal:
    """``command`` starts it; ``prompt`` is what it shows when it waits for the user."""

    def __init__(self, command: Sequence[str], prompt: str) -> None:
        self.prompt = prompt
        ours, theirs = pty.openpty()
        self._screen = ours
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "dumb"},
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def until(self, words: str, seconds: float = 60) -> str:
        """Everything up to these words on the screen."""
        seen = ""
        end = time.monotonic() + seconds
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
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._screen)
