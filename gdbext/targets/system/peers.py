"""What is at the other end of a descriptor of a live process: processes, addresses, holders of file locks. Linux.

What is found comes through HostFiles as small facts, so that a recording keeps nothing about anybody else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.model.threads.child_process import ChildProcess, listed
from gdbext.model.threads.peer import Peer, PeerKind

if TYPE_CHECKING:
    from gdbext.targets.host_files import HostFiles
    from gdbext.targets.system.descriptor_holders import DescriptorHolders

_SHOWN = 4
_KINDS = ("FLOCK", "POSIX", "OFDLCK")
"""flock(2), fcntl(2) by process and by open file, as proc_locks(5) calls them."""
_WATCHED = 64
"""Descriptors of an epoll set that are read."""


class Peers:
    """Other ends of one process's descriptors; everything unknown is None, nothing raises."""

    def __init__(self, pid: int, files: HostFiles, process: Callable[[int], ChildProcess]) -> None:
        """``process`` describes any process of this machine."""
        self._pid = pid
        self._files = files
        self._process = process

    def process_of(self, fd: int) -> Peer | None:
        """The process that a pidfd is about (/proc/PID/fdinfo/FD, pidfd_open(2))."""
        lines = self._files.text(f"/proc/{self._pid}/fdinfo/{fd}").splitlines()
        pid = next((line.split()[-1] for line in lines if line.startswith("Pid:")), "")
        if not pid.isdecimal():
            return None
        process = self._process(int(pid))
        return Peer(PeerKind.PROCESS, f"the end of process {process.label}", (process,))

    def of(self, link: str, call_writes: bool) -> Peer | None:
        """The other end of what a descriptor refers to; ``call_writes``: the process writes to it."""
        if link.startswith("pipe:"):
            return self._pipe(link, call_writes)
        return self._socket(link) if link.startswith("socket:") else None

    def lock_holder(self, fd: int, whole_file: bool) -> Peer | None:
        """Who has locked the file that a descriptor refers to; ``whole_file``: by flock(2), else by fcntl(2)."""
        kind = "FLOCK" if whole_file else "POSIX"
        place = f"/proc/{self._pid}/fd/{fd}"
        return self._lock(self._list(f"{kind} of {self._pid}/{fd}", lambda: _lock_holders(place, (kind,))))

    def lock_of(self, path: str, place: str) -> Peer | None:
        """Who has locked the file that the process calls ``path`` and we ``place``."""
        return self._lock(self._list(f"locks of {path}", lambda: _lock_holders(place, _KINDS)))

    def _lock(self, found: Sequence[str]) -> Peer | None:
        holders = tuple(self._process(int(pid)) for pid in found if pid.isdecimal() and int(pid) != self._pid)
        if not holders:
            return None
        return Peer(PeerKind.FILE_LOCK, f"which process {listed(holders)} has locked", holders)

    def watched(self, fd: int) -> list[int]:
        """The descriptors in an epoll set (/proc/PID/fdinfo/FD, proc_pid_fdinfo(5))."""
        lines = self._files.text(f"/proc/{self._pid}/fdinfo/{fd}").splitlines()
        words = (line.split() for line in lines if line.startswith("tfd:"))
        return [int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()][:_WATCHED]

    def _pipe(self, link: str, call_writes: bool) -> Peer:
        others = [pid for pid, reads, writes in self._holders(link) if (reads if call_writes else writes)]
        return self._held(PeerKind.PIPE, others)

    def _held(self, kind: PeerKind, pids: Sequence[int], address: str = "", state: str = "") -> Peer:
        processes = tuple(self._process(pid) for pid in dict.fromkeys(pids) if pid != self._pid)
        own = not processes and self._pid in pids
        if processes:
            text = f"whose other end is held by {listed(processes, _SHOWN)}"
        else:
            text = "whose other end nobody has but this process itself" if own else ""
        return Peer(kind, text, processes, address, state, own=own)

    def _holders(self, link: str) -> list[tuple[int, bool, bool]]:
        def read() -> list[str]:
            return [f"{each.pid} {int(each.reads)} {int(each.writes)}" for each in self._all_holders.of(link)]

        words = (text.split() for text in self._list(f"holders of {link}", read))
        return [(int(each[0]), each[1] == "1", each[2] == "1") for each in words if len(each) == 3]

    def _list(self, name: str, read: Callable[[], list[str]]) -> list[str]:
        unknown: list[str] = []
        return self._files.fact(name, unknown, read)

    @cached_property
    def _all_holders(self) -> DescriptorHolders:
        from gdbext.targets.system.descriptor_holders import DescriptorHolders

        return DescriptorHolders()

    def _socket(self, link: str) -> Peer | None:
        found = self._list(f"other end of {link}", lambda: _socket(self._pid, link))
        if len(found) < 5:
            return None
        family, _, remote, state, other, *queues = found
        pids = [pid for pid, _, _ in self._holders(f"socket:[{other}]")] if other != "0" else []
        held = self._held(PeerKind.SOCKET, pids, remote, state)
        is_open = state != "SYN_SENT"
        connected = "connected" if is_open else "connecting"
        where = f"{connected} to {remote}" if remote and state != "LISTEN" else f"a {family} socket"
        queued = zip(("unsent", "unread"), queues) if is_open else ()
        waiting = [f"{size} bytes {name}" for name, size in queued if size != "0"]
        details = ", ".join(filter(None, (where, state if state != "ESTABLISHED" else "", *waiting, held.text)))
        return Peer(PeerKind.SOCKET, details, held.processes, remote, state, own=held.own)


def _socket(pid: int, link: str) -> list[str]:
    from gdbext.targets.system.socket_table import find_socket

    inode = link[len("socket:[") : -1]
    found = find_socket(pid, int(inode)) if inode.isdecimal() else None
    if found is None:
        return []
    numbers = (found.peer, found.unsent, found.unread)
    return [found.family, found.local, found.remote, found.state, *map(str, numbers)]


def _lock_holders(place: str, kinds: Collection[str]) -> list[str]:
    """Pids of those that have the file locked (proc_locks(5)). Who waits is not told while a debugger has stopped him,
    so the file decides."""
    try:
        status = os.stat(place)  # noqa: PTH116 - pathlib takes 10 ms to import
        with open("/proc/locks") as text:
            rows = [line.split() for line in text]
    except OSError:
        return []
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    locked = [row for row in rows if len(row) > 5 and row[1] in kinds and row[5].endswith(f":{status.st_ino}")]
    exact = [row[4] for row in locked if row[5].startswith(f"{device}:")]
    return exact or [row[4] for row in locked]  # some file systems show another device to stat(2)
