"""What is known of a wait besides resource and owners: a class per situation, with phrase, advice and JSON members."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.suggestion import ALL_CHILDREN, Suggestion
from gdbext.diagnosis.report.wait_kind import SelfWait, WaitKind
from gdbext.engine.targets.system.peer import ChildProcess, Peer, PeerKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gdbext.diagnosis.report.collective_wait import CollectiveWait
    from gdbext.diagnosis.report.device_wait import DeviceWait
    from gdbext.diagnosis.report.wait_kind import LostThread, Resource
    from gdbext.diagnosis.waits.pool_table import MissingWorkers
    from gdbext.engine.vocabulary import Inline, Internal, Sparse

    Advice = Iterable[str | Suggestion]


# --- advice about the other end of a wait: sockets, pipes, locks of files, child processes ---


_READ_FIRST = "Read its output before you wait for it to exit (subprocess: communicate(); multiprocessing: get())."


def _resume_suggestion(pid: int) -> Suggestion:
    return Suggestion("It is stopped (SIGSTOP, Ctrl+Z or a debugger); resume it", "", shell=f"kill -CONT {pid}")


def _about_other_process(peer: Peer) -> Iterator[str | Suggestion]:
    """Advice about the first process at the other end: examine it, read its output, resume it."""
    for process in peer.processes[:1]:
        yield Suggestion("Examine the process at the other end with the same command", "", process.pid)
        if process.writes_to_us:
            yield "It waits until its output is read: read it in another thread (subprocess: communicate())."
        if process.is_stopped:
            yield _resume_suggestion(process.pid)


def _about_socket(peer: Peer) -> Iterator[str | Suggestion]:
    """Advice about a listening socket, a connection that is not accepted, or the peer of a connection."""
    if peer.state == "LISTEN":
        shows = "It is a server's event loop, which waits for clients. What its own tasks wait for"
        yield Suggestion(shows, "all-threads --tasks")
        return
    if peer.is_queued:
        yield "Accept that connection in another thread of this process: none does while this one waits."
        return
    yield from _about_other_process(peer)
    if not peer.processes:
        yield f"Check the peer{f' {peer.address}' if peer.address else ''}: the process there that should send."
    yield "Give the socket a timeout: without one it waits forever for a dead peer."


def _about_process(peer: Peer) -> Iterator[str | Suggestion]:
    """Advice about a process whose exit is awaited."""
    for process in peer.processes[:1]:
        yield Suggestion("Examine that process with the same command", "", process.pid)
        if process.writes_to_us:
            yield _READ_FIRST


def _about_pipe(peer: Peer) -> Iterator[str | Suggestion]:
    yield from _about_other_process(peer)
    if peer.own:
        yield "Close this process's own copy of the other end: while it is open, reads never return EOF."


def about_file_lock(peer: Peer) -> Iterator[str | Suggestion]:
    """Advice about a lock of a file."""
    for process in peer.processes[:1]:
        yield Suggestion("Examine the process that holds the lock with the same command", "", process.pid)
    yield "The lock is released when that process unlocks or closes the file, or exits."


def about_children(children: Sequence[ChildProcess], waits_for_end: bool) -> Iterator[str | Suggestion]:
    """Advice about the child processes that may end a wait; ``waits_for_end``: for the exit of one of them."""
    # the system calls in which an idle worker waits for work
    calls_for_work = {"read", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"}

    def relevance(child: ChildProcess) -> tuple[bool, bool, bool]:
        """A stopped child explains best why its parent waits, then one that waits for the parent, then a busy one."""
        return child.is_stopped, child.writes_to_us, child.call not in calls_for_work and not child.reads_from_us

    child = max(children, key=relevance, default=None)
    if child:
        yield Suggestion("Examine the child process with the same command", "", child.pid)
    if not child or len(children) > 1:
        yield ALL_CHILDREN
    if waits_for_end and child and child.writes_to_us:
        yield _READ_FIRST
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


# --- the situations ---


class Refused(Enum):
    """What the system, or a peer, has refused."""

    SPACE = "space"
    """Room on a file system, or in the quota of its user."""
    DESCRIPTORS = "descriptors"
    TASKS = "tasks"
    """One more thread, or one more process."""
    MEMORY = "memory"
    PEER = "peer"
    """The connection to a peer, on this machine or another."""


class RaisedError(NamedTuple):
    """An exception of the program, and what it was refused; false if there is none."""

    text: str = ""
    """Name and arguments, for people."""
    refused: Refused | None = None

    @property
    def json_text(self) -> str:
        return self.text

    @classmethod
    def of_json_text(cls, text: str) -> RaisedError:
        """The exception that a JSON report names: only its text is known."""
        return cls(text)

    @property
    def clause(self) -> str:
        """``, while it handles OSError(28)``; "" for none."""
        return f", while it handles {self.text}" if self else ""

    def __bool__(self) -> bool:
        return bool(self.text)


NO_ERROR = RaisedError()


class WaitDetail:
    """The base: nothing more is known of the wait. The facts that only some situations have are described at the fields
    of the classes below. Only this class itself is false."""

    collective: CollectiveWait | None = None
    device: DeviceWait | None = None
    peer: Peer | None = None
    children: tuple[ChildProcess, ...] = ()
    missing_workers: MissingWorkers | None = None
    lost: LostThread | None = None
    named: str = ""
    expects: tuple[int, ...] = ()
    taken_at: str = ""
    looks_for: str = ""
    repeated_at: str = ""
    lost_signal: bool = False
    handling: RaisedError = NO_ERROR
    caught: RaisedError = NO_ERROR
    seconds: float | None = None
    self_wait: SelfWait | None = None
    set_by_handlers: bool = False
    watches_several: bool = False
    polls_file: bool = False
    """What the thread polls between two sleeps is a file."""
    about_question: str = ""
    """Advice about a question that waits for a person to type."""

    def __bool__(self) -> bool:
        return type(self) is not WaitDetail

    @property
    def unowned(self) -> Unowned:
        """Threads that may end a wait whose resource has no known owner."""
        return Unowned()

    @property
    def absence(self) -> str:
        """``, but this process has no OpenMP worker threads: …``: the thread that should end the wait is missing."""
        return ""

    @property
    def advice_on_absence(self) -> tuple[str, ...]:
        """Steps to try if the thread that should end the wait is missing."""
        return (self.lost.loss.advice,) if self.lost else ()

    @property
    def timed_clause(self) -> str:
        return " (a timed wait: it ends by itself)"

    def phrase(self, resource: Resource) -> str:
        """The wait in words."""
        return resource.wait_phrase

    def is_abandoned(self, ends_by_itself: bool) -> bool:
        """The thread that should end it does not exist."""
        return False

    def leads_outside(self, kind: WaitKind) -> bool:
        """Another process, a peer, a file or input ends it."""
        return kind.traits.is_outside or kind is WaitKind.IO

    def advice(self, kind: WaitKind) -> Advice | None:
        """Steps to try if something outside of the process must end it; None if there is no advice about that."""
        if kind is WaitKind.CHILD_PROCESS:
            return about_children(self.children, waits_for_end=True)
        return kind.traits.advice_when_outside

    def advice_when_blocked(self, kind: WaitKind) -> Advice:
        """Steps to try if no known thread will end it."""
        return (kind.traits.advice_when_blocked,) if kind.traits.advice_when_blocked else ()

    def about_other_end(self, kind: WaitKind) -> Advice | None:
        """Steps to try with the process at the other end, or with the child processes."""
        of_children = about_children(self.children, kind is WaitKind.CHILD_PROCESS) if self.children else None
        return about_peer(self.peer) or of_children

    # Copies with facts that are found later. Each returns the detail unchanged if the fact does not apply to it.

    def with_peer(self, peer: Peer | None) -> WaitDetail:
        """The detail with the process at the other end of the call in which the thread sleeps."""
        return self or OtherEnd(peer)

    def with_wakers(self, wakers: Unowned) -> WaitDetail:
        """The detail with the threads that may end a wait whose resource has no known owner."""
        return wakers

    def in_loop(self, line: str) -> WaitDetail:
        """The detail with the line of the loop that repeats the wait."""
        return self

    def with_device(self, device: DeviceWait) -> WaitDetail:
        """The detail with all facts of the call in which the thread waits for a device."""
        return self


NO_DETAIL = WaitDetail()


_WITH_NCCL = "Check the device with nvidia-smi."
"""No CUDA_LAUNCH_BLOCKING=1, with which NCCL before 2.17.1 hangs (NVIDIA/nccl issue 774)."""


class _OtherRanksFields(NamedTuple):
    collective: Sparse[CollectiveWait | None] = None
    """The operation of other ranks that is waited for; None if unknown."""
    below: Inline[WaitDetail] = NO_DETAIL
    """The wait by which it waits for them: in a call of a device, on a descriptor."""
    handling: Sparse[RaisedError] = NO_ERROR
    """The exception that the thread handles meanwhile, where it sleeps or waits for other ranks; for people."""


class OtherRanks(_OtherRanksFields, WaitDetail):
    """The thread waits for other ranks."""

    device = property(lambda self: self.below.device)
    peer = property(lambda self: self.below.peer)
    children = property(lambda self: self.below.children)
    lost_signal = property(lambda self: self.below.lost_signal)
    seconds = property(lambda self: self.below.seconds)

    def phrase(self, resource: Resource) -> str:
        """``waits in collective #18 all_reduce (last enqueued 18, last completed 17)``."""
        return (self.collective.phrase if self.collective else self.below.phrase(resource)) + self.handling.clause

    def advice(self, kind: WaitKind) -> Advice | None:
        if self.collective and self.collective.size is not None:
            return (
                "Check that all ranks run, have the same MASTER_ADDR and MASTER_PORT, and can reach it (firewall).",
            )
        if self.collective is not None and self.collective.for_agents:
            return ("Look at torchrun's agents of the other nodes, and at their workers.",)
        if self.collective is not None and self.collective.on_device:
            return (*WaitKind.COLLECTIVE.traits.advice_when_outside, _WITH_NCCL)
        return kind.traits.advice_when_outside

    def with_peer(self, peer: Peer | None) -> WaitDetail:
        return OtherRanks(self.collective, self.below.with_peer(peer), self.handling)

    def with_device(self, device: DeviceWait) -> WaitDetail:
        return OtherRanks(self.collective, self.below.with_device(device), self.handling)


class _IdleFields(NamedTuple):
    lacks_work: Sparse[bool] = False
    """The thread waits for work, not for other threads."""


class IdleWorker(_IdleFields, WaitDetail):
    """The thread, or the only one of its process, is a worker without work."""

    def phrase(self, resource: Resource) -> str:
        """``waits for work (resource tracker)``."""
        return f"waits for work ({resource.name})"


class _NamedFields(NamedTuple):
    named: Sparse[str] = ""
    """What is waited for, by a function on the stack: ``a connection of its pool``; for people."""
    until: Sparse[str] = ""
    """The event that ends the wait: ``one is given back``; for people."""
    steps: Internal[tuple[str, ...]] = ()
    """Steps to try."""
    collective: Internal[CollectiveWait | None] = None
    """The operation of other ranks by which it waits; None if there is none."""
    peer: Sparse[Peer | None] = None
    """The other end of the call in which it waits; None if unknown."""
    children: Internal[tuple[ChildProcess, ...]] = ()
    """Child processes that may end it."""
    seconds: Internal[float | None] = None
    """Seconds that it takes from now on, None if unknown."""


class NamedDetail(_NamedFields, WaitDetail):
    """A function on the stack says what the thread waits for (waits/named_waits.py)."""

    def phrase(self, resource: Resource) -> str:
        """``waits for a message for the ZeroMQ socket of tcp://h:1, until a peer sends one (in poll on fd 8)``."""
        place = f" (in {resource.name})" if resource.kind is WaitKind.IO else ""
        return f"waits for {self.named}, until {self.until}{place}"

    def leads_outside(self, kind: WaitKind) -> bool:
        return super().leads_outside(kind) or kind is WaitKind.SLEEP

    def advice(self, kind: WaitKind) -> Advice | None:
        return (*self.steps, *(self.about_other_end(kind) or ()))

    def advice_when_blocked(self, kind: WaitKind) -> Advice:
        return self.steps or super().advice_when_blocked(kind)

    def with_peer(self, peer: Peer | None) -> WaitDetail:
        return self._replace(peer=peer)

    def with_wakers(self, wakers: Unowned) -> WaitDetail:
        return self  # that no thread is in one of the functions that wake it says nothing


class _DeviceCallFields(NamedTuple):
    device: Sparse[DeviceWait | None] = None
    """The call in which a device is waited for."""
    peer: Sparse[Peer | None] = None
    """The other end; None if unknown."""


class DeviceCall(_DeviceCallFields, WaitDetail):
    """The thread waits for a device in a call of CUDA's runtime or driver."""

    def phrase(self, resource: Resource) -> str:
        """``waits for the device (cudaStreamSynchronize of stream 35 of cuda:0)``."""
        return self.device.phrase if self.device else resource.wait_phrase

    def advice(self, kind: WaitKind) -> Advice | None:
        return (_WITH_NCCL,) if self.device and self.device.nccl_call else super().advice(kind)

    def with_peer(self, peer: Peer | None) -> WaitDetail:
        return DeviceCall(self.device, peer)

    def with_device(self, device: DeviceWait) -> WaitDetail:
        return DeviceCall(device, self.peer)


class _OtherEndFields(NamedTuple):
    peer: Sparse[Peer | None] = None
    """The other end; None if unknown."""
    children: Internal[tuple[ChildProcess, ...]] = ()
    """Child processes that may end it: the child that is waited for, those at the other end of a pipe."""
    watches_several: Internal[bool] = False
    """It waits for any of several file descriptors, as epoll_wait does."""
    lost: Internal[LostThread | None] = None
    """The worker process that should end this wait and is dead, though others hold its pipe open; None if unknown."""


class OtherEnd(_OtherEndFields, WaitDetail):
    """The thread waits for a file descriptor, or for a child process."""

    @property
    def absence(self) -> str:
        return f", but {self.lost.summary}" if self.lost else ""

    def is_abandoned(self, ends_by_itself: bool) -> bool:
        return bool(self.lost) and not ends_by_itself

    def advice(self, kind: WaitKind) -> Advice | None:
        return super().advice(kind) or self.about_other_end(kind)

    def advice_when_blocked(self, kind: WaitKind) -> Advice:
        return _about_lock(self.peer) or super().advice_when_blocked(kind)

    def with_peer(self, peer: Peer | None) -> WaitDetail:
        return self._replace(peer=peer)


def _about_lock(peer: Peer | None) -> tuple[str | Suggestion, ...]:
    """Advice if the peer holds the lock of a file; () otherwise."""
    return (*about_file_lock(peer),) if peer and peer.kind is PeerKind.FILE_LOCK else ()


class Prompt(OtherEnd):
    """The program has asked a question, and waits for a person to type."""

    about_question = (
        "The prompt may be invisible: answer it beforehand (an argument, an option, a variable of the "
        "environment), remove breakpoint() (PYTHONBREAKPOINT=0), or start the program on a terminal."
    )


class OwnServer(OtherEnd):
    """The thread waits for an answer of its own process, which only the event loop that it blocks could give."""

    self_wait = SelfWait.SERVER


class Repeatable(WaitDetail):
    """A wait that a loop may begin again after its timeout: it has a field ``repeated_at``."""

    @property
    def timed_clause(self) -> str:
        line = self.repeated_at
        return f" (timed; the loop at {line} repeats it)" if line else super().timed_clause


class _UnownedFields(NamedTuple):
    lost: Sparse[LostThread | None] = None
    """The thread that should end this wait and does not exist; None if unknown."""
    repeated_at: Sparse[str] = ""
    """The line of the loop that repeats this timed wait, ``train.py:8 (step)``; "" if unknown or it does more."""
    lost_signal: Sparse[bool] = False
    """The condition variable's words show that a signal reached no thread, while this thread sleeps."""
    expects: Internal[tuple[int, ...]] = ()
    """Ids of threads that can reach the object and so may end the wait; no proof that one of them will."""
    set_by_handlers: Internal[bool] = False
    """Programs set such an object in signal handlers while their main thread waits for it."""
    mutex: Internal[Resource | None] = None
    """The mutex that goes with a condition variable of the C library."""


class Unowned(_UnownedFields, Repeatable):
    """A wait whose owner is unknown: threads that may end it, or the thread that should and is lost."""

    @property
    def unowned(self) -> Unowned:
        return self

    def in_loop(self, line: str) -> WaitDetail:
        return self._replace(repeated_at=line)

    @property
    def absence(self) -> str:
        return f", but {self.lost.summary}" if self.lost else ""

    def phrase(self, resource: Resource) -> str:
        """``waits for the condition variable 0x10 (with mutex 0x20)``."""
        return resource.wait_phrase + (f" (with mutex {self.mutex.address:#x})" if self.mutex else "")

    def is_abandoned(self, ends_by_itself: bool) -> bool:
        return bool(self.lost) and not ends_by_itself


class _OwnedFields(NamedTuple):
    taken_at: Sparse[str] = ""
    """The line where the owner took the lock, ``train.py:8 (step)``; "" where that cannot be known."""
    repeated_at: Sparse[str] = ""
    """The line of the loop that repeats this timed wait, ``train.py:8 (step)``; "" if unknown or it does more."""
    self_wait: Internal[SelfWait | None] = None
    """The reason why a thread waits for what it holds itself, where other code interrupted its own."""


class Owned(_OwnedFields, Repeatable):
    """A wait whose owner is known: where the lock was taken, or why the owner is the waiter itself."""

    def in_loop(self, line: str) -> WaitDetail:
        return self._replace(repeated_at=line)


class _AbsentWorkersFields(NamedTuple):
    missing_workers: Sparse[MissingWorkers | None] = None
    """The threads that would end this wait and do not exist in this process; None if unknown."""
    unowned: Inline[Unowned] = Unowned()
    """The wait as it is without that knowledge."""


class AbsentWorkers(_AbsentWorkersFields, WaitDetail):
    """The process lacks workers of a pool that would end the wait."""

    lost = property(lambda self: self.unowned.lost)
    lost_signal = property(lambda self: self.unowned.lost_signal)
    expects = property(lambda self: self.unowned.expects)

    @property
    def absence(self) -> str:
        return f", but {self.missing_workers.sentence}" if self.missing_workers else ""

    @property
    def advice_on_absence(self) -> tuple[str, ...]:
        text = self.missing_workers.pool.advice_when_missing if self.missing_workers else ""
        return (text,) if text else ()

    def phrase(self, resource: Resource) -> str:
        return self.unowned.phrase(resource)

    def is_abandoned(self, ends_by_itself: bool) -> bool:
        forked = self.missing_workers is not None and self.missing_workers.forked
        return forked or self.unowned.is_abandoned(ends_by_itself)

    def with_wakers(self, wakers: Unowned) -> WaitDetail:
        return AbsentWorkers(self.missing_workers, wakers)


class Polled(NamedTuple):
    """What a loop polls between two sleeps: something in this process, or a process; false if it is unknown."""

    peer: Sparse[Peer | None] = None
    """The other end; None if unknown."""
    lost: Sparse[LostThread | None] = None
    """The thread that should end this wait and is not there; None if unknown."""
    looks_for: Sparse[str] = ""
    """The object that a thread polls between two sleeps; for people."""
    expects: Internal[tuple[int, ...]] = ()
    """Ids of threads that can reach the object and so may end the wait; no proof that one of them will."""

    @property
    def is_file(self) -> bool:
        """It is a file, or the lock of one."""
        return False

    @property
    def advice(self) -> tuple[str, ...]:
        """Steps to try if something outside of the process must end the wait; () if nothing must."""
        return ()

    def __bool__(self) -> bool:
        return bool(self.looks_for)


NOT_POLLED = Polled()


class PolledFile(Polled):
    """A file is polled, or its lock."""

    is_file = True
    advice = (
        "The process that creates or removes it may be gone; a killed process leaves its lock file behind.",
        "Check whether any process still uses it (fuser, lsof, ps); if none does, remove the file.",
    )


class PolledMeeting(Polled):
    """The thread polls whether the other machines of its job have joined."""

    advice = ("Start the other nodes with the same --rdzv-id and --rdzv-endpoint; check that they reach that address.",)


class _SleepFields(NamedTuple):
    polled: Inline[Polled] = NOT_POLLED
    repeated_at: Sparse[str] = ""
    """The line of the loop that repeats this timed wait, ``train.py:8 (step)``; "" if unknown or it does more."""
    handling: Sparse[RaisedError] = NO_ERROR
    """The exception that the thread handles meanwhile, where it sleeps or waits for other ranks; for people."""
    caught: Internal[RaisedError] = NO_ERROR
    """The exception that the loop has caught at an earlier turn: what was refused then it may have by now."""
    seconds: Internal[float | None] = None
    """Seconds that it takes from now on, None if unknown."""
    children: Internal[tuple[ChildProcess, ...]] = ()
    """The polled processes; all child processes if it is unknown what the loop polls."""
    exited_children: Internal[str] = ""
    """A clause on child processes that have exited, for a loop that polls something unknown; for people."""


class Sleep(_SleepFields, WaitDetail):
    """A sleep, perhaps of a loop that polls something in between."""

    peer = property(lambda self: self.polled.peer)
    lost = property(lambda self: self.polled.lost)
    looks_for = property(lambda self: self.polled.looks_for)
    expects = property(lambda self: self.polled.expects)
    polls_file = property(lambda self: self.polled.is_file)

    @property
    def absence(self) -> str:
        return f", but {self.polled.lost.summary}" if self.polled.lost else ""

    def phrase(self, resource: Resource) -> str:
        """``sleeps in a loop that polls stop (which is False)``."""
        if self.polled:
            return f"{resource.wait_phrase} in a loop that polls {self.polled.looks_for}{self.handling.clause}"
        caught = f", which has caught {self.caught.text}" if self.caught else ""
        verb = "yields the CPU" if self.seconds == 0 else "sleeps"
        again = f"{verb} repeatedly in the loop at {self.repeated_at}{caught}{self.exited_children}"
        return f"{again if self.repeated_at else resource.wait_phrase}{self.handling.clause}"

    def leads_outside(self, kind: WaitKind) -> bool:
        if self.handling.refused is Refused.PEER:
            return True
        return bool(self.polled and not self.polled.expects and (self.children or self.polled.advice))

    def advice(self, kind: WaitKind) -> Advice | None:
        of_refusal = _CONNECTS if self.handling.refused else None
        return about_peer(self.peer) or of_refusal or self.polled.advice or self.about_other_end(kind)

    def advice_when_blocked(self, kind: WaitKind) -> Advice:
        return _about_lock(self.peer) or super().advice_when_blocked(kind)


_CONNECTS = ("Check that the server runs at this address and port, and that no firewall blocks it.",)
