"""WaitDetail: what is known of a wait beside its resource and its owners, one class for each situation.

Each answers the same questions (who should end the wait, how it is said, what to do about it), and has the members of
its situation in the JSON report.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.other_end import about_children, about_file_lock, about_peer
from gdbext.diagnosis.report.wait_kind import SelfWait, WaitKind
from gdbext.engine.targets.system.peer import PeerKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gdbext.diagnosis.report.collective_wait import CollectiveWait
    from gdbext.diagnosis.report.device_wait import DeviceWait
    from gdbext.diagnosis.report.resource import Resource
    from gdbext.diagnosis.report.suggestion import Suggestion
    from gdbext.diagnosis.report.wait_kind import LostThread
    from gdbext.diagnosis.waits.pool_table import MissingWorkers
    from gdbext.engine.targets.system.peer import ChildProcess, Peer
    from gdbext.engine.vocabulary import Inline, Internal, Sparse

    Advice = Iterable[str | Suggestion]


class Refused(Enum):
    """A thing that the system, or a peer, has refused."""

    SPACE = "space"
    """Room on a file system, or in the quota of its user."""
    DESCRIPTORS = "descriptors"
    TASKS = "tasks"
    """One more thread, or one more process."""
    MEMORY = "memory"
    PEER = "peer"
    """The connection to a peer, on this machine or another."""


class RaisedError(NamedTuple):
    """An exception of the program, and what it was refused; false where there is none."""

    text: str = ""
    """Name and arguments, for people."""
    refused: Refused | None = None

    @property
    def json_text(self) -> str:
        """All that JSON has of it."""
        return self.text

    @classmethod
    def of_json_text(cls, text: str) -> RaisedError:
        """One of which only the text is known."""
        return cls(text)

    @property
    def clause(self) -> str:
        """``, while it handles OSError(28)``; "" for none."""
        return f", while it handles {self.text}" if self else ""

    def __bool__(self) -> bool:
        return bool(self.text)


NO_ERROR = RaisedError()


class WaitDetail:
    """The base: nothing more is known of the wait. It alone is false."""

    def __bool__(self) -> bool:
        return type(self) is not WaitDetail

    @property
    def collective(self) -> CollectiveWait | None:
        """The operation of other ranks that is waited for."""
        return None

    @property
    def device(self) -> DeviceWait | None:
        """The call in which a device is waited for."""
        return None

    @property
    def peer(self) -> Peer | None:
        """The other end of a descriptor, or of a lock of a file."""
        return None

    @property
    def children(self) -> tuple[ChildProcess, ...]:
        """Processes that may end the wait: the child that is waited for, those at the other end of a pipe."""
        return ()

    @property
    def missing_workers(self) -> MissingWorkers | None:
        """The workers of a pool that would end the wait and are not in this process."""
        return None

    @property
    def lost(self) -> LostThread | None:
        """The thread that should end the wait and is not there."""
        return None

    @property
    def expects(self) -> tuple[int, ...]:
        """Ids of threads that have the object at hand and so may end the wait; no proof that one of them will."""
        return ()

    @property
    def taken_at(self) -> str:
        """The line where the owner took the lock; "" where that is not known."""
        return ""

    @property
    def looks_for(self) -> str:
        """The object that a thread looks at between two sleeps, "" for none."""
        return ""

    @property
    def repeated_at(self) -> str:
        """The line of the loop that begins the wait again and again, "" for none."""
        return ""

    @property
    def lost_signal(self) -> bool:
        """A signal of the condition variable went to nobody."""
        return False

    @property
    def handling(self) -> RaisedError:
        """The exception that the thread handles meanwhile."""
        return NO_ERROR

    @property
    def caught(self) -> RaisedError:
        """The exception that the loop around the wait has caught at an earlier turn."""
        return NO_ERROR

    @property
    def seconds(self) -> float | None:
        """Seconds that a sleep takes from now on, None where that is not known."""
        return None

    @property
    def self_wait(self) -> SelfWait | None:
        """The reason why a thread waits for what only itself could give."""
        return None

    @property
    def set_by_handlers(self) -> bool:
        """Programs set such an object in signal handlers while their main thread waits for it."""
        return False

    @property
    def looks_at_files(self) -> bool:
        """What the thread looks at between two sleeps is a file."""
        return False

    @property
    def unowned(self) -> Unowned:
        """What is known of threads that may end a wait for what nobody is known to have."""
        return Unowned()

    @property
    def absence(self) -> str:
        """``, but this process has no OpenMP worker threads: …``: who should end the wait and is not there."""
        return ""

    @property
    def advice_on_absence(self) -> tuple[str, ...]:
        """Steps to try about who should end the wait and is not there."""
        return (self.lost.loss.advice,) if self.lost else ()

    @property
    def timed_clause(self) -> str:
        """What a sentence says of the wait where it ends by itself."""
        return " (a timed wait: it ends by itself)"

    def phrase(self, resource: Resource) -> str:
        """The wait in words."""
        return resource.awaited

    def is_abandoned(self, ends_by_itself: bool) -> bool:
        """The thread that should end it is not there."""
        return False

    def leads_outside(self, kind: WaitKind) -> bool:
        """Another process, a peer, a file or input ends it."""
        return kind.traits.is_outside or kind is WaitKind.IO

    def advice(self, kind: WaitKind) -> Advice | None:
        """Steps to try where something outside of the process has to end it; None where nothing is known about that."""
        if kind is WaitKind.CHILD_PROCESS:
            return about_children(self.children, waits_for_end=True)
        return kind.traits.advice_when_outside

    @property
    def about_question(self) -> str:
        """Advice about a question that waits for somebody to type."""
        return ""

    def advice_when_blocked(self, kind: WaitKind) -> Advice:
        """Steps to try where no known thread will end it."""
        return (kind.traits.advice_when_blocked,) if kind.traits.advice_when_blocked else ()

    def about_other_end(self, kind: WaitKind) -> Advice | None:
        """Steps to try with the process at the other end, or with the child processes."""
        of_children = about_children(self.children, kind is WaitKind.CHILD_PROCESS) if self.children else None
        return about_peer(self.peer) or of_children

    def with_peer(self, peer: Peer | None) -> WaitDetail:
        """With another process at the other end of the call in which the thread sleeps."""
        return self or OtherEnd(peer)

    def with_enders(self, found: Unowned) -> WaitDetail:
        """With what more is known of threads that may end a wait for what nobody is known to have."""
        return found

    def in_loop(self, line: str) -> WaitDetail:
        """With the line of the loop that begins the wait again."""
        return self

    def with_device(self, device: DeviceWait) -> WaitDetail:
        """With what more is known of the call in which a device is waited for."""
        return self


NO_DETAIL = WaitDetail()


_WITH_NCCL = "The device works or hangs: look at it (nvidia-smi)."
"""No CUDA_LAUNCH_BLOCKING=1, with which NCCL before 2.17.1 hangs (NVIDIA/nccl issue 774)."""


class _OtherRanksFields(NamedTuple):
    collective: Sparse[CollectiveWait | None] = None
    """The operation of other ranks that is waited for, where that is known."""
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
        """``waits in #18 all_reduce (enqueued 18, completed 17)``."""
        return (self.collective.phrase if self.collective else self.below.phrase(resource)) + self.handling.clause

    def advice(self, kind: WaitKind) -> Advice | None:
        if self.collective and self.collective.size is not None:
            return ("Do all ranks run, with the same MASTER_ADDR and MASTER_PORT, and do they reach it (a firewall)?",)
        if self.collective is not None and self.collective.on_device:
            return (*WaitKind.COLLECTIVE.traits.advice_when_outside, _WITH_NCCL)
        return kind.traits.advice_when_outside

    def with_peer(self, peer: Peer | None) -> WaitDetail:
        return OtherRanks(self.collective, self.below.with_peer(peer), self.handling)

    def with_device(self, device: DeviceWait) -> WaitDetail:
        return OtherRanks(self.collective, self.below.with_device(device), self.handling)


class _DeviceCallFields(NamedTuple):
    device: Sparse[DeviceWait | None] = None
    """The call in which a device is waited for."""
    peer: Sparse[Peer | None] = None
    """The other end, where it is known."""


class DeviceCall(_DeviceCallFields, WaitDetail):
    """The thread waits for a device in a call of CUDA's runtime or driver."""

    def phrase(self, resource: Resource) -> str:
        """``waits for the device (cudaStreamSynchronize of stream 35 of cuda:0)``."""
        return self.device.phrase if self.device else resource.awaited

    def advice(self, kind: WaitKind) -> Advice | None:
        return (_WITH_NCCL,) if self.device and self.device.nccl_call else super().advice(kind)

    def with_peer(self, peer: Peer | None) -> WaitDetail:
        return DeviceCall(self.device, peer)

    def with_device(self, device: DeviceWait) -> WaitDetail:
        return DeviceCall(device, self.peer)


class _OtherEndFields(NamedTuple):
    peer: Sparse[Peer | None] = None
    """The other end, where it is known."""
    children: Internal[tuple[ChildProcess, ...]] = ()
    """Child processes that may end it: the child that is waited for, those at the other end of a pipe."""


class OtherEnd(_OtherEndFields, WaitDetail):
    """A descriptor, or a child process, is waited for."""

    def advice(self, kind: WaitKind) -> Advice | None:
        return super().advice(kind) or self.about_other_end(kind)

    def advice_when_blocked(self, kind: WaitKind) -> Advice:
        return _about_lock(self.peer) or super().advice_when_blocked(kind)

    def with_peer(self, peer: Peer | None) -> WaitDetail:
        return type(self)(peer, self.children)


def _about_lock(peer: Peer | None) -> tuple[str | Suggestion, ...]:
    return (*about_file_lock(peer),) if peer and peer.kind is PeerKind.FILE_LOCK else ()


class Prompt(OtherEnd):
    """The program has asked a question, and waits for somebody to type."""

    about_question = (
        "Nobody may see that question: give the answer beforehand (an argument, an option, a variable of the "
        "environment), take breakpoint() out (PYTHONBREAKPOINT=0), or start the program on a terminal."
    )


class OwnServer(OtherEnd):
    """The thread waits for an answer of its own process, which only the event loop that it blocks could give."""

    self_wait = SelfWait.SERVER


class Repeatable(WaitDetail):
    """A wait that a loop may begin again when its time is over: it has a field ``repeated_at``."""

    @property
    def timed_clause(self) -> str:
        line = self.repeated_at
        return f" (timed; the loop at {line} begins it again)" if line else super().timed_clause


class _UnownedFields(NamedTuple):
    lost: Sparse[LostThread | None] = None
    """The thread that should end this wait and is not there, where that is known."""
    repeated_at: Sparse[str] = ""
    """The line of the loop that begins this timed wait again and again, ``train.py:8 (step)``; "" where that is not
    known, or the loop does nothing else."""
    lost_signal: Sparse[bool] = False
    """The condition variable's own words say that a signal went to nobody, while this thread sleeps."""
    expects: Internal[tuple[int, ...]] = ()
    """Ids of threads that have the object at hand and so may end the wait; no proof that one of them will."""
    set_by_handlers: Internal[bool] = False
    """Programs set such an object in signal handlers while their main thread waits for it."""
    mutex: Internal[Resource | None] = None
    """The mutex that goes with a condition variable of the C library."""


class Unowned(_UnownedFields, Repeatable):
    """Nobody is known to have it; threads that may end the wait, or the one that should and is lost."""

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
        return resource.awaited + (f" (with mutex {self.mutex.address:#x})" if self.mutex else "")

    def is_abandoned(self, ends_by_itself: bool) -> bool:
        return bool(self.lost) and not ends_by_itself


class _OwnedFields(NamedTuple):
    taken_at: Sparse[str] = ""
    """The line where the owner took the lock, ``train.py:8 (step)``; "" where that cannot be known."""
    repeated_at: Sparse[str] = ""
    """The line of the loop that begins this timed wait again and again, ``train.py:8 (step)``; "" where that is not
    known, or the loop does nothing else."""
    self_wait: Internal[SelfWait | None] = None
    """The reason why a thread waits for what it holds itself, where other code interrupted its own."""


class Owned(_OwnedFields, Repeatable):
    """Somebody is known to have it: where it was taken, or why the thread itself is that."""

    def in_loop(self, line: str) -> WaitDetail:
        return self._replace(repeated_at=line)


class _AbsentWorkersFields(NamedTuple):
    missing_workers: Sparse[MissingWorkers | None] = None
    """The threads that would end this wait and do not exist in this process, where that is known."""
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
        """As if the workers were there."""
        return self.unowned.phrase(resource)

    def is_abandoned(self, ends_by_itself: bool) -> bool:
        forked = self.missing_workers is not None and self.missing_workers.forked
        return forked or self.unowned.is_abandoned(ends_by_itself)

    def with_enders(self, found: Unowned) -> WaitDetail:
        return AbsentWorkers(self.missing_workers, found)


class Polled(NamedTuple):
    """What a loop looks at between two sleeps: something in this process, or a process; false where it is unknown."""

    peer: Sparse[Peer | None] = None
    """The other end, where it is known."""
    lost: Sparse[LostThread | None] = None
    """The thread that should end this wait and is not there, where that is known."""
    looks_for: Sparse[str] = ""
    """The object that a thread which sleeps looks at between two sleeps; for people."""
    expects: Internal[tuple[int, ...]] = ()
    """Ids of threads that have the object at hand and so may end the wait; no proof that one of them will."""

    @property
    def is_file(self) -> bool:
        """It is a file, or the lock of one."""
        return False

    @property
    def advice(self) -> tuple[str, ...]:
        """Steps to try where something outside of the process has to end the wait; empty where nothing has."""
        return ()

    def __bool__(self) -> bool:
        return bool(self.looks_for)


NOT_POLLED = Polled()


class PolledFile(Polled):
    """A file is looked at, or its lock."""

    is_file = True
    advice = (
        "Who should make or remove that file may be gone: a lock file that a killed process left behind stays.",
        "See whether any process still works on it (fuser, lsof, ps); if none does, remove the file.",
    )


class PolledMeeting(Polled):
    """The thread looks whether the other machines of its job have come."""

    advice = (
        "Start the other nodes with the same --rdzv-id and --rdzv-endpoint; see whether they reach that address.",
    )


class _SleepFields(NamedTuple):
    polled: Inline[Polled] = NOT_POLLED
    repeated_at: Sparse[str] = ""
    """The line of the loop that begins this timed wait again and again, ``train.py:8 (step)``; "" where that is not
    known, or the loop does nothing else."""
    handling: Sparse[RaisedError] = NO_ERROR
    """The exception that the thread handles meanwhile, where it sleeps or waits for other ranks; for people."""
    caught: Internal[RaisedError] = NO_ERROR
    """The exception that the loop has caught at an earlier turn: what was refused then it may have by now."""
    seconds: Internal[float | None] = None
    """Seconds that it takes from now on, None where that is not known."""
    children: Internal[tuple[ChildProcess, ...]] = ()
    """The processes that are looked at; child processes of which any may be, where nothing is known of that."""
    aside: Internal[str] = ""
    """A clause on a loop that waits for what nobody knows: processes that have ended; for people."""


class Sleep(_SleepFields, WaitDetail):
    """A sleep, perhaps of a loop that looks at something in between."""

    peer = property(lambda self: self.polled.peer)
    lost = property(lambda self: self.polled.lost)
    looks_for = property(lambda self: self.polled.looks_for)
    expects = property(lambda self: self.polled.expects)
    looks_at_files = property(lambda self: self.polled.is_file)

    @property
    def absence(self) -> str:
        return f", but {self.polled.lost.summary}" if self.polled.lost else ""

    def phrase(self, resource: Resource) -> str:
        """``sleeps in a loop that polls stop (which is False)``."""
        if self.polled:
            return f"{resource.awaited} in a loop that polls {self.polled.looks_for}{self.handling.clause}"
        caught = f", which has caught {self.caught.text}" if self.caught else ""
        again = f"sleeps again and again in the loop at {self.repeated_at}{caught}{self.aside}"
        return f"{again if self.repeated_at else resource.awaited}{self.handling.clause}"

    def leads_outside(self, kind: WaitKind) -> bool:
        if self.handling.refused is Refused.PEER:
            return True
        return bool(self.polled and not self.polled.expects and (self.children or self.polled.advice))

    def advice(self, kind: WaitKind) -> Advice | None:
        of_refusal = _CONNECTS if self.handling.refused else None
        return about_peer(self.peer) or of_refusal or self.polled.advice or self.about_other_end(kind)

    def advice_when_blocked(self, kind: WaitKind) -> Advice:
        return _about_lock(self.peer) or super().advice_when_blocked(kind)


_CONNECTS = ("See whether the other end runs, whether that is its address and port, and what is between (a firewall).",)
