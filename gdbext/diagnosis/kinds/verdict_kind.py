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

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        yield from ()

    def is_refuted(self, finding: Finding, facts: Observations, graph: WaitGraph) -> bool:
        """A thread that waits forever by this finding, or one whose owner is gone by it, has run since. Timed waits
        prove nothing: they begin again."""
        if not (self.is_defect and self.movement_refutes_it):
            return False
        owners = finding.wait.owners if finding.wait else ()
        tids = [owner.tid for owner in owners if isinstance(owner, VanishedThread) and owner.tid]
        threads = [graph.threads[tid] for tid in finding.threads if tid in graph.threads]
        tids += [thread.tid for thread in threads if thread.wait and not thread.wait.timed]
        return any(map(facts.has_run, tids))
