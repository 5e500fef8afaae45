"""What /proc says about a process: the tests' own eyes, and how the harness knows that an inferior has settled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SYSCALLS = {
    "futex": {202},
    "read": {0},
    "poll": {7, 23, 232, 270, 271, 281},
    "sleep": {35, 230},
    "wait": {61, 247},
}
"""Numbers for x86-64 (arch/x86/entry/syscalls/syscall_64.tbl of Linux)."""

QUIET_SAMPLES = 3


def alive(pid: int) -> bool:
    """The process exists and is no zombie."""
    return status(pid).get("State", "Z")[0] not in "ZX"


def threads(pid: int) -> list[int]:
    """The thread ids, [] when the process is gone."""
    try:
        return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return []


def children(pid: int) -> list[int]:
    """The children of its main thread."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status, {} when the process is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        pairs = (line.partition(":") for line in lines)
        return {key: value.strip() for key, _, value in pairs}
    return {}


def state(pid: int, tid: int) -> str:
    """The state letter of /proc/PID/task/TID/stat, "" when it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def syscall(pid: int, tid: int) -> tuple[str, ...]:
    """/proc/PID/task/TID/syscall in words; ("running",) when the thread is not in the kernel."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return tuple(Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split())
    return ("gone",)


def wait_settled(pid: int, expected: Mapping[str, Mapping[str, Any]], wait_until: Callable[..., Any]) -> None:
    """Wait until each named thread is where it said it would stay, several looks in a row."""
    for role, thread in expected.items():
        if thread.get("waits") is not None:
            _wait_thread(pid, role, int(thread["tid"]), str(thread["waits"]), wait_until)


def _wait_thread(pid: int, role: str, tid: int, waits: str, wait_until: Callable[..., Any]) -> None:
    seen: list[tuple[str, ...]] = []

    def settled() -> bool:
        now = syscall(pid, tid)
        if not _fits(now, waits) or (waits == "any" and seen and seen[-1] != now):
            seen.clear()
        if _fits(now, waits):
            seen.append(now)
        return len(seen) >= QUIET_SAMPLES

    wait_until(settled, f'thread "{role}" ({tid}) of {pid} waits in {waits}; now: {syscall(pid, tid)}')


def _fits(words: tuple[str, ...], waits: str) -> bool:
    if waits == "running":
        return words[0] == "running"
    if not words[0].isdigit():
        return False
    return waits == "any" or int(words[0]) in SYSCALLS[waits]
