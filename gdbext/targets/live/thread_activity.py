"""What a running thread has done so far, from /proc/PID/task/TID: nobody has to stop it for that. Linux."""

from __future__ import annotations

import os

from gdbext.model.record import Record

_MINOR, _MAJOR = 10 - 3, 12 - 3
"""minflt and majflt of proc_pid_stat(5), counted from the state, its third field."""


class Activity(Record):
    """Counters that only grow; None where the system does not tell."""

    nanoseconds: int | None = None
    """Processor time (/proc/PID/task/TID/schedstat, Documentation/scheduler/sched-stats.rst)."""
    switches: int | None = None
    """Context switches, voluntary and not."""
    bytes_moved: int | None = None
    """Bytes read and written by system calls (rchar, wchar)."""
    faults: int | None = None
    """Page faults, minor and major."""


def activities(pid: int) -> dict[int, Activity]:
    """All threads of a process. Raises nothing; a thread that ends meanwhile is left out."""
    try:
        names = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - pathlib takes 10 ms to import
    except OSError:
        return {}
    return {int(tid): _activity(f"/proc/{pid}/task/{tid}") for tid in names if tid.isdecimal()}


def _activity(folder: str) -> Activity:
    runtime = _read(f"{folder}/schedstat").split()
    fields = _read(f"{folder}/stat").rpartition(")")[2].split()
    faults = sum(int(fields[at]) for at in (_MINOR, _MAJOR)) if len(fields) > _MAJOR else None
    return Activity(
        int(runtime[0]) if runtime and runtime[0].isdecimal() else None,
        _sum(f"{folder}/status", ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")),
        _sum(f"{folder}/io", ("rchar", "wchar")),
        faults,
    )


def _sum(path: str, names: tuple[str, ...]) -> int | None:
    """The sum of some lines ``name: number``, None without any of them."""
    lines = (line.partition(":") for line in _read(path).splitlines())
    found = [int(value) for name, _, value in lines if name in names and value.strip().isdecimal()]
    return sum(found) if found else None


def _read(path: str) -> str:
    try:
        with open(path) as text:
            return text.read()
    except OSError:
        return ""
