"""dispatch-trace: places the hooks, lets the process run, and tells what was open when it ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gdbext.errors import TargetError
from gdbext.live import control as live_control
from gdbext.live.aftermath import aftermath
from gdbext.live.control import Control, Ending, HookSpec
from gdbext.live.describe import Describer
from gdbext.live.plan import TABLE_UPDATES, BoxedEntry, OperatorFunction, Plan
from gdbext.live.sink import Sink
from gdbext.live.sites import Frame, Invocation, frame_at
from gdbext.live.trace import Limits, Tracer

if TYPE_CHECKING:
    from gdbext.dispatcher.operator import Operator
    from gdbext.session import Session

AT_ENTRY = Frame("rsp", 8, 8)
"""At a function's first instruction, and at its ret, the return address is all that lies below the CFA."""
FUNCTION_LIMIT = 4000
"""Functions that get breakpoints; gdb takes 0.1 ms to insert each whenever the process is resumed after a stop."""


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


@dataclass
class Traced:
    """What is left to tell when the trace is over."""

    count: int
    ending: Ending
    operators: list[str]
    stops: int
    open_dispatches: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Tracing:
    """One run of dispatch-trace."""

    def __init__(self, session: Session, control: Control, request: TraceRequest) -> None:
        self._session = session
        self._control = control
        self._request = request
        self._plan = Plan(session)
        self._notes: list[str] = []
        self._hooks = 0
        self._traced: set[int] = set()

    def run(self, make_sink: Callable[[Callable[[], float]], Sink]) -> Traced:
        """Trace until something ends it. ``make_sink`` is given the trace's clock. Raises UsageError, TargetError."""
        request = self._request
        operators = self._operators()
        describer = Describer(self._control.session, self._session, registrations=request.verbose)
        since = [operator.address for operator in self._session.dispatcher.find(request.since)] if request.since else []
        limits = Limits(request.limit, request.depth, request.tid, frozenset(since))
        clock: list[Callable[[], float]] = []
        sink = make_sink(lambda: clock[0]())
        tracer = Tracer(describer, sink, limits, self._is_traced)
        clock.append(tracer.now)
        live_control.begin("dispatch-trace")
        try:
            self._place(tracer, operators)
            ending = self._control.run()
        finally:
            self._control.close()
            live_control.end()
        return self._finish(tracer, sink, ending)

    def _operators(self) -> list[Operator]:
        """The operators that are named. Raises UsageError for a word that means none."""
        dispatcher = self._session.dispatcher
        found: dict[int, Operator] = {}
        for pattern in self._request.patterns:
            matches = dispatcher.find(pattern)
            if not matches:
                raise dispatcher.unknown(pattern)
            found.update((operator.address, operator) for operator in matches)
        self._traced = set(found)
        return list(found.values())

    def _is_traced(self, operator: Operator) -> bool:
        return self._request.everything or operator.address in self._traced

    # --- hooks -----------------------------------------------------------------------------------

    def _place(self, tracer: Tracer, operators: Sequence[Operator]) -> None:
        extra = self._session.dispatcher.find(self._request.since) if self._request.since else []
        functions: list[OperatorFunction] = []
        entries: list[BoxedEntry] = []
        for operator in {each.address: each for each in (*operators, *extra)}.values():
            own = self._plan.functions(operator)
            functions += own
            entries += self._plan.boxed_entries(operator)
            if not own:
                self._notes.append(f"{operator.qualified} has no functions of its own in libtorch")
        if len(functions) > FUNCTION_LIMIT:
            raise TargetError(
                f"that are {len(functions)} functions, and more than {FUNCTION_LIMIT} breakpoints are too slow",
                help="name fewer operators, or use --all",
            )
        for function in functions:
            self._place_function(tracer, function)
        for name in TABLE_UPDATES:
            address = self._session.symbolizer.address_of(name, "libtorch_cpu.so")
            if address is not None:
                self._hook(HookSpec(address, AT_ENTRY, lambda *_: self._table_changed(tracer)))

    def _table_changed(self, tracer: Tracer) -> bool:
        tracer.table_changed()
        return False

    def _place_function(self, tracer: Tracer, function: OperatorFunction) -> None:
        operator, event, sites = function.operator, function.event, function.sites
        size = sites.frame.size

        def looked_up(tid: int, cfa: int, bits: int) -> bool:
            return tracer.lookup(operator, event, tid, bits, cfa, size)

        self._hook(HookSpec(sites.lookup, sites.frame, looked_up, sites.keyset))
        if self._request.verbose:
            entered: live_control.Handler = lambda tid, cfa, _: tracer.entry(operator, event, tid, cfa)  # noqa: E731
            self._hook(HookSpec(function.function.start, AT_ENTRY, entered))
        if self._request.verbose or self._request.returns:
            self._place_returns(tracer, function)

    def _place_returns(self, tracer: Tracer, function: OperatorFunction) -> None:
        for invocation in function.sites.invocations:
            self._place_invocation(tracer, invocation)
        for address in function.sites.returns:
            self._hook(HookSpec(address, AT_ENTRY, lambda tid, cfa, _: tracer.returned(tid, cfa)))

    def _place_invocation(self, tracer: Tracer, invocation: Invocation) -> None:
        through = invocation.through
        frame = self._frame(invocation.address)
        if frame is None:
            return

        def invoked(tid: int, cfa: int, pointer: int) -> bool:
            return tracer.invoke(tid, cfa, through, pointer)

        load = invocation.displacement if invocation.in_memory else None
        self._hook(HookSpec(invocation.address, frame, invoked, invocation.pointer, load))
        after = self._frame(invocation.after) if invocation.after is not None else None
        if after is not None and invocation.after is not None:
            self._hook(HookSpec(invocation.after, after, lambda tid, cfa, _: tracer.invoked(tid, cfa)))

    def _frame(self, address: int) -> Frame | None:
        return frame_at(self._session.modules, self._session.memory, address, AT_ENTRY.size)

    def _hook(self, spec: HookSpec) -> None:
        self._control.place(spec)
        self._hooks += 1

    # --- the end ---------------------------------------------------------------------------------

    def _finish(self, tracer: Tracer, sink: Sink, ending: Ending) -> Traced:
        if tracer.ended == "limit":
            ending = Ending("limit", f"--limit {self._request.limit}")
        try:
            sink.close()
        except OSError as error:
            what = f"the trace cannot be written: {os.strerror(error.errno or 0)}"
            ending = Ending("failed", what, error=TargetError(what, help="make room, or name another --output"))
        left = aftermath(self._control, tracer.depth.threads()) if ending.alive and ending.kind != "replaced" else []
        return Traced(tracer.count, ending, sorted(tracer.operators), self._hooks, left, self._notes)
