"""dispatch-trace by breakpoints: places the hooks, lets the process run, and reports what was open when it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Ending, EndingKind, TargetReport
from gdbext.diagnosis.reporting import report_target
from gdbext.engine.unwind.caller_check import CallerWalk
from gdbext.live.all_calls import AllCalls
from gdbext.live.dispatch_description import Describer
from gdbext.live.host import RunControl
from gdbext.live.timed_run import SilenceNotice, ending_of_failure
from gdbext.live.waiting import torch_session
from gdbext.log import logger
from gdbext.render import escape
from gdbext.tools.trace.hook_installer import HookInstaller, TracedOperators, TraceHooks
from gdbext.tools.trace.trace_bars import TraceSink
from gdbext.tools.trace.trace_section import TraceSection
from gdbext.tools.trace.tracer import Limits, Tracer, open_threads

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.tools.trace.hook_installer import TraceRequest

_log = logger(__name__)

MakeSink = Callable[[Callable[[], float], int], TraceSink]
"""(clock in microseconds since the trace began, process id) → where the trace is written."""
Traced = tuple[TraceSection, TargetReport]
"""The result of a trace, and the process."""


def instead_of(request: TraceRequest) -> str:
    """The words for what threads did that ran without a dispatch for the trace."""
    limited = request.tid or request.key or request.since
    limits = ", as asked for (--thread, --key, --since)" if limited else ""
    if request.everything:
        return f"dispatched nothing{limits}: dispatch-bt shows where they are"
    return f"did not dispatch {escape(' '.join(request.patterns))}{limits}: dispatch-top counts what they do"


def trace_by_breakpoints(
    session: Session,
    control: RunControl,
    request: TraceRequest,
    warnings: Sequence[str],
    notify: Callable[[str], None],
    make_sink: MakeSink,
) -> Traced:
    """Trace until something ends it. ``warnings`` are the first notes; ``notify`` shows a note at once. Raises
    TargetError."""
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        notify(text)

    for warning in warnings:
        note(warning)
    try:
        session = torch_session(control, session)
        target = report_target(session)
        operators = TracedOperators(session.dispatcher, request)
        for error in operators.unknown:
            note(f"{error} ({error.help}): waiting for it")
        began = time.perf_counter()

        def now() -> float:
            return (time.perf_counter() - began) * 1e6

        sink = make_sink(now, session.target.pid)
        limits = Limits(
            request.limit, request.depth, request.tid, frozenset(operator.address for operator in operators.since)
        )
        architecture = session.memory.architecture
        callers = CallerWalk(
            architecture, session.unwinder, control.read, lambda: control.register(architecture.frame_pointer)
        )
        describer = Describer(control.session, session, registrations=request.verbose)
        tracer = Tracer(describer, sink, callers, control.read, limits, operators.includes, now)
        all_calls = AllCalls(session)
        installer = HookInstaller(session, control, all_calls, tracer, request.verbose or request.returns)
        TraceHooks(installer, all_calls, request, note).place(operators)
        hooks = installer.count
        _log.info("%d hooks for %d operators", hooks, len(operators.named))
        pid = session.target.pid if control.can_run_beside else 0
        with SilenceNotice(pid, "dispatch", instead_of(request), lambda: bool(tracer.count), note):
            ending = control.run()
    finally:
        control.close()
    if tracer.reached_limit:
        ending = Ending(EndingKind.LIMIT, f"--limit {request.limit}")
    try:
        sink.close()
    except OSError as error:
        ending = ending_of_failure(error)
    hangs = ending.kind.leaves_process and ending.kind not in (EndingKind.REPLACED, EndingKind.LIMIT)
    left = open_threads(control, tracer.open) if hangs else ()
    return TraceSection(tracer.count, tuple(sorted(tracer.operators)), hooks, ending, left, tuple(notes)), target
