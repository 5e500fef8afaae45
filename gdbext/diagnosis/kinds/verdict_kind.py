"""VerdictKind: the base of the kinds of verdicts, each of which has its rule, its sentence and its advice."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.diagnosis.report.finding import Finding, FindingKind
from gdbext.diagnosis.report.wait import VanishedThread
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph


class VerdictKind(FindingKind):
    """A kind that can be the verdict. The first line of its documentation is what docs/guide.md says it means."""

    what_to_do: str
    """The words of docs/guide.md."""

    def find(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """The findings of this kind."""
        yield from ()

    def is_refuted(self, finding: Finding, seen: Observations, graph: WaitGraph) -> bool:
        """A thread that is said to wait for ever, or the one that it is said to wait for in vain, has run since. A
        timed wait that begins again says nothing."""
        if not (self.is_defect and self.movement_refutes_it):
            return False
        owners = finding.wait.owners if finding.wait else ()
        gone = [owner.tid for owner in owners if isinstance(owner, VanishedThread) and owner.tid]
        waits = {tid: graph.threads[tid].wait for tid in finding.threads if tid in graph.threads}
        return any(seen.has_run(tid) for tid in (*(t for t, wait in waits.items() if wait and not wait.timed), *gone))
