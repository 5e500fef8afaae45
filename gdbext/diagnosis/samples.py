"""``dispatch-diagnose --samples``: several samples of a live process that runs in between, to tell stuck from slow."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.inspect import Inspection, inspect_threads, judged_again, with_ended_waits
from gdbext.diagnosis.report.thread_report import Progress, ThreadProgress
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.verdict import progress
from gdbext.diagnosis.verdict.slowness import repeated_collector, with_history
from gdbext.engine.targets.live.thread_motion import ThreadActivity, activities
from gdbext.engine.vocabulary import Section
from gdbext.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gdbext.engine.targets.base_target import Target

    Watch = Callable[[], None]
    Pause = Callable[[float, Watch], "Target"]
    """Lets the process run for so many seconds, and gives it stopped again. Raises TargetError."""


@dataclass(frozen=True)
class SamplesSection(Section):
    """``count`` samples in ``seconds``; ``calls``: of operators that a kernel probe counted, None without a probe."""

    name: ClassVar[str] = "samples"
    count: int
    seconds: float
    threads: tuple[ThreadProgress, ...]
    calls: int | None = None


def _work_between(
    before: Mapping[int, ThreadActivity], after: Mapping[int, ThreadActivity]
) -> dict[int, progress.Work]:
    """Thread id → by how much each of its counters grew; None for a counter that was not read twice."""

    def growth(old: ThreadActivity, new: ThreadActivity) -> progress.Work:
        return tuple(None if start is None or end is None else end - start for start, end in zip(old, new))

    return {tid: growth(before[tid], activity) for tid, activity in after.items() if tid in before}


def sample(
    session: Session,
    pause_of: Callable[[Target], Pause],
    count: int,
    interval: float,
    count_calls: Callable[[], int | None] = lambda: None,
) -> tuple[Session, Inspection, SamplesSection]:
    """Take ``count`` samples, ``interval`` seconds apart: (the last session, which the caller must close; the last
    inspection, judged by all samples; the progress). ``pause_of``: ToolHost.pause; ``count_calls``: the operator calls
    since the start, None without a probe. Raises UsageError for a core, for impossible numbers, and if the process
    cannot be resumed."""
    if session.target.origin.is_core or session.target.origin.recorded:
        raise UsageError("--samples needs a live process: a core or a recording shows one moment only")
    if not 1 < count <= 1000 or not 0 < interval <= 3600:
        raise UsageError("--samples takes 2 to 1000, --interval up to 3600 seconds")
    pause = pause_of(session.target)
    inspect = partial(inspect_threads, placed=True)
    session, first = session.read_consistently(inspect)
    inspections: list[Inspection] = [first]
    counters: list[dict[int, ThreadActivity]] = []
    started = time.monotonic()
    pid = session.target.pid
    while len(inspections) < count:
        session.target.close()
        session, inspection = Session(pause(interval, lambda: counters.append(activities(pid)))).read_consistently(
            inspect
        )
        inspections.append(inspection)
    elapsed, ran = time.monotonic() - started, interval * (count - 1)
    work = [_work_between(before, after) for before, after in zip(counters[::2], counters[1::2])]
    last = inspections[-1]
    waking = {thread.tid for thread in last.threads if thread.wait and thread.wait.wakes_by_itself}
    rows = progress.compare([inspection.places for inspection in inspections], work, ran, waking)
    slowness = [inspection.slowness for inspection in inspections]
    rows = progress.with_collections(rows, repeated_collector(slowness))
    moved = {row.tid for row in rows if row.progress is Progress.MOVED}
    last = with_ended_waits(last, moved)
    calls = count_calls()
    rows = progress.with_operator_calls(rows, last.threads, calls or 0)
    last = judged_again(last, with_history(slowness, interval))
    judgement = progress.judge_samples(last.judgement, rows, last.threads, count, elapsed, calls)
    last = last._replace(judgement=judgement)
    return session, last, SamplesSection(count, round(elapsed, 3), tuple(rows), calls)
