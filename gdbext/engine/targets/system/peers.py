"""Finds the other end of an fd of a live process: processes, addresses, holders of file locks. Linux.

Answers come through HostFiles as small facts, so that a recording keeps nothing about other processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.numbers import number
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.peer import ChildProcess, Peer, PeerKind, listed
from gdbext.engine.targets.system.proc_files import all_fds, file_text, folder_names, link_target
from gdbext.engine.targets.system.socket_table import LISTEN, SocketTables

if TYPE_CHECKING:
    from gdbext.engine.targets.host_files import HostFiles

_MULTIPLEXERS = ("/dev/ptmx", "/dev/pts/ptmx")
"""Devices by which the other side of a pseudo terminal is opened (pts(4))."""
_MAX_SHOWN = 4
_LOCK_KINDS = ("FLOCK", "POSIX", "OFDLCK")
"""flock(2), fcntl(2) by process and by open file, as proc_locks(5) calls them."""
_NO_PID = "-1"
"""The PID of a lock that belongs to an open file description (fcntl(2), F_OFD_SETLK): processes may share it."""


class Peers:
    """Other ends of one process's fds; unknown ones are None, nothing raises."""

    def __init__(self, pid: int, files: HostFiles, process: Callable[[int], ChildProcess]) -> None:
        """``process`` describes the process of this machine with a PID."""
        self._pid = pid
        self._files = files
        self._process = process
        self._sockets = SocketTables(pid)

    def process_of(self, fd: int) -> Peer | None:
        """The process that a pidfd refers to (pidfd_open(2))."""
        pid = next(iter(self._fd_numbers(fd, "Pid:")), None)
        if pid is None:
            return None
        process = self._process(pid)
        return Peer(PeerKind.PROCESS, f"for the exit of process {process.label}", (process,))

    def epoll_fds(self, fd: int) -> list[int]:
        """At most 64 of the fds in an epoll set."""
        return self._fd_numbers(fd, "tfd:")[:64]

    def _fd_numbers(self, fd: int, name: str) -> list[int]:
        """The numbers after ``name`` in the lines of /proc/PID/fdinfo/FD (proc_pid_fdinfo(5))."""
        rows = map(str.split, self._files.text(f"/proc/{self._pid}/fdinfo/{fd}").splitlines())
        words = (row[1] for row in rows if len(row) > 1 and row[0] == name)
        return [value for word in words if (value := number(word)) is not None]

    def peer_of(self, link: str, call_writes: bool) -> Peer | None:
        """The other end of ``link``, an fd's target (``pipe:[77]``), that the process waits for; ``call_writes``: the
        process writes to it."""
        if link.startswith("pipe:"):
            others = [pid for pid, reads, writes in self._holders(link) if (reads if call_writes else writes)]
            return self._peer_held_by(PeerKind.PIPE, others)
        if link.startswith("/dev/pts/") and call_writes:
            return self._terminal_peer(link)
        return self._socket_peer(link) if link.startswith("socket:") else None

    def writers_of(self, link: str) -> tuple[ChildProcess, ...]:
        """The other processes that have this pipe (``pipe:[77]``) open for writing."""
        held = self.peer_of(link, call_writes=False) if link.startswith("pipe:") else None
        return held.processes if held else ()

    # --- locks of files --------------------------------------------------------------------------

    def lock_holder(self, fd: int, whole_file: bool) -> Peer | None:
        """The process that has locked the file of an fd; ``whole_file``: by flock(2), else by fcntl(2)."""
        kinds = ("FLOCK",) if whole_file else ("POSIX", "OFDLCK")  # these two exclude each other
        link = f"/proc/{self._pid}/fd/{fd}"
        name = f"{kinds[0]} of {self._pid}/{fd}"
        return self._lock_peer(self._files.pids(name, lambda: _lock_holders(_status(link), kinds)))

    def lock_of(self, path: str, absolute: Callable[[], str]) -> Peer | None:
        """The process that has locked the target's file at the path ``absolute()``, which the target calls ``path``."""
        foreign = self._files.foreign
        pids = self._files.pids(f"locks of {path}", lambda: _lock_holders(foreign.status(absolute()), _LOCK_KINDS))
        return self._lock_peer(pids)

    def locked_elsewhere(self) -> tuple[str, Peer] | None:
        """(path, holder) of the only file that this process has open and another one has locked. None also if there are
        several: which one is wanted is unknown."""
        path, *words = self._files.strings(f"locked files of {self._pid}", lambda: self._only_locked(own=False)) or [""]
        peer = self._lock_peer([pid for word in words if (pid := number(word))])
        return (path, peer) if peer else None

    def locked_here(self) -> str | None:
        """The only SQLite database that this process has locked itself for writing; None also for several."""
        row = self._files.strings(f"files that {self._pid} has locked", lambda: self._only_locked(own=True))
        return row[0] if row else None

    def _only_locked(self, *, own: bool) -> list[str]:
        """[path, PID of a holder, …] of the only file that the process has open and other processes have locked: for
        writing, or for reading if none is for writing. ``own``: the only database of SQLite that it has itself locked
        for writing. [] for none or several."""
        locks = _locks()
        written = [row for row in locks if "WRITE" in row and (_is_of_sqlite(row) or not own)]
        files = list(_files_in(written, self._pid, own)) or ([] if own else list(_files_in(locks, self._pid, own)))
        return files[0] if len({row[0] for row in files}) == 1 else []

    def _lock_peer(self, pids: Sequence[int]) -> Peer | None:
        """The other processes of ``pids`` as holders of a lock; None if there are none."""
        holders = tuple(self._process(pid) for pid in dict.fromkeys(pids) if pid not in (0, self._pid))
        if not holders:
            return None
        plural = "es" if len(holders) > 1 else ""
        return Peer(PeerKind.FILE_LOCK, f"locked by process{plural} {listed(holders)}", holders)

    # --- pipes, terminals, sockets ---------------------------------------------------------------

    @cached_property
    def _fds_by_link(self) -> dict[str, list[tuple[int, str]]]:
        """Pipe, socket or multiplexer → (PID, fd) of the processes that have it open, except other users' processes."""
        fds: dict[str, list[tuple[int, str]]] = {}
        for pid, fd in all_fds():
            link = link_target(f"/proc/{pid}/fd/{fd}")
            if link.startswith(("pipe:", "socket:", *_MULTIPLEXERS)):
                fds.setdefault(link, []).append((pid, fd))
        return fds

    def _holders(self, link: str) -> list[tuple[int, bool, bool]]:
        """(PID, may read, may write) of the processes that have ``link`` open; both True if that is unknown."""

        def read() -> list[str]:
            """Rows "PID READS WRITES", the last two 0 or 1, by the flags in fdinfo."""
            rows = []
            for pid, fd in self._fds_by_link.get(link, ()):
                words = next((line.split() for line in _fd_info(pid, fd) if line.startswith("flags:")), [])
                flags = number(words[1], 8) if len(words) > 1 else None
                mode = os.O_RDWR if flags is None else flags & os.O_ACCMODE
                rows.append(f"{pid} {int(mode != os.O_WRONLY)} {int(mode != os.O_RDONLY)}")
            return rows

        rows = (text.split() for text in self._files.strings(f"holders of {link}", read))
        valid = (row for row in rows if len(row) == 3)
        return [(pid, row[1] == "1", row[2] == "1") for row in valid if (pid := number(row[0])) is not None]

    def _socket_holders(self, inode: str) -> list[int]:
        """PIDs of the processes that have the socket with that inode open; [] for "0" and ""."""
        return [pid for pid, _, _ in self._holders(f"socket:[{inode}]")] if inode.strip("0") else []

    def _peer_held_by(self, kind: PeerKind, pids: Sequence[int], address: str = "", state: str = "") -> Peer:
        """The peer that the processes of ``pids`` have open; the examined process itself does not count."""
        processes = tuple(self._process(pid) for pid in dict.fromkeys(pids) if pid != self._pid)
        own = not processes and self._pid in pids
        if processes:
            plural = "es" if len(processes) > 1 else ""
            text = f"with process{plural} {listed(processes, _MAX_SHOWN)} at the other end"
        else:
            text = "with only this process at the other end" if own else ""
        return Peer(kind, text, processes, address, state, own=own)

    def _terminal_peer(self, link: str) -> Peer:
        """The other side of a pseudo terminal, which should show what is written to it."""

        def read() -> Iterator[int]:
            """PIDs with the other side open (tty-index of proc_pid_fdinfo(5)), in the same mount namespace: each
            container has terminals of its own."""
            line = ["tty-index:", link.rpartition("/")[2]]
            namespace = link_target(f"/proc/{self._pid}/ns/mnt")
            for multiplexer in _MULTIPLEXERS:
                for pid, fd in self._fds_by_link.get(multiplexer, ()):
                    if line in map(str.split, _fd_info(pid, fd)) and link_target(f"/proc/{pid}/ns/mnt") == namespace:
                        yield pid

        held = self._peer_held_by(PeerKind.FILE, self._files.pids(f"holders of {link}", read))
        reader = f", which {listed(held.processes, _MAX_SHOWN)} should" if held.processes else ""
        text = f"which accepts no output: it was stopped (Ctrl+S), or no process reads the other side{reader}"
        return held._replace(text=text)

    def connecting_to(self, name: str) -> Peer | None:
        """The other end of a connection that is not made yet: the process that listens under that name of AF_UNIX, and
        does not accept; None if unknown."""

        def read() -> list[str]:
            listening = self._sockets.unix_listener(name)
            return [str(listening.listener), str(listening.queued)] if listening else []

        listener, queued = (*self._files.strings(f"listener of {name}", read), "", "")[:2]
        pids = self._socket_holders(listener)
        peer = self._connecting_peer(pids, name, queued) if pids else None
        return peer._replace(text=f"connecting to {name}, {peer.text}") if peer else None

    def _connecting_peer(self, listening: Sequence[int], remote: str, queued: str = "0") -> Peer:
        """A connection that is not made yet, to the processes that are ``listening``; ``queued``: how many connections
        these have not accepted."""
        held = self._peer_held_by(PeerKind.SOCKET, listening, remote, "SYN_SENT")
        listener = "this process itself" if held.own else listed(held.processes, _MAX_SHOWN)
        plural = "" if queued == "1" else "s"
        full = f" and has {queued} unaccepted connection{plural}" if queued != "0" else ""
        return held._replace(text=f"where {listener} listens{full}", is_queued=held.own)

    def listens_on(self, port: int) -> bool:
        """True if the process listens on that port of TCP; False if that is unknown."""

        def read() -> list[str]:
            own = (link for link, fds in self._fds_by_link.items() if any(pid == self._pid for pid, _ in fds))
            inodes = (int(link[8:-1]) for link in own if link.startswith("socket:["))
            sockets = filter(None, map(self._sockets.find, inodes))
            return [each.local for each in sockets if each.state == LISTEN and each.local.endswith(f":{port}")]

        return bool(self._files.strings(f"listens on port {port}", read))

    def _socket_peer(self, link: str) -> Peer | None:
        """The other end of a socket; None if it is unknown."""

        def read() -> list[str]:
            """Members of the socket's record, as texts."""
            inode = number(link[len("socket:[") : -1])
            end = self._sockets.find(inode) if inode is not None else None
            if not end:
                return []
            numbers = (end.peer, end.unsent, end.unread, end.listener, end.queued)
            return [end.family, end.local, end.remote, end.state, *map(str, numbers)]

        row = self._files.strings(f"other end of {link}", read)
        if len(row) < 5:
            return None
        family, _, remote, state, peer, *counts = row
        unsent, unread, listener, queued = (*counts, "0", "0", "0", "0")[:4]
        if state == "LISTEN":
            return Peer(PeerKind.SOCKET, f"a {family} socket that others connect to", (), remote, state)
        held = self._peer_held_by(PeerKind.SOCKET, self._socket_holders(peer), remote, state)
        listening = self._socket_holders(listener)
        if listening and state == "SYN_SENT":
            held = self._connecting_peer(listening, remote, queued)
        elif {*listening} == {self._pid}:
            text = "which this process itself has not accepted yet"
            held = held._replace(text=text, own=True, is_queued=True)
        connected = "connecting" if state == "SYN_SENT" else "connected"
        if remote.endswith(":53") and family == "udp":  # RFC 1035, 4.2.1
            connected += " to the name server"
        elif remote:
            connected += " to"
        details = [f"{connected} {remote}" if remote else f"a {family} socket"]
        details += [state] if state != "ESTABLISHED" else []
        sizes = (("unsent", unsent), ("unread", unread)) if state != "SYN_SENT" else ()
        details += [f"{size} bytes {name}" for name, size in sizes if size != "0"]
        return held._replace(text=", ".join(filter(None, (*details, held.text))), address=remote, state=state)


def _fd_info(pid: int, fd: str) -> list[str]:
    """The lines of /proc/PID/fdinfo/FD (proc_pid_fdinfo(5)); [] if it cannot be read."""
    return file_text(f"/proc/{pid}/fdinfo/{fd}").splitlines()


def _status(link: str) -> os.stat_result:
    return os.stat(link)  # noqa: PTH116 - pathlib takes 10 ms to import


def _lock_holders(file: os.stat_result, kinds: Collection[str]) -> Sequence[int]:
    """PIDs that have the file locked (proc_locks(5)). A waiter is not listed while a debugger has stopped it, so the
    file decides. A lock of flock(2) is listed with its taker, and belongs to all that inherited the open file. Raises
    OSError."""
    holders = _holders_of(file, _locks(), kinds)
    heirs = list(_description_holders(file, "FLOCK")) if holders and "FLOCK" in kinds else []
    return heirs or holders


def _locks() -> list[list[str]]:
    """The rows of /proc/locks. Raises OSError."""
    return [line.split() for line in proc_files.text("/proc/locks", proc_files.TABLE).splitlines()]


def _holders_of(file: os.stat_result, locks: Sequence[Sequence[str]], kinds: Collection[str]) -> list[int]:
    """PIDs of the rows of /proc/locks that are of one of these kinds and about the file."""
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    locked = [row for row in locks if len(row) > 5 and row[1] in kinds and row[5].endswith(f":{file.st_ino}")]
    exact = [row for row in locked if row[5].startswith(f"{device}:")]
    words = [row[4] for row in exact or locked]  # some file systems show another device to stat(2)
    pids = [pid for word in words if (pid := number(word)) is not None]
    return [*pids, *(_description_holders(file) if _NO_PID in words else ())]


def _description_holders(file: os.stat_result, kind: str = "OFDLCK") -> Iterator[int]:
    """PIDs that have a lock of an open file description on that file, each once."""
    inode = f":{file.st_ino} "
    fds = ((pid, fd) for pid, fd in all_fds() if any(kind in line and inode in line for line in _fd_info(pid, fd)))
    yield from dict(fds)


def _is_of_sqlite(row: Sequence[str]) -> bool:
    """The locked bytes are those of a database, or of its -shm file (PENDING_BYTE of SQLite's os.h, and UNIX_SHM_BASE
    of os_unix.c)."""
    begin = number(row[6] if len(row) > 6 else "")
    return row[1] != "FLOCK" and begin is not None and (begin >= 1 << 30 or 120 <= begin <= 128)


def _files_in(locks: Sequence[Sequence[str]], pid: int, own: bool) -> Iterator[list[str]]:
    """[path, PID of a holder, …] of each file that the process has open and that other processes (``own``: it itself)
    have locked by these rows of /proc/locks. SQLite's files beside a database count as the database
    (sqlite.org/tempfiles.html)."""
    if not locks:
        return
    for fd in folder_names(f"/proc/{pid}/fd")[:4096]:
        link = f"/proc/{pid}/fd/{fd}"
        path = link_target(link)
        try:
            holders = _holders_of(_status(link), locks, _LOCK_KINDS) if path.startswith("/") else []
        except OSError:
            continue
        wanted = [holder for holder in holders if (holder == pid) == own]
        if wanted:
            suffixes = (suffix for suffix in ("-shm", "-wal", "-journal") if path.endswith(suffix))
            yield [path.removesuffix(next(suffixes, "")), *map(str, wanted)]
