"""Does a process still get on? Asked every few seconds, of /proc and of one kernel probe; nobody is stopped.

How much a process and its children have done: processor time and bytes, from /proc, without stopping anybody.

Fields: proc(5); stat's 14th to 17th, io's rchar and wchar (which need the right to trace), task/TID/children.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from gdbext.engine.record import Record
from gdbext.engine.targets.live.local_process import read_file
from gdbext.engine.targets.live.proc_checks import parent
from gdbext.engine.targets.live.supervision import is_suspect, read_file_of
from gdbext.engine.targets.system.linux import stat_fields
from gdbext.errors import GdbextError, NotPermitted, TargetGone
from gdbext.tools.family import descendants

if TYPE_CHECKING:
    from gdbext.tools.probes.dispatch_counter import DispatchActivity


class ProcessActivity(Record):
    """Sums over the process and all its descendants. ``seconds`` of processor time, ended children included;
    ``transferred`` bytes read and written, also through pipes and sockets."""

    seconds: float
    transferred: int
    processes: int


def activity(pid: int) -> ProcessActivity:
    """The work that has been done so far. Raises TargetGone."""
    ticks, transferred, count = _ticks(pid), _bytes(pid), 1
    for child in descendants(pid):
        try:
            ticks += _ticks(child)
            transferred += _bytes(child)
            count += 1
        except TargetGone:
            continue
    return ProcessActivity(ticks / os.sysconf("SC_CLK_TCK"), transferred, count)


def _ticks(pid: int) -> int:
    fields = stat_fields(read_file(pid, "stat"))
    if len(fields) < 15 or fields[0] in ("Z", "X"):
        raise TargetGone.of(pid)
    return sum(int(each) for each in fields[11:15])


def _bytes(pid: int) -> int:
    try:
        lines = read_file(pid, "io").splitlines()
    except NotPermitted:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar", b"wchar")))


def uses_torch(pid: int) -> bool:
    """libtorch_cpu.so is mapped, and may be looked at: the kernel answers. Raises TargetGone."""
    try:
        return not is_suspect(pid) and b"/libtorch_cpu.so" in read_file_of(pid, "maps")
    except TimeoutError:
        return False
    except OSError as error:
        raise TargetGone.of(pid) from error


def with_torch(pid: int) -> tuple[int, ...]:
    """The process where it uses PyTorch, else those of its descendants that do and whose parents do not: what a wrapper
    (timeout, bash, torchrun) has started. Raises TargetGone: the process is gone."""
    if uses_torch(pid):
        return (pid,)
    found: list[int] = []
    inside: set[int] = set()
    for each in descendants(pid):
        if parent(each) in inside:
            inside.add(each)
            continue
        try:
            if uses_torch(each):
                found.append(each)
                inside.add(each)
        except TargetGone:
            continue
    return tuple(found)


BUSY = 0.05
"""The share of a processor: threads that wait in a timed wait, as those for Python's GIL do, use less."""
TRANSFER = 1 << 16
"""Bytes between two looks that count as progress: a line of a log does not."""
_WINDOW = 1.0
"""Seconds for which a dispatch is waited for."""


class ProcessProgress(Record):
    """``moves``: it dispatches, reads or writes, or at least computes. ``computes_only``: it computes, but a probe saw
    no dispatch."""

    moves: bool
    computes_only: bool = False
    dispatches: int = 0
    """Dispatches that a short look at the probe saw; it is not asked where bytes have moved."""


class ProgressWatch:
    """Watches the progress of one process."""

    def __init__(self, pid: int) -> None:
        """Open the process. Raises TargetGone."""
        self._pid = pid
        self._before: ProcessActivity = activity(pid)
        self._looked = time.monotonic()
        self.pulse: DispatchActivity | None = None

    def look(self) -> ProcessProgress:
        """The work since the last look. Raises TargetGone."""
        now, then = time.monotonic(), self._looked
        current, before = activity(self._pid), self._before
        self._before, self._looked = current, now
        transferred = current.transferred - before.transferred
        computes = current.seconds - before.seconds > BUSY * (now - then)
        if transferred > TRANSFER or current.processes != before.processes:
            return ProcessProgress(True)
        dispatches = self._dispatches(now - then)
        if dispatches:
            return ProcessProgress(True, dispatches=dispatches)
        return ProcessProgress(computes, computes and self.pulse is not None)

    def _dispatches(self, interval: float) -> int:
        if self.pulse is None:
            return 0
        try:
            return self.pulse.seen(min(_WINDOW, interval / 2))
        except (GdbextError, OSError):
            self.pulse = None  # another user's probes, or the program was replaced: what /proc says must do
            return 0
