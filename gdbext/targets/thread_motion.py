"""Whether a thread has run since it was last looked at, asked of /proc alone: nobody is stopped for it."""

from __future__ import annotations

from typing import NamedTuple

RUNNING = "running"
"""What /proc/PID/task/TID/syscall says of a thread that is not blocked (proc_pid_syscall(5))."""


class Place(NamedTuple):
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

    def has_moved(self, earlier: Place) -> bool:
        """Whether the thread may have run between the ``earlier`` look and this one."""
        if not self.call and not self.ran:
            return True
        return self.call == RUNNING or self != earlier


def place_of(pid: int, tid: int) -> Place:
    """Where a thread of this machine is now."""
    folder = f"/proc/{pid}/task/{tid}"
    return Place(_text(f"{folder}/syscall"), _text(f"{folder}/schedstat"))


def _text(path: str) -> str:
    try:
        with open(path, "rb", 0) as file:
            return file.read(256).decode().rstrip()
    except (OSError, UnicodeDecodeError):
        return ""
