"""Which processes count as the ranks of a job, where more than one says that it is a rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gdbext.model.job.rank_report import RankReport


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


def claims_of(reports: Iterable[RankReport]) -> dict[int, list[RankReport]]:
    """By rank the processes that say that they are it."""
    found: dict[int, list[RankReport]] = {}
    for report in reports:
        if report.rank is not None:
            found.setdefault(report.rank, []).append(report)
    return found


def one_for_each_rank(reports: Sequence[RankReport]) -> tuple[RankReport, ...]:
    """Of several that claim a rank the one that came furthest in the job's groups: a copy that a rank has forked, or a
    program that was started in its environment, issues nothing. Those without a rank stay."""
    chosen = {rank: max(claims, key=_progress) for rank, claims in claims_of(reports).items()}
    return tuple(report for report in reports if report.rank is None or chosen[report.rank] is report)


def _progress(report: RankReport) -> tuple[int, int, bool, int]:
    issued = sum(group.enqueued or 0 for group in report.groups)
    return len(report.groups), issued, report.wait is not None, -report.pid
