"""From the reports of all ranks to the one verdict on the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gdbext.jobs import sentences
from gdbext.jobs.claims import by_start, claims_of, one_for_each_rank
from gdbext.jobs.matching import groups_of, matches
from gdbext.jobs.merge import Rows
from gdbext.jobs.rank_waits import Edges, cycle, edges, roots
from gdbext.jobs.tree import fold
from gdbext.model.job.job_report import CollectiveMatch, JobReport, JobVerdict, JobVerdictKind
from gdbext.model.job.rank_report import RankReport, Unreached
from gdbext.model.judgement.finding_kind import FindingKind

_ODD = 8
"""Reports that are shown with the verdict."""
_KINDS = {kind.value: kind for kind in FindingKind}


def judge(rows: Rows, pid: int | None = None) -> JobReport:
    """The whole report, on the job of process ``pid``, else on that of most rows; a pure function of both."""
    everybody = rows.sorted()
    job = next((report.job for report in everybody if report.pid == pid), None) or _job(everybody)
    reports = tuple(report for report in everybody if report.job in (job, None))
    present, earlier = by_start(reports)
    members = one_for_each_rank(present)
    size = max((report.size for report in members if report.size is not None), default=None)
    found = {report.rank for report in members}
    missing = tuple(rank for rank in range(size or 0) if rank not in found)
    groups = groups_of(members)
    collectives = tuple(match for group in groups for match in matches(group))
    unreached = tuple(sorted(rows.unreached))
    waits = edges(members, groups)
    verdict = _Judge(members, missing, unreached, collectives, waits).verdict()
    return JobReport(
        job, size, reports, missing, unreached, fold(present), collectives, verdict,
        _odd(members, verdict), tuple(_notes(everybody, present, earlier, job)),
    )  # fmt: skip


def _job(reports: Sequence[RankReport]) -> str | None:
    """The job of most reports."""
    counts = Counter(report.job for report in reports if report.job is not None)
    return min(counts, key=lambda job: (-counts[job], job)) if counts else None


def _odd(reports: Sequence[RankReport], verdict: JobVerdict) -> tuple[RankReport, ...]:
    """The ranks at fault, and where none is known, all that do not just wait for others."""
    blamed = set(verdict.ranks)
    found = [report for report in reports if report.rank in blamed]
    if not found:
        found = [report for report in reports if report.wait is None]
    return tuple(found[:_ODD])


def _notes(
    everybody: Sequence[RankReport], reports: Sequence[RankReport], earlier: Sequence[RankReport], job: str | None
) -> Iterator[str]:
    others = Counter(report.job for report in everybody if report.job not in (job, None))
    for name, count in sorted(others.items(), key=lambda item: str(item[0])):
        yield f"{count} report{'s' if count > 1 else ''} of another job ({name}) left out"
    if earlier:
        many = "es" if len(earlier) > 1 else ""
        which = sentences.processes(earlier)
        yield f"{len(earlier)} process{many} of an earlier start left out, which the launcher has replaced: {which}"
    for rank, claims in sorted(claims_of(reports).items()):
        if len(claims) > 1:
            chosen = one_for_each_rank(claims)[0]
            yield (
                f"rank {rank} is claimed by {len(claims)} processes: {sentences.processes(claims)}; "
                f"what is said of it is that of pid {chosen.pid}"
            )
    yield from _problems(reports)
    versions: dict[str, list[RankReport]] = {}
    for report in reports:
        if report.torch is not None:
            versions.setdefault(report.torch, []).append(report)
    if len(versions) > 1:
        parts = [f"{version} ({sentences.labels(versions[version])})" for version in versions]
        yield f"the ranks run different versions of torch: {', '.join(parts)}"


def _problems(reports: Sequence[RankReport]) -> Iterator[str]:
    """What kept processes from being read, the most frequent first."""
    unread: dict[str, list[RankReport]] = {}
    for report in reports:
        if report.problem:
            unread.setdefault(report.problem, []).append(report)
    for problem, claims in sorted(unread.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"where {sentences.labels(claims)} {'is' if len(claims) == 1 else 'are'} cannot be read: {problem}"


class _Judge:
    """The rules, strongest first."""

    def __init__(
        self,
        reports: Sequence[RankReport],
        missing: Sequence[int],
        unreached: Sequence[Unreached],
        collectives: Sequence[CollectiveMatch],
        waits: Edges,
    ) -> None:
        self._reports = reports
        self._missing = missing
        self._unreached = unreached
        self._collectives = collectives
        self._waits = waits
        self._roots = frozenset(roots(waits))
        self._at_store = [each for each in reports if each.wait is not None and each.wait.is_store]

    def verdict(self) -> JobVerdict:
        """The strongest."""
        rules = (
            self._mismatch, self._ring, self._dead, self._unknown_peer, self._late, self._store, self._single,
            self._all_alike,
        )  # fmt: skip
        return next(found for rule in rules for found in rule())

    def _mismatch(self) -> Iterator[JobVerdict]:
        for match in self._collectives:
            if match.state.is_mismatch:
                smallest = match.variants[-1].ranks
                text = sentences.mismatch(match)
                yield JobVerdict(JobVerdictKind.MISMATCHED_COLLECTIVE.value, text, smallest)

    def _ring(self) -> Iterator[JobVerdict]:
        ring = cycle(self._waits)
        if ring:
            reports = {report.rank: report for report in self._reports}
            text = sentences.ring([reports[rank] for rank in ring if rank in reports])
            yield JobVerdict(JobVerdictKind.MISMATCHED_COLLECTIVE.value, text, ring)

    def _dead(self) -> Iterator[JobVerdict]:
        """A rank of which there is no report, where something shows that this matters: somebody waits for it, or a
        process of the job was found dead. Otherwise only some ranks may have been asked for."""
        missing = set(self._missing)
        wanted = tuple(rank for rank in sorted(self._roots) if rank in missing)
        ended = [each for each in self._unreached if each.ended]
        if wanted or (missing and ended):
            text = sentences.dead(wanted or tuple(self._missing), self._unreached, self._collectives)
            yield JobVerdict(JobVerdictKind.DEAD_RANK.value, text, wanted or tuple(self._missing))

    def _unknown_peer(self) -> Iterator[JobVerdict]:
        """All that others wait for wait themselves, for a rank that nobody knows: no rank is just late."""
        found = [report for report in self._reports if report.rank in self._roots]
        if found and all(report.waits_for_ranks for report in found):
            ranks = tuple(report.rank for report in found if report.rank is not None)
            text = sentences.unknown_peer(found, self._waits)
            yield JobVerdict(JobVerdictKind.MISMATCHED_COLLECTIVE.value, text, ranks)

    def _late(self) -> Iterator[JobVerdict]:
        late = [report for report in self._reports if report.rank in self._roots]
        at_store = {report.rank for report in self._at_store}
        if late and not all(report.rank in at_store for report in late):
            late = [report for report in late if report.rank not in at_store]
            ranks = tuple(report.rank for report in late if report.rank is not None)
            pending = self._waited_in(ranks)
            text = sentences.late(late, pending, self._waits, len(self._reports), self._doing(ranks))
            yield JobVerdict(JobVerdictKind.LATE_RANK.value, text, ranks)

    def _waited_in(self, late: Sequence[int]) -> CollectiveMatch | None:
        """The operation in which others wait for these ranks."""
        return next((each for each in self._collectives if set(late) & set(each.never) and each.waiting), None)

    def _doing(self, late: Sequence[int]) -> str:
        """What the others wait for these ranks in, where they all wait in the same."""
        waiting = [each.wait for each in self._reports if self._waits.get(each.rank or 0, frozenset()) & set(late)]
        ops = {wait.op for wait in waiting if wait is not None and wait.peer is None}
        return f" in {ops.pop()}" if len(ops) == 1 else ""

    def _store(self) -> Iterator[JobVerdict]:
        if self._at_store:
            others = [report for report in self._reports if report not in self._at_store]
            absent = [report for report in others if not report.waits_for_ranks] or others
            ranks = tuple(report.rank for report in absent if report.rank is not None)
            text = sentences.store(self._at_store, absent, self._missing)
            yield JobVerdict(JobVerdictKind.STORE_WAIT.value, text, ranks)

    def _single(self) -> Iterator[JobVerdict]:
        """One process whose own verdict is an error of the program."""
        for report in sorted(self._reports, key=lambda each: _strength(each.kind)):
            kind = _KINDS.get(report.kind)
            if kind is not None and kind.traits.is_defect:
                ranks = () if report.rank is None else (report.rank,)
                yield JobVerdict(report.kind, f"{report.label}: {report.summary}", ranks)

    def _all_alike(self) -> Iterator[JobVerdict]:
        busy = [report for report in self._reports if report.kind == FindingKind.BUSY.value or report.running]
        if busy:
            yield JobVerdict(JobVerdictKind.ALL_BUSY.value, sentences.busy(busy, len(self._reports)))
        for match in self._collectives:
            if match.waiting and not match.never and not match.missing:
                yield JobVerdict(JobVerdictKind.ALL_IDLE.value, sentences.unfinished(match))
        yield JobVerdict(JobVerdictKind.ALL_IDLE.value, sentences.idle(self._reports, self._unreached))


def _strength(kind: str) -> int:
    return _KINDS[kind].rank if kind in _KINDS else len(_KINDS)
