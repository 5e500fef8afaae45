"""What /proc/PID says of a process of this machine, stopped by us or not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gdbext.errors import TargetGone
from gdbext.formats.auxv import parse_auxv
from gdbext.targets.base import MemoryMapping, Target
from gdbext.targets.live.proc_reads import read_file
from gdbext.targets.system import linux
from gdbext.targets.system.procfs import started_at


class LocalProcess(Target):
    """Maps, environment and files of process ``pid``."""

    kind = "live"
    _maps: list[MemoryMapping] | None = None
    _maps_text = b""
    _root: str | None = None

    def maps(self) -> Sequence[MemoryMapping]:
        """/proc/PID/maps, read once for each stop. Raises TargetGone."""
        if self._maps is None:
            self._maps_text = read_file(self.pid, "maps")
            self._maps = linux.parse_maps(os.fsdecode(self._maps_text))
            if not self._maps:
                raise TargetGone(f"process {self.pid} ended while it was looked at")
        return self._maps

    def auxv(self) -> Mapping[int, int]:
        """/proc/PID/auxv."""
        return parse_auxv(read_file(self.pid, "auxv"))

    def environ(self) -> Mapping[str, str]:
        """/proc/PID/environ: as it was at the start of the program."""
        return linux.parse_environ(read_file(self.pid, "environ"))

    def files_known_at(self) -> float | None:
        """When the process started."""
        return started_at(self.pid)

    def local_path(self, path: str) -> str:
        """The path itself, or below /proc/PID/root where the process sees other files (a container, a chroot)."""
        if self._root is None:
            self._root = linux.process_root(self.pid)
        return linux.under_sysroot(self._root, path)
