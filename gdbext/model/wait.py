"""Wait: what one thread waits for, and who has it."""

from __future__ import annotations

from dataclasses import dataclass

from gdbext.model.certainty import Certainty
from gdbext.model.wait_kind import WaitKind


@dataclass(frozen=True)
class Resource:
    """Something a thread can wait for or hold. ``address`` is that of the lock, guard, semaphore, … or 0."""

    kind: WaitKind
    address: int
    name: str = ""
    """For people only: what code needs to know stands in fields of its own."""


@dataclass(frozen=True)
class Owner:
    """Who holds a resource."""

    tid: int
    gone: bool = False
    """Recorded as the owner, but no thread of this process."""


@dataclass(frozen=True)
class Wait:
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
    missing: str = ""
    """Why the threads that would end this wait do not exist in this process; "" when that is not known."""
    external: bool = False
    """Another process may end it: the object is in memory that both have."""
    seconds: float | None = None
    """How long a sleep takes from now on, None where that is not known."""

    @property
    def kind(self) -> WaitKind:
        """The kind of what is waited for."""
        return self.resource.kind

    @property
    def owners(self) -> tuple[Owner, ...]:
        """All known owners."""
        return ((self.owner,) if self.owner else ()) + self.others

    @property
    def ends_by_itself(self) -> bool:
        """A timed wait that gives up when its time is over."""
        return self.timed and self.kind.traits.timeout_ends_it
