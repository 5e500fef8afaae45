"""``scripts/dispatch ps``: lists the processes of this machine that use PyTorch.

Everything is read from /proc, and no process is stopped. Memory maps, which take long to read, are read only of
processes that are large enough for PyTorch's libraries.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.job import rank_of
from gdbext.engine.targets.budget import MEMORY, SECONDS, MemoryLimit
from gdbext.engine.targets.live.supervision import read_proc_file
from gdbext.engine.targets.live.thread_motion import SchedulerClocks
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import command_text, parse_environ, stat_fields
from gdbext.engine.terminal import cut, shown_json
from gdbext.engine.vocabulary import duration, or_unknown
from gdbext.render import escape
from gdbext.render.plain_json import plain
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

    from gdbext.tools.program import Dispatch

_RUNS_TORCH = re.compile(rb"^\S+ r-x\S* .*/libtorch_cpu\.so", re.MULTILINE)
"""A mapping of its code (proc_pid_maps(5)): a debugger of such a process has only read the file."""
_VSIZE = 23 - 3
"""Index of vsize in proc_pid_stat(5), counted from the state, its third field."""


_EPILOG = """\
IDLE is the time since any thread of the process last ran, by the scheduler's clock: "now" if one runs now, ? if it is
unknown. MAIN is the same for the main thread. A hung process may still wake up now and then: the parent of DataLoader
workers every 5 s, gloo's thread all the time. No process is stopped. Other users' processes are listed only for root.
"""


class TorchProcess(NamedTuple):
    """One process that uses PyTorch; None stands for what this user may not read."""

    pid: int
    user: int
    program: str
    threads: int
    rank: int | None
    idle: float | None
    """Seconds since any of its threads last ran; 0 if one runs now."""
    main_idle: float | None = None
    """The same for its main thread. Helper threads of a hung process (gloo's, a profiler's) may wake up all the
    time."""


class Listing(NamedTuple):
    """The processes that use PyTorch and may be read, ordered by PID."""

    processes: tuple[TorchProcess, ...]
    unexamined: int
    """Number of processes of this machine that were not examined within the time limit."""


def torch_processes(seconds: float = SECONDS) -> Listing:
    """Examine the processes of this machine, for at most that many seconds."""
    deadline, clocks = time.monotonic() + seconds, SchedulerClocks()
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208
    processes: list[TorchProcess] = []
    try:
        for number, pid in enumerate(pids):
            if time.monotonic() > deadline:
                return Listing(tuple(processes), len(pids) - number)
            process = _examine(pid, clocks) if pid != os.getpid() else None
            processes += [process] if process else []
    finally:
        clocks.close()
    return Listing(tuple(processes), 0)


def _examine(pid: int, clocks: SchedulerClocks) -> TorchProcess | None:
    """The process; None if it does not use PyTorch, has exited, or may not be read."""
    try:
        fields = stat_fields(proc_files.read(f"/proc/{pid}/stat"))
        if len(fields) <= _VSIZE or int(fields[_VSIZE]) < 200 << 20:  # libtorch_cpu.so alone has more bytes
            return None
        if not _RUNS_TORCH.search(read_proc_file(pid, "maps")):
            return None
        program = cut(command_text(read_proc_file(pid, "cmdline", 1 << 16)), 100)
        variable = rank_of(parse_environ(read_proc_file(pid, "environ", proc_files.WORDS)))
        tids = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - pathlib takes 10 ms to import
        user = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None
    times = [clocks.seconds_since_run(f"/proc/{pid}/task/{tid}") for tid in tids]
    known_times = [seconds for seconds in times if seconds is not None]
    idle = min(known_times) if known_times and len(known_times) == len(times) else None
    main_idle = clocks.seconds_since_run(f"/proc/{pid}/task/{pid}")
    return TorchProcess(pid, user, program, len(tids), variable.rank if variable else None, idle, main_idle)


def idle_text(seconds: float) -> str:
    """The time for which nothing ran, in words: ``now``, ``40 s``, ``3 h``."""
    return "now" if seconds < 1 else duration(seconds)


class PsProgram(Program):
    """The program ``scripts/dispatch ps`` as a tool."""

    common = ("--json",)

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _EPILOG

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Print a line for each process. Raises UsageError."""
        args = self.parse(argv)
        with MemoryLimit(MEMORY):
            processes, unexamined = torch_processes()
        error = f"{unexamined} processes were not examined within {SECONDS:g} s\n" if unexamined else ""
        if args.json:
            return Outcome(0, shown_json(json.dumps(plain(processes))) + "\n", error)
        if not processes:
            return Outcome(0, "No process that you may read uses PyTorch.\n", error)
        rows = [("PID", "USER", "RANK", "THREADS", "IDLE", "MAIN", "PROGRAM")]
        for process in processes:
            try:
                user = pwd.getpwuid(process.user).pw_name
            except KeyError:
                user = str(process.user)
            rank = or_unknown(process.rank, "-")
            idle, main = ("?" if time is None else idle_text(time) for time in (process.idle, process.main_idle))
            rows.append((str(process.pid), user, rank, str(process.threads), idle, main, process.program))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        lines = ("  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows)
        return Outcome(0, "".join(f"{escape(line)}\n" for line in lines), error)
