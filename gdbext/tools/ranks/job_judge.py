"""Judges a job: chooses the processes that count as its ranks, and draws one verdict from their reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar, Union

from gdbext.diagnosis.kinds import kind_of, rank_of
from gdbext.diagnosis.kinds.state import STOPPED
from gdbext.engine.rank_sets import MOST_RANKS, RankRanges
from gdbext.engine.vocabulary import counted
from gdbext.tools.ranks import job_sentences
from gdbext.tools.ranks.job_report import (
    CollectiveMatch,
    JobReport,
    JobVerdict,
    JobVerdictKind,
    RankReport,
    RankReports,
    Unreached,
    frame_tree,
    ranks_of,
)
from gdbext.tools.ranks.job_sentences import (
    NAMED,
    agree,
    labels_text,
    processes_text,
    ranks_text,
    ranks_wait,
    reasons_text,
)
from gdbext.tools.ranks.matching import Edges, answering, cycle, deadlocked, edges, groups_of, matches, roots

_Key = TypeVar("_Key", bound=Union[str, int])


def judge(rows: RankReports, pid: int | None = None) -> JobReport:
    """The report on the job of process ``pid``; without one, on the job of most rows. A pure function of both."""
    all_reports = rows.sorted()
    job = next((report.job for report in all_reports if report.pid == pid), None)
    job = job or _most_common(report.job for report in all_reports)
    reports, strangers = _split_by_user([report for report in all_reports if report.job in (job, None)], pid)
    present, earlier = _split_by_start(reports)
    members = _one_for_each_rank(present)
    sizes = (report.size for report in members if report.size is not None)
    size = max((size for size in sizes if size <= MOST_RANKS), default=None)
    missing = RankRanges.absent(size or 0, ranks_of(members))
    groups = groups_of(members)
    collectives = tuple(match for group in groups for match in matches(group))
    unreached = tuple(sorted(rows.unreached))
    # A copy of itself that a rank has forked knows no groups, and waits for no rank.
    claims_by_rank = _grouped(
        (report for report in present if report.wait and not report.groups), lambda report: report.rank
    )
    twins = {rank: claims for rank, claims in claims_by_rank.items() if len(claims) > 1}
    verdict = _Judge(members, missing, unreached, collectives, edges(members, groups), twins).verdict()
    odd = [report for report in members if report.rank in verdict.ranks]
    return JobReport(
        job,
        size,
        missing,
        verdict,
        collectives,
        frame_tree(present),
        tuple(_notes(all_reports, present, earlier, strangers, job)),
        None,
        unreached,
        tuple(reports),
        odd=tuple((odd or [report for report in members if not report.wait])[:8]),
    )


def _grouped(
    reports: Iterable[RankReport], key_of: Callable[[RankReport], _Key | None]
) -> dict[_Key, list[RankReport]]:
    """Key → reports with that key, in order, without the keys None and ""."""
    groups: dict[_Key, list[RankReport]] = {}
    for report in reports:
        key = key_of(report)
        if key is not None and key != "":
            groups.setdefault(key, []).append(report)
    return groups


def _most_common(values: Iterable[_Key | None]) -> _Key | None:
    """The most frequent known value, the smallest of several; None if no value is known."""
    counts = Counter(value for value in values if value is not None)
    return min(counts, key=lambda value: (-counts[value], value)) if counts else None


def _split_by_start(reports: Sequence[RankReport]) -> tuple[list[RankReport], list[RankReport]]:
    """(processes of the launcher's last start, processes left of earlier starts).

    Each of torchrun's agents counts its own restarts, and not those that failures on other machines cause. So only
    processes of one machine are compared; a core does not name its machine.
    """
    last: dict[str, int] = {}
    for report in reports:
        if report.host is not None:
            last[report.host] = max(last.get(report.host, 0), report.restart or 0)

    def is_old(report: RankReport) -> bool:
        return report.restart is not None and report.restart < last.get(report.host or "", 0)

    return [report for report in reports if not is_old(report)], [report for report in reports if is_old(report)]


def _split_by_user(reports: Sequence[RankReport], pid: int | None) -> tuple[list[RankReport], list[RankReport]]:
    """(processes of one user, processes of others): any user may write the name of a job into an environment.

    The user is the owner of process ``pid``, else of most processes. A process of unknown owner (cores, recordings,
    reports made elsewhere) counts as the user's.
    """
    owner = next((report.user for report in reports if report.pid == pid and report.user is not None), None)
    if owner is None:
        owner = _most_common(report.user for report in reports)
    own = [report for report in reports if report.user in (owner, None)]
    return own, [report for report in reports if report.user not in (owner, None)]


def _one_for_each_rank(reports: Sequence[RankReport]) -> tuple[RankReport, ...]:
    """One report for each rank, and all reports of unknown rank. If several processes claim a rank, the one that got
    furthest in the job's groups counts: a forked copy, or a program started in a rank's environment, issues nothing."""

    def progress(report: RankReport) -> tuple[int, int, bool, int]:  # the greatest is furthest
        issued = sum(group.enqueued or 0 for group in report.groups)
        return len(report.groups), issued, bool(report.wait), -report.pid

    claims_by_rank = _grouped(reports, lambda report: report.rank)
    chosen = {rank: max(claims, key=progress) for rank, claims in claims_by_rank.items()}
    return tuple(report for report in reports if report.rank is None or chosen[report.rank] is report)


def _notes(
    all_reports: Sequence[RankReport],
    reports: Sequence[RankReport],
    earlier: Sequence[RankReport],
    strangers: Sequence[RankReport],
    job: str | None,
) -> Iterator[str]:
    """What was left out of the job, and what contradicts itself in it. ``reports``: its processes of the last start;
    ``earlier``: of earlier starts; ``strangers``: of other users."""
    if strangers:
        yield f"left out processes of other users that claim this job: {processes_text(strangers, with_user=True)}"
    for report in reports:
        if report.size is not None and report.size > MOST_RANKS:
            yield f"{report.label} claims a job of {report.size} ranks, which is ignored as implausible"
    other_jobs = Counter(report.job for report in all_reports if report.job not in (job, None))
    for name, count in sorted(other_jobs.items(), key=lambda item: str(item[0])):
        yield f"left out {counted(count, 'report')} of another job ({name})"
    if earlier:
        processes = counted(len(earlier), "process")
        yield f"left out {processes} of an earlier start, since replaced by the launcher: {processes_text(earlier)}"
    for rank, claims in sorted(_grouped(reports, lambda report: report.rank).items()):
        if len(claims) > 1:
            chosen = _one_for_each_rank(claims)[0]
            processes = processes_text(claims)
            yield f"rank {rank} is claimed by {len(claims)} processes: {processes}; only pid {chosen.pid} is considered"
    unread = _grouped(reports, lambda report: report.problem)
    for problem, claims in sorted(unread.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"cannot read where {labels_text(claims)} {agree(claims, 'is', 'are')}: {problem}"
    versions = _grouped(reports, lambda report: report.torch)
    if len(versions) > 1:
        parts = [f"{version} ({labels_text(claims)})" for version, claims in versions.items()]
        yield f"the ranks run different versions of torch: {', '.join(parts)}"


class _Judge:
    """The rules for a job. Each rule is a method that yields its verdicts, each with its sentence; the first verdict of
    the strongest rule counts."""

    def __init__(
        self,
        reports: Sequence[RankReport],
        missing: Collection[int],
        unreached: Sequence[Unreached],
        collectives: Sequence[CollectiveMatch],
        waits: Edges,
        twins: Mapping[int, Sequence[RankReport]],
    ) -> None:
        """``missing``: ranks without a report; ``twins``: rank → several processes that wait as that rank."""
        self._twins = twins
        self._reports = reports
        self._missing = missing
        self._unreached = unreached
        self._collectives = collectives
        self._waits = waits
        self._servers = answering(reports)
        self._roots = frozenset(roots(waits, self._servers))
        self._at_roots = [report for report in reports if report.rank in self._roots]
        self._at_store = [report for report in reports if report.wait and report.wait.is_store]

    def verdict(self) -> JobVerdict:
        """The verdict of the first rule that has one; the last rule always has."""
        rules = (
            self._same_rank,
            self._mismatch,
            self._ring,
            self._dead,
            self._inside_nccl,
            self._unknown_peer,
            self._late,
            self._store,
            self._defect,
            self._all_alike,
        )
        strongest = next(verdict for rule in rules for verdict in rule())
        return strongest._replace(summary=strongest.summary + job_sentences.besides(self._reports, strongest.summary))

    def _same_rank(self) -> Iterator[JobVerdict]:
        """Several processes have one rank, and no process has another: a process was given the wrong rank."""
        if self._twins and self._missing:
            claims = sorted(self._twins.items())
            given = "; ".join(f"{processes_text(twins)} were all given rank {rank}" for rank, twins in claims)
            text = f"{given}: they wait for others, and no process is {ranks_text(self._missing)}."
            yield JobVerdict(JobVerdictKind.STORE_WAIT, text, tuple(sorted(self._twins)))

    def _mismatch(self) -> Iterator[JobVerdict]:
        """Ranks issued different operations, sizes or types under one number: those of the fewest ranks are blamed."""
        for match in self._collectives:
            if match.state.is_mismatch:
                issued = "; ".join(f"{ranks_text(variant.ranks)} issued {variant.op}" for variant in match.variants)
                text = f"In collective #{match.seq} of group {match.group}, {issued} ({match.state.words})."
                yield JobVerdict(JobVerdictKind.MISMATCHED_COLLECTIVE, text, match.variants[-1].ranks)

    def _ring(self) -> Iterator[JobVerdict]:
        """Ranks wait for each other in a ring."""
        ring = cycle(deadlocked(self._waits, self._reports, self._servers))
        if ring:
            by_rank = {report.rank: report for report in self._reports}
            text = job_sentences.ring([by_rank[rank] for rank in ring if rank in by_rank])
            yield JobVerdict(JobVerdictKind.MISMATCHED_COLLECTIVE, text, ring)

    def _dead(self) -> Iterator[JobVerdict]:
        """A rank without a report, if that matters: another rank waits for it, or a process of the job was found dead.
        Otherwise only some ranks may have been asked for."""
        awaited = tuple(rank for rank in sorted(self._roots) if rank in self._missing)
        if not awaited and not (self._missing and any(process.ended for process in self._unreached)):
            return
        ranks = awaited or self._missing
        reasons = reasons_text(self._unreached)
        text = (
            f"{ranks_text(ranks)} {agree(ranks, 'is', 'are')} gone or out of reach{f' ({reasons})' if reasons else ''}"
        )
        awaiting = (match for match in self._collectives if match.pending and set(match.missing) & set(ranks))
        text += "".join(f"; {ranks_wait(match.pending)} in {match.text}" for match in islice(awaiting, 1))
        yield JobVerdict(JobVerdictKind.DEAD_RANK, f"{text}.", ranks)

    def _inside_nccl(self) -> Iterator[JobVerdict]:
        """Ranks entered a function of NCCL that did not return, and no rank outside of NCCL is known to be late or has
        an error: the function itself, which enqueues and meets other ranks, blocks."""
        inside = [report for report in self._reports if report.entered_nccl]
        outside = [report for report in self._reports if not report.entered_nccl]
        late = [report for report in self._at_roots if not report.waits_for_ranks]
        has_defect = any(kind_of(report.kind).is_defect for report in outside)
        if not inside or has_defect or any(report in outside for report in late):
            return
        blamed = [report for report in inside if report in late] or inside
        calls = ", ".join(sorted({report.entered_nccl for report in blamed}))
        text = f"{labels_text(blamed)} entered {calls} and did not return"
        details = [report.diagnosis for report in blamed[:NAMED]]
        match = self._waited_in(ranks_of(blamed))
        if match:
            text += f": {match.text} is not enqueued, on which {ranks_wait(match.pending)}"
        elif outside:
            is_or_are = agree(outside, "is", "are")
            details.append(f"{labels_text(outside)} {is_or_are} in no call of NCCL ({outside[0].diagnosis})")
        yield JobVerdict(JobVerdictKind.INSIDE_NCCL, f"{text}; {'; '.join(details)}.", ranks_of(blamed))

    def _unknown_peer(self) -> Iterator[JobVerdict]:
        """All that others wait for wait themselves, for an unknown rank: no rank is just late."""
        blamed = self._at_roots
        if not blamed or any(not report.waits_for_ranks or report.rank in self._servers for report in blamed):
            return
        parts = []
        for report in blamed:
            waiting = sorted(rank for rank, targets in self._waits.items() if report.rank in targets)
            parts.append(f"{ranks_wait(waiting)} for {report.label}, which {report.wait_phrase} itself")
        waits = f"{'; '.join(parts)}; which rank it waits for is not recorded"
        text = f"The ranks wait for each other in different operations: {waits}."
        yield JobVerdict(JobVerdictKind.MISMATCHED_COLLECTIVE, text, ranks_of(blamed))

    def _late(self) -> Iterator[JobVerdict]:
        """Others wait for ranks that wait for no rank themselves, and not at the store."""
        late = [report for report in self._at_roots if report not in self._at_store]
        if not late:
            return
        ranks = ranks_of(late)
        waiting = [report for report in self._reports if self._waits_for(report, ranks)]
        waits = [report.wait for report in waiting]
        if waits[0] and all(wait and wait.is_store and wait.part == waits[0].part for wait in waits):
            text = job_sentences.owed(late, waiting, waits[0], self._servers)
        elif all(wait and wait.is_mpi and wait.peer is not None for wait in waits):
            text = job_sentences.late_transfers(late, waiting, self._servers)
        else:
            text = job_sentences.late(late, self._reports, self._waited_in(ranks), self._waits, self._servers)
        yield JobVerdict(JobVerdictKind.LATE_RANK, text, ranks)

    def _waits_for(self, report: RankReport, ranks: Collection[int]) -> bool:
        """True if it waits for one of these ranks."""
        return report.rank is not None and not self._waits.get(report.rank, frozenset()).isdisjoint(ranks)

    def _waited_in(self, late: Sequence[int]) -> CollectiveMatch | None:
        """The operation in which others wait for the ranks ``late``."""
        pending = (match for match in self._collectives if match.pending)
        return next((match for match in pending if set(late) & set(match.never_enqueued)), None)

    def _store(self) -> Iterator[JobVerdict]:
        """Ranks wait at the store to meet the others there, or for a key that any rank may set."""
        if self._at_store:
            others = [report for report in self._reports if report not in self._at_store]
            absent = [report for report in others if not report.waits_for_ranks] or others
            text = job_sentences.store(self._at_store, absent, self._missing)
            has_key = any(report.wait and report.wait.key for report in self._at_store)  # any rank may set a key
            yield JobVerdict(JobVerdictKind.STORE_WAIT, text, () if has_key else ranks_of(absent))

    def _defect(self) -> Iterator[JobVerdict]:
        """A process whose own verdict is an error of the program, or that is stopped."""
        for report in sorted(self._reports, key=lambda report: rank_of(report.kind)):
            if kind_of(report.kind).is_defect or kind_of(report.kind) is STOPPED:
                yield JobVerdict(kind_of(report.kind), f"{report.label}: {report.summary}", ranks_of([report]))

    def _all_alike(self) -> Iterator[JobVerdict]:
        """No rank is at fault: some run, or all wait in one operation, or none runs; else there is no report."""
        reports = self._reports
        busy = [report for report in reports if kind_of(report.kind).makes_progress or report.running]
        busy = [report for report in busy if not report.problem]
        if busy:
            text = f"{len(busy)} of {len(reports)} ranks run ({labels_text(busy)})"
            yield JobVerdict(JobVerdictKind.ALL_BUSY, f"{text}; nothing shows that any of them hangs.")
        for match in self._collectives:
            if match.pending and not match.never_enqueued and not match.missing:
                completed, have = match.completed, agree(match.completed, "has", "have")
                done = f"{ranks_text(completed)} {have} completed it, " if completed else ""
                text = f"Every rank of group {match.group} issued #{match.seq} {match.variants[0].op}; {done}"
                text += f"{ranks_wait(match.pending)} in it ({match.state.words})"
                text += ": still in progress, or stuck in the network."
                yield JobVerdict(JobVerdictKind.ALL_IDLE, text)
        if not reports:
            reasons = reasons_text(self._unreached)
            yield JobVerdict(
                JobVerdictKind.NO_REPORT, f"There is no report of any rank{': ' * bool(reasons)}{reasons}."
            )
        waiting = [report for report in reports if report.waits_for_ranks]
        if all(report.problem for report in reports):
            text = f"Cannot read what the ranks are doing: {reports[0].label}: {reports[0].problem}."
        elif waiting:
            text = (
                f"{labels_text(waiting)} {agree(waiting, 'waits', 'wait')} for others; none of these is known to hold "
            )
            text += f"them up; no rank runs: {waiting[0].label}: {waiting[0].summary}"
        else:
            text = f"No rank waits for another, and none runs: {reports[0].label}: {reports[0].summary}"
        yield JobVerdict(JobVerdictKind.ALL_IDLE, text)
