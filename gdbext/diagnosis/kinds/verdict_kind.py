"""VerdictKind: the base of the kinds of verdicts, each of which has its rule, its sentence and its advice."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.diagnosis.report.finding import Finding, FindingKind
from gdbext.diagnosis.report.wait import VanishedThread
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph


class VerdictKind(FindingKind):
    """A kind that can be the verdict. docs/guide.md prints the first line of its docstring."""

    what_to_do: str
    """The advice in docs/guide.md."""

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """The findings of this kind in a process."""
        yield from ()

    def is_refuted(self, finding: Finding, facts: Observations, graph: WaitGraph) -> bool:
        """True if a thread that waits forever according to the finding, or an owner that has exited according to it,
        has run since it was read. Timed waits prove nothing: they begin again."""
        if not (self.is_defect and self.movement_refutes_it):
            return False
        owners = finding.wait.owners if finding.wait else ()
        tids = [owner.tid for owner in owners if isinstance(owner, VanishedThread) and owner.tid]
        threads = [graph.threads[tid] for tid in finding.threads if tid in graph.threads]
        tids += [thread.tid for thread in threads if thread.wait and not thread.wait.timed]
        return any(map(facts.has_run, tids))
