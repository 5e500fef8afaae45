"""What in the system around a process may keep it from running: file systems, cgroups, its terminal. Linux.

Only what a thread's state asks for is read, and all of it through HostFiles, so that a recording keeps it.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.numbers import number
from gdbext.engine.targets.live.proc_checks import SERVED_TYPES
from gdbext.engine.targets.system.linux import mounts, stat_fields
from gdbext.engine.targets.system.proc_files import all_fds, file_text, folder_names, link_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gdbext.engine.targets.host_files import HostFiles
    from gdbext.engine.targets.system.linux import Mount
    from gdbext.engine.targets.system.peer import ChildProcess

_MAX_DESCRIPTORS = 256
_GROUP, _TTY, _FOREGROUND = 5 - 3, 7 - 3, 8 - 3
"""pgrp, tty_nr and tpgid of proc_pid_stat(5), counted from the state, its third field."""
_SHARED_MEMORY = "/dev/shm"


class FileSystem(NamedTuple):
    """A mounted file system, as /proc/PID/mountinfo has it."""

    type: str
    """Its type as mountinfo names it: ``ext4``, ``nfs4``, ``fuse.sshfs``."""
    source: str
    """What is mounted: ``server:/export``, a device."""
    mount_point: str
    """The path at which it is mounted."""
    servers: tuple[ChildProcess, ...] = ()
    """The processes of this machine that serve it (FUSE)."""

    @property
    def is_served(self) -> bool:
        """A server, or a process, answers requests for it."""
        return self.type.startswith(SERVED_TYPES)

    @property
    def phrase(self) -> str:
        """``the nfs4 file system at /data (server:/export)``."""
        served = f", which process {self.servers[0].label} serves" if self.servers else ""
        return f"the {self.type} file system at {self.mount_point} ({self.source}{served})"


class Machine:
    """The surroundings of process ``pid``; unknown answers are None or empty, nothing raises."""

    def __init__(self, pid: int, files: HostFiles, process: Callable[[int], ChildProcess]) -> None:
        """``process`` describes the process of this machine with a PID."""
        self._pid = pid
        self._folder = f"/proc/{pid}"
        self._files = files
        self._process = process

    def file_system(self, fd: int) -> FileSystem | None:
        """The file system of an open file, by the mnt_id of /proc/PID/fdinfo/FD (proc_pid_fdinfo(5))."""

        def read() -> list[str]:
            wanted = _fd_info_values(self._pid, str(fd), "mnt_id:")[:1]
            return next((_mount_row(mount) for mount in self._mounts if [mount.number] == wanted), [])

        return self._file_system_of_row(self._files.strings(f"file system of {self._pid}/{fd}", read))

    def file_system_of(self, path: str) -> FileSystem | None:
        """The file system that has a file of the process, by the longest mount point that its path begins with."""

        def read() -> list[str]:
            around = [mount for mount in self._mounts if f"{path}/".startswith(f"{mount.mount_point.rstrip('/')}/")]
            return _mount_row(max(reversed(around), key=lambda mount: len(mount.mount_point))) if around else []

        return self._file_system_of_row(self._files.strings(f"file system of {path}", read))

    def _file_system_of_row(self, row: list[str]) -> FileSystem | None:
        """The file system of a _mount_row; None for []."""
        if len(row) < 4:
            return None
        kind, source, mount_point, device = row[:4]

        def servers() -> Iterator[int]:
            """PIDs of the processes that serve this FUSE file system, by their fds of /dev/fuse."""
            # all that have any FUSE device open if their fdinfo lacks its number (it is there since Linux 6.11)
            accepted: tuple[list[str], ...] = ([], [device.partition(":")[2]])
            openers = _fds_of("/dev/fuse")
            return (pid for pid, fd in openers if _fd_info_values(pid, fd, "fuse_conn") in accepted)

        pids = self._files.pids(f"servers of FUSE {device}", servers) if kind.startswith("fuse") else ()
        return FileSystem(kind, source, mount_point, tuple(map(self._process, pids)))

    def lacks_descriptors(self) -> bool:
        """The process has as many open fds as it may have: the size of their folder, from Linux 6.2 on, and "Max open
        files" of proc_pid_limits(5)."""

        def read() -> bool:
            """Compare the number of open fds with the limit."""
            folder = f"{self._folder}/fd"
            used = os.stat(folder).st_size or len(folder_names(folder))  # noqa: PTH116 - pathlib is slow to import
            lines = (line.split() for line in _lines(f"{self._folder}/limits"))
            limit = next((number(words[3]) for words in lines if words[:3] == ["Max", "open", "files"]), None)
            return limit is not None and used >= limit

        return bool(self._files.flag(f"descriptors of {self._pid} are used up", read))

    def full_file_systems(self) -> list[str]:
        """Phrases of the full file systems (statvfs(3)), among /dev/shm and those where the process has files open to
        write. Those that need a server are not asked: it might not answer."""

        def read() -> list[str]:
            """Phrases of the full ones."""
            paths: dict[str, str] = {}
            for fd in folder_names(f"{self._folder}/fd")[:_MAX_DESCRIPTORS]:
                flags = number(next(iter(_fd_info_values(self._pid, fd, "flags:")), "0"), 8) or 0
                file_system = self.file_system(int(fd)) if flags & os.O_ACCMODE else None
                if file_system and not file_system.is_served:
                    paths.setdefault(file_system.phrase, f"{self._folder}/fd/{fd}")
            shared = self.file_system_of(_SHARED_MEMORY)
            if shared and shared.mount_point == _SHARED_MEMORY:
                paths.setdefault(shared.phrase, f"{self._folder}/root{_SHARED_MEMORY}")
            return [phrase for phrase, path in paths.items() if _is_full(path)]

        return self._files.strings(f"full file systems of {self._pid}", read)

    @cached_property
    def _mounts(self) -> list[Mount]:
        return mounts(self._pid)

    def frozen_group(self) -> str:
        """The frozen cgroup that the process is in, or the outermost one around it that is frozen; "" for none."""

        # controller, "" for the unified hierarchy → (file, its line in a frozen group, file that has "1" in the group
        # that was told to freeze)
        files = {"freezer": ("freezer.state", "FROZEN", "freezer.self_freezing")}
        files[""] = ("cgroup.events", "frozen 1", "cgroup.freeze")

        def read() -> str:
            """The path of the group in its hierarchy, as /proc/PID/cgroup has it."""
            for controller, group in self._groups:
                state_file, frozen, own_file = files.get(controller, ("", "", ""))
                folders = self.group_folders(controller) if state_file else []
                if folders and frozen in _lines(f"{folders[0]}/{state_file}"):
                    levels = [level for level, path in enumerate(folders) if _first_line(f"{path}/{own_file}") == "1"]
                    return "/".join(group.split("/")[: -levels[-1] or None]) if levels else group
            return ""

        return self._files.fact(f"frozen group of {self._pid}", "", read)

    def group_out_of_memory(self) -> str:
        """The folder of the cgroup that is out of memory and whose OOM killer is off, as it is mounted here
        (memory.oom_control; Documentation/admin-guide/cgroup-v1/memory.rst, 10); "" if none is known."""

        def read() -> str:
            """The first folder whose group is out of memory."""
            for folder in self.group_folders("memory"):
                if {"oom_kill_disable 1", "under_oom 1"} <= {*_lines(f"{folder}/memory.oom_control")}:
                    return folder
            return ""

        return self._files.fact(f"group of {self._pid} out of memory", "", read)

    def oom_kills(self) -> int:
        """The number of processes that the OOM killer has ended in the process's own memory cgroup: "oom_kill" of
        memory.events (v2) or memory.oom_control (v1, since Linux 4.13); 0 if unknown."""

        def read() -> str:
            """The digits, "" for none."""
            for folder in self.group_folders("memory")[:1]:
                lines = [*_lines(f"{folder}/memory.events"), *_lines(f"{folder}/memory.oom_control")]
                return next((row[1] for row in map(str.split, lines) if row[:1] == ["oom_kill"] and len(row) > 1), "")
            return ""

        return number(self._files.fact(f"OOM kills in the group of {self._pid}", "", read)) or 0

    def group_folders(self, controller: str) -> list[str]:
        """The folders of the process's cgroup and of those around it, its own first; [] if they are not mounted here,
        or the group is outside of our own container. The unified hierarchy is used if no older one has the controller.
        """
        groups, mounts = dict(self._groups), self._group_mounts
        name = controller if controller in groups and controller in mounts else ""
        if name not in groups or name not in mounts:
            return []
        root, mount_point = (path.rstrip("/") for path in mounts[name])
        relative = groups[name][len(root) :]
        if not f"{groups[name]}/".startswith(f"{root}/") or "/.." in relative:
            return []
        parts = [part for part in relative.split("/") if part]
        return ["/".join([mount_point, *parts[:count]]) for count in range(len(parts), -1, -1)]

    @cached_property
    def _groups(self) -> list[tuple[str, str]]:
        """Each controller of the process with its cgroup; "" is the unified hierarchy (cgroups(7))."""
        rows = (line.split(":", 2) for line in _lines(f"{self._folder}/cgroup"))
        return [(name, row[2]) for row in rows if len(row) == 3 for name in row[1].split(",")]

    @cached_property
    def _group_mounts(self) -> dict[str, tuple[str, str]]:
        """Controller → (cgroup, folder at which this machine has it mounted): in a container that is often not the root
        of the hierarchy."""
        folders: dict[str, tuple[str, str]] = {}
        for mount in mounts("self"):
            if mount.type.startswith("cgroup"):
                for name in mount.controllers if mount.type == "cgroup" else ("",):
                    folders.setdefault(name, (mount.root, mount.mount_point))
        return folders

    def file_watchers(self) -> tuple[ChildProcess, ...]:
        """The processes that must permit each opening of a file, and others that only watch (fanotify(7))."""
        pids = self._files.pids("processes with fanotify", lambda: dict(_fds_of("anon_inode:[fanotify]")))
        return tuple(map(self._process, pids))

    def terminal(self) -> str:
        """The controlling terminal of the process; "" if it has none."""

        def read() -> str:
            """Decode tty_nr, whose minor number is in two parts (new_encode_dev, include/linux/kdev_t.h)."""
            fields = stat_fields(_first_line(f"{self._folder}/stat"))
            device = number(fields[_TTY]) if len(fields) > _TTY else None
            if not device:
                return ""
            major, minor = device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xFFF00
            is_pseudo_terminal = 136 <= major < 144  # Documentation/admin-guide/devices.txt
            return f"/dev/pts/{minor}" if is_pseudo_terminal else f"{major}:{minor}"

        return self._files.fact(f"terminal of {self._pid}", "", read)

    def has_foreground(self) -> bool:
        """The process is in the foreground of its terminal."""

        def read() -> bool | None:
            fields = stat_fields(_first_line(f"{self._folder}/stat"))
            return fields[_GROUP] == fields[_FOREGROUND] if len(fields) > _FOREGROUND else None

        return bool(self._files.flag(f"foreground of {self._pid}", read))


def _fds_of(link: str) -> Iterator[tuple[int, str]]:
    """(PID, fd) of the processes of this machine that have ``link`` open."""
    return ((pid, fd) for pid, fd in all_fds(_MAX_DESCRIPTORS) if link_target(f"/proc/{pid}/fd/{fd}") == link)


def _fd_info_values(pid: int, fd: str, name: str) -> list[str]:
    """The last words of the lines of /proc/PID/fdinfo/FD that begin with ``name``."""
    return [line.split()[-1] for line in _lines(f"/proc/{pid}/fdinfo/{fd}") if line.startswith(name)]


def _is_full(path: str) -> bool:
    """The file system of a file has no block or no inode left. One without blocks at all is not full."""
    try:
        status = os.statvfs(path)
    except OSError:
        return False
    return bool(status.f_blocks) and (not status.f_bavail or (bool(status.f_files) and not status.f_favail))


def _mount_row(mount: Mount) -> list[str]:
    """What a recording keeps of a mount: [type, source, mount point, device]."""
    return [mount.type, mount.source, mount.mount_point, mount.device]


def _first_line(path: str) -> str:
    return next(iter(_lines(path)), "")


def _lines(path: str) -> list[str]:
    return file_text(path).splitlines()
