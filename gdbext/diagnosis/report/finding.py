"""Finding: one thing worth saying about a process, by reference to what it is about.

FindingKind: what can be wrong with a process, strongest first.

Verdict: the answer to "why does it hang?".
"""

from __future__ import annotations

from gdbext.engine.record import Enum, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.diagnosis.report.wait import Wait, WaitEdge
    from gdbext.engine.vocabulary import Internal
    from gdbext.torch.stack import DispatchFrame, DispatchStage


class FindingTraits(Record):
    """Properties that distinguish a kind of finding."""

    words: str
    """The kind as people are told of it, at the beginning of a line."""
    is_defect: bool = False
    """It is an error of the program, and no state that honest programs are in."""
    is_hang: bool = True
    """The process will not go on by itself; its memory is worth keeping."""
    may_be_slow: bool = False
    """One moment does not tell a hang from slow work."""
    movement_refutes_it: bool = False
    """It is refuted when its threads are elsewhere a moment later."""
    is_in_summary: bool = False
    """The summary says the kind, too: a line of text needs no words before it."""


class FindingKind(Enum):
    """The verdict kinds of the contract, strongest first, and notes. The value is the word of the JSON report."""

    traits: FindingTraits

    CRASH = "crash", FindingTraits("crashed", is_defect=True, is_in_summary=True)
    RUNAWAY_RECURSION = "runaway-recursion", FindingTraits("endless recursion", is_defect=True, is_in_summary=True)
    DEADLOCK = "deadlock", FindingTraits("deadlock", is_defect=True, movement_refutes_it=True)
    SELF_DEADLOCK = "self-deadlock", FindingTraits("waits for itself", is_defect=True, movement_refutes_it=True)
    ORPHANED_LOCK = (
        "orphaned-lock",
        FindingTraits("a lock that nobody can release", is_defect=True, movement_refutes_it=True),
    )
    MISSING_WORKERS = (
        "missing-workers",
        FindingTraits("worker threads are missing", is_defect=True, movement_refutes_it=True),
    )
    KERNEL_WAIT = "kernel-wait", FindingTraits("waits in the kernel", may_be_slow=True, movement_refutes_it=True)
    BLOCKED = "blocked", FindingTraits("stuck", is_defect=True, may_be_slow=True, movement_refutes_it=True)
    STOPPED = "stopped", FindingTraits("stopped")
    STARVED = "starved", FindingTraits("hardly gets to run", is_hang=False, may_be_slow=True)
    GIL_IN_DEVICE_CALL = (
        "gil-in-device-call",
        FindingTraits("holds the GIL while it waits for the device", may_be_slow=True, movement_refutes_it=True),
    )
    WAITING_EXTERNAL = "waiting-external", FindingTraits("waits", may_be_slow=True, movement_refutes_it=True)
    SLOW = "slow", FindingTraits("slow", is_hang=False, may_be_slow=True)
    BUSY = "busy", FindingTraits("runs", is_hang=False, may_be_slow=True)
    IDLE = "idle", FindingTraits("idle", is_hang=False, may_be_slow=True)
    NOTE = "note", FindingTraits("note", is_hang=False)

    def __new__(cls, value: str, traits: FindingTraits) -> FindingKind:
        """The member with its JSON word as value."""
        member = object.__new__(cls)
        member._value_ = value
        member.traits = traits
        return member

    @classmethod
    def of_word(cls, word: str) -> FindingKind | None:
        """The kind with this JSON word; None where there is none: "", or the word of a later version."""
        return _BY_WORD.get(word)

    @property
    def rank(self) -> int:
        """Strength of the kind: 0 is the strongest."""
        return _RANKS[self]


_BY_WORD = {kind.value: kind for kind in FindingKind}
_RANKS = {kind: rank for rank, kind in enumerate(FindingKind)}


class ProcessStop(Record):
    """A process that somebody has stopped as a whole, and goes on when it is let."""

    signal: str = ""
    """The signal that stopped it, "" where that is not known."""
    group: str = ""
    """The frozen control group that it is in; "?" where its name cannot be read."""
    terminal: str = ""
    """The terminal that it wanted to use from the background."""
    tracer: str = ""
    """The process that traces it, and has stopped it: ``77 (gdb)``."""


class Finding(Record):
    """One finding. ``summary`` is its sentence, for people only; the other fields say what it is about."""

    kind: FindingKind
    summary: str
    threads: tuple[int, ...] = ()
    """Ids of the threads, in the order in which the sentence names them."""
    evidence: tuple[str, ...] = ()
    step: Internal[DispatchFrame | None] = None
    """The operator that it is about."""
    cycle: Internal[tuple[WaitEdge, ...]] = ()
    """The waits that close the circle of a deadlock."""
    wait: Internal[Wait | None] = None
    """The wait at the end of the chain."""
    stop: Internal[ProcessStop | None] = None
    """The stop of the whole process, of a finding that says so."""
    cures: Internal[tuple[str, ...]] = ()
    """Advice that belongs to what was found, where its kind alone does not tell."""
    in_loop: Internal[bool] = False
    """It is the wait of an event loop whose tasks wait for nothing outside of the process."""
    id: Internal[str] = ""
    """Unique in a report (``deadlock-1``); "" for a finding that is not listed."""

    @property
    def heading(self) -> str:
        """The first words of the finding: ``deadlock``, ``polls``, ``waits for other ranks``."""
        words = self.kind.traits.words
        if self.wait is None or self.kind not in (FindingKind.WAITING_EXTERNAL, FindingKind.IDLE):
            return words
        if self.wait.polls:
            return "polls"
        if self.in_loop:
            return "the tasks of an event loop wait"
        if self.kind is FindingKind.IDLE:
            return "sleeping" if self.wait.kind.traits.may_poll else "waits"
        return self.wait.kind.traits.heading or words


class Verdict(Record):
    """The strongest finding, and what to do about it."""

    kind: FindingKind
    """The kind of the finding that became the verdict."""
    summary: str
    """The sentence that says it."""
    threads: tuple[int, ...]
    """Ids of the threads that it is about."""
    op: str | None
    """The operator that it is about: ``aten::mm``."""
    key: str | None
    """The dispatch key of that operator."""
    stage: DispatchStage | None
    """The stage that the dispatcher has reached with that operator."""
    cycle: tuple[WaitEdge, ...]
    """The waits that close the circle of a deadlock."""
    advice: tuple[str, ...] = ()
    """Steps to try next, in words and commands that fit this process."""
    finding: Internal[Finding] = Finding(FindingKind.NOTE, "")
    """The finding itself."""

    @classmethod
    def of(cls, finding: Finding, advice: tuple[str, ...] = ()) -> Verdict:
        """The verdict that states that finding."""
        step = finding.step
        op, key, stage = (step.op, step.key, step.stage) if step is not None else (None, None, None)
        return cls(finding.kind, finding.summary, finding.threads, op, key, stage, finding.cycle, advice, finding)

    def is_about(self, finding: Finding) -> bool:
        """The finding is the one that the verdict states."""
        return bool(finding.id) and finding.id == self.finding.id

    def says(self, finding: Finding) -> bool:
        """Its sentence tells the finding, too: it is the same one, a part of it, or the same threads' chain from its
        other end."""
        mine = self.finding
        both_ways = finding.kind is mine.kind and len(mine.threads) > 1 and set(finding.threads) == set(mine.threads)
        is_part = finding.wait is not None and finding.wait is mine.wait and set(finding.threads) <= set(mine.threads)
        return self.is_about(finding) or both_ways or is_part
