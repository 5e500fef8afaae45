"""Judges a job: chooses the processes that count as its ranks, and draws one verdict from their reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, Union

from gdbext.diagnosis.kinds import kind_of, rank_of
from gdbext.engine.rank_sets import MOST_RANKS, RankRanges
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
    waiting = [report for report in present if report.wait and not report.groups]
    claims_by_rank = _grouped(waiting, lambda report: report.rank)
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

    Each of torchrun's agents has a counter of its own: it is not increased when an agent restarts its ranks because
    those of another machine failed. So only processes of one machine are compared; a core does not name its machine.
    """
    last: dict[str, int] = {}
    for report in reports:
        if report.host is not None:
            last[report.host] = max(last.get(report.host, 0), report.restart or 0)
    present: list[RankReport] = []
    earlier: list[RankReport] = []
    for report in reports:
        is_old = report.restart is not None and report.restart < last.get(report.host or "", 0)
        (earlier if is_old else present).append(report)
    return present, earlier


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

    def progress(report: RankReport) -> tuple[int, int, bool, int]:
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
        named = job_sentences.processes_text(strangers, with_user=True)
        yield f"other users' processes that claim this job, left out: {named}"
    for report in reports:
        if report.size is not None and report.size > MOST_RANKS:
            yield f"{report.label} claims {report.size} ranks, which is not believed"
    others = Counter(report.job for report in all_reports if report.job not in (job, None))
    for name, count in sorted(others.items(), key=lambda item: str(item[0])):
        yield f"{count} report{'s' if count > 1 else ''} of another job ({name}) left out"
    if earlier:
        many = "es" if len(earlier) > 1 else ""
        which = job_sentences.processes_text(earlier)
        yield f"{len(earlier)} process{many} of an earlier start left out, which the launcher has replaced: {which}"
    for rank, claims in sorted(_grouped(reports, lambda report: report.rank).items()):
        if len(claims) > 1:
            chosen = _one_for_each_rank(claims)[0]
            yield (
                f"rank {rank} is claimed by {len(claims)} processes: {job_sentences.processes_text(claims)}; "
                f"what is said of it is that of pid {chosen.pid}"
            )
    unread = _grouped(reports, lambda report: report.problem)
    for problem, claims in sorted(unread.items(), key=lambda item: (-len(item[1]), item[0])):
        is_or_are = "is" if len(claims) == 1 else "are"
        yield f"where {job_sentences.labels_text(claims)} {is_or_are} cannot be read: {problem}"
    versions = _grouped(reports, lambda report: report.torch)
    if len(versions) > 1:
        parts = [f"{version} ({job_sentences.labels_text(claims)})" for version, claims in versions.items()]
        yield f"the ranks run different versions of torch: {', '.join(parts)}"


class _Judge:
    """The rules for a job: each yields its verdicts, and the first verdict of the strongest rule counts."""

    def __init__(
        self,
        reports: Sequence[RankReport],
        missing: Collection[int],
        unreached: Sequence[Unreached],
        collectives: Sequence[CollectiveMatch],
        waits: Edges,
        twins: Mapping[int, Sequence[RankReport]],
    ) -> None:
        """``missing``: ranks without a report; ``twins``: rank → processes that wait for others as that rank, if there
        are several."""
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
        rules = (
            self._same_rank,
            self._mismatch,
            self._ring,
            self._dead,
            self._inside_nccl,
            self._unknown_peer,
            self._late,
            self._store,
            self._single,
            self._all_alike,
        )
        strongest = next(verdict for rule in rules for verdict in rule())
        return strongest._replace(summary=strongest.summary + job_sentences.besides(self._reports, strongest.summary))

    def _same_rank(self) -> Iterator[JobVerdict]:
        """Several processes have one rank, and no process has another: a process was given the wrong rank."""
        if self._twins and self._missing:
            text = job_sentences.same_rank(self._twins, self._missing)
            yield JobVerdict(JobVerdictKind.STORE_WAIT, text, tuple(sorted(self._twins)))

    def _mismatch(self) -> Iterator[JobVerdict]:
        """Ranks issued different operations, sizes or types under one number."""
        for match in self._collectives:
            if match.state.is_mismatch:
                fewest = match.variants[-1].ranks
                yield JobVerdict(JobVerdictKind.MISMATCHED_COLLECTIVE, job_sentences.mismatch(match), fewest)

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
        if awaited or (self._missing and any(process.ended for process in self._unreached)):
            text = job_sentences.dead(awaited or self._missing, self._unreached, self._collectives)
            yield JobVerdict(JobVerdictKind.DEAD_RANK, text, awaited or self._missing)

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
        ranks = ranks_of(blamed)
        text = job_sentences.inside_nccl(blamed, outside, self._waited_in(ranks))
        yield JobVerdict(JobVerdictKind.INSIDE_NCCL, text, ranks)

    def _unknown_peer(self) -> Iterator[JobVerdict]:
        """All that others wait for wait themselves, for an unknown rank: no rank is just late."""
        blamed = self._at_roots
        if blamed and all(report.waits_for_ranks and report.rank not in self._servers for report in blamed):
            text = job_sentences.unknown_peer(blamed, self._waits)
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
            yield JobVerdict(JobVerdictKind.LATE_RANK, text, ranks)
        transfers = [
            report for report in waiting if report.wait and report.wait.is_mpi and report.wait.peer is not None
        ]
        if waiting == transfers:
            text = job_sentences.late_transfers(late, waiting, self._servers)
            yield JobVerdict(JobVerdictKind.LATE_RANK, text, ranks)
        # The operation that all others wait in, named only if it has no other end.
        ops = {wait.op for wait in waits if wait and wait.peer is None}
        operation = f" in {ops.pop()}" if len(ops) == 1 else ""
        pending, known = self._waited_in(ranks), len(self._reports)
        text = job_sentences.late(late, pending, self._waits, known, operation, self._servers)
        yield JobVerdict(JobVerdictKind.LATE_RANK, text, ranks)

    def _waits_for(self, report: RankReport, ranks: Collection[int]) -> bool:
        """It waits for one of these ranks."""
        return report.rank is not None and not self._waits.get(report.rank, frozenset()).isdisjoint(ranks)

    def _waited_in(self, late: Sequence[int]) -> CollectiveMatch | None:
        """The operation in which others wait for these ranks."""
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

    def _single(self) -> Iterator[JobVerdict]:
        """A process whose own verdict is an error of the program."""
        for report in sorted(self._reports, key=lambda report: rank_of(report.kind)):
            if kind_of(report.kind).is_defect:
                yield JobVerdict(kind_of(report.kind), f"{report.label}: {report.summary}", ranks_of([report]))

    def _all_alike(self) -> Iterator[JobVerdict]:
        """No rank is at fault: some run, or all wait in one operation, or none runs; else there is no report."""
        readable = [report for report in self._reports if not report.problem]
        busy = [report for report in readable if kind_of(report.kind).makes_progress or report.running]
        if busy:
            yield JobVerdict(JobVerdictKind.ALL_BUSY, job_sentences.busy(busy, len(self._reports)))
        for match in self._collectives:
            if match.pending and not match.never_enqueued and not match.missing:
                yield JobVerdict(JobVerdictKind.ALL_IDLE, job_sentences.unfinished(match))
        kind = JobVerdictKind.ALL_IDLE if self._reports else JobVerdictKind.NO_REPORT
        yield JobVerdict(kind, job_sentences.idle(self._reports, self._unreached))
