"""``dispatch-diagnose --samples``: several samples of a live process that runs on in between, to tell stuck from slow.

This resumes the process; how it is let go and stopped again is the host's affair.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
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
    from collections.abc import Callable, Mapping, Sequence

    from gdbext.diagnosis.verdict.slowness import Slowness
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
    """Lets a process run for a while: a debugger, or we ourselves (diagnosis/tool.py)."""

    def pause(self, target: Target) -> Pause:
        """The way in which this process is let go for a while. Raises UsageError where it cannot be."""


MAX_SAMPLES = 1000
MAX_INTERVAL = 3600.0


@dataclass(frozen=True)
class Sampled:
    """The last sample, revised by all, and the progress of each thread."""

    inspection: Inspection
    section: SamplesSection

    def with_calls(self, calls: int) -> Sampled:
        """And so many calls of operators were counted meanwhile."""
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
    """Look ``count`` times, ``interval`` seconds apart. The session of the last look is to be closed by the caller.

    Raises UsageError for a core, for senseless numbers, and where the process cannot be let go.
    """
    if session.target.origin.is_core or session.target.origin.recorded:
        raise UsageError("--samples needs a live process: a core or a recording shows one moment only")
    if not 1 < count <= MAX_SAMPLES or not 0 < interval <= MAX_INTERVAL:
        raise UsageError(f"--samples takes 2 to {MAX_SAMPLES} looks, --interval up to {MAX_INTERVAL:.0f} seconds")
    pause = host.pause(session.target)
    session, first = session.settled(_placed)
    looks: list[Inspection] = [first]
    counted: list[dict[int, ThreadActivity]] = []
    started = time.monotonic()
    pid = session.target.pid
    while len(looks) < count:
        session.target.close()
        session, look = Session(pause(interval, lambda: counted.append(activities(pid)))).settled(_placed)
        looks.append(look)
    done = [_between(before, after) for before, after in zip(counted[::2], counted[1::2])]
    return session, _sampled(looks, done, interval * (count - 1), time.monotonic() - started)


def _placed(session: Session) -> Inspection:
    return inspect_threads(session, placed=True)


def _between(before: Mapping[int, ThreadActivity], after: Mapping[int, ThreadActivity]) -> dict[int, progress.Done]:
    """The progress of each thread from one count to the next."""
    return {
        tid: tuple(None if one is None or two is None else two - one for one, two in zip(before[tid], activity))
        for tid, activity in after.items()
        if tid in before
    }


def _sampled(
    looks: Sequence[Inspection], done: Sequence[Mapping[int, progress.Done]], ran: float, elapsed: float
) -> Sampled:
    last = looks[-1]
    waking = {thread.tid for thread in last.threads if thread.wait and thread.wait.wakes_by_itself}
    found = progress.compare([look.places for look in looks], done, ran, waking)
    slowness, collector = _slowness(looks, ran / (len(looks) - 1))
    found = progress.with_collections(found, collector)
    note = progress.summary(found, last.threads, len(looks), elapsed)
    judgement = progress.agreeing(last.judgement, found, last.threads)
    judgement = Judgement((note, *judgement.findings), judgement.verdict)
    section = SamplesSection(len(looks), round(elapsed, 3), tuple(found))
    return Sampled(last._replace(judgement=judgement, slowness=slowness), section)


def _slowness(looks: Sequence[Inspection], interval: float) -> tuple[Slowness | None, int | None]:
    """Find what slows the process down by all looks, and the thread that collects garbage again and again."""
    if not looks[-1].slowness:
        return None, None
    seen = [each.slowness for each in looks]
    return over_samples(seen, interval), collects_again(seen)
