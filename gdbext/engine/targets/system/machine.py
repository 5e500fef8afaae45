"""Machine: what of the system around a process may keep it from running: file systems, control groups. Linux.

Only what a thread's state asks for is read, and all of it through HostFiles, so that a recording keeps it.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.numbers import number
from gdbext.engine.targets.live.proc_checks import SERVED
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import stat_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gdbext.engine.targets.host_files import HostFiles
    from gdbext.engine.targets.system.peer import ChildProcess

_PROCESSES = 4096
_DESCRIPTORS = 256
_GROUP, _FOREGROUND = 5 - 3, 8 - 3
_TTY = 7 - 3
"""tty_nr of proc_pid_stat(5), counted from the state, its third field."""
_PTS_MAJORS = range(136, 144)
"""Device numbers of pseudo terminals (Documentation/admin-guide/devices.txt)."""
_SHARED_MEMORY = "/dev/shm"
_FUSE_DEVICE = "/dev/fuse"
_FANOTIFY = "anon_inode:[fanotify]"


class FileSystem(NamedTuple):
    """A mounted file system, as /proc/PID/mountinfo has it."""

    type: str
    """Its type as mountinfo names it: ``ext4``, ``nfs4``, ``fuse.sshfs``."""
    source: str
    """The thing that is mounted: ``server:/export``, a device."""
    place: str
    """The path at which it is mounted."""
    servers: tuple[ChildProcess, ...] = ()
    """The processes of this machine that serve it, of FUSE."""

    @property
    def is_served(self) -> bool:
        """A server, or a process, answers what is asked of it."""
        return self.type.startswith(SERVED)

    @property
    def phrase(self) -> str:
        """``the nfs4 file system at /data (server:/export)``."""
        served = f", which process {self.servers[0].label} serves" if self.servers else ""
        return f"the {self.type} file system at {self.place} ({self.source}{served})"


class Machine:
    """The surroundings of process ``pid``; everything unknown is None or empty, nothing raises."""

    def __init__(self, pid: int, files: HostFiles, process: Callable[[int], ChildProcess]) -> None:
        """``process`` describes any process of this machine."""
        self._pid = pid
        self._files = files
        self._process = process

    def file_system(self, fd: int) -> FileSystem | None:
        """The file system of a descriptor, by the mnt_id of /proc/PID/fdinfo/FD (proc_pid_fdinfo(5))."""

        def read() -> list[str]:
            lines = (line.split() for line in _lines(f"/proc/{self._pid}/fdinfo/{fd}"))
            mount = next((words[1] for words in lines if len(words) > 1 and words[0] == "mnt_id:"), "")
            return next((row for row_id, row in self._mounts if row_id == mount), [])

        return self._found(self._list(f"file system of {self._pid}/{fd}", read))

    def file_system_of(self, path: str) -> FileSystem | None:
        """The file system that has a file of the process, by the longest mount point that its path begins with."""

        def read() -> list[str]:
            rows = [row for _, row in self._mounts if f"{path}/".startswith(f"{row[2].rstrip('/')}/")]
            return max(reversed(rows), key=lambda row: len(row[2]), default=[])

        return self._found(self._list(f"file system of {path}", read))

    def lacks_descriptors(self) -> bool:
        """The process has as many descriptors as it may have: the size of their folder, from Linux 6.2 on, and "Max
        open files" of proc_pid_limits(5)."""

        def read() -> float | None:
            folder = f"/proc/{self._pid}/fd"
            try:
                used = os.stat(folder).st_size or len(_names(folder))  # noqa: PTH116
            except OSError:
                return None
            lines = (line.split() for line in _lines(f"/proc/{self._pid}/limits"))
            most = next((number(words[3]) for words in lines if words[:3] == ["Max", "open", "files"]), None)
            return float(most is not None and used >= most)

        return bool(self._files.fact(f"descriptors of {self._pid} are used up", None, read))

    def full_file_systems(self) -> list[str]:
        """The file systems without room (statvfs(3)), in words, of those where the process has files open to write, and
        of /dev/shm. Those that need a server are not asked: it might not answer."""

        def read() -> list[str]:
            places: dict[str, str] = {}
            for fd in _names(f"/proc/{self._pid}/fd")[:_DESCRIPTORS]:
                flags = next(
                    (
                        line.split()[-1]
                        for line in _lines(f"/proc/{self._pid}/fdinfo/{fd}")[:2]
                        if line.startswith("flags:")
                    ),
                    "0",
                )
                found = self.file_system(int(fd)) if (number(flags, 8) or 0) & os.O_ACCMODE else None
                if found and not found.is_served:
                    places.setdefault(found.phrase, f"/proc/{self._pid}/fd/{fd}")
            shared = self.file_system_of(_SHARED_MEMORY)
            if shared and shared.place == _SHARED_MEMORY:
                places.setdefault(shared.phrase, f"/proc/{self._pid}/root{_SHARED_MEMORY}")
            return [phrase for phrase, place in places.items() if _is_full(place)]

        return self._list(f"full file systems of {self._pid}", read)

    def frozen_group(self) -> str:
        """The control group that is frozen and that the process is in, or the outermost one around it that is; "" where
        none is."""
        return self._files.fact(f"frozen group of {self._pid}", "", lambda: next(self._frozen(), ""))

    def group_out_of_memory(self) -> str:
        """The folder of the control group that is out of memory and whose OOM killer is off, as it is mounted here
        (memory.oom_control; Documentation/admin-guide/cgroup-v1/memory.rst, 10); "" where none is known."""
        return self._files.fact(f"group of {self._pid} out of memory", "", lambda: next(self._out_of_memory(), ""))

    def file_watchers(self) -> tuple[ChildProcess, ...]:
        """The processes that are asked before a file is opened, and others that only look on (fanotify(7))."""

        def read() -> list[str]:
            return [str(pid) for pid in dict.fromkeys(pid for pid, _ in _that_have(_FANOTIFY))]

        pids = map(number, self._list("processes with fanotify", read))
        return tuple(self._process(pid) for pid in pids if pid is not None)

    def _out_of_memory(self) -> Iterator[str]:
        for folder in self.group_folders("memory"):
            told = _lines(f"{folder}/memory.oom_control")
            if "oom_kill_disable 1" in told and "under_oom 1" in told:
                yield folder

    def terminal(self) -> str:
        """The controlling terminal of the process, by tty_nr of proc_pid_stat(5); "" where it has none."""
        return self._files.fact(f"terminal of {self._pid}", "", self._terminal)

    def has_foreground(self) -> bool:
        """True if the process is in the foreground of its terminal: pgrp and tpgid of proc_pid_stat(5) are equal."""

        def read() -> float | None:
            fields = stat_fields(_first(f"/proc/{self._pid}/stat"))
            return float(fields[_GROUP] == fields[_FOREGROUND]) if len(fields) > _FOREGROUND else None

        return bool(self._files.fact(f"foreground of {self._pid}", None, read))

    def _terminal(self) -> str:
        fields = stat_fields(_first(f"/proc/{self._pid}/stat"))
        device = number(fields[_TTY]) if len(fields) > _TTY else None
        if not device:
            return ""
        major, minor = device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xFFF00
        return f"/dev/pts/{minor}" if major in _PTS_MAJORS else f"{major}:{minor}"

    def _found(self, row: list[str]) -> FileSystem | None:
        if len(row) < 4:
            return None
        kind, source, place, device = row[:4]
        servers: tuple[ChildProcess, ...] = ()
        if kind.startswith("fuse"):
            pids = self._list(f"servers of FUSE {device}", lambda: [str(pid) for pid in _fuse_servers(device)])
            servers = tuple(self._process(pid) for each in pids if (pid := number(each)) is not None)
        return FileSystem(kind, source, place, servers)

    @cached_property
    def _mounts(self) -> list[tuple[str, list[str]]]:
        """Each mount's number, and its type, source, mount point and device (proc_pid_mountinfo(5))."""
        found = []
        for line in _lines(f"/proc/{self._pid}/mountinfo"):
            words, _, rest = line.partition(" - ")
            fields, told = words.split(), rest.split()
            if len(fields) > 4 and len(told) > 1:
                found.append((fields[0], [told[0], _plain(told[1]), _plain(fields[4]), fields[2]]))
        return found

    def group_folders(self, controller: str) -> list[str]:
        """The folders of the process's control group and of those around it, its own first; empty where they are not
        mounted here, or the group is outside of our own container. Of the unified hierarchy without such a controller
        of an older one."""
        groups = dict(self._groups)
        name = controller if controller in groups and controller in self._folders else ""
        mounted, group = self._folders.get(name), groups.get(name)
        if not mounted or group is None:
            return []
        root, place = mounted
        below = group[len(root.rstrip("/")) :] if f"{group}/".startswith(f"{root.rstrip('/')}/") else None
        if below is None or "/.." in below:
            return []
        parts = [part for part in below.split("/") if part]
        return ["/".join([place.rstrip("/"), *parts[:count]]) for count in range(len(parts), -1, -1)]

    def _frozen(self) -> Iterator[str]:
        for controller, group in self._groups:
            folders = self.group_folders(controller)
            if not folders or controller not in ("freezer", ""):
                continue
            of_freezer = controller == "freezer" and _first(f"{folders[0]}/freezer.state") == "FROZEN"
            if of_freezer or (not controller and "frozen 1" in _lines(f"{folders[0]}/cgroup.events")):
                own = "freezer.self_freezing" if controller else "cgroup.freeze"
                around = [number for number, folder in enumerate(folders) if _first(f"{folder}/{own}") == "1"]
                yield "/".join(group.split("/")[: -around[-1] or None]) if around else group

    @cached_property
    def _groups(self) -> list[tuple[str, str]]:
        """Each controller of the process with its group; "" is the unified hierarchy (cgroups(7))."""
        rows = (line.split(":", 2) for line in _lines(f"/proc/{self._pid}/cgroup"))
        return [(name, row[2]) for row in rows if len(row) == 3 for name in row[1].split(",")]

    @cached_property
    def _folders(self) -> dict[str, tuple[str, str]]:
        """Controller → the group and the folder where our own machine has it mounted: in a container that is often not
        the root of the hierarchy."""
        found: dict[str, tuple[str, str]] = {}
        for line in _lines("/proc/self/mountinfo"):
            words, _, rest = line.partition(" - ")
            fields, told = words.split(), rest.split()
            if len(fields) < 5 or len(told) < 3 or not told[0].startswith("cgroup"):
                continue
            for name in told[2].split(",") if told[0] == "cgroup" else ("",):
                found.setdefault(name, (_plain(fields[3]), _plain(fields[4])))
        return found

    def _list(self, name: str, read: Callable[[], list[str]]) -> list[str]:
        unknown: list[str] = []
        return self._files.fact(name, unknown, read)


def _fuse_servers(device: str) -> Iterator[int]:
    """The processes that have the device of a FUSE connection open; without its number in their fdinfo (Linux 6.11 has
    it) all that have any."""
    connection = device.partition(":")[2]
    found: dict[int, None] = {}
    for pid, fd in _that_have(_FUSE_DEVICE):
        told = [line.split()[-1] for line in _lines(f"/proc/{pid}/fdinfo/{fd}") if line.startswith("fuse_conn")]
        if told in ([], [connection]):
            found[pid] = None
    yield from found


def _that_have(link: str) -> Iterator[tuple[int, str]]:
    """The processes of this machine that have something open, each with its descriptor of it."""
    for pid in sorted(int(name) for name in _names("/proc") if name.isdecimal())[:_PROCESSES]:
        for fd in _names(f"/proc/{pid}/fd")[:_DESCRIPTORS]:
            try:
                if os.readlink(f"/proc/{pid}/fd/{fd}") == link:  # noqa: PTH115 - pathlib is slow to import
                    yield pid, fd
            except OSError:
                continue


def _is_full(path: str) -> bool:
    """A file system with blocks has none left, or of its inodes none."""
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    return bool(found.f_blocks) and (not found.f_bavail or (bool(found.f_files) and not found.f_favail))


def _plain(text: str) -> str:
    """A path of mountinfo, whose blanks are written as octal numbers."""
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _first(path: str) -> str:
    return next(iter(_lines(path)), "")


def _lines(path: str) -> list[str]:
    try:
        return proc_files.head(path, proc_files.ONE).decode(errors="replace").splitlines()
    except OSError:
        return []


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - as above
    except OSError:
        return []
