"""``dispatch-diagnose --samples``: several samples of a live process that runs in between, to tell stuck from slow."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

from gdbext.diagnosis.inspect import Inspection, inspect_threads
from gdbext.diagnosis.report.thread_report import ThreadProgress
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.verdict import progress
from gdbext.diagnosis.verdict.judgement import Judgement
from gdbext.diagnosis.verdict.slowness import collects_again, over_samples
from gdbext.engine.targets.live.thread_motion import ThreadActivity, activities
from gdbext.engine.vocabulary import Section
from gdbext.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gdbext.engine.targets.base_target import Target

    Watch = Callable[[], None]
    Pause = Callable[[float, Watch], "Target"]
    """Lets the process run for so many seconds, and gives it stopped again. Raises TargetError."""


@dataclass(frozen=True)
class SamplesSection(Section):
    """The number of samples, the seconds that they took, and the progress of each thread.

    ``calls``: of operators that a kernel probe counted meanwhile, None where there was no probe.
    """

    name: ClassVar[str] = "samples"
    count: int
    seconds: float
    threads: tuple[ThreadProgress, ...]
    calls: int | None = None


class CanPause(Protocol):
    """Lets a process run for a while: a debugger, or this process (diagnosis/tool.py)."""

    def pause(self, target: Target) -> Pause:
        """The function that lets this process run for a while. Raises UsageError if that is impossible."""


@dataclass(frozen=True)
class Sampled:
    """The last sample, revised by all, and the progress of each thread."""

    inspection: Inspection
    section: SamplesSection

    def with_calls(self, calls: int) -> Sampled:
        """The same, given that so many operator calls were counted meanwhile."""
        judgement, threads, section = self.inspection.judgement, self.inspection.threads, self.section
        found = progress.with_calls(section.threads, threads, calls)
        summary = progress.summary(found, threads, section.count, section.seconds)
        note = progress.dispatches(calls, section.seconds)
        judgement = progress.agreeing(Judgement(judgement.findings[1:], judgement.verdict), found, threads)
        verdict = progress.goes_on(judgement.verdict, calls, section.seconds)
        judgement = Judgement((summary, note, *judgement.findings), verdict)
        section = replace(section, calls=calls, threads=tuple(found))
        return Sampled(self.inspection._replace(judgement=judgement), section)


def sample(session: Session, host: CanPause, count: int, interval: float) -> tuple[Session, Sampled]:
    """Take ``count`` samples, ``interval`` seconds apart. The caller has to close the last sample's session.

    Raises UsageError for a core, for impossible numbers, and if the process cannot be resumed.
    """
    if session.target.origin.is_core or session.target.origin.recorded:
        raise UsageError("--samples needs a live process: a core or a recording shows one moment only")
    if not 1 < count <= 1000 or not 0 < interval <= 3600:
        raise UsageError("--samples takes 2 to 1000 looks, --interval up to 3600 seconds")
    pause = host.pause(session.target)
    inspect = partial(inspect_threads, placed=True)
    session, first = session.settled(inspect)
    looks: list[Inspection] = [first]
    counters: list[dict[int, ThreadActivity]] = []
    started = time.monotonic()
    pid = session.target.pid
    while len(looks) < count:
        session.target.close()
        session, look = Session(pause(interval, lambda: counters.append(activities(pid)))).settled(inspect)
        looks.append(look)
    elapsed, ran = time.monotonic() - started, interval * (count - 1)
    done: list[dict[int, progress.Done]] = [
        {
            tid: tuple(None if one is None or two is None else two - one for one, two in zip(before[tid], activity))
            for tid, activity in after.items()
            if tid in before
        }
        for before, after in zip(counters[::2], counters[1::2])
    ]
    last = looks[-1]
    waking = {thread.tid for thread in last.threads if thread.wait and thread.wait.wakes_by_itself}
    found = progress.compare([look.places for look in looks], done, ran, waking)
    slowness = [look.slowness for look in looks]
    found = progress.with_collections(found, collects_again(slowness))
    note = progress.summary(found, last.threads, len(looks), elapsed)
    judgement = progress.agreeing(last.judgement, found, last.threads)
    judgement = Judgement((note, *judgement.findings), judgement.verdict)
    section = SamplesSection(len(looks), round(elapsed, 3), tuple(found))
    last = last._replace(judgement=judgement, slowness=over_samples(slowness, interval))
    return session, Sampled(last, section)
