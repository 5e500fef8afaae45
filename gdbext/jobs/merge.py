"""Merging reports: a set of rows, so that it does not matter in which order and groups they come together.

A row is the report on one process, known by its job, rank, host and pid; of two that differ the greater one stays.
Everything else of a job's report is computed from all rows. Hence merging is associative, commutative and idempotent,
and reports can be folded at every level of a tree.
"""

from __future__ import annotations

from collections.abc import Iterable

from gdbext.model.job.rank_report import RankReport, Unreached
from gdbext.model.record import Record

Identity = tuple[str, int, str, int]


class Rows(Record):
    """What was collected so far: reports by process, and what could not be reached."""

    reports: dict[Identity, RankReport]
    unreached: frozenset[Unreached]

    def sorted(self) -> tuple[RankReport, ...]:
        """By rank (unknown ones last), host and pid."""
        return tuple(self.reports[key] for key in sorted(self.reports, key=lambda key: (key[1] < 0, key[1:], key[0])))


def rows(reports: Iterable[RankReport] = (), unreached: Iterable[Unreached] = ()) -> Rows:
    """Rows of these reports."""
    found: dict[Identity, RankReport] = {}
    for report in reports:
        _add(found, report)
    return Rows(found, frozenset(unreached))


def merge(left: Rows, right: Rows) -> Rows:
    """Both together."""
    found = dict(left.reports)
    for report in right.reports.values():
        _add(found, report)
    return Rows(found, left.unreached | right.unreached)


def _add(found: dict[Identity, RankReport], report: RankReport) -> None:
    key = (report.job or "", -1 if report.rank is None else report.rank, report.host or "", report.pid)
    known = found.get(key)
    if known is None or repr(known) < repr(report):
        found[key] = report
