"""Ends scripts/dispatch in every way while its debugger lets a job run (scene ``end`` of measure_debuggers.py)."""

from __future__ import annotations

import os
import pty
import random
import resource
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from debugged_process import DebuggedJob, Debugger

from gdbext.engine.targets.live.proc_checks import tracer
from support.programs import procfs
from support.programs.command_ends import ENDS, End, EndableCommand, signal_debuggers
from support.programs.harness import DISPATCH, HarnessError, wait_until

ADD = "aten::add.Tensor"
COMMANDS = {
    "trace": ("dispatch-trace", ADD, "--engine", "breakpoints"),
    "values": ("dispatch-values", "print", ADD, "--engine", "breakpoints"),
    "break": ("dispatch-break", "call", ADD, "--engine", "breakpoints", "--continue"),
    "samples": ("dispatch-diagnose", "--samples", "300", "--interval", "0.02"),
}
_SPARE_MEMORY = 8 << 20
"""Bytes that a debugger may still allocate, at most, once its memory is limited."""


class RunningCommand(NamedTuple):
    """scripts/dispatch, and our end of the pipe or terminal that it writes to."""

    process: subprocess.Popen[bytes]
    reader: int
    debuggers: list[int]


def _limit_memory(command: EndableCommand) -> None:
    for pid in (command.process.pid, *command.debuggers):
        with suppress(OSError, ValueError):
            size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
            resource.prlimit(pid, resource.RLIMIT_AS, (size + random.randrange(_SPARE_MEMORY),) * 2)
    with suppress(subprocess.TimeoutExpired):
        command.process.wait(4)
    command.process.terminate()


FULL_DISK = "full-disk"
WAYS: dict[str, End] = {
    **ENDS,
    FULL_DISK: lambda _: None,  # the command's output is /dev/full
    "memory-limit": _limit_memory,
    "killed-debugger": lambda command: signal_debuggers(command, signal.SIGKILL),
}


def end(job: DebuggedJob, debugger: Debugger, name: str, way: str) -> str:
    """The harm that was done to the job, "" for none."""
    started = _start(job, debugger, name, way)
    try:
        if way != FULL_DISK:
            time.sleep(random.uniform(0.3, 2.5) if name == "samples" else random.uniform(0, 0.6))
            WAYS[way](started)
        harm = _after(started)
    finally:
        started.process.kill()
        started.process.wait()
        with suppress(OSError):
            os.close(started.reader)
    return job.harm()[0] or harm


def _start(job: DebuggedJob, debugger: Debugger, name: str, way: str) -> RunningCommand:
    reader, output = os.pipe() if way == "closed-pipe" else pty.openpty()
    if way == FULL_DISK:
        os.close(output)
        output = os.open("/dev/full", os.O_WRONLY)
    terminal = output if way == "closed-terminal" else subprocess.DEVNULL
    before = job.counts()
    process = subprocess.Popen(
        [DISPATCH, "--debugger", debugger.kind, "-p", str(job.pid), *COMMANDS[name]],
        stdin=terminal,
        stdout=output if way in ("closed-pipe", "closed-terminal", FULL_DISK) else subprocess.DEVNULL,
        stderr=terminal,
        env={**os.environ, debugger.kind.upper(): debugger.path},
        start_new_session=True,
        restore_signals=True,
    )
    os.close(output)
    if way != FULL_DISK:
        attaches = name != "samples"  # that stops the job for moments only
        wait_until(
            lambda: (
                process.poll() is not None or (job.counts() != before and (tracer(job.pid, job.pid) or not attaches))
            ),
            "the command lets the job run",
        )
    return RunningCommand(process, reader, procfs.children(process.pid))


def _after(started: RunningCommand) -> str:
    """What stays behind, "" where the command and its debuggers end."""
    try:
        wait_until(lambda: started.process.poll() is not None, "the command has ended")
        wait_until(lambda: not any(map(procfs.alive, started.debuggers)), "no debugger stays behind")
    except HarnessError as error:
        return str(error)
    return ""
