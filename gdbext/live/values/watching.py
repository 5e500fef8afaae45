"""dispatch-values: places the hooks, lets the process run, and says why that ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdbext.inspection.target_reporting import report_target
from gdbext.live.run_control import RunControl
from gdbext.live.trace.describe import Describer
from gdbext.live.values.compiled_code_watch import CompiledCodeWatch, is_compiled
from gdbext.live.values.value_watch import ValueRequest, ValueSink, ValueWatch
from gdbext.live.values.watched_operators import WatchedOperators
from gdbext.live.waiting import torch_session
from gdbext.model.ending import Ending, EndingKind
from gdbext.model.target_report import TargetReport

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

MakeSink = Callable[["Session"], ValueSink]


@dataclass(frozen=True)
class Watched:
    """What is known when it is over."""

    target: TargetReport
    count: int
    ending: Ending
    notes: tuple[str, ...]


class Watching:
    """One run of dispatch-values."""

    def __init__(
        self, session: Session, control: RunControl, request: ValueRequest, notify: Callable[[str], None]
    ) -> None:
        """``notify`` shows at once what the user must know before the end."""
        self._notify = notify
        self._session = session
        self._control = control
        self._request = request
        self._notes: list[str] = []

    def run(self, make_sink: MakeSink) -> Watched:
        """Watch until something ends it. Raises TargetError, UsageError for what is no key and no operator."""
        try:
            self._session = torch_session(self._control, self._session)
            session, request = self._session, self._request
            if request.key:
                session.dispatch_keys.bits_of(request.key)
            describer = Describer(self._control.session, session, registrations=False)
            sink = make_sink(session)
            watch = ValueWatch(session, self._control, describer, request, sink)
            kernels = CompiledCodeWatch(session, self._control, request, sink)
            compiled = [pattern for pattern in request.patterns if is_compiled(pattern)]
            if compiled:
                kernels.place(compiled)
            operators = WatchedOperators(session, self._control, watch, self._note)
            if request.everything:
                operators.everything()
            else:
                operators.place([pattern for pattern in request.patterns if pattern not in compiled])
            ending = self._control.run()
        finally:
            self._control.close()
        if watch.over or kernels.over:
            ending = Ending(EndingKind.LIMIT, f"--limit {request.limit}")
        return Watched(report_target(self._session), watch.count + kernels.count, ending, tuple(self._notes))

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._notify(text)
