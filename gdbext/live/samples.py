"""Several samples of a live process that runs on in between: stuck or slow.

This resumes the process; how it is let go and stopped again is the host's affair.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gdbext.errors import UsageError
from gdbext.inspection.inspection import Inspection, inspect_settled
from gdbext.inspection.session import Session
from gdbext.model.judgement.finding_kind import FindingKind
from gdbext.model.sections.samples_section import SamplesSection
from gdbext.targets.live.thread_activity import Activity, activities
from gdbext.verdict import progress

if TYPE_CHECKING:
    from gdbext.live.host import Host

MAX_SAMPLES = 1000
MAX_INTERVAL = 3600.0


@dataclass(frozen=True)
class Sampled:
    """The last sample, revised by all, and the progress of each thread."""

    inspection: Inspection
    section: SamplesSection

    def with_calls(self, calls: int) -> Sampled:
        """And so many calls of operators were counted meanwhile."""
        judgement = self.inspection.judgement
        note = progress.dispatches(calls, self.section.seconds)
        judgement = judgement._replace(findings=(*judgement.findings[:1], note, *judgement.findings[1:]))
        return Sampled(self.inspection._replace(judgement=judgement), replace(self.section, calls=calls))


def sample(session: Session, host: Host, count: int, interval: float) -> tuple[Session, Sampled]:
    """Look ``count`` times, ``interval`` seconds apart. The session of the last look is to be closed by the caller.

    Raises UsageError for a core, for senseless numbers, and where the process cannot be let go.
    """
    if session.target.is_core or session.target.recorded is not None:
        raise UsageError("--samples needs a live process: a core or a recording shows one moment only")
    if not 1 < count <= MAX_SAMPLES or not 0 < interval <= MAX_INTERVAL:
        raise UsageError(f"--samples takes 2 to {MAX_SAMPLES} looks, --interval up to {MAX_INTERVAL:.0f} seconds")
    pause = host.pause(session.target)
    session, first = inspect_settled(session, placed=True)
    looks: list[Inspection] = [first]
    counted: list[dict[int, Activity]] = []
    started = time.monotonic()
    pid = session.target.pid
    while len(looks) < count:
        session.target.close()
        session, look = inspect_settled(Session(pause(interval, lambda: counted.append(activities(pid)))), placed=True)
        looks.append(look)
    done = [_between(before, after) for before, after in zip(counted[::2], counted[1::2])]
    return session, _sampled(looks, done, interval * (count - 1), time.monotonic() - started)


def _between(before: Mapping[int, Activity], after: Mapping[int, Activity]) -> dict[int, progress.Done]:
    """What each thread did from one count to the next."""
    return {
        tid: tuple(None if one is None or two is None else two - one for one, two in zip(before[tid], activity))
        for tid, activity in after.items() if tid in before
    }  # fmt: skip


def _sampled(
    looks: Sequence[Inspection], done: Sequence[Mapping[int, progress.Done]], ran: float, elapsed: float
) -> Sampled:
    last = looks[-1]
    waking = {thread.tid for thread in last.threads if thread.wait is not None and thread.wait.wakes_by_itself}
    found = progress.compare([look.places for look in looks], done, ran, waking)
    judgement = last.judgement
    note = progress.summary(found, last.threads, len(looks), elapsed)
    revised = progress.revised(judgement.verdict, found, last.threads)
    if revised is not judgement.verdict:
        judgement = judgement._replace(
            findings=tuple(each for each in judgement.findings if each.kind is FindingKind.NOTE)
        )
    judgement = judgement._replace(verdict=revised, findings=(note, *judgement.findings))
    section = SamplesSection(len(looks), round(elapsed, 3), tuple(found))
    return Sampled(last._replace(judgement=judgement), section)
