"""Judges a job: from the reports of all ranks to the one verdict.

Which processes count as the ranks of a job, where more than one says that it is a rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

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
    fold,
    ranks_of,
)
from gdbext.tools.ranks.matching import Edges, answering, cycle, deadlocked, edges, groups_of, matches, roots


def by_start(reports: Sequence[RankReport]) -> tuple[list[RankReport], list[RankReport]]:
    """Those of the launcher's last start, and those that are left of earlier ones.

    torchrun's agents count for themselves: one that starts its ranks again because another machine's have failed does
    not count that. So only processes of one machine are compared; a core does not say of which it is.
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


def by_user(reports: Sequence[RankReport], pid: int | None = None) -> tuple[list[RankReport], list[RankReport]]:
    """Those of one user, and those of others: anybody may write the name of a job into an environment.

    The user is that of process ``pid``, else that of most processes. Where nobody knows whose a process is (cores,
    recordings, reports that were made elsewhere), it stays.
    """
    owner = next((report.user for report in reports if report.pid == pid and report.user is not None), None)
    if owner is None:
        counts = Counter(report.user for report in reports if report.user is not None)
        owner = min(counts, key=lambda user: (-counts[user], user)) if counts else None
    own = [report for report in reports if report.user in (owner, None)]
    return own, [report for report in reports if report.user not in (owner, None)]


def claims_of(reports: Iterable[RankReport]) -> dict[int, list[RankReport]]:
    """The processes that say that they are a rank, by rank."""
    found: dict[int, list[RankReport]] = {}
    for report in reports:
        if report.rank is not None:
            found.setdefault(report.rank, []).append(report)
    return found


def one_for_each_rank(reports: Sequence[RankReport]) -> tuple[RankReport, ...]:
    """One report for each rank; of several that claim it the one that came furthest in the job's groups: a copy that a
    rank has forked, or a program that was started in its environment, issues nothing. Those without a rank stay."""
    chosen = {rank: max(claims, key=_progress) for rank, claims in claims_of(reports).items()}
    return tuple(report for report in reports if report.rank is None or chosen[report.rank] is report)


def _progress(report: RankReport) -> tuple[int, int, bool, int]:
    issued = sum(group.enqueued or 0 for group in report.groups)
    return len(report.groups), issued, bool(report.wait), -report.pid


_ODD = 8
"""Reports that are shown with the verdict."""


def judge(rows: RankReports, pid: int | None = None) -> JobReport:
    """The whole report, on the job of process ``pid``, else on that of most rows; a pure function of both."""
    everybody = rows.sorted()
    job = next((report.job for report in everybody if report.pid == pid), None) or _job(everybody)
    claims = tuple(report for report in everybody if report.job in (job, None))
    reports, strangers = by_user(claims, pid)
    present, earlier = by_start(reports)
    members = one_for_each_rank(present)
    sizes = [report.size for report in members if report.size is not None and report.size <= MOST_RANKS]
    size = max(sizes, default=None)
    missing = RankRanges.absent(size or 0, ranks_of(members))
    groups = groups_of(members)
    collectives = tuple(match for group in groups for match in matches(group))
    unreached = tuple(sorted(rows.unreached))
    waits = edges(members, groups)
    verdict = _Judge(members, missing, unreached, collectives, waits, _twins(present)).verdict()
    return JobReport(
        job,
        size,
        missing,
        verdict,
        collectives,
        fold(present),
        tuple(_notes(everybody, present, earlier, strangers, job)),
        None,
        unreached,
        tuple(reports),
        odd=_odd(members, verdict),
    )


def _twins(reports: Sequence[RankReport]) -> dict[int, list[RankReport]]:
    """The ranks that several processes wait for others as. A copy that a rank has forked waits for nobody's rank."""
    claims = claims_of(each for each in reports if each.wait and not each.groups)
    return {rank: theirs for rank, theirs in claims.items() if len(theirs) > 1}


def _job(reports: Sequence[RankReport]) -> str | None:
    """The job of most reports."""
    counts = Counter(report.job for report in reports if report.job is not None)
    return min(counts, key=lambda job: (-counts[job], job)) if counts else None


def _odd(reports: Sequence[RankReport], verdict: JobVerdict) -> tuple[RankReport, ...]:
    """The ranks at fault, and where none is known, all that do not just wait for others."""
    found = [report for report in reports if report.rank in verdict.ranks]
    if not found:
        found = [report for report in reports if not report.wait]
    return tuple(found[:_ODD])


def _notes(
    everybody: Sequence[RankReport],
    reports: Sequence[RankReport],
    earlier: Sequence[RankReport],
    strangers: Sequence[RankReport],
    job: str | None,
) -> Iterator[str]:
    if strangers:
        named = job_sentences.processes(strangers, with_user=True)
        yield f"other users' processes that claim this job, left out: {named}"
    for report in reports:
        if report.size is not None and report.size > MOST_RANKS:
            yield f"{report.label} claims {report.size} ranks, which is not believed"
    others = Counter(report.job for report in everybody if report.job not in (job, None))
    for name, count in sorted(others.items(), key=lambda item: str(item[0])):
        yield f"{count} report{'s' if count > 1 else ''} of another job ({name}) left out"
    if earlier:
        many = "es" if len(earlier) > 1 else ""
        which = job_sentences.processes(earlier)
        yield f"{len(earlier)} process{many} of an earlier start left out, which the launcher has replaced: {which}"
    for rank, claims in sorted(claims_of(reports).items()):
        if len(claims) > 1:
            chosen = one_for_each_rank(claims)[0]
            yield (
                f"rank {rank} is claimed by {len(claims)} processes: {job_sentences.processes(claims)}; "
                f"what is said of it is that of pid {chosen.pid}"
            )
    yield from _problems(reports)
    versions: dict[str, list[RankReport]] = {}
    for report in reports:
        if report.torch:
            versions.setdefault(report.torch, []).append(report)
    if len(versions) > 1:
        parts = [f"{version} ({job_sentences.labels(versions[version])})" for version in versions]
        yield f"the ranks run different versions of torch: {', '.join(parts)}"


def _problems(reports: Sequence[RankReport]) -> Iterator[str]:
    """The problems that kept processes from being read, the most frequent first."""
    unread: dict[str, list[RankReport]] = {}
    for report in reports:
        if report.problem:
            unread.setdefault(report.problem, []).append(report)
    for problem, claims in sorted(unread.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"where {job_sentences.labels(claims)} {'is' if len(claims) == 1 else 'are'} cannot be read: {problem}"


class _Judge:
    """The rules for a job, the strongest first."""

    def __init__(
        self,
        reports: Sequence[RankReport],
        missing: Collection[int],
        unreached: Sequence[Unreached],
        collectives: Sequence[CollectiveMatch],
        waits: Edges,
        twins: Mapping[int, Sequence[RankReport]] = MappingProxyType({}),
    ) -> None:
        """``twins``: ranks with the processes that wait for others as that rank, where there are several."""
        self._twins = twins
        self._reports = reports
        self._missing = missing
        self._unreached = unreached
        self._collectives = collectives
        self._waits = waits
        self._servers = answering(reports)
        self._roots = frozenset(roots(waits, self._servers))
        self._at_store = [each for each in reports if each.wait and each.wait.is_store]

    def verdict(self) -> JobVerdict:
        """The strongest finding about the job."""
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
        found = next(found for rule in rules for found in rule())
        return found._replace(summary=found.summary + job_sentences.besides(self._reports, found.summary))

    def _same_rank(self) -> Iterator[JobVerdict]:
        """Several processes are one rank, and another rank is nobody: it was given to the wrong process."""
        if self._twins and self._missing:
            text = job_sentences.same_rank(self._twins, self._missing)
            yield JobVerdict(JobVerdictKind.STORE_WAIT, text, tuple(sorted(self._twins)))

    def _mismatch(self) -> Iterator[JobVerdict]:
        for match in self._collectives:
            if match.state.is_mismatch:
                smallest = match.variants[-1].ranks
                text = job_sentences.mismatch(match)
                yield JobVerdict(JobVerdictKind.MISMATCHED_COLLECTIVE, text, smallest)

    def _ring(self) -> Iterator[JobVerdict]:
        ring = cycle(deadlocked(self._waits, self._reports, self._servers))
        if ring:
            reports = {report.rank: report for report in self._reports}
            text = job_sentences.ring([reports[rank] for rank in ring if rank in reports])
            yield JobVerdict(JobVerdictKind.MISMATCHED_COLLECTIVE, text, ring)

    def _dead(self) -> Iterator[JobVerdict]:
        """A rank of which there is no report, where something shows that this matters: somebody waits for it, or a
        process of the job was found dead. Otherwise only some ranks may have been asked for."""
        wanted = tuple(rank for rank in sorted(self._roots) if rank in self._missing)
        ended = [each for each in self._unreached if each.ended]
        if wanted or (self._missing and ended):
            text = job_sentences.dead(wanted or self._missing, self._unreached, self._collectives)
            yield JobVerdict(JobVerdictKind.DEAD_RANK, text, wanted or self._missing)

    def _inside_nccl(self) -> Iterator[JobVerdict]:
        """Ranks that entered a function of NCCL which did not return, where no rank outside of NCCL is known to be
        late: the function itself, which enqueues and meets other ranks, blocks."""
        inside = [report for report in self._reports if report.entered_nccl]
        late = [report for report in self._reports if report.rank in self._roots and not report.waits_for_ranks]
        outside = [report for report in self._reports if not report.entered_nccl]
        if not inside or any(report in outside for report in late) or any(map(_is_defect, outside)):
            return
        blamed = [report for report in inside if report in late] or inside
        ranks = ranks_of(blamed)
        text = job_sentences.inside_nccl(blamed, outside, self._waited_in(ranks))
        yield JobVerdict(JobVerdictKind.INSIDE_NCCL, text, ranks)

    def _unknown_peer(self) -> Iterator[JobVerdict]:
        """All that others wait for wait themselves, for a rank that nobody knows: no rank is just late."""
        found = [report for report in self._reports if report.rank in self._roots]
        if found and all(report.waits_for_ranks and report.rank not in self._servers for report in found):
            ranks = ranks_of(found)
            text = job_sentences.unknown_peer(found, self._waits)
            yield JobVerdict(JobVerdictKind.MISMATCHED_COLLECTIVE, text, ranks)

    def _late(self) -> Iterator[JobVerdict]:
        late = [report for report in self._reports if report.rank in self._roots]
        at_store = {report.rank for report in self._at_store}
        if late and not all(report.rank in at_store for report in late):
            late = [report for report in late if report.rank not in at_store]
            ranks = ranks_of(late)
            pending = self._waited_in(ranks)
            text = job_sentences.late(late, pending, self._waits, len(self._reports), self._doing(ranks), self._servers)
            yield JobVerdict(JobVerdictKind.LATE_RANK, text, ranks)

    def _waited_in(self, late: Sequence[int]) -> CollectiveMatch | None:
        """The operation in which others wait for these ranks."""
        return next((each for each in self._collectives if set(late) & set(each.never_enqueued) and each.pending), None)

    def _doing(self, late: Sequence[int]) -> str:
        """The operation in which the others wait for these ranks, where they all wait in the same."""
        waiting = [each.wait for each in self._reports if self._waits.get(each.rank or 0, frozenset()) & set(late)]
        ops = {wait.op for wait in waiting if wait and wait.peer is None}
        return f" in {ops.pop()}" if len(ops) == 1 else ""

    def _store(self) -> Iterator[JobVerdict]:
        if self._at_store:
            others = [report for report in self._reports if report not in self._at_store]
            absent = [report for report in others if not report.waits_for_ranks] or others
            ranks = ranks_of(absent)
            text = job_sentences.store(self._at_store, absent, self._missing)
            yield JobVerdict(JobVerdictKind.STORE_WAIT, text, ranks)

    def _single(self) -> Iterator[JobVerdict]:
        """One process whose own verdict is an error of the program."""
        for report in sorted(self._reports, key=lambda each: rank_of(each.kind)):
            if _is_defect(report):
                yield JobVerdict(kind_of(report.kind), f"{report.label}: {report.summary}", ranks_of([report]))

    def _all_alike(self) -> Iterator[JobVerdict]:
        busy = [
            report
            for report in self._reports
            if not report.problem and (kind_of(report.kind).goes_on or report.running)
        ]
        if busy:
            yield JobVerdict(JobVerdictKind.ALL_BUSY, job_sentences.busy(busy, len(self._reports)))
        for match in self._collectives:
            if match.pending and not match.never_enqueued and not match.missing:
                yield JobVerdict(JobVerdictKind.ALL_IDLE, job_sentences.unfinished(match))
        kind = JobVerdictKind.ALL_IDLE if self._reports else JobVerdictKind.NO_REPORT
        yield JobVerdict(kind, job_sentences.idle(self._reports, self._unreached))


def _is_defect(report: RankReport) -> bool:
    """Its own verdict is an error of the program."""
    return kind_of(report.kind).is_defect
