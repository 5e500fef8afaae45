"""Observations: everything that a verdict is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from gdbext.model.record import Record
from gdbext.model.threads.thread_report import ThreadReport
from gdbext.verdict.crash import Crash
from gdbext.verdict.recursion import Recursion


def _stands_still(_tid: int) -> bool:
    return False


class Observations(Record):
    """What is known of a process that stands still; mappings are by thread id."""

    threads: Sequence[ThreadReport]
    pid: int
    crashes: Mapping[int, Crash] = MappingProxyType({})
    recursions: Mapping[int, Recursion] = MappingProxyType({})
    masters: Mapping[int, int] = MappingProxyType({})
    """Crashed worker of an OpenMP team → the only thread inside an operator that has a team."""
    complete: bool = True
    """No thread is missing because it could not be read."""
    stopped: bool = False
    """All threads were stopped by a signal (SIGSTOP, Ctrl+Z) before the debugger came."""

    ran_on: Callable[[int], bool] = _stands_still
    """Whether a thread is known to have run, or begun, after it was seen."""

    @property
    def main(self) -> ThreadReport | None:
        """The thread whose tid is the process's, or the first."""
        first = self.threads[0] if self.threads else None
        return next((thread for thread in self.threads if thread.tid == self.pid), first)
