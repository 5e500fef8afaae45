"""What Linux fixes for every target: signals, and the text of /proc."""

from __future__ import annotations

import os
import re

from gdbext.targets.base import MemoryMapping

PAGE_SIZE = 4096

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

SIGNALS_WITH_ADDRESS = frozenset({4, 5, 7, 8, 11})
"""Signals for which siginfo_t carries si_addr when the kernel sent them (sigaction(2))."""

_MAPS_LINE = re.compile(
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


def under_sysroot(sysroot: str, path: str) -> str:
    """``path`` as it is called below ``sysroot`` ("" or "/" is this machine's own root).

    The maps of a process in a chroot, and the core that a debugger makes of it, name its files from the outside: below
    the sysroot already (proc_pid_maps(5)). Such a path is not looked for below it once more.
    """
    root = sysroot.rstrip("/")
    if not root or not path.startswith("/"):
        return path
    outer = os.path.realpath(root).rstrip("/") + "/"
    if path.startswith(outer) and outer != "/" and not os.path.exists(root + path):  # noqa: PTH110
        return root + path[len(outer) - 1 :]
    return root + path


def process_root(pid: int) -> str:
    """The sysroot of a local process: "" where it sees the same files as we do, else /proc/PID/root."""
    root = f"/proc/{pid}/root"
    try:
        same_mounts = os.path.samefile(f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt")  # noqa: PTH121
        return "" if same_mounts and os.path.samefile(root, "/") else root  # noqa: PTH121
    except OSError:
        return root
