"""Finds the other end of a descriptor of a live process: processes, addresses, holders of file locks. Linux.

What is found comes through HostFiles as small facts, so that a recording keeps nothing about anybody else.

Which processes of this machine have a pipe or a socket open, and for what. Linux: /proc/PID/fd, /proc/PID/fdinfo.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.numbers import number
from gdbext.engine.targets.host_files import link_of
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.peer import ChildProcess, Peer, PeerKind, listed
from gdbext.engine.targets.system.socket_table import SocketTables

if TYPE_CHECKING:
    from gdbext.engine.targets.host_files import HostFiles

_PROCESSES = 4096
_DESCRIPTORS = 4096
"""Most processes, and most descriptors of each, that are read."""
_ACCESS = 3
"""O_ACCMODE: 0 reads, 1 writes, 2 both (fcntl.h)."""


class Holder(NamedTuple):
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
        """The processes that have what /proc calls ``pipe:[77]`` or ``socket:[5]``; those of other users are not
        seen."""
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
                if link.startswith(("pipe:", "socket:", *_MULTIPLEXERS)):
                    found.setdefault(link, []).append((pid, fd))
        return found

    def of_terminal(self, number: str, namespace: str) -> list[int]:
        """The processes with the other side of /dev/pts/NUMBER (tty-index of proc_pid_fdinfo(5)), of those that see the
        same mounts: each container has terminals of its own."""
        found = dict.fromkeys(
            pid
            for link in _MULTIPLEXERS
            for pid, fd in self._index.get(link, ())
            if number in _told(pid, fd, "tty-index:")
        )
        return [pid for pid in found if link_of(f"/proc/{pid}/ns/mnt") == namespace]


_MULTIPLEXERS = ("/dev/ptmx", "/dev/pts/ptmx")
"""Devices by which the other side of a pseudo terminal is opened (pts(4))."""


def _told(pid: int, fd: str, name: str) -> list[str]:
    """The values of a line of /proc/PID/fdinfo/FD."""
    try:
        lines = proc_files.text(f"/proc/{pid}/fdinfo/{fd}").splitlines()
        return [line.split()[-1] for line in lines if line.startswith(name)]
    except (OSError, IndexError):
        return []


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - as above
    except OSError:
        return []


def _access(pid: int, fd: str) -> int | None:
    try:
        for line in proc_files.head(f"/proc/{pid}/fdinfo/{fd}", 256).splitlines():
            if line.startswith(b"flags:"):
                return int(line.split()[1], 8) & _ACCESS
    except (OSError, ValueError, IndexError):
        return None
    return None


_SHOWN = 4
_TERMINALS = "/dev/pts/"
_NAMES_PORT = ":53"
"""The end of a name server's address (RFC 1035, 4.2.1)."""
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

    @staticmethod
    def has_open(path: str) -> bool:
        """A process has a file of that path open, of those whose descriptors may be read."""
        for pid in [name for name in _names("/proc") if name.isdecimal()][:_PROCESSES]:
            for fd in _names(f"/proc/{pid}/fd")[:_DESCRIPTORS]:
                try:
                    if os.readlink(f"/proc/{pid}/fd/{fd}") == path:  # noqa: PTH115 - as above
                        return True
                except OSError:
                    continue
        return False

    def process_of(self, fd: int) -> Peer | None:
        """The process that a pidfd is about (/proc/PID/fdinfo/FD, pidfd_open(2))."""
        lines = self._files.text(f"/proc/{self._pid}/fdinfo/{fd}").splitlines()
        pid = number(next((line.split()[-1] for line in lines if line.startswith("Pid:")), ""))
        if pid is None:
            return None
        process = self._process(pid)
        return Peer(PeerKind.PROCESS, f"the end of process {process.label}", (process,))

    def of(self, link: str, call_writes: bool) -> Peer | None:
        """The other end of what a descriptor refers to; ``call_writes``: the process writes to it."""
        if link.startswith("pipe:"):
            return self._pipe(link, call_writes)
        if link.startswith(_TERMINALS) and call_writes:
            return self._terminal(link)
        return self._socket(link) if link.startswith("socket:") else None

    def lock_holder(self, fd: int, whole_file: bool) -> Peer | None:
        """The process that has locked the file of a descriptor; ``whole_file``: by flock(2), else by fcntl(2)."""
        kinds = ("FLOCK",) if whole_file else ("POSIX", "OFDLCK")  # these two exclude each other
        place = f"/proc/{self._pid}/fd/{fd}"
        found = self._list(f"{kinds[0]} of {self._pid}/{fd}", lambda: _lock_holders(lambda: _status(place), kinds))
        return self._lock(found)

    def locked_elsewhere(self) -> tuple[str, Peer] | None:
        """The only file that this process has open, and another one has locked: its path, and who that is. None also
        where there are several, of which nobody knows the one that is wanted."""
        found = self._list(f"locked files of {self._pid}", lambda: _only(_locked_files(self._pid)))
        peer = self._lock(found[1:]) if found else None
        return (found[0], peer) if peer else None

    def locked_here(self) -> str | None:
        """The only file that this process has open, and has locked for itself; None also where there are several."""
        found = self._list(f"files that {self._pid} has locked", lambda: _only(_locked_files(self._pid, own=True)))
        return found[0] if found else None

    def lock_of(self, path: str, place: Callable[[], str]) -> Peer | None:
        """The process that has locked the target's file at ``place``, which it calls ``path``."""
        status = self._files.foreign.status
        return self._lock(self._list(f"locks of {path}", lambda: _lock_holders(lambda: status(place()), _KINDS)))

    def _lock(self, found: Sequence[str]) -> Peer | None:
        pids = [pid for each in found if (pid := number(each)) and pid != self._pid]
        holders = tuple(map(self._process, pids))
        if not holders:
            return None
        return Peer(PeerKind.FILE_LOCK, f"which process {listed(holders)} has locked", holders)

    def watched(self, fd: int) -> list[int]:
        """The descriptors in an epoll set (/proc/PID/fdinfo/FD, proc_pid_fdinfo(5))."""
        lines = self._files.text(f"/proc/{self._pid}/fdinfo/{fd}").splitlines()
        words = (line.split() for line in lines if line.startswith("tfd:"))
        found = [number(each[1]) for each in words if len(each) > 1]
        return [watched for watched in found if watched is not None][:_WATCHED]

    def _pipe(self, link: str, call_writes: bool) -> Peer:
        others = [pid for pid, reads, writes in self._holders(link) if (reads if call_writes else writes)]
        return self._held(PeerKind.PIPE, others)

    def _terminal(self, link: str) -> Peer:
        """The other side of a pseudo terminal, which should show what is written to it."""
        index, own = link.rpartition("/")[2], f"/proc/{self._pid}/ns/mnt"

        def read() -> list[str]:
            return [str(pid) for pid in self._all_holders.of_terminal(index, link_of(own))]

        pids = [pid for each in self._list(f"holders of {link}", read) if (pid := number(each)) is not None]
        held = self._held(PeerKind.FILE, pids)
        whose = f", which {listed(held.processes, _SHOWN)} should" if held.processes else ""
        text = f"which takes no output now: it was stopped (Ctrl+S), or nobody reads its other side{whose}"
        return held._replace(text=text)

    def _held(self, kind: PeerKind, pids: Sequence[int], address: str = "", state: str = "") -> Peer:
        processes = tuple(self._process(pid) for pid in dict.fromkeys(pids) if pid != self._pid)
        own = not processes and self._pid in pids
        if processes:
            text = f"whose other end is held by {listed(processes, _SHOWN)}"
        else:
            text = "whose other end is open only in this process" if own else ""
        return Peer(kind, text, processes, address, state, own=own)

    def _holders(self, link: str) -> list[tuple[int, bool, bool]]:
        def read() -> list[str]:
            return [f"{each.pid} {int(each.reads)} {int(each.writes)}" for each in self._all_holders.of(link)]

        words = (text.split() for text in self._list(f"holders of {link}", read))
        found = ((number(each[0]), each[1] == "1", each[2] == "1") for each in words if len(each) == 3)
        return [(pid, reads, writes) for pid, reads, writes in found if pid is not None]

    def _list(self, name: str, read: Callable[[], list[str]]) -> list[str]:
        unknown: list[str] = []
        return self._files.fact(name, unknown, read)

    @cached_property
    def _all_holders(self) -> DescriptorHolders:

        return DescriptorHolders()

    @cached_property
    def _sockets(self) -> SocketTables:
        return SocketTables(self._pid)

    def _find(self, link: str) -> list[str]:
        inode = link[len("socket:[") : -1]
        wanted = number(inode)
        found = self._sockets.find(wanted) if wanted is not None else None
        if not found:
            return []
        numbers = (found.peer, found.unsent, found.unread, found.listener, found.queued)
        return [found.family, found.local, found.remote, found.state, *map(str, numbers)]

    def _connecting(self, listening: Sequence[int], remote: str, queued: str = "0") -> Peer:
        """A connection that is not made yet, to a listener of this machine."""
        held = self._held(PeerKind.SOCKET, listening, remote, "SYN_SENT")
        who = "this process itself" if held.own else listed(held.processes, _SHOWN)
        plural = "" if queued == "1" else "s"
        full = f" and has {queued} connection{plural} not accepted" if queued != "0" else ""
        return held._replace(text=f"where {who} listens{full}", is_queued=held.own)

    def connecting_to(self, name: str) -> Peer | None:
        """The other end of a connection that is not made yet: who listens under that name of AF_UNIX, and does not
        accept; None where nobody is known."""

        def read() -> list[str]:
            found = self._sockets.unix_listener(name)
            return [str(found.listener), str(found.queued)] if found else []

        listener, queued = (*self._list(f"listener of {name}", read), "", "")[:2]
        pids = [pid for pid, _, _ in self._holders(f"socket:[{listener}]")] if listener else []
        found = self._connecting(pids, name, queued) if pids else None
        return found._replace(text=f"connecting to {name}, {found.text}") if found else None

    def _socket(self, link: str) -> Peer | None:
        found = self._list(f"other end of {link}", lambda: self._find(link))
        if len(found) < 5:
            return None
        family, _, remote, state, other, *queues = found
        pids = [pid for pid, _, _ in self._holders(f"socket:[{other}]")] if other != "0" else []
        held = self._held(PeerKind.SOCKET, pids, remote, state)
        listening = [pid for pid, _, _ in self._holders(f"socket:[{queues[2]}]")] if len(queues) > 2 else []
        if listening and state == "SYN_SENT":
            held = self._connecting(listening, remote, *queues[3:])
        elif {*listening} == {self._pid}:
            text = "which this process itself has not accepted yet"
            held = held._replace(text=text, own=True, is_queued=True)
        is_open = state != "SYN_SENT"
        connected = "connected" if is_open else "connecting"
        if remote.endswith(_NAMES_PORT) and family == "udp":
            connected = f"{connected} to the name server"
        elif remote:
            connected = f"{connected} to"
        where = f"{connected} {remote}" if remote and state != "LISTEN" else f"a {family} socket"
        queued = zip(("unsent", "unread"), queues) if is_open else ()
        waiting = [f"{size} bytes {name}" for name, size in queued if size != "0"]
        if state == "LISTEN":
            return Peer(PeerKind.SOCKET, f"{where} that others connect to", (), remote, state)
        details = ", ".join(filter(None, (where, state if state != "ESTABLISHED" else "", *waiting, held.text)))
        return Peer(PeerKind.SOCKET, details, held.processes, remote, state, own=held.own, is_queued=held.is_queued)


def _status(link: str) -> os.stat_result:
    """The status of the file that a link of /proc leads to."""
    return os.stat(link)  # noqa: PTH116 - pathlib takes 10 ms to import


def _lock_holders(of: Callable[[], os.stat_result], kinds: Collection[str]) -> list[str]:
    """Pids of those that have the file locked (proc_locks(5)). Who waits is not told while a debugger has stopped him,
    so the file decides. A lock of flock(2) is told with its taker, and belongs to all who inherited the open file."""
    try:
        status, rows = of(), _locks()
        found = _holders_of(status, rows, kinds)
        shared = [*_description_holders(status, "FLOCK")] if found and "FLOCK" in kinds else []
    except OSError:
        return []
    return shared or found


def _locks() -> list[list[str]]:
    """The rows of /proc/locks. Raises OSError."""
    return [line.split() for line in proc_files.text("/proc/locks", proc_files.TABLE).splitlines()]


def _holders_of(status: os.stat_result, rows: Sequence[Sequence[str]], kinds: Collection[str]) -> list[str]:
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    locked = [row for row in rows if len(row) > 5 and row[1] in kinds and row[5].endswith(f":{status.st_ino}")]
    exact = [row for row in locked if row[5].startswith(f"{device}:")]
    found = [row[4] for row in exact or locked]  # some file systems show another device to stat(2)
    return [*(pid for pid in found if pid != _NO_PID), *(_description_holders(status) if _NO_PID in found else ())]


_OF_SQLITE = ("-shm", "-wal", "-journal")
"""Ends of the names of the files that SQLite keeps beside a database (sqlite.org/tempfiles.html)."""
_NO_PID = "-1"
"""The pid of a lock that belongs to an open file description (fcntl(2), F_OFD_SETLK): processes may share it."""


def _description_holders(status: os.stat_result, kind: str = "OFDLCK") -> Iterator[str]:
    """Pids of the processes that have a lock of an open file description on that file (proc_pid_fdinfo(5))."""
    for pid in [name for name in _names("/proc") if name.isdecimal()][:_PROCESSES]:
        for fd in _names(f"/proc/{pid}/fd")[:_DESCRIPTORS]:
            try:
                told = proc_files.text(f"/proc/{pid}/fdinfo/{fd}")
                if kind in told and f":{status.st_ino} " in told:
                    yield pid
                    break
            except OSError:
                continue


def _only(rows: Iterator[list[str]]) -> list[str]:
    """The row, where all are of one file."""
    first = next(rows, [])
    return first if all(row[:1] == first[:1] for row in rows) else []


def _locked_files(pid: int, own: bool = False) -> Iterator[list[str]]:
    """Each regular file that the process has open and others have locked, with their pids; or that it has locked by
    its ``own``, so that nobody else can. Who has a file for reading counts where nobody has one for writing."""
    try:
        rows = _locks()
    except OSError:
        return
    found = [*_files_in([row for row in rows if "WRITE" in row and (_is_of_sqlite(row) or not own)], pid, own)]
    yield from found or (() if own else _files_in(rows, pid, own))


def _is_of_sqlite(row: Sequence[str]) -> bool:
    """The bytes that it locks are those of a database, or of its -shm file (PENDING_BYTE of SQLite's os.h, and
    UNIX_SHM_BASE of os_unix.c)."""
    first = row[6] if len(row) > 6 else ""
    begin = number(first)
    return row[1] != "FLOCK" and begin is not None and (begin >= 1 << 30 or 120 <= begin <= 128)


def _files_in(rows: Sequence[Sequence[str]], pid: int, own: bool) -> Iterator[list[str]]:
    """Those of some rows of /proc/locks. What lies beside a database of SQLite counts as the database."""
    for fd in _names(f"/proc/{pid}/fd")[:_DESCRIPTORS] if rows else ():
        try:
            path = link_of(f"/proc/{pid}/fd/{fd}")
            holders = _holders_of(_status(f"/proc/{pid}/fd/{fd}"), rows, _KINDS) if path.startswith("/") else []
        except OSError:
            continue
        found = [each for each in holders if (each == str(pid)) == own]
        if found:
            yield [next((path[: -len(end)] for end in _OF_SQLITE if path.endswith(end)), path), *found]
