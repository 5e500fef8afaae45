"""The sockets of this machine: addresses, states, other ends. Linux: proc_pid_net(5), sock_diag(7)."""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.targets.system import proc_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TCP_STATES = (
    *("", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT"),
    *("LAST_ACK", "LISTEN", "CLOSING"),
)
"""States of include/net/tcp_states.h by their number."""
LISTEN = "LISTEN"
_FAMILIES = ("tcp", "tcp6", "udp", "udp6")
_SECONDS = 2.0
"""Seconds that all tables of one process may take to read."""
_MAX_ROWS = 100_000


class Socket(NamedTuple):
    """One socket. ``family`` is tcp, udp or unix; ``local`` and ``remote`` are HOST:PORT, or names of AF_UNIX."""

    family: str
    local: str = ""
    remote: str = ""
    state: str = ""
    unsent: int = 0
    unread: int = 0
    """Bytes in its queues."""
    peer: int = 0
    """Inode of the socket at the other end; 0 if that is not on this machine."""
    listener: int = 0
    """Inode of the listening socket in whose queue the other end is, or will be, not accepted yet; else 0."""
    queued: int = 0
    """Connections that the listener has not accepted."""


def peer_user(connection: socket.socket) -> int | None:
    """The uid of the process at the other end of a TCP connection, as the kernel has it with that socket; None if it is
    on another machine, in another network namespace, or not accepted yet."""
    ends = []  # as _address writes them
    for host, port, *_ in (connection.getpeername(), connection.getsockname()):
        host = host.rpartition("::ffff:")[2]
        ends.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    for family in ("tcp", "tcp6"):
        for row in _rows(os.getpid(), family):
            if row[9] != "0" and [_address(row[1]), _address(row[2])] == ends:
                return int(row[7])
    return None


class SocketTables:
    """The sockets of the network namespace of process ``pid``; each table is read once, on demand. A machine with many
    connections has tables of megabytes: rows that are not read within the budget are unknown."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._tables: dict[str, _Table] = {}
        self._seconds_left = _SECONDS

    def find(self, inode: int) -> Socket | None:
        """The socket with that inode, None if it is of none of these families, or unknown."""
        # a request for one socket, before whole tables
        return (_unix_socket(inode) or self._internet_socket(str(inode))) if inode else None

    def unix_listener(self, name: str) -> Socket | None:
        """The socket of AF_UNIX that listens under that name, with the number of connections that it has not accepted.
        A row of /proc/PID/net/unix has flags, type, state, inode and path; an abstract name begins with "@"."""
        for row in _rows(self._pid, "unix", 8):  # 8 words: it has a name
            if row[7] == name and int(row[3], 16) & 1 << 16:  # __SO_ACCEPTCON (linux/net.h)
                queued = _queue_length(_unix_attributes(int(row[6])) or {})
                return Socket("unix", name, state=LISTEN, listener=int(row[6]), queued=queued)
        return None

    def _internet_socket(self, inode: str) -> Socket | None:
        """The socket of TCP or UDP with that inode; None for none. A connection that was not accepted yet has no socket
        at its other end: its row there has inode 0."""
        for family in _FAMILIES:
            table = self._table(family)
            row = table.by_inode.get(inode)
            if row:
                other = table.by_ends.get((row[2], row[1]))
                found = _socket_of_row(family, row, other)
                is_queued = other is not None and other[9] == "0" and found.state == "ESTABLISHED"
                listener = table.listener(row[2], row[1]) if is_queued or found.state == "SYN_SENT" else (0, 0)
                return found._replace(listener=listener[0], queued=listener[1])
        return None

    def _table(self, family: str) -> _Table:
        """The table of a family ("tcp6"), read by the first call."""
        if family not in self._tables:
            started = time.monotonic()
            self._tables[family] = _Table(_rows(self._pid, family), started + self._seconds_left)
            self._seconds_left -= time.monotonic() - started
        return self._tables[family]


class _Table:
    """The rows of a table, by inode and by (local, remote) address as the table writes them."""

    def __init__(self, rows: Iterator[list[str]], deadline: float) -> None:
        """Read rows until ``deadline`` (time.monotonic)."""
        self.by_inode: dict[str, list[str]] = {}
        self.by_ends: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            self.by_inode.setdefault(row[9], row)
            self.by_ends.setdefault((row[1], row[2]), row)
            if time.monotonic() > deadline:
                return

    def listener(self, address: str, other: str) -> tuple[int, int]:
        """(inode, number of connections that were not accepted) of the only socket that listens at ``address``; (0, 0)
        for none. ``other``: the address that connects. A socket that listens at all addresses does so only for the
        addresses of this machine: a loopback, ``other``, or one that a socket is bound to."""
        host, _, port = address.partition(":")
        # 127.0.0.1 has 8 digits, in the order of this machine's words; ::1 on a little-endian machine
        is_loopback = host.endswith("7F") if len(host) == 8 else host == "00000000000000000000000001000000"
        ours = {other.partition(":")[0], *(row[1].partition(":")[0] for row in self.by_inode.values())}
        ends = {address, f"{'0' * len(host)}:{port}"} if is_loopback or host in ours else {address}
        listeners = [row for row in self.by_inode.values() if row[1] in ends and _TCP_STATES[int(row[3], 16)] == LISTEN]
        # rx_queue of a listener is sk_ack_backlog (net/ipv4/tcp_ipv4.c)
        return (int(listeners[0][9]), int(listeners[0][4].partition(":")[2], 16)) if len(listeners) == 1 else (0, 0)


def _socket_of_row(family: str, row: list[str], other: list[str] | None) -> Socket:
    """The socket of a row; ``other``: the row of its other end, if that is on this machine."""
    remote = "" if row[2].endswith(":0000") and family.startswith("udp") else _address(row[2])
    state = dict(enumerate(_TCP_STATES)).get(int(row[3], 16), "") if family.startswith("tcp") else ""
    if state == LISTEN:  # its queues count connections
        return Socket(family[:3], _address(row[1]), remote, state)
    unsent, unread = (int(word, 16) for word in row[4].split(":"))
    return Socket(family[:3], _address(row[1]), remote, state, unsent, unread, int(other[9]) if other else 0)


def _rows(pid: int, family: str, min_words: int = 10) -> Iterator[list[str]]:
    """The words of each row of /proc/PID/net/FAMILY that has at least ``min_words``: its number, local and remote
    address, state, queues, two more, uid, one more, inode."""
    try:
        lines = os.fsdecode(proc_files.head(f"/proc/{pid}/net/{family}", proc_files.TABLE)).split("\n", _MAX_ROWS + 2)
    except OSError:
        return
    yield from (words for line in lines[1 : _MAX_ROWS + 2] if len(words := line.split()) >= min_words)


def _address(text: str) -> str:
    """``0100007F:1F90`` → ``127.0.0.1:8080``: words of the address in the machine's own byte order."""
    host, _, port = text.partition(":")
    raw = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
    if raw[:12] == bytes(10) + b"\xff\xff":
        raw = raw[12:]  # an IPv4 address as IPv6 has it
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    name = socket.inet_ntop(family, raw)
    return f"{name}:{int(port, 16)}" if family == socket.AF_INET else f"[{name}]:{int(port, 16)}"


def _unix_socket(inode: int) -> Socket | None:
    """A socket of AF_UNIX; only the kernel's sock_diag knows the other end."""
    attributes = _unix_attributes(inode)
    if attributes is None:
        return None
    peer = int.from_bytes(attributes.get(_PEER, b"")[:4], "little")
    ends = (attributes, _unix_attributes(peer) if peer else None)
    names = [(end or {}).get(_NAME, b"").strip(b"\0").decode("utf-8", "replace") for end in ends]
    if attributes[_STATE] == b"\x0a":  # TCP_LISTEN: its queues count connections
        return Socket("unix", names[0], names[1], LISTEN)
    return Socket("unix", names[0], names[1], unread=_queue_length(attributes), peer=peer)


def _queue_length(attributes: Mapping[int, bytes]) -> int:
    """Bytes that a socket of AF_UNIX has not read; of one that listens, connections. The other member of struct
    unix_diag_rqlen is what unsent bytes take of the kernel's memory, which is not their number."""
    return int.from_bytes(attributes.get(_QUEUES, b"")[:4], "little")


_NAME, _PEER, _QUEUES = 0, 2, 4
"""UNIX_DIAG_NAME, UNIX_DIAG_PEER, UNIX_DIAG_RQLEN (linux/unix_diag.h)."""
_STATE = -1
"""Our number for udiag_state of struct unix_diag_msg, which is no attribute."""
_BY_FAMILY = 20
"""SOCK_DIAG_BY_FAMILY (linux/sock_diag.h)."""


def _unix_attributes(inode: int) -> dict[int, bytes] | None:
    """Attribute → value of the socket of AF_UNIX with that inode; None if the kernel does not know it."""
    every_state = no_cookie = 0xFFFFFFFF
    shown = 1 | 4 | 16  # UDIAG_SHOW_NAME, UDIAG_SHOW_PEER, UDIAG_SHOW_RQLEN
    request = struct.pack("<BBHIII2I", socket.AF_UNIX, 0, 0, every_state, inode, shown, no_cookie, no_cookie)
    header = struct.pack("<IHHII", 16 + len(request), _BY_FAMILY, 1, 1, 0)  # flags: NLM_F_REQUEST
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as channel:  # NETLINK_SOCK_DIAG
            channel.settimeout(1)
            channel.send(header + request)
            answer = channel.recv(8192)
    except OSError:
        return None
    size, kind = struct.unpack_from("<IH", answer)
    if kind != _BY_FAMILY or size < 32:
        return None
    # struct rtattr: length and type of two bytes each, then the value, padded to four
    attributes, raw = {_STATE: answer[18:19]}, answer[32:size]
    while len(raw) >= 4:
        size, kind = struct.unpack_from("<HH", raw)
        if size < 4:
            break
        attributes[kind] = raw[4:size]
        raw = raw[(size + 3) & ~3 :]
    return attributes
