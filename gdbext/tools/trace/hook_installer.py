"""dispatch-trace by breakpoints: its operators, including those that are defined later, their hooks, and the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Ending, EndingKind, TargetReport
from gdbext.diagnosis.reporting import report_target
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.unwind.caller_check import CallerWalk, StopPlace
from gdbext.engine.unwind.frame_steps import CfaRule, cfa_rule_at, cfa_rule_at_entry
from gdbext.errors import TargetError
from gdbext.live.dispatch_description import Describer
from gdbext.live.dispatch_places import AllCalls, OperatorFunction, SharedLookup
from gdbext.live.host import Handler, HookSpec, RunControl
from gdbext.live.registrations import definition_hooks
from gdbext.live.timed_run import SilenceNotice, ending_of_failure
from gdbext.live.waiting import torch_session
from gdbext.log import logger
from gdbext.render import escape
from gdbext.tools.trace.trace_output import TraceSink
from gdbext.tools.trace.trace_section import TraceSection, unproven_note
from gdbext.tools.trace.tracer import Tracer, TraceRequest, open_threads
from gdbext.torch.registry.operator_names import matcher
from gdbext.torch.stack.lookup_sites import Invocation, LookupSites
from gdbext.torch.stack.roles import classify

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.torch.registry import Dispatcher, Operator

FUNCTION_LIMIT = 4000
"""Functions that get breakpoints; gdb takes 0.1 ms to insert each whenever the process is resumed after a stop."""


class TracedOperators:
    """The operators of a trace."""

    def __init__(self, dispatcher: Dispatcher, request: TraceRequest) -> None:
        """Resolve the patterns. Raises UsageError, MemoryFault."""
        matches = {pattern: dispatcher.find(pattern) for pattern in request.patterns}
        self.unknown = [dispatcher.unknown(pattern) for pattern, operators in matches.items() if not operators]
        """An error, with the closest names, for each pattern that matches no operator yet."""
        self.named = _distinct(operator for operators in matches.values() for operator in operators)
        """The registered operators that match."""
        self.since: list[Operator] = list(dispatcher.find(request.since)) if request.since else []
        """The operators whose first dispatch begins the trace."""
        self.all = _distinct((*self.named, *self.since))
        """The operators that need hooks: ``named`` and ``since``."""
        self._everything = request.everything
        self._matchers = [matcher(pattern) for pattern in request.patterns]
        self._addresses = {operator.address for operator in self.named}

    def includes(self, operator: Operator) -> bool:
        """True if dispatches of the operator are part of the trace."""
        return self._everything or operator.address in self._addresses

    def has(self, address: int) -> bool:
        """True if the operator with this OperatorEntry is named."""
        return address in self._addresses

    def add(self, operator: Operator) -> bool:
        """Add an operator that was just defined; True if it is named and new.

        A kernel that is registered before the schema makes the entry: such an operator already has its hooks.
        """
        if operator.address in self._addresses:
            return False
        is_named = any(matches(operator.qualified) for matches in self._matchers)
        if is_named:
            self._addresses.add(operator.address)
        return is_named


def _distinct(operators: Iterable[Operator]) -> list[Operator]:
    return list({operator.address: operator for operator in operators}.values())


@dataclass
class HookInstaller:
    """Places the hooks for the operators of a trace, and later for those that are defined while it runs."""

    _session: Session
    _control: RunControl
    _all_calls: AllCalls
    _tracer: Tracer
    _request: TraceRequest
    _note: Callable[[str], None]
    """Shows a note at once."""

    def __post_init__(self) -> None:
        """Read what depends on the architecture."""
        self.count = 0
        """Number of hooks."""
        self._functions = self._all_calls.functions
        self._architecture = self._session.memory.architecture
        self._at_entry = cfa_rule_at_entry(self._architecture)
        self._arguments = self._architecture.argument_registers
        self._hooks_returns = self._request.verbose or self._request.returns
        self._hooked_all_boxed = False

    def place(self, operators: TracedOperators) -> None:
        """Place the hooks of these operators. Raises TargetError."""
        if self._request.everything:
            self._hook_everything()
            return
        functions = [function for operator in operators.all for function in self._functions.functions(operator)]
        boxed = self._request.boxed or self._needs_all_boxed(operators.all, functions)
        if len(functions) > FUNCTION_LIMIT:
            raise TargetError(
                f"{len(functions)} functions would be stopped at; more than {FUNCTION_LIMIT} breakpoints are too slow",
                help="name fewer operators, or use --all",
            )
        for function in functions:
            self._hook_function(function)
        for operator in operators.all:
            for entry in self._functions.boxed_entries(operator):
                self._hook_boxed_function(entry, {operator.address: operator}.get, calls=not boxed)
        if self._request.verbose:
            self._hook_structured(operators.all)
        # Dispatches by libraries and programs with a dispatcher of their own, inlined or not.
        self._hook_lookups(self._all_calls.lookups_of_extensions(), redispatches=True)
        for shared in self._all_calls.inlined_in_extensions():
            self._hook_shared_lookup(shared)
        if boxed:
            self._hook_all_boxed()

        def defined(operator: Operator) -> None:
            """Hook an operator that was defined while the trace runs; without functions of its own it needs the shared
            lookups."""
            if operators.add(operator):
                functions = self._functions.functions(operator)
                for function in functions:
                    self._hook_function(function)
                if not functions:
                    self._hook_all_boxed()

        for spec in definition_hooks(self._session, self._functions, defined):
            self._hook(*spec)

    def _needs_all_boxed(self, operators: Sequence[Operator], functions: Sequence[OperatorFunction]) -> bool:
        """True if no operator has functions of its own, so that only hooks in the dispatcher's functions see them.
        Notes the operators without functions."""
        owners = {function.operator.address for function in functions}
        without = [operator.qualified for operator in operators if operator.address not in owners]
        if not without or self._request.boxed:
            return False
        how = "they are traced only with --boxed" if functions else "every boxed call of any operator stops"
        self._note(f"no functions of their own in libtorch: {', '.join(without[:8])}: {how}")
        return not functions

    def _hook_all_boxed(self) -> None:
        """Stop at the boxed calls of all operators, and at redispatches to Python kernels; once."""
        if self._hooked_all_boxed:
            return
        self._hooked_all_boxed = True
        for shared in self._all_calls.shared_lookups():
            self._hook_shared_lookup(shared)
        for address in self._functions.python_entries():
            self._hook_boxed_function(address, self._tracer.describer.operator, calls=False)

    def _hook(
        self, address: int, frame: CfaRule, handler: Handler, register: str = "", load: int | None = None
    ) -> None:
        """Place a hook; the parameters are the fields of HookSpec."""
        self._control.place(HookSpec(address, frame, handler, register, load))
        self.count += 1

    def _hook_function(self, function: OperatorFunction) -> None:
        """Hook the lookup in an operator's function; if requested, also its entry, its calls of kernels, its
        returns."""
        tracer, operator, event, sites = self._tracer, function.operator, function.event, function.sites
        start, place = function.function.start, _stop_place(function.function, sites)

        def looked_up(tid: int, cfa: int, bits: int) -> bool:
            return tracer.lookup(operator, event, tid, cfa, place, bits)

        for address, frame in ((sites.lookup, sites.frame), *sites.others):
            self._hook(address, frame, looked_up, sites.keyset)
        if self._request.verbose:
            self._hook(start, self._at_entry, lambda tid, cfa, _: tracer.entry(operator, event, tid, cfa, start))
        if self._hooks_returns:
            for invocation in sites.invocations:
                self._hook_invocation(invocation)
            self._hook_returns(sites.returns)

    def _hook_returns(self, addresses: Sequence[int]) -> None:
        for address in addresses:
            self._hook(address, self._at_entry, lambda tid, cfa, _: self._tracer.returned(tid, cfa))

    def _hook_invocation(self, invocation: Invocation) -> None:
        """Hook a call of a kernel in an operator's function, and the instruction after it."""

        def frame_rule(address: int) -> CfaRule | None:
            return cfa_rule_at(self._architecture, self._functions.finder.tables, address, self._at_entry.size)

        tracer, through, frame = self._tracer, invocation.through, frame_rule(invocation.address)
        if not frame:
            return

        def invoke(tid: int, cfa: int, pointer: int) -> bool:
            return tracer.invoke(tid, cfa, through, pointer)

        load = invocation.displacement if invocation.in_memory else None
        self._hook(invocation.address, frame, invoke, invocation.pointer, load)
        after = frame_rule(invocation.after) if invocation.after else None
        if after and invocation.after:
            self._hook(invocation.after, after, lambda tid, cfa, _: tracer.invoked(tid, cfa))

    def _hook_structured(self, operators: Sequence[Operator]) -> None:
        """Hook the meta and impl functions of structured kernels, each once."""

        def entered(function: Function, kind: str, tid: int, cfa: int, _value: int) -> bool:
            return self._tracer.function(tid, cfa, function.start, kind, function.demangled[0].partition("(")[0])

        pairs = (pair for operator in operators for pair in self._functions.structured(operator))
        for kind, function in {function.start: (kind, function) for kind, function in pairs}.values():
            self._hook(function.start, self._at_entry, partial(entered, function, kind))

    def _hook_boxed_function(self, address: int, operator_of: Callable[[int], Operator | None], calls: bool) -> None:
        """Report to the tracer each entry into the boxed function that starts at ``address``, and its returns if they
        are hooked. ``operator_of``: OperatorEntry* → its operator, None if that is not traced; ``calls``: entries from
        callBoxed count, too, not only those from redispatchBoxed."""
        function = self._session.symbolizer.function(address)
        if not function or function.start != address:
            return
        tracer, control = self._tracer, self._control
        place = StopPlace(address, function.start, function.start + function.size, self._at_entry.size)

        def entered(tid: int, cfa: int, bits: int) -> bool:
            """Report a lookup, with the operator in the OperatorHandle& argument, and the kernel's entry."""
            event = self._all_calls.boxed_event(self._architecture.return_address(control.read, cfa))
            if not event or (event == "callBoxed" and not calls):
                return False
            operator = operator_of(int.from_bytes(control.read(control.register(self._arguments[1]), 8), "little"))
            if not operator:
                return False
            is_over = tracer.lookup(operator, event, tid, cfa, place, bits)
            tracer.kernel_entered(tid, cfa)
            return is_over

        self._hook(address, self._at_entry, entered, self._arguments[2])
        if self._hooks_returns:
            self._hook_returns(self._functions.returns(function))

    def _hook_shared_lookup(self, shared: SharedLookup) -> None:
        """Hook a function that dispatches for all operators, like ``Dispatcher::callBoxed``: all of them stop there."""
        tracer, control, sites = self._tracer, self._control, shared.sites
        place = _stop_place(shared.function, sites)._replace(is_open=self._all_calls.open_at(sites.lookup))

        def looked_up(tid: int, cfa: int, bits: int) -> bool:
            operator = tracer.describer.operator(control.register(sites.entry))
            return bool(operator and tracer.lookup(operator, shared.event, tid, cfa, place, bits))

        self._hook(sites.lookup, sites.frame, looked_up, sites.keyset)
        if self._hooks_returns:
            self._hook_returns(sites.returns)

    def _hook_everything(self) -> None:
        """Hook the calls of all operators: the copies of lookup, and the functions into which lookup is inlined."""
        self._hook_lookups(self._all_calls.lookups(), redispatches=False)
        for shared in (*self._all_calls.shared_lookups(), *self._all_calls.inlined_in_extensions()):
            if shared.event in ("call", "callBoxed"):
                self._hook_shared_lookup(shared)

    def _hook_lookups(self, addresses: Sequence[int], redispatches: bool) -> None:
        """Hook copies of ``OperatorEntry::lookup``; the event follows from the caller, which is examined once.
        ``redispatches``: trace them, too."""
        control, tracer, architecture = self._control, self._tracer, self._architecture
        callers: dict[int, tuple[str, CfaRule, StopPlace] | None] = {}

        def looked_up(tid: int, cfa: int, bits: int) -> bool:
            """Report the caller's dispatch; ``cfa``, of lookup itself, is the caller's stack pointer."""
            returns_to = architecture.return_address(control.read, cfa)
            if returns_to not in callers:
                callers[returns_to] = self._lookup_caller(returns_to, redispatches)
            caller = callers[returns_to]
            operator = tracer.describer.operator(control.register(self._arguments[0])) if caller else None
            if not caller or not operator:
                return False
            event, frame, place = caller
            base = cfa if frame.register == architecture.stack_pointer else control.register(frame.register)
            return tracer.lookup(operator, event, tid, base + frame.offset, place, bits)

        for address in addresses:
            self._hook(address, self._at_entry, looked_up, self._arguments[1])

    def _lookup_caller(self, returns_to: int, redispatches: bool) -> tuple[str, CfaRule, StopPlace] | None:
        """(event, CFA rule, place) of the function to which a lookup returns; None if its dispatches are not traced."""
        function = self._session.dispatch_stacks.sites.function_at(returns_to - 1)
        if not function:
            return None
        role = classify(function)
        event = role.event if role.role.opens else self._all_calls.event_at(returns_to)
        if not event or (event not in ("call", "callBoxed") and not redispatches):
            return None
        frame = cfa_rule_at(
            self._architecture, self._functions.finder.tables, returns_to, self._architecture.call_pushes
        )
        if not frame:
            return None
        end, is_open = function.start + function.size, self._all_calls.open_at(returns_to - 1)
        return event, frame, StopPlace(returns_to, function.start, end, frame.size, is_open)


def _stop_place(function: Function, sites: LookupSites) -> StopPlace:
    """The place of a lookup; without the function's extent if it may jump to the kernel, which then has its frame."""
    code = (0, 0) if sites.tail_calls else (function.start, function.start + function.size)
    return StopPlace(sites.lookup, *code, sites.frame.size)


_log = logger(__name__)

MakeSink = Callable[[Callable[[], float], int], TraceSink]
"""(clock in microseconds since the trace began, process id) → where the trace is written."""
Traced = tuple[TraceSection, TargetReport]
"""The result of a trace, and the process."""


def instead_of(request: TraceRequest) -> str:
    """The end of the sentence "no dispatch in 5 s: 2 of 3 threads ran, and …"."""
    limited = request.tid or request.key or request.since
    limits = " that matches --thread, --key and --since" if limited else ""
    if request.everything:
        return f"dispatched nothing{limits}: dispatch-bt shows where they are"
    return f"did not dispatch {escape(' '.join(request.patterns))}{limits}: dispatch-top shows what they dispatch"


def trace_by_breakpoints(
    session: Session,
    control: RunControl,
    request: TraceRequest,
    warnings: Sequence[str],
    notify: Callable[[str], None],
    make_sink: MakeSink,
) -> Traced:
    """Run the process and trace it until something ends the trace. ``warnings``: the first notes; ``notify`` shows a
    note at once; ``make_sink`` opens the output. Raises TargetError."""
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
        since = frozenset(operator.address for operator in operators.since)
        architecture = session.memory.architecture
        callers = CallerWalk(
            architecture, session.unwinder, control.read, lambda: control.register(architecture.frame_pointer)
        )
        describer = Describer(control.session, session, registrations=request.verbose)
        tracer = Tracer(describer, sink, callers, control.read, request, since, operators.includes, now)
        all_calls = AllCalls(session)
        installer = HookInstaller(session, control, all_calls, tracer, request, note)
        installer.place(operators)
        hooks = installer.count
        _log.info("%d hooks for %d operators", hooks, len(operators.named))
        pid = session.target.pid if control.can_run_beside else 0
        with SilenceNotice(pid, "dispatch", instead_of(request), lambda: bool(tracer.count), note):
            ending = control.run()
    finally:
        control.close()
    if tracer.unproven:
        note(unproven_note(tracer.unproven))
    if tracer.reached_limit:
        ending = Ending(EndingKind.LIMIT, f"--limit {request.limit}")
    try:
        sink.close()
    except OSError as error:
        ending = ending_of_failure(error)
    hangs = ending.kind.leaves_process and ending.kind not in (EndingKind.REPLACED, EndingKind.LIMIT)
    left = open_threads(control, tracer.open) if hangs else ()
    return TraceSection(tracer.count, tuple(sorted(tracer.operators)), hooks, ending, left, tuple(notes)), target
