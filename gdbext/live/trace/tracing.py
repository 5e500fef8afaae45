"""dispatch-trace: places the hooks, lets the process run, and tells what was open when it ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdbext.errors import TargetError
from gdbext.inspection.target_report import report_target
from gdbext.live.hooks.all_calls import AllCalls
from gdbext.live.hooks.hook_installer import HookInstaller
from gdbext.live.hooks.operator_functions import OperatorFunction, OperatorFunctions
from gdbext.live.run_control import RunControl
from gdbext.live.trace.describe import Describer
from gdbext.live.trace.open_dispatches import open_threads
from gdbext.live.trace.sink import Sink
from gdbext.live.trace.tracer import Limits, Tracer
from gdbext.live.waiting import torch_session
from gdbext.log import logger
from gdbext.model.ending import Ending, EndingKind
from gdbext.model.target_report import TargetReport
from gdbext.model.trace_section import OpenThread
from gdbext.torch.registry.operator_names import matcher
from gdbext.unwind.caller_check import CallerWalk

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.torch.registry.operators import Operator

_log = logger(__name__)

FUNCTION_LIMIT = 4000
"""Functions that get breakpoints; gdb takes 0.1 ms to insert each whenever the process is resumed after a stop."""

MakeSink = Callable[[Callable[[], float], int], Sink]
"""(clock in microseconds since the trace began, process id) → where the trace goes."""


@dataclass(frozen=True)
class TraceRequest:
    """What the user asked for. ``boxed``: also stop in ``Dispatcher::callBoxed``, which all operators share."""

    patterns: Sequence[str]
    everything: bool = False
    verbose: bool = False
    returns: bool = False
    boxed: bool = False
    limit: int = 0
    depth: int = 0
    tid: int | None = None
    since: str = ""


@dataclass(frozen=True)
class Traced:
    """What is known when the trace is over."""

    target: TargetReport
    count: int
    ending: Ending
    operators: tuple[str, ...]
    hooks: int
    open: tuple[OpenThread, ...]
    notes: tuple[str, ...]


class Tracing:
    """One run of dispatch-trace."""

    def __init__(
        self, session: Session, control: RunControl, request: TraceRequest, notify: Callable[[str], None]
    ) -> None:
        """``notify`` is told at once what the user must know before the end."""
        self._notify = notify
        self._session = session
        self._control = control
        self._request = request
        self._notes: list[str] = []
        self._hooks = 0
        self._traced: set[int] = set()
        self._target = report_target(session)

    def run(self, make_sink: MakeSink) -> Traced:
        """Trace until something ends it. Raises TargetError."""
        try:
            return self._run(make_sink)
        finally:
            self._control.close()

    def _run(self, make_sink: MakeSink) -> Traced:
        request = self._request
        self._session = torch_session(self._control, self._session)
        operators = self._operators()
        self._target = report_target(self._session)
        describer = Describer(self._control.session, self._session, registrations=request.verbose)
        since = [operator.address for operator in self._session.dispatcher.find(request.since)] if request.since else []
        limits = Limits(request.limit, request.depth, request.tid, frozenset(since))
        clock: list[Callable[[], float]] = []
        sink = make_sink(lambda: clock[0](), self._session.target.pid)
        architecture = self._session.memory.architecture
        lineage = CallerWalk(
            architecture,
            self._session.unwinder,
            self._control.read,
            lambda: self._control.register(architecture.frame_pointer),
        )
        tracer = Tracer(describer, sink, lineage, self._control.read, limits, self._is_traced)
        clock.append(tracer.now)
        self._hooks = self._place(tracer, operators)
        _log.info("%d hooks for %d operators", self._hooks, len(operators))
        try:
            ending = self._control.run()
        finally:
            self._control.close()
        return self._finish(tracer, sink, ending)

    def _operators(self) -> list[Operator]:
        """The operators that are named; a word that means none yet is told, and waited for."""
        dispatcher = self._session.dispatcher
        found: dict[int, Operator] = {}
        for pattern in self._request.patterns:
            matches = dispatcher.find(pattern)
            if not matches:
                self._note(f"{dispatcher.unknown(pattern)} ({dispatcher.unknown(pattern).help}): waiting for it")
            found.update((operator.address, operator) for operator in matches)
        self._traced = set(found)
        return list(found.values())

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._notify(text)

    def _is_traced(self, operator: Operator) -> bool:
        return self._request.everything or operator.address in self._traced

    # --- hooks -----------------------------------------------------------------------------------

    def _place(self, tracer: Tracer, operators: Sequence[Operator]) -> int:
        """Place all hooks; how many. Raises TargetError."""
        request, plan = self._request, OperatorFunctions(self._session)
        returns = request.verbose or request.returns
        placer = HookInstaller(self._session, self._control, plan, tracer, returns)
        everything = AllCalls(self._session, plan)
        if request.everything:
            placer.everything(everything)
            return placer.count
        extra = self._session.dispatcher.find(request.since) if request.since else []
        boxed = request.boxed
        functions: list[OperatorFunction] = []
        named = list({each.address: each for each in (*operators, *extra)}.values())
        without = []
        for operator in named:
            own = plan.functions(operator)
            functions += own
            without += [] if own else [operator.qualified]
        if without and not boxed:
            boxed = not functions
            how = "every boxed call of any operator is stopped at" if boxed else "they are not traced; --boxed does it"
            self._note(f"no functions of their own in libtorch: {', '.join(without[:8])}: {how}")
        if len(functions) > FUNCTION_LIMIT:
            raise TargetError(
                f"that are {len(functions)} functions, and more than {FUNCTION_LIMIT} breakpoints are too slow",
                help="name fewer operators, or use --all",
            )
        for function in functions:
            placer.function(function, request.verbose)
        for operator in named:
            for entry in plan.boxed_entries(operator):
                placer.boxed_entry(entry, not boxed)
        if request.verbose:
            placer.structured(named)
        placer.extensions(everything)
        hosts = everything.hosts() if boxed else []
        for host in hosts:
            placer.host(host)
        self._place_for_later(placer, plan, None if hosts else everything)
        return placer.count

    def _place_for_later(self, placer: HookInstaller, plan: OperatorFunctions, everything: AllCalls | None) -> None:
        """Operators that are defined from now on and that the patterns mean are traced, too.

        ``everything`` is given where boxed calls are not stopped at yet: an operator without own functions needs it.
        """
        matchers = [matcher(pattern) for pattern in self._request.patterns]
        unused = [everything] if everything is not None else []

        def defined(operator: Operator) -> None:
            if not any(matches(operator.qualified) for matches in matchers):
                return
            self._traced.add(operator.address)
            functions = plan.functions(operator)
            for function in functions:
                placer.function(function, self._request.verbose)
            if not functions and unused:
                for host in unused.pop().hosts():
                    placer.host(host)

        placer.definitions(defined)

    # --- the end ---------------------------------------------------------------------------------

    def _finish(self, tracer: Tracer, sink: Sink, ending: Ending) -> Traced:
        if tracer.ended == "limit":
            ending = Ending(EndingKind.LIMIT, f"--limit {self._request.limit}")
        try:
            sink.close()
        except OSError as error:
            what = f"the trace cannot be written: {os.strerror(error.errno or 0)}"
            error_report = TargetError(what, help="make room, or name another --output")
            ending = Ending(EndingKind.FAILED, what, error=error_report)
        hangs = ending.kind.leaves_process and ending.kind not in (EndingKind.REPLACED, EndingKind.LIMIT)
        left = open_threads(self._control, tracer.depth.threads()) if hangs else ()
        operators = tuple(sorted(tracer.operators))
        return Traced(self._target, tracer.count, ending, operators, self._hooks, left, tuple(self._notes))
