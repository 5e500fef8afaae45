"""What a thread waits for, which threads have it, and how certain that is."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.wait_detail import NO_DETAIL
from gdbext.engine.vocabulary import json_member

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Union

    from gdbext.diagnosis.report.suggestion import Suggestion
    from gdbext.diagnosis.report.wait_detail import WaitDetail
    from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
    from gdbext.engine.targets.base_target import KernelSide
    from gdbext.engine.vocabulary import Hexadecimal, Inline, Internal, Sparse

    Owner = Union["OwnerThread", "VanishedThread", "ParentsThread"]
    """The owner of a resource."""


class OwnerThread(NamedTuple):
    """A thread of this process."""

    tid: int

    @json_member(after="tid")
    def state(self) -> str:
        """It lives."""
        return "alive"


class VanishedThread(NamedTuple):
    """A thread that is recorded as the owner, and that is none of this process."""

    tid: int
    """The id that the lock records, in the process's own namespace; 0 where only the ident is recorded."""
    ident: Sparse[Hexadecimal | None] = None
    """The pthread_t that Python recorded; nothing translates it into an id any more."""

    @json_member(after="ident")
    def state(self) -> str:
        """It is gone."""
        return "gone"

    @property
    def phrase(self) -> str:
        """``thread 77``, or ``the thread with the ident 0x7f00`` where only that is recorded."""
        return f"thread {self.tid}" if self.ident is None else f"the thread with the ident {self.ident:#x}"


class ParentsThread(NamedTuple):
    """A thread of the parent process, which the fork left behind and which cannot be named here."""

    tid: int = 0
    """The number in its place."""

    @json_member(after="tid")
    def state(self) -> str:
        """It is gone."""
        return "gone"

    @property
    def phrase(self) -> str:
        return "a thread of the parent process"


class OwnerCertainty(Enum):
    """How the owner of a resource is known. The value is the word of the JSON report."""

    RECORDED = "recorded"
    """The resource itself, or what belongs to it, says whose it is."""
    INFERRED = "inferred"
    """Concluded from something else: a frame of another thread."""
    UNKNOWN = "unknown"

    @property
    def is_proven(self) -> bool:
        """The owner may be named without a reservation."""
        return self is OwnerCertainty.RECORDED


class Wait(NamedTuple):
    """The wait of a thread; ``certainty``: how the owner is known."""

    resource: Inline[Resource]
    owner: Owner | None = None
    certainty: OwnerCertainty = OwnerCertainty.UNKNOWN
    timed: bool = False
    """The wait ends by itself after a timeout."""
    evidence: tuple[str, ...] = ()
    detail: Inline[WaitDetail] = NO_DETAIL
    """Further facts: one record for each situation."""
    others: Internal[tuple[Owner, ...]] = ()
    """Further owners, if all of them must release it (readers of a rwlock, team mates before a barrier)."""
    being_released: Internal[bool] = False
    """The resource is free or was just handed over: the thread is about to be woken."""
    external: Internal[bool] = False
    """Another process may end it: the object is in shared memory."""
    was_ended: Internal[bool] = False
    """A thread of the process ended it between two samples, though none is known that would."""
    kernel: Internal[KernelSide | None] = None
    """The kernel's view of the thread, if no lock of the process explains the wait."""

    def with_detail(self, detail: WaitDetail, *evidence: str) -> Wait:
        """The wait with that detail, and the evidence for it added."""
        return self._replace(detail=detail, evidence=(*self.evidence, *evidence))

    @property
    def kind(self) -> WaitKind:
        return self.resource.kind

    @property
    def address(self) -> int:
        return self.resource.address

    @property
    def name(self) -> str:
        return self.resource.name

    @property
    def owners(self) -> tuple[Owner, ...]:
        return ((self.owner,) if self.owner else ()) + self.others

    @property
    def owner_tids(self) -> tuple[int, ...]:
        return tuple(owner.tid for owner in self.owners if isinstance(owner, OwnerThread))

    @property
    def gone_owner(self) -> VanishedThread | ParentsThread | None:
        """The first owner that is no thread of this process."""
        return next((owner for owner in self.owners if not isinstance(owner, OwnerThread)), None)

    @property
    def phrase(self) -> str:
        """The wait in words: ``waits for the GIL``, ``sleeps``, ``waits in read on fd 5 (pipe:[77])``."""
        return self.detail.phrase(self.resource)

    @property
    def polls(self) -> bool:
        """It is one of the short sleeps of a loop that polls something."""
        return self.kind.traits.may_poll and bool(self.detail.repeated_at or self.detail.looks_for or self.detail.named)

    @property
    def is_abandoned(self) -> bool:
        """The workers, or the thread, that should end it do not exist, and it does not end by itself."""
        return self.detail.is_abandoned(self.ends_by_itself)

    @property
    def leads_outside(self) -> bool:
        return self.detail.leads_outside(self.kind) or (self.external and not self.ends_by_itself)

    @property
    def advice_outside(self) -> Iterable[str | Suggestion] | None:
        """Steps to try if something outside of the process must end it; None if there is no advice about that."""
        is_shared = self.external and self.kind.traits.needs_thread
        return self.detail.advice(self.kind) or (_SHARED if is_shared else None)

    @property
    def wakes_by_itself(self) -> bool:
        """A timed wait that begins again after its timeout, as the wait for the GIL does every 5 ms."""
        return self.timed and not self.kind.traits.timeout_ends_it

    @property
    def ends_by_itself(self) -> bool:
        """A timed wait that gives up after its timeout."""
        return self.timed and self.kind.traits.timeout_ends_it


_SHARED = ("Other processes share it: a process that is killed while holding it (terminate()) never releases it.",)


class WaitEdge(NamedTuple):
    """Thread ``tid`` waits for something that thread ``held_by`` holds, or must do."""

    tid: int
    held_by: int
    wait: Internal[Wait]

    @json_member(after="tid")
    def waits_for(self) -> Resource:
        """What it waits for."""
        return self.wait.resource
