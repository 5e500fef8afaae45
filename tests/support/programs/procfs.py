"""What /proc says about a process: the tests' own eyes, and how the harness knows that an inferior has settled."""

from __future__ import annotations

import contextlib
import os
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

LONG = 40
"""Looks, about a second together: a sleep that outlasts them is longer than one for a disk."""


def alive(pid: int) -> bool:
    """True if a thread of the process is left: its main thread may have exited before the others."""
    return any(state(pid, tid) not in "ZX" for tid in threads(pid))


def threads(pid: int) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return []


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return found + [each for child in found for each in descendants(child)]


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


def sleeps_on(pid: int, *tids: int) -> Callable[[], bool]:
    """A condition: these threads (default: all) were asleep, and had had no turn, in LONG looks in a row."""
    seen: list[dict[int, str]] = []

    def condition() -> bool:
        turns = {tid: Path(f"/proc/{pid}/task/{tid}/schedstat").read_text() for tid in tids or threads(pid)}
        if any(state(pid, tid) not in "SDT" for tid in turns) or (seen and seen[-1] != turns):
            seen.clear()
        else:
            seen.append(turns)
        return len(seen) >= LONG

    return condition


def processor_time(session: int) -> float:
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if int(fields[3]) == session else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def bytes_written(pid: int) -> int:
    """Bytes that it has passed to write(2) and its like (wchar of /proc/PID/io)."""
    return int(Path(f"/proc/{pid}/io").read_text().partition("wchar: ")[2].split()[0])


def wait_settled(pid: int, truth: Mapping[str, Any], wait_until: Callable[..., Any]) -> None:
    """Wait until each thread that the truth names is where it said it would stay, three looks in a row."""
    for role, thread in truth["threads"].items():
        tid, waits, address = int(thread["tid"]), thread.get("waits"), truth.get(thread.get("waits_for"))
        seen: list[tuple[str, ...]] = []

        def settled(
            tid: int = tid, waits: Any = waits, address: Any = address, seen: list[tuple[str, ...]] = seen
        ) -> bool:
            now = syscall(pid, tid)
            if not _fits(now, waits, address) or (waits == "any" and seen and seen[-1] != now):
                seen.clear()
            if _fits(now, waits, address):
                seen.append(now)
            return len(seen) >= 3

        if waits is not None:
            wait_until(settled, f'thread "{role}" ({tid}) of {pid} waits in {waits}; now: {syscall(pid, tid)}')


_LARGEST = 64
"""Bytes of a lock or the like: its futex is one of its words."""


def _fits(words: tuple[str, ...], waits: str, address: object) -> bool:
    """``address``: of the object that is waited for, as the truth has it, where it is recorded: before a thread comes
    to that, it may wait in another futex."""
    if waits == "running" or not words[0].isdigit():
        return words[0] == waits
    if waits == "any" or int(words[0]) not in SYSCALLS[waits]:
        return waits == "any"
    return waits != "futex" or not isinstance(address, str) or 0 <= int(words[1], 16) - int(address, 16) < _LARGEST
