"""How much a process and its children have done: processor time and bytes, from /proc, without stopping anybody.

Fields: proc(5); stat's 14th to 17th, io's rchar and wchar (which need the right to trace), task/TID/children.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from gdbext.errors import NotPermitted, TargetGone
from gdbext.model.record import Record
from gdbext.targets.live.proc_reads import read_file

_FAMILY_LIMIT = 4096
"""Processes that are looked at."""


class Activity(Record):
    """Sums over the process and all its descendants. ``seconds`` of processor time, ended children included;
    ``transferred`` bytes read and written, also through pipes and sockets."""

    seconds: float
    transferred: int
    processes: int


def activity(pid: int) -> Activity:
    """What has been done so far. Raises TargetGone."""
    ticks, transferred, count = _ticks(pid), _bytes(pid), 1
    for child in _descendants(pid):
        try:
            ticks += _ticks(child)
            transferred += _bytes(child)
            count += 1
        except TargetGone:
            continue
    return Activity(ticks / os.sysconf("SC_CLK_TCK"), transferred, count)


def _ticks(pid: int) -> int:
    fields = read_file(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 15 or fields[0] in (b"Z", b"X"):
        raise TargetGone(f"process {pid} has ended")
    return sum(int(each) for each in fields[11:15])


def _bytes(pid: int) -> int:
    try:
        lines = read_file(pid, "io").splitlines()
    except NotPermitted:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar", b"wchar")))


def _descendants(pid: int) -> Iterator[int]:
    todo, seen = [pid], {pid}
    while todo and len(seen) < _FAMILY_LIMIT:
        for child in _children(todo.pop()):
            if child not in seen:
                seen.add(child)
                todo.append(child)
                yield child


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - strings are all that is needed
            found += map(int, read_file(pid, f"task/{tid}/children").split())
    except (OSError, TargetGone, NotPermitted):
        return found
    return found


def uses_torch(pid: int) -> bool:
    """libtorch_cpu.so is mapped. Raises TargetGone."""
    return b"/libtorch_cpu.so" in read_file(pid, "maps")
