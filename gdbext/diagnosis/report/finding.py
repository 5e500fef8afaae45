"""Findings about a process, by reference to what they are about, and the verdict, the answer to "why does it hang?"."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gdbext.diagnosis.report.suggestion import Suggestion
    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.diagnosis.report.wait import Wait, WaitEdge
    from gdbext.engine.vocabulary import Internal
    from gdbext.torch.stack import DispatchFrame, DispatchStage


class FindingKind:
    """A kind of finding, one object each; the kinds of verdicts are in kinds/."""

    value: str
    """The word of the JSON report."""
    words: str
    """The kind in plain words, at the beginning of a line."""
    is_defect = False
    """It is an error of the program: no correct program is in that state."""
    is_hang = True
    """The process will not resume by itself; its memory is worth keeping."""
    may_be_slow = False
    """One moment does not tell a hang from slow work."""
    movement_refutes_it = False
    """It is refuted when its threads are elsewhere a moment later."""
    is_in_summary = False
    """The summary covers the kind, too: a line of text needs no words before it."""
    makes_progress = False
    """The process makes progress by itself, however slowly."""
    is_healthy = False
    """A process that computes without dispatching may be so."""
    is_quiet = False
    """It is shown in one line next to processes with other verdicts."""
    can_be_dumped = True
    """gcore can dump the process without blocking as the process does."""

    json_text = property(lambda self: self.value)

    @classmethod
    def of_json_text(cls, word: str) -> FindingKind:
        """The kind with this word, for a kind of a later version, or "" for no verdict; nothing else of it is known."""
        kind = cls()
        kind.value = kind.words = word
        kind.is_hang = False
        return kind

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.value!r}>"

    def __reduce__(self) -> str:
        """The name of the constant: copying and unpickling give the very object."""
        return self.value.upper().replace("-", "_")

    def heading(self, finding: Finding) -> str:
        """The first words of a finding of this kind."""
        return self.words

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        """Steps to try next, the most useful first; ``involved``: the threads of the finding."""
        yield from ()


class NoteKind(FindingKind):
    """A remark, which is never the verdict."""

    value = words = "note"
    is_hang = False


NOTE = NoteKind()


class ProcessStop(NamedTuple):
    """What has stopped a process as a whole."""

    signal: str = ""
    """The signal that stopped it, "" if unknown."""
    group: str = ""
    """Its frozen cgroup; "?" if the name cannot be read."""
    terminal: str = ""
    """The terminal that it tried to use from the background."""
    tracer: str = ""
    """The process that traces it, and has stopped it: ``77 (gdb)``."""


class Finding(NamedTuple):
    """One finding. ``summary`` is its sentence, for people only; the other fields say what it is about."""

    kind: FindingKind
    summary: str
    threads: tuple[int, ...] = ()
    """Ids of the threads, in the order in which the sentence names them."""
    evidence: tuple[str, ...] = ()
    step: Internal[DispatchFrame | None] = None
    cycle: Internal[tuple[WaitEdge, ...]] = ()
    """The waits that close the circle of a deadlock."""
    wait: Internal[Wait | None] = None
    """The wait at the end of the chain."""
    stop: Internal[ProcessStop | None] = None
    """The stop of the whole process, if that is what was found."""
    cures: Internal[tuple[str | Suggestion, ...]] = ()
    """Advice that does not follow from the kind alone."""
    in_loop: Internal[bool] = False
    """It is the wait of an event loop whose tasks wait for nothing outside of the process."""
    id: Internal[str] = ""
    """Unique in a report (``deadlock-1``); "" for a finding that is not listed."""

    @property
    def heading(self) -> str:
        """The first words of the finding: ``deadlock``, ``polls``, ``waits for other ranks``."""
        return self.kind.heading(self)


class Verdict(NamedTuple):
    """The strongest finding, and what to do about it."""

    kind: FindingKind
    """The kind of the finding that became the verdict."""
    summary: str
    """The sentence that covers it."""
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
    finding: Internal[Finding] = Finding(NOTE, "")
    """The finding itself."""

    @classmethod
    def of(cls, finding: Finding, advice: tuple[str, ...] = ()) -> Verdict:
        step = finding.step
        op, key, stage = (step.op, step.key, step.stage) if step else (None, None, None)
        return cls(finding.kind, finding.summary, finding.threads, op, key, stage, finding.cycle, advice, finding)

    def is_about(self, finding: Finding) -> bool:
        """True if the verdict states this very finding."""
        return bool(finding.id) and finding.id == self.finding.id

    def covers(self, finding: Finding) -> bool:
        """True if it is the verdict's finding, has its kind and threads, or has its wait and some of its threads."""
        own = self.finding
        same = finding.kind is own.kind and len(own.threads) > 1 and set(finding.threads) == set(own.threads)
        is_part = finding.wait is not None and finding.wait is own.wait and set(finding.threads) <= set(own.threads)
        return self.is_about(finding) or same or is_part
