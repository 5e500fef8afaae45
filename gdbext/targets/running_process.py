"""A live process that is not stopped: memory and maps alone, as they are at the moment of each read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gdbext.arch import registry
from gdbext.errors import MemoryFault, TargetGone
from gdbext.formats.auxv import parse_auxv
from gdbext.targets import linux, proc_checks
from gdbext.targets.base import MemoryMapping, Target, Thread


class RunningProcess(Target):
    """Process ``pid`` as it runs. What changes while it is read may be torn: read what rarely changes.

    Raises NoSuchProcess, NotPermitted, ForeignArchitecture, TargetGone.
    """

    kind = "live"
    debugger = "none"

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.architecture = registry.by_machine(proc_checks.check_process(pid))
        self._root = linux.process_root(pid)
        self._memory = proc_checks.open_memory(pid)

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises MemoryFault, TargetGone."""
        try:
            found = os.pread(self._memory, size, address)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryFault(address, size, getattr(error, "strerror", "") or "no such address") from error
        if not found and size:
            raise TargetGone(f"process {self.pid} ended while it was looked at")
        if len(found) < size:
            raise MemoryFault(address, size, f"only {len(found)} bytes are readable")
        return found

    def threads(self) -> Sequence[Thread]:
        """None: only a stopped thread has registers."""
        return ()

    def selected_thread(self) -> Thread | None:
        """None."""
        return None

    def maps(self) -> Sequence[MemoryMapping]:
        """/proc/PID/maps, as it is now. Raises TargetGone."""
        return linux.parse_maps(os.fsdecode(self._proc_file("maps")))

    def auxv(self) -> Mapping[int, int]:
        """/proc/PID/auxv."""
        return parse_auxv(self._proc_file("auxv"))

    def local_path(self, path: str) -> str:
        """The file as the process itself sees it."""
        return linux.under_sysroot(self._root, path)

    def thread_names(self) -> Mapping[int, str]:
        """Thread id → the kernel's name of the thread, of those that live now."""
        found = {}
        for tid in os.listdir(f"/proc/{self.pid}/task"):  # noqa: PTH208 - strings are all that is needed
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

    def _proc_file(self, name: str) -> bytes:
        try:
            with open(f"/proc/{self.pid}/{name}", "rb") as file:
                return file.read()
        except OSError as error:
            raise TargetGone(f"process {self.pid} ended while it was looked at") from error
