"""Reads from /proc/PID about a process of this machine, stopped by us, by a debugger, or not at all."""

from __future__ import annotations

import errno
import os
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.formats.elf_header import parse_auxv
from gdbext.engine.targets.base_target import MemoryMapping, Target, TargetMemory, TargetMoment, TargetOrigin
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.live.proc_checks import living_tid, served_mount_points
from gdbext.engine.targets.live.supervision import ANSWER_SECONDS, run_in_child
from gdbext.engine.targets.system import linux, proc_files
from gdbext.engine.targets.system.procfs import started_at
from gdbext.errors import MemoryFault, TargetError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def read_memory(memory: int, pid: int, address: int, size: int) -> bytes:
    """Exactly ``size`` bytes through ``memory``, an fd of /proc/PID/mem. Raises MemoryFault, TargetGone."""
    try:
        data = os.pread(memory, size, address)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryFault(address, size, getattr(error, "strerror", "") or "no such address") from error
    if not data and size:  # the kernel answers "end of file" when no process uses the memory any more
        try:
            os.readlink(f"/proc/{living_tid(pid)}/exe")  # noqa: PTH115 - pathlib is slow to import
        except OSError:
            raise TargetGone.of(pid) from None
        raise TargetGone(f"process {pid} executed another program while it was examined", why="", help="try again")
    if len(data) < size:
        raise MemoryFault(address, size, f"only {len(data)} bytes are readable")
    return data


def thread_name(pid: int, tid: int) -> str | None:
    """The kernel's name of a thread (comm), None if it has exited."""
    try:
        return os.fsdecode(proc_files.head(f"/proc/{pid}/task/{tid}/comm", 64).rstrip(b"\n"))
    except OSError:
        return None


def own_tid(pid: int, tid: int) -> int:
    """The thread's id in its own PID namespace (NSpid, proc_pid_status(5)); ``tid`` if unknown."""
    try:
        if os.path.samefile(f"/proc/{pid}/ns/pid", "/proc/self/ns/pid"):  # noqa: PTH121
            return tid
        return int(proc_files.status_fields(f"/proc/{pid}/task/{tid}/status")["NSpid"].split()[-1])
    except (OSError, LookupError, ValueError):
        return tid


def read_file(pid: int, name: str) -> bytes:
    """A file of /proc/PID. Raises TargetGone, TargetError: it is longer than its limit."""
    try:
        return proc_files.read(f"/proc/{living_tid(pid)}/{name}")
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise TargetError(
                f"/proc/{pid}/{name} is {error.strerror}",
                why="the process itself sets its length, perhaps to exhaust its readers",
                help="",
            ) from error
        raise TargetGone.of(pid) from error


def read_command(pid: int) -> bytes:
    """The first 64 KB of /proc/PID/cmdline. Raises TargetGone."""
    try:
        return proc_files.head(f"/proc/{living_tid(pid)}/cmdline", 1 << 16)
    except OSError as error:
        raise TargetGone.of(pid) from error


class LocalProcess(Target, TargetMemory, TargetMoment):
    """A process of this machine; the base of those that read /proc."""

    _memory = -1
    """An fd of /proc/PID/mem, which close() closes; -1 for none."""
    _maps: list[MemoryMapping] | None = None
    _maps_text = b""
    """The text of /proc/PID/maps that ``_maps`` was read from."""

    @cached_property
    def origin(self) -> TargetOrigin:
        return ProcessOrigin(self.pid)

    def read(self, address: int, size: int) -> bytes:
        """As TargetMemory.read. Raises TargetError after close()."""
        if self._memory < 0:
            raise TargetError(f"process {self.pid} was already detached")
        return read_memory(self._memory, self.pid, address, size)

    def close(self) -> None:
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def maps(self) -> Sequence[MemoryMapping]:
        """/proc/PID/maps, read once for each stop. Raises TargetGone."""
        if self._maps is None:
            self._maps_text = read_file(self.pid, "maps")
            self._maps = linux.parse_maps(os.fsdecode(self._maps_text))
            if not self._maps:
                raise TargetGone.of(self.pid)
        return self._maps

    def auxv(self) -> Mapping[int, int]:
        """/proc/PID/auxv. Raises TargetGone."""
        return parse_auxv(read_file(self.pid, "auxv"))


class ProcessOrigin(TargetOrigin):
    """The environment and the files of a process of this machine."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid

    def environ(self) -> Mapping[str, str]:
        """/proc/PID/environ, as it was at the start of the program; {} if it is longer than execve(2) permits."""
        try:
            return linux.parse_environ(read_file(self._pid, "environ"))
        except TargetGone:
            raise
        except TargetError:
            return {}

    def files_known_at(self) -> float | None:
        return started_at(self._pid)

    @cached_property
    def foreign(self) -> ForeignFiles:
        """Opens files below /proc/PID/root if the process sees other files (a container, a chroot), with its user's
        rights; a child first asks whether a file server that it uses answers."""
        pid = living_tid(self._pid)
        return ForeignFiles.of_process(pid, served_mount_points(pid), lambda touch: run_in_child(touch, ANSWER_SECONDS))


class LentProcess(LocalProcess):
    """A process that a debugger traces: maybe on another machine, and so not in /proc."""

    is_native = True
    """It is a process of this machine, and the debugger itself traces it."""

    @cached_property
    def origin(self) -> TargetOrigin:
        """Files that the process itself sees (/proc/PID/root); for a remote one those below ``sysroot``."""
        return ProcessOrigin(self.pid) if self.is_native else TargetOrigin(ForeignFiles.of_core(self.sysroot()))

    def sysroot(self) -> str:
        """The folder that has the files of the other machine, "" if unknown."""
        return ""
