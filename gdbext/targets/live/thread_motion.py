"""Whether a thread has run since it was last looked at, asked of /proc alone: nobody is stopped for it."""

from __future__ import annotations

import os

from gdbext.model.record import Record

RUNNING = "running"
"""What /proc/PID/task/TID/syscall says of a thread that is not blocked (proc_pid_syscall(5))."""


class Place(Record):
    """Where a thread sleeps, and how much it has run.

    ``call`` is the text of /proc/PID/task/TID/syscall: number and arguments of the system call, stack pointer, program
    counter; or "running". ``ran`` is that of schedstat (Documentation/scheduler/sched-stats.rst): time on a processor,
    time in the queue, number of turns. Each is "" where it cannot be read.
    """

    call: str
    ran: str

    @property
    def stack_pointer(self) -> int | None:
        """Where the stack ends while the thread sleeps, None while it runs."""
        words = self.call.split()
        return int(words[-2], 16) if len(words) > 2 else None

    @property
    def arguments(self) -> tuple[int, ...]:
        """The arguments of the system call that the thread sleeps in; none while it runs."""
        return tuple(int(word, 16) for word in self.call.split()[1:-2])

    def has_moved(self, earlier: Place) -> bool:
        """Whether the thread may have run between the ``earlier`` look (of ``ran`` alone, perhaps) and this one."""
        if not self.call and not self.ran:
            return True
        if earlier.ran and not earlier.call:
            return self.call == RUNNING or self.ran != earlier.ran
        return self.call == RUNNING or self != earlier


def place_of(pid: int, tid: int) -> Place:
    """Where a thread of this machine is now."""
    folder = f"/proc/{pid}/task/{tid}"
    return Place(_text(f"{folder}/syscall"), _text(f"{folder}/schedstat"))


def turns_of(pid: int, tid: int) -> Place:
    """How much a thread has run, and nothing else where that is told: half of the reads that ``place_of`` takes."""
    ran = _text(f"/proc/{pid}/task/{tid}/schedstat")
    return Place("", ran) if ran else place_of(pid, tid)


def _text(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # open() is slower
    except OSError:
        return ""
    try:
        return os.read(descriptor, 256).decode(errors="replace").rstrip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
