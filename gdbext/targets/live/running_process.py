"""A live process that is not stopped: memory and maps alone, as they are at the moment of each read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gdbext.arch import registry
from gdbext.targets.base import MemoryMapping, Thread
from gdbext.targets.live import proc_checks
from gdbext.targets.live.local_process import LocalProcess
from gdbext.targets.live.proc_reads import read_file, read_memory
from gdbext.targets.system import linux


class RunningProcess(LocalProcess):
    """Process ``pid`` as it runs. What changes while it is read may be torn: read what rarely changes.

    Raises NoSuchProcess, NotPermitted, ForeignArchitecture, TargetGone.
    """

    debugger = "none"

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.architecture = registry.by_machine(proc_checks.check_process(pid))
        self._root = linux.process_root(pid)
        self._memory = proc_checks.open_memory(pid)

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises MemoryFault, TargetGone."""
        return read_memory(self._memory, self.pid, address, size)

    @property
    def paused_ms(self) -> float:
        """Nobody is stopped."""
        return 0.0

    def threads(self) -> Sequence[Thread]:
        """None: only a stopped thread has registers."""
        return ()

    def selected_thread(self) -> Thread | None:
        """None."""
        return None

    def maps(self) -> Sequence[MemoryMapping]:
        """/proc/PID/maps, as it is now. Raises TargetGone."""
        return linux.parse_maps(os.fsdecode(read_file(self.pid, "maps")))

    def thread_names(self) -> Mapping[int, str]:
        """Thread id → the kernel's name of the thread, of those that live now."""
        found = {}
        try:
            tids = os.listdir(f"/proc/{self.pid}/task")  # noqa: PTH208 - strings are all that is needed
        except FileNotFoundError:
            return {}
        for tid in tids:
            try:
                with open(f"/proc/{self.pid}/task/{tid}/comm", errors="replace") as file:
                    found[int(tid)] = file.read().rstrip("\n")
            except OSError:
                continue
        return found

    def close(self) -> None:
        """Close the memory; idempotent."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1
