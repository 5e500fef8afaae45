"""Programs that measuring runs: whatever interrupts us ends them, with all that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


def run(command: Sequence[str], folder: Path, timeout: float | None = None) -> subprocess.CompletedProcess[bytes]:
    """Wait for a program whose temporary files go into ``folder``. Raises OSError, subprocess.TimeoutExpired.

    g++ is a driver: to kill it alone would leave the compiler proper behind, for minutes. It stays in our process
    group, which is ended as a whole where somebody started us as a session of our own (child.py).
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            end(process.pid)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def end(pid: int) -> None:
    """Kill a child of ours and its descendants. It is stopped first, so that it starts nothing more meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    for child in _children(pid):
        end(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end us as Ctrl+C does: what runs is ended and folders are removed on the way."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda received, _frame: sys.exit(128 + received)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)
