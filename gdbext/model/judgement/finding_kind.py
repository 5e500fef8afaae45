"""FindingKind: what can be wrong with a process, strongest first."""

from __future__ import annotations

from enum import Enum

from gdbext.model.record import Record


class FindingTraits(Record):
    """What distinguishes a kind of finding."""

    is_defect: bool = False
    """It is an error of the program, and no state that honest programs are in."""
    is_hang: bool = True
    """The process will not go on by itself; its memory is worth keeping."""
    may_be_slow: bool = False
    """One moment does not tell a hang from slow work."""
    movement_refutes_it: bool = False
    """It is refuted when its threads are elsewhere a moment later."""


class FindingKind(Enum):
    """The verdict kinds of the contract, strongest first, and notes. The value is the word of the JSON report."""

    traits: FindingTraits

    CRASH = "crash", FindingTraits(is_defect=True)
    RUNAWAY_RECURSION = "runaway-recursion", FindingTraits(is_defect=True)
    DEADLOCK = "deadlock", FindingTraits(is_defect=True, movement_refutes_it=True)
    SELF_DEADLOCK = "self-deadlock", FindingTraits(is_defect=True, movement_refutes_it=True)
    ORPHANED_LOCK = "orphaned-lock", FindingTraits(is_defect=True, movement_refutes_it=True)
    MISSING_WORKERS = "missing-workers", FindingTraits(is_defect=True, movement_refutes_it=True)
    BLOCKED = "blocked", FindingTraits(is_defect=True, may_be_slow=True, movement_refutes_it=True)
    WAITING_EXTERNAL = "waiting-external", FindingTraits(may_be_slow=True, movement_refutes_it=True)
    BUSY = "busy", FindingTraits(is_hang=False, may_be_slow=True)
    IDLE = "idle", FindingTraits(is_hang=False, may_be_slow=True)
    NOTE = "note", FindingTraits(is_hang=False)

    def __new__(cls, value: str, traits: FindingTraits) -> FindingKind:
        """The member with its JSON word as value."""
        member = object.__new__(cls)
        member._value_ = value
        member.traits = traits
        return member

    @property
    def rank(self) -> int:
        """0 for the strongest."""
        return _RANKS[self]


_RANKS = {kind: rank for rank, kind in enumerate(FindingKind)}
