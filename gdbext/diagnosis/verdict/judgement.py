"""From observations to findings and the one verdict. Pure."""

from __future__ import annotations

from typing import NamedTuple

from gdbext.diagnosis.kinds import KINDS
from gdbext.diagnosis.kinds.blocked import BLOCKED
from gdbext.diagnosis.kinds.deadlock import SELF_DEADLOCK
from gdbext.diagnosis.kinds.outside import WAITING_EXTERNAL
from gdbext.diagnosis.kinds.state import BUSY, IDLE, doubts, healthy_verdict
from gdbext.diagnosis.report.finding import Finding, Verdict
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph


class Judgement(NamedTuple):
    findings: tuple[Finding, ...]
    verdict: Verdict


def judge(facts: Observations) -> Judgement:
    """The findings and the verdict on a stopped process."""
    graph = WaitGraph(facts.threads)
    candidates = ((kind, finding) for kind in KINDS for finding in kind.find(facts, graph))  # the strongest first
    proven = [finding for kind, finding in candidates if not kind.is_refuted(finding, facts, graph)]
    notes = list(doubts(facts, graph))
    listed = [finding for finding in proven if finding.kind is not BUSY] + notes
    findings = tuple(finding._replace(id=f"{finding.kind.value}-{number}") for number, finding in enumerate(listed, 1))
    if not proven:
        strongest = healthy_verdict(facts, graph, notes)
    elif proven[0].kind is BUSY:
        doubt = notes[0].summary if notes else ""
        strongest = proven[0]._replace(summary=f"{proven[0].summary} {doubt}".rstrip())
    else:
        strongest = findings[0]
    if strongest.kind in (BLOCKED, WAITING_EXTERNAL, IDLE, SELF_DEADLOCK):
        pools = [pool.sentence for pool in facts.taken_pools if not pool.waits_for_itself]
        strongest = strongest._replace(summary=" ".join([strongest.summary, *pools]))
    return Judgement(findings, Verdict.of(strongest))
