"""Which processes of this machine have a pipe or a socket open, and for what. Linux: /proc/PID/fd, /proc/PID/fdinfo."""

from __future__ import annotations

import os
from functools import cached_property

from gdbext.model.record import Record

_PROCESSES = 4096
_DESCRIPTORS = 4096
"""Most processes, and most descriptors of each, that are read."""
_ACCESS = 3
"""O_ACCMODE: 0 reads, 1 writes, 2 both (fcntl.h)."""


class Holder(Record):
    """A process with a descriptor of something; ``access`` as O_ACCMODE has it, None where it cannot be read."""

    pid: int
    access: int | None

    @property
    def reads(self) -> bool:
        """It may read from it."""
        return self.access in (0, 2, None)

    @property
    def writes(self) -> bool:
        """It may write to it."""
        return self.access in (1, 2, None)


class DescriptorHolders:
    """Reads the descriptors of all processes once, when it is first asked. Raises nothing."""

    def of(self, link: str) -> list[Holder]:
        """Who has what /proc calls ``pipe:[77]`` or ``socket:[5]``; processes of other users are not seen."""
        return [Holder(pid, _access(pid, fd)) for pid, fd in self._index.get(link, ())]

    @cached_property
    def _index(self) -> dict[str, list[tuple[int, str]]]:
        found: dict[str, list[tuple[int, str]]] = {}
        for pid in [int(name) for name in _names("/proc") if name.isdecimal()][:_PROCESSES]:
            for fd in _names(f"/proc/{pid}/fd")[:_DESCRIPTORS]:
                try:
                    link = os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115 - pathlib takes 10 ms to import
                except OSError:
                    continue
                if link.startswith(("pipe:", "socket:")):
                    found.setdefault(link, []).append((pid, fd))
        return found


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - as above
    except OSError:
        return []


def _access(pid: int, fd: str) -> int | None:
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}") as text:
            for line in text:
                if line.startswith("flags:"):
                    return int(line.split()[1], 8) & _ACCESS
    except (OSError, ValueError, IndexError):
        return None
    return None
