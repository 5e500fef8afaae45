"""Wait: what one thread waits for, and who has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.model.certainty import Certainty
from gdbext.model.record import Record
from gdbext.model.threads.wait_kind import Naming, WaitKind

if TYPE_CHECKING:
    from gdbext.model.threads.child_process import ChildProcess
    from gdbext.model.threads.collective_wait import CollectiveWait
    from gdbext.model.threads.peer import Peer
    from gdbext.model.threads.pool import MissingWorkers
    from gdbext.model.threads.self_wait import SelfWait


class Resource(Record):
    """Something a thread can wait for or hold. ``address`` is that of the lock, guard, semaphore, … or 0."""

    kind: WaitKind
    address: int
    name: str = ""
    """For people only: what code needs to know stands in fields of its own."""

    @property
    def phrase(self) -> str:
        """The resource with name and address: ``the mutex 0x7f00 (config_lock)``."""
        traits, name = self.kind.traits, self.name or self.kind.traits.unnamed
        if traits.naming is Naming.OF:
            return f"{traits.noun} of {name}" if name else traits.noun
        if traits.naming is Naming.GUARDED:
            return f"{traits.noun} {name} (guard {self.address:#x})"
        if traits.naming is Naming.ALONE and self.name:
            return self.name
        if traits.naming is Naming.IN_BRACKETS and self.name:
            return f"{traits.noun} ({self.name})"
        at = f" {self.address:#x}" if self.address else ""
        named = f" ({self.name})" if self.name else ""
        return f"{traits.noun}{at}{named}"


class Owner(Record):
    """Who holds a resource."""

    tid: int
    gone: bool = False
    """Recorded as the owner, but no thread of this process."""


class Wait(Record):
    """What a thread waits for. ``certainty`` is that of the owner."""

    resource: Resource
    owner: Owner | None = None
    certainty: Certainty = Certainty.UNKNOWN
    timed: bool = False
    """The wait ends by itself after a timeout."""
    evidence: tuple[str, ...] = ()
    others: tuple[Owner, ...] = ()
    """Further owners, where all of them must let go (readers of a rwlock, team mates before a barrier)."""
    companion: Resource | None = None
    """The mutex that goes with a condition variable."""
    handover: bool = False
    """The resource is free or was just handed on: the thread is about to be woken, nobody holds it up."""
    missing: MissingWorkers | None = None
    """The threads that would end this wait and do not exist in this process, where that is known."""
    external: bool = False
    """Another process may end it: the object is in memory that both have."""
    set_by_handlers: bool = False
    """Programs set such an object in signal handlers while their main thread waits for it."""
    self_wait: SelfWait | None = None
    """Why a thread waits for what it holds itself, where other code interrupted its own."""
    children: tuple[ChildProcess, ...] = ()
    """Child processes that may end it: the child that is waited for, those at the other end of a pipe."""
    peer: Peer | None = None
    """What is at the other end, where it is known."""
    expects: tuple[int, ...] = ()
    """Ids of threads that have the object at hand and so may end the wait; no proof that one of them will."""
    looks_for: str = ""
    """What a thread that sleeps looks at between two sleeps; for people."""
    looks_outside: bool = False
    """What it looks at is a file."""
    seconds: float | None = None
    """How long a sleep takes from now on, None where that is not known."""
    collective: CollectiveWait | None = None
    """What of other ranks is waited for, where that is known."""

    @property
    def kind(self) -> WaitKind:
        """The kind of what is waited for."""
        return self.resource.kind

    @property
    def owners(self) -> tuple[Owner, ...]:
        """All known owners."""
        return ((self.owner,) if self.owner else ()) + self.others

    @property
    def phrase(self) -> str:
        """What the thread does: ``waits for the GIL``, ``sleeps``, ``waits in read on fd 5 (pipe:[77])``."""
        traits, resource = self.kind.traits, self.resource
        if self.collective is not None:
            return self.collective.phrase
        if traits.naming is Naming.ALONE:
            text = traits.doing.format(resource.name or traits.unnamed)
            return f"{text} and looks again and again at {self.looks_for}" if self.looks_for else text
        text = traits.doing.format(resource.phrase)
        return f"{text} (with mutex {self.companion.address:#x})" if self.companion is not None else text

    @property
    def wakes_by_itself(self) -> bool:
        """A timed wait that begins again when its time is over, as that for the GIL does every 5 ms."""
        return self.timed and not self.kind.traits.timeout_ends_it

    @property
    def ends_by_itself(self) -> bool:
        """A timed wait that gives up when its time is over."""
        return self.timed and self.kind.traits.timeout_ends_it
