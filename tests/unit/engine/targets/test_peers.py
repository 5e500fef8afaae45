"""Other ends of descriptors, of this very process and of a child of it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext.engine.arch.architectures import by_machine
from gdbext.engine.targets.host_files import HostFiles
from gdbext.engine.targets.system import socket_table
from gdbext.engine.targets.system.peer import ChildProcess
from gdbext.engine.targets.system.peers import Peers
from gdbext.engine.targets.system.procfs import ProcFs
from gdbext.engine.targets.system.socket_table import SocketTables


def link(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def inode(fd: int) -> int:
    return int(link(fd).partition("[")[2].rstrip("]"))


@pytest.fixture
def peers() -> Peers:
    return Peers(os.getpid(), HostFiles(), ChildProcess)


@pytest.fixture
def child() -> Iterator[list[int]]:
    """Children that were forked and sleep; ended after the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def fork(pids: list[int], prepare=lambda: None) -> int:
    """A child that has done ``prepare`` and sleeps; one that fails ends, and is missed here."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ready)
            prepare()
            os.write(told, b".")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    pids.append(pid)
    os.close(told)
    with os.fdopen(ready, "rb") as answer:
        assert answer.read(1) == b".", "the child has failed"
    return pid


def test_the_ends_of_a_pipe(peers, child):
    output, into = os.pipe()
    found = peers.peer_of(link(output), call_writes=False)
    assert (found.own, found.processes, found.kind.value) == (True, (), "pipe")
    pid = fork(child, lambda: os.close(output))
    os.close(into)
    found = Peers(os.getpid(), HostFiles(), ChildProcess).peer_of(link(output), call_writes=False)
    assert ([each.pid for each in found.processes], found.own) == ([pid], False)
    assert str(pid) in found.text
    os.close(output)


def test_a_table_is_read_no_longer_than_the_budget_allows(monkeypatch):
    monkeypatch.setattr(socket_table, "_SECONDS", 0.0)
    monkeypatch.setattr(socket_table, "_rows", lambda *_: iter([["0"] * 9 + [str(each)] for each in range(1000)]))
    tables = SocketTables(os.getpid())
    tables._internet_socket("999")
    assert len(tables._tables["tcp"].by_inode) < 1000


def test_the_backlog_of_a_listening_unix_socket_is_no_number_of_bytes(tmp_path, peers):
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "socket"))
        server.listen(100)
        client.connect(str(tmp_path / "socket"))
        found = peers.peer_of(link(server.fileno()), call_writes=False)
        if found is None:
            pytest.skip("this kernel has no unix_diag")
        assert found.state == "LISTEN"
        assert "bytes" not in found.text
        client.sendall(b"x" * 1000)
        assert "unsent" not in peers.peer_of(link(client.fileno()), call_writes=True).text, "what it takes of memory"


def test_a_connection_through_tcp_has_addresses_and_another_end(peers):
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        host, port = server.getsockname()
        found = SocketTables(os.getpid()).find(inode(client.fileno()))
        assert (found.remote, found.state, found.peer) == (f"{host}:{port}", "ESTABLISHED", inode(accepted.fileno()))
        assert SocketTables(os.getpid()).find(inode(server.fileno())).state == "LISTEN"
        found = peers.peer_of(link(client.fileno()), call_writes=False)
        assert (found.kind.value, found.address, found.own) == ("socket", f"{host}:{port}", True)
        assert f"connected to {host}:{port}" in found.text
        accepted.close()


@pytest.mark.parametrize("call", ["flock", "lockf", "open description", "inherited"])
def test_who_has_locked_a_file(call, tmp_path, peers, child):
    """Of a lock that was inherited the kernel tells who took it, which is this very process."""
    path = tmp_path / "lock"
    kept = [open_and_lock(path, "flock")] if call == "inherited" else []
    pid = fork(child, lambda: kept.append(open_and_lock(path, call)) if call != "inherited" else None)
    kept.clear()
    whole_file = call in ("flock", "inherited")
    with path.open("w") as mine:
        found = peers.lock_holder(mine.fileno(), whole_file=whole_file)
        assert [each.pid for each in found.processes] == [pid]
        assert peers.lock_holder(mine.fileno(), whole_file=not whole_file) is None
        assert peers.lock_of("model.lock", lambda: mine.name) == found


@pytest.mark.parametrize("files", [1, 2])
def test_which_file_is_locked_elsewhere(files, tmp_path, child):
    """Of two, nobody knows which one a thread wants that asks again and again."""
    paths = [tmp_path / f"lock{number}" for number in range(files)]
    kept = []
    owner = fork(child, lambda: kept.extend(open_and_lock(path, "flock") for path in paths))

    def open_alone() -> None:
        """Without what it has inherited: the workers of the tests take turns by a lock of their own."""
        for each in [*Path("/proc/self/fd").iterdir()]:
            if each.is_file() and int(each.name) > 2:
                os.close(int(each.name))
        kept.extend(path.open() for path in paths)

    asks = fork(child, open_alone)
    found = Peers(asks, HostFiles(), ChildProcess).locked_elsewhere()
    named = None if found is None else (found[0], [each.pid for each in found[1].processes])
    assert named == ((str(paths[0]), [owner]) if files == 1 else None)
    assert Peers(asks, HostFiles(), ChildProcess).locked_here() is None
    assert Peers(owner, HostFiles(), ChildProcess).locked_here() is None, "these are no locks of SQLite's"


def test_what_lies_beside_a_database_counts_as_the_database(tmp_path, child):
    """Whoever has a database of SQLite open has its -shm locked for reading; who writes has it for writing."""
    path = tmp_path / "data.db"

    def open_database(write: str) -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("pragma journal_mode=wal")
        connection.execute("create table if not exists t (x)")
        connection.execute(write)
        return connection

    kept = []
    fork(child, lambda: kept.append(open_database("select * from t")))
    owner = fork(child, lambda: kept.append(open_database("begin immediate")))
    asks = fork(child, lambda: kept.append(open_database("begin")))
    found = Peers(asks, HostFiles(), ChildProcess).locked_elsewhere()
    assert (found[0], [each.pid for each in found[1].processes]) == (str(path), [owner])


def open_and_lock(path, call):
    file = path.open("w")
    if call == "open description":
        fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_SETLK
        return file
    getattr(fcntl, call)(file, fcntl.LOCK_EX)
    return file


def test_bytes_that_nobody_has_read_yet(peers):
    here, there = socket.socketpair()
    here.sendall(b"x" * 100)
    assert SocketTables(os.getpid()).find(inode(there.fileno())).unread
    assert "bytes unread" in peers.peer_of(link(there.fileno()), call_writes=False).text
    here.close()
    there.close()


def test_children_of_a_child(child):
    def start() -> None:
        if os.fork() == 0:
            signal.pause()
            os._exit(0)

    pid = fork(child, start)
    outside = ProcFs(os.getpid(), HostFiles(), by_machine(62).syscall_names)
    try:
        ((parent, (grandchild,)),) = [each for each in outside.grandchildren().items() if each[0] == pid]
        assert parent == pid
        assert grandchild.pid not in (pid, os.getpid())
    finally:
        for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(each), signal.SIGKILL)
    assert outside.absolute("model.lock") == str(Path.cwd() / "model.lock")
    assert outside.absolute("/run/../tmp/x") == "/run/../tmp/x"


def row(local: str, remote: str, state: str, inode: str) -> list[str]:
    return ["0:", local, remote, state, "00000000:00000000", "00:0", "0", "0", "0", inode]


@pytest.mark.parametrize(("host", "listener"), [("0200000A", 0), ("0100000A", 10), ("0100007F", 10)])
def test_who_listens_here_listens_nowhere_else(host: str, listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """10.0.0.1 connects to a port that this machine, 10.0.0.1, has a listener on: usual where a port is a job's; to
    another machine's, to its own, to that of the loopback."""
    rows = [row("00000000:7530", "00000000:0000", "0A", "10"), row("0100000A:8F00", f"{host}:7530", "02", "20")]
    monkeypatch.setattr(socket_table, "_rows", lambda _pid, family: iter(rows if family == "tcp" else ()))
    found = SocketTables(1).find(20)
    assert found.listener == listener
