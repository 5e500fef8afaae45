"""Wait: what one thread waits for, and who has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.model.certainty import Certainty
from gdbext.model.threads.wait_kind import Naming, WaitKind

if TYPE_CHECKING:
    from gdbext.model.threads.child_process import ChildProcess
    from gdbext.model.threads.collective_wait import CollectiveWait
    from gdbext.model.threads.pool import MissingWorkers


class Resource(NamedTuple):
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


class Owner(NamedTuple):
    """Who holds a resource."""

    tid: int
    gone: bool = False
    """Recorded as the owner, but no thread of this process."""


class Wait(NamedTuple):
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
    children: tuple[ChildProcess, ...] = ()
    """Child processes that may end it: the child that is waited for, those at the other end of a pipe."""
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
            return traits.doing.format(resource.name or traits.unnamed)
        text = traits.doing.format(resource.phrase)
        return f"{text} (with mutex {self.companion.address:#x})" if self.companion is not None else text

    @property
    def ends_by_itself(self) -> bool:
        """A timed wait that gives up when its time is over."""
        return self.timed and self.kind.traits.timeout_ends_it
