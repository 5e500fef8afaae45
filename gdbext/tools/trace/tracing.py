"""dispatch-trace: places the hooks, lets the process run, and reports what was open when it ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Ending, EndingKind, TargetReport
from gdbext.diagnosis.reporting import report_target
from gdbext.engine.unwind.caller_check import CallerWalk
from gdbext.errors import TargetError
from gdbext.live.all_calls import AllCalls
from gdbext.live.dispatch_description import Describer
from gdbext.live.host import RunControl
from gdbext.live.operator_functions import OperatorFunctions
from gdbext.live.timed_run import SilenceNotice
from gdbext.live.waiting import torch_session
from gdbext.log import logger
from gdbext.render import escape
from gdbext.tools.trace.hook_installer import HookInstaller, TracedOperators, TraceHooks
from gdbext.tools.trace.trace_output import Sink
from gdbext.tools.trace.trace_section import TraceSection
from gdbext.tools.trace.tracer import Limits, Tracer, open_threads

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.tools.trace.hook_installer import TraceRequest

_log = logger(__name__)

MakeSink = Callable[[Callable[[], float], int], Sink]
"""(clock in microseconds since the trace began, process id) → where the trace goes."""


def instead_of(request: TraceRequest) -> str:
    """The words for what threads did that ran without a dispatch for the trace."""
    limited = request.tid or request.key or request.since
    limits = ", as asked for (--thread, --key, --since)" if limited else ""
    if request.everything:
        return f"dispatched nothing{limits}: dispatch-bt shows where they are"
    return f"did not dispatch {escape(' '.join(request.patterns))}{limits}: dispatch-top counts what they do"


Traced = tuple[TraceSection, TargetReport]
"""What is known when the trace is over, and of which process."""


class Tracing:
    """The state of one run of dispatch-trace."""

    def __init__(
        self, session: Session, control: RunControl, request: TraceRequest, notify: Callable[[str], None]
    ) -> None:
        """``notify`` shows at once what the user must know before the end."""
        self._notify = notify
        self._session = session
        self._control = control
        self._request = request
        self._notes: list[str] = []
        self._hooks = 0
        self._target = report_target(session)

    def run(self, make_sink: MakeSink) -> Traced:
        """Trace until something ends it. Raises TargetError."""
        try:
            return self._run(make_sink)
        finally:
            self._control.close()

    def _run(self, make_sink: MakeSink) -> Traced:
        self._session = torch_session(self._control, self._session)
        self._target = report_target(self._session)
        operators = TracedOperators(self._session.dispatcher, self._request)
        for error in operators.unknown:
            self.note(f"{error} ({error.help}): waiting for it")
        clock: list[Callable[[], float]] = []
        sink = make_sink(lambda: clock[0](), self._session.target.pid)
        tracer = self._tracer(sink, operators)
        clock.append(tracer.now)
        self._hooks = self._place_hooks(tracer, operators)
        _log.info("%d hooks for %d operators", self._hooks, len(operators.named))
        pid = self._session.target.pid if self._control.can_run_beside else 0
        try:
            with SilenceNotice(pid, "dispatch", instead_of(self._request), lambda: bool(tracer.count), self.note):
                ending = self._control.run()
        finally:
            self._control.close()
        return self._finish(tracer, sink, ending)

    def _tracer(self, sink: Sink, operators: TracedOperators) -> Tracer:
        request, control, session = self._request, self._control, self._session
        describer = Describer(control.session, session, registrations=request.verbose)
        since = frozenset(operator.address for operator in operators.since)
        limits = Limits(request.limit, request.depth, request.tid, since)
        architecture = session.memory.architecture
        frame_pointer = architecture.frame_pointer
        callers = CallerWalk(architecture, session.unwinder, control.read, lambda: control.register(frame_pointer))
        return Tracer(describer, sink, callers, control.read, limits, operators.includes)

    def _place_hooks(self, tracer: Tracer, operators: TracedOperators) -> int:
        """Place hooks, and give their number now. Raises TargetError."""
        request, functions = self._request, OperatorFunctions(self._session)
        returns = request.verbose or request.returns
        all_calls = AllCalls(self._session, functions)
        installer = HookInstaller(self._session, self._control, functions, all_calls, tracer, returns)
        TraceHooks(installer, functions, all_calls, request, self.note).place(operators)
        return installer.count

    def note(self, *texts: str) -> None:
        """Show notes at once, and keep them for the report."""
        for text in texts:
            self._notes.append(text)
            self._notify(text)

    # --- the end ---------------------------------------------------------------------------------

    def _finish(self, tracer: Tracer, sink: Sink, ending: Ending) -> Traced:
        if tracer.ended == "limit":
            ending = Ending(EndingKind.LIMIT, f"--limit {self._request.limit}")
        try:
            sink.close()
        except OSError as error:
            what = f"the trace cannot be written: {os.strerror(error.errno or 0)}"
            error_of_trace = TargetError(what, help="make room, or name another --output")
            ending = Ending(EndingKind.FAILED, what, error=error_of_trace)
        hangs = ending.kind.leaves_process and ending.kind not in (EndingKind.REPLACED, EndingKind.LIMIT)
        left = open_threads(self._control, tracer.depth.threads()) if hangs else ()
        operators = tuple(sorted(tracer.operators))
        return TraceSection(tracer.count, operators, self._hooks, ending, left, tuple(self._notes)), self._target
