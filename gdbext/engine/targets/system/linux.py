"""The constants of Linux for every target: signals, and the text of /proc.

Which environment variables a report or a recording may show.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from gdbext.engine.record import late_pattern
from gdbext.engine.targets.base_target import MemoryMapping

PAGE_SIZE = 4096

_MOST_DIGITS = 20


def number(text: str, base: int = 10) -> int | None:
    """The number that a file of /proc, a variable of the environment or a name has in it, as the target's user or a
    recording wrote it; None for anything else, and for one that no word of memory holds."""
    try:
        return int(text, base) if 0 < len(text) <= _MOST_DIGITS and text.isalnum() else None
    except ValueError:
        return None


SIGNAL_NAMES = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
    16: "SIGSTKFLT", 17: "SIGCHLD", 18: "SIGCONT", 19: "SIGSTOP", 20: "SIGTSTP", 21: "SIGTTIN", 22: "SIGTTOU",
    23: "SIGURG", 24: "SIGXCPU", 25: "SIGXFSZ", 26: "SIGVTALRM", 27: "SIGPROF", 28: "SIGWINCH", 29: "SIGIO",
    30: "SIGPWR", 31: "SIGSYS",
}  # fmt: skip
"""Linux's numbers (asm-generic/signal.h; Alpha, MIPS, PA-RISC and SPARC have others): the host's own table would be
wrong for a core from elsewhere."""

CRASH_SIGNALS = frozenset({4, 6, 7, 8, 11, 31})
"""ILL, ABRT, BUS, FPE, SEGV, SYS: a thread stopped by one of these crashed, whoever looks at it.

SIGTRAP is no member: under a debugger it is a breakpoint or a step.
"""

STOP_SIGNALS = frozenset({19, 20, 21, 22})
"""STOP, TSTP, TTIN, TTOU: the signals that stop a whole process (signal(7))."""

SIGNALS_WITH_ADDRESS = frozenset({4, 5, 7, 8, 11})
"""Signals for which siginfo_t carries si_addr when the kernel sent them (sigaction(2))."""

_MAPS_LINE = late_pattern(
    r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) (\S+) (\d+) *(.*)$",
    re.MULTILINE,
)
_DELETED = " (deleted)"


def signal_name(number: int) -> str:
    """The name of a signal, "SIGRT34" style for real-time ones."""
    return SIGNAL_NAMES.get(number) or f"SIGRT{number}"


def fault_address(number: int, code: int | None, raw_address: int) -> int | None:
    """si_addr, or None where the union holds something else (a signal that a process sent: si_code <= 0).

    SI_KERNEL (0x80) marks a general protection fault, for which the kernel knows no address and writes 0.
    """
    si_kernel = 0x80
    if number not in SIGNALS_WITH_ADDRESS or code is None or code <= 0 or code == si_kernel:
        return None
    return raw_address


def split_deleted(path: str) -> tuple[str, bool]:
    """A path of /proc/PID/maps without the kernel's " (deleted)" mark, and whether it had one."""
    if path.endswith(_DELETED):
        return path[: -len(_DELETED)], True
    return path, False


def parse_maps(text: str) -> list[MemoryMapping]:
    """The text of /proc/PID/maps (proc_pid_maps(5)), sorted by start as the kernel writes it."""
    found = []
    for start, end, permissions, offset, device, inode, raw in _MAPS_LINE.findall(text):
        path, deleted = split_deleted(raw.replace("\\012", "\n"))
        found.append(
            MemoryMapping(int(start, 16), int(end, 16), int(offset, 16), path, permissions, deleted, device, int(inode))
        )
    return found


def parse_environ(data: bytes) -> dict[str, str]:
    """NUL-separated NAME=VALUE strings, as in /proc/PID/environ; the first of equal names wins, as in getenv."""
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


_SHOWN = late_pattern(
    r"^(TORCH|PYTORCH|ATEN|NCCL|GLOO|CUDA|OMP|MKL|KMP|GOMP|OPENBLAS|UCX|TP_|MASTER_|PYTHON|LD_|MALLOC_|MASTER)"
    r"|^(RANK|LOCAL_RANK|GROUP_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)$"
    r"|^(OMPI_COMM_WORLD_|PMIX?_RANK$|PMI_SIZE$|MPI_LOCAL|SLURM_(JOB_ID|STEP_ID|PROCID|NTASKS|LOCALID)$)"
)


def public(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``shown``, with secrets hidden."""
    from gdbext.engine.targets.secret_words import is_secret

    return {name: value for name, value in shown(environ).items() if not is_secret(name)}


def shown(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that change what torch, OpenMP, NCCL or Python do, by name; the values of secrets are hidden."""
    from gdbext.engine.targets.secret_words import hide_values

    return hide_values({name: value for name, value in sorted(environ.items()) if _SHOWN.match(name)})
