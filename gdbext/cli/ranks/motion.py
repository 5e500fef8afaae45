"""Which ranks have run on since they were looked at: one after the other is looked at, and a job that runs looks late.

A rank that waited when it was looked at, and has been asleep in that wait until all others were looked at, does hang
there as far as can be seen. Where its main thread has run since, it is looked at once more.
"""

from __future__ import annotations

from collections.abc import Iterable

from gdbext.model.job.rank_report import GroupState, RankReport
from gdbext.targets.live.thread_motion import Place, turns_of


class Motion:
    """How much the main threads of ranks that wait had run when they were looked at."""

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}

    def note(self, report: RankReport) -> None:
        """To be called as soon as the report is there."""
        if report.wait is not None:
            self._places[report.pid] = turns_of(report.pid, report.pid)

    def moved(self, reports: Iterable[RankReport]) -> list[RankReport]:
        """Those that have run since."""
        return [each for each in reports if each.pid in self._places and self._has_moved(each.pid)]

    def _has_moved(self, pid: int) -> bool:
        return turns_of(pid, pid).has_moved(self._places[pid])


def settled(earlier: RankReport, later: RankReport) -> RankReport:
    """What two looks at a rank say together: one that waits elsewhere by now waits for nobody, it runs."""
    together = later._replace(paused_ms=max(earlier.paused_ms or 0, later.paused_ms or 0) or None)
    if (earlier.wait, _numbers(earlier)) == (later.wait, _numbers(later)):
        return together
    return together._replace(wait=None, running=True, groups=tuple(map(_passing, later.groups)))


def _numbers(report: RankReport) -> list[tuple[str, int | None, int | None]]:
    return [(group.name, group.enqueued, group.completed) for group in report.groups]


def _passing(group: GroupState) -> GroupState:
    """What a rank that runs has issued is not what it is stuck in."""
    return group._replace(issued=tuple(each._replace(is_pending=False) for each in group.issued))
