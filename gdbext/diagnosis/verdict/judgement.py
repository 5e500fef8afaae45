"""From observations to findings and the one verdict. Pure."""

from __future__ import annotations

from typing import NamedTuple

from gdbext.diagnosis.kinds import KINDS
from gdbext.diagnosis.kinds.state import BUSY, at_rest, doubts
from gdbext.diagnosis.report.finding import Finding, Verdict
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph


class Judgement(NamedTuple):
    findings: tuple[Finding, ...]
    verdict: Verdict


def judge(seen: Observations) -> Judgement:
    """The findings and the verdict on a stopped process."""
    graph = WaitGraph(seen.threads)
    found = [
        finding for kind in KINDS for finding in kind.find(seen, graph) if not kind.is_refuted(finding, seen, graph)
    ]
    notes = list(doubts(seen, graph))
    listed = [finding for finding in found if finding.kind is not BUSY] + notes
    findings = tuple(each._replace(id=f"{each.kind.value}-{number}") for number, each in enumerate(listed, 1))
    if not found:
        strongest = at_rest(seen, graph, notes)
    elif found[0].kind is BUSY:
        doubt = notes[0].summary if notes else ""
        strongest = found[0]._replace(summary=f"{found[0].summary} {doubt}".rstrip())
    else:
        strongest = findings[0]
    return Judgement(findings, Verdict.of(strongest))
