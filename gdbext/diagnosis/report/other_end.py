"""Advice about what is at the other end of a wait: sockets, pipes, locks of files, child processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gdbext.diagnosis.report.suggestion import ALL_CHILDREN, Suggestion
from gdbext.engine.targets.system.peer import ChildProcess, Peer, PeerKind


def _resume_suggestion(pid: int) -> Suggestion:
    return Suggestion(
        "It is stopped (SIGSTOP, Ctrl+Z or a debugger); this lets it go on", "", shell=f"kill -CONT {pid}"
    )


def _about_other_process(peer: Peer) -> Iterator[str | Suggestion]:
    for process in peer.processes[:1]:
        yield Suggestion("Look at the process at the other end with the same command", "", process.pid)
        if process.writes_to_us:
            yield "It waits until somebody reads what it writes: do so in another thread (subprocess: communicate())."
        if process.is_stopped:
            yield _resume_suggestion(process.pid)


def _about_socket(peer: Peer) -> Iterator[str | Suggestion]:
    if peer.state == "LISTEN":
        shows = "It is a server's loop: somebody may connect. What its own tasks wait for"
        yield Suggestion(shows, "all-threads --tasks")
        return
    if peer.is_queued:
        yield "Accept that connection in another thread of this process: as long as it waits here nobody does."
        return
    yield from _about_other_process(peer)
    if not peer.processes:
        yield f"Look at the peer{f' {peer.address}' if peer.address else ''}: the process there that should send."
    yield "Give the socket a timeout: without one a peer that is silent, or gone, is waited for without end."


def _about_process(peer: Peer) -> Iterator[str | Suggestion]:
    for process in peer.processes[:1]:
        yield Suggestion("Look at that process with the same command", "", process.pid)
        if process.writes_to_us:
            yield "Read what it writes before you wait for its end (communicate())."


def _about_pipe(peer: Peer) -> Iterator[str | Suggestion]:
    yield from _about_other_process(peer)
    if peer.own:
        yield "Close this process's own copy of the other end: as long as it is open the pipe never ends."


def about_file_lock(peer: Peer) -> Iterator[str | Suggestion]:
    """Advice about a lock of a file."""
    for process in peer.processes[:1]:
        yield Suggestion("Look at the process that holds the lock with the same command", "", process.pid)
    yield "The lock is released when that process unlocks or closes the file, or ends."


def about_children(children: Sequence[ChildProcess], waits_for_end: bool) -> Iterator[str | Suggestion]:
    """Advice about the child processes that may end a wait; ``waits_for_end``: for the exit of one of them."""
    # the system calls in which an idle worker waits for work
    calls_for_work = {"read", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"}

    def relevance(child: ChildProcess) -> tuple[bool, bool, bool]:
        """A stopped child explains best why its parent waits, then one that waits for the parent, then a busy one."""
        return child.is_stopped, child.writes_to_us, child.call not in calls_for_work and not child.reads_from_us

    child = max(children, key=relevance, default=None)
    if child:
        yield Suggestion("Look at the child process with the same command", "", child.pid)
    if not child or len(children) > 1:
        yield ALL_CHILDREN
    if waits_for_end and child and child.writes_to_us:
        yield "Read what it writes before you wait for its end (subprocess: communicate(); multiprocessing: get())."
    if child and child.is_stopped:
        yield _resume_suggestion(child.pid)


def about_peer(peer: Peer | None) -> Iterator[str | Suggestion] | None:
    """Advice about the other end of a wait; None if it is unknown, or there is no advice about its kind."""
    about: dict[PeerKind, Callable[[Peer], Iterator[str | Suggestion]]] = {
        PeerKind.SOCKET: _about_socket,
        PeerKind.PIPE: _about_pipe,
        PeerKind.PROCESS: _about_process,
        PeerKind.FILE_LOCK: about_file_lock,
    }
    return about[peer.kind](peer) if peer and peer.kind in about else None
