"""Whether a process that nobody stops is still there, and still the same program."""

from __future__ import annotations

from gdbext.errors import TargetGone
from gdbext.model.ending import Ending, EndingKind
from gdbext.targets.live.proc_reads import read_file


class WatchedProcess:
    """Looks into /proc only."""

    def __init__(self, pid: int) -> None:
        """Raises TargetGone."""
        self._pid = pid
        self._start = read_file(pid, "auxv")

    def ending(self) -> Ending | None:
        """Why there is nothing to watch any more, None while there is."""
        try:
            state = read_file(self._pid, "stat").rpartition(b")")[2].split()[:1]
            auxv = read_file(self._pid, "auxv")
        except TargetGone:
            state, auxv = [], b""
        if not auxv or state in ([], [b"Z"], [b"X"]):
            return Ending(EndingKind.GONE, "the process ended")
        if auxv != self._start:  # random bytes are at another address after each exec
            return Ending(EndingKind.REPLACED, "the process replaced itself by another program (exec)")
        return None
