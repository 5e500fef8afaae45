"""dispatch-top's measurements: what was dispatched since the last time, as a section of a report."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError, ProbesRefused
from gdbext.tools.probes.bpf.place_program import EVERYTHING, Filter, PythonLines
from gdbext.tools.probes.dispatch_counter import DispatchCount, DispatchCounter
from gdbext.tools.probes.summary import RowSelection, Summary, TopSection
from gdbext.tools.probes.trace_places import LatePlaces, TracePlaces, unseen_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.live.unstopped import RunningProcess
    from gdbext.torch.registry.operators import Operator


class DispatchMeter:
    """Counts from construction to close(); a context manager. Raises GdbextError."""

    def __init__(
        self, session: Session, process: RunningProcess, operators: Sequence[Operator], by: str,
        only: Filter = EVERYTHING,
    ) -> None:  # fmt: skip
        """``operators``: only these; all without one; ``by``: how rows will be grouped (one of GROUPINGS); ``only``:
        what else the kernel leaves out."""
        self._process = process
        self._errors = session.errors
        self._lines = PythonLines(session) if by == "line" else None
        self._summary = Summary(session, self._lines)
        finder = TracePlaces(session)
        places = finder.of(operators) if operators else finder.everything()
        self._places, self._unseen = len(places), finder.unseen
        wanted = [operator.address for operator in operators]
        path = self._lines.path if self._lines is not None else None
        states = self._lines.thread_states() if self._lines is not None else None
        self._late = LatePlaces(session, filtered=bool(operators))
        self._counter = DispatchCounter(
            session.memory.architecture, process.pid, places, wanted, path, states, only, by_thread=by == "thread"
        )
        self._before: dict[DispatchCount, int] = {}
        self._lost = 0
        self._since = self._counter.started

    def section(self, select: RowSelection) -> TopSection:
        """The dispatches since the last section, or since all probes were in place. Raises OSError."""
        counts, lost, now = self._counter.counts(), self._counter.lost(), time.monotonic()
        self._know_threads()
        current = {count._replace(times=0): count.times for count in counts}
        news = [
            count._replace(times=times - self._before.get(count, 0))
            for count, times in current.items()
            if times > self._before.get(count, 0)
        ]
        seconds, unseen = now - self._since, self._unseen + self._late.unseen
        rows, more = self._summary.rows(news, select, seconds, self._process.thread_names())
        section = TopSection(
            seconds=round(seconds, 3), engine="probes", total=sum(count.times for count in news),
            lost=lost - self._lost, places=self._places, rows=tuple(rows), more=more,
            unseen=unseen.total(), unseen_in=unseen_in(unseen),
        )  # fmt: skip
        self._before, self._lost, self._since = current, lost, now
        return section

    def learn(self) -> None:
        """Learn the names of the operators and keysets that were counted so far, while they can be read; and libraries
        that were loaded meanwhile are counted in, too. Raises OSError."""
        self._summary.learn(self._counter.counts())
        try:
            late = self._late.found()
            if late:
                self._counter.add(late)
                self._places += len(late)
        except ProbesRefused as error:
            self._errors.note(error, "libraries that are loaded later")
        except GdbextError:  # the process may be about to end
            pass

    def _know_threads(self) -> None:
        if self._lines is not None:
            self._counter.know_threads(self._lines.thread_states())

    def __enter__(self) -> DispatchMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take all probes away; idempotent."""
        self._counter.close()
