"""The operators that a trace is about, also when they are defined later, and the hooks that it places on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdbext.engine.process.symbolizer import Function
from gdbext.engine.unwind.caller_check import StopPlace
from gdbext.engine.unwind.frame_steps import CfaRule, at_entry, frame_at
from gdbext.errors import GdbextError, TargetError
from gdbext.live.all_calls import AllCalls, LookupStop, SharedLookup
from gdbext.live.host import HookSpec, RunControl
from gdbext.live.operator_functions import BoxedEntry, OperatorFunction, OperatorFunctions
from gdbext.live.registrations import definition_hooks
from gdbext.torch.assumed_symbols import STEP_CALLBACKS
from gdbext.torch.registry.operator_names import matcher
from gdbext.torch.stack.lookup_sites import Invocation, LookupSites
from gdbext.torch.stack.roles import Role, classify

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.errors import UsageError
    from gdbext.tools.trace.tracer import Tracer
    from gdbext.torch.registry import Dispatcher, Operator

FUNCTION_LIMIT = 4000
"""Functions that get breakpoints; gdb takes 0.1 ms to insert each whenever the process is resumed after a stop."""


@dataclass(frozen=True)
class TraceRequest:
    """``everything``: all calls of all operators. ``returns``: also stop where dispatches end.

    ``boxed``: also stop in ``Dispatcher::callBoxed``, which all operators share. ``limit`` dispatches and ``depth``
    levels, 0 for any number; ``tid`` one thread only; ``key``: by probes only dispatches to
    that key. The trace begins with the first dispatch of ``since``.
    """

    patterns: Sequence[str]
    everything: bool = False
    verbose: bool = False
    returns: bool = False
    boxed: bool = False
    limit: int = 0
    depth: int = 0
    tid: int | None = None
    since: str = ""
    key: str = ""


class TracedOperators:
    """``named`` are registered already; ``since`` are those whose first dispatch begins the trace.

    ``unknown`` has an error with the closest names for each pattern that means none yet.
    """

    def __init__(self, dispatcher: Dispatcher, request: TraceRequest) -> None:
        """Resolve the patterns. Raises UsageError, MemoryFault."""
        found = {pattern: dispatcher.find(pattern) for pattern in request.patterns}
        self.unknown: list[UsageError] = [dispatcher.unknown(each) for each, matches in found.items() if not matches]
        self.named: list[Operator] = _distinct(each for matches in found.values() for each in matches)
        self.since: list[Operator] = list(dispatcher.find(request.since)) if request.since else []
        self._everything = request.everything
        self._matchers = [matcher(pattern) for pattern in request.patterns]
        self._addresses = {operator.address for operator in self.named}

    def includes(self, operator: Operator) -> bool:
        """Dispatches of the operator are part of the trace."""
        return self._everything or operator.address in self._addresses

    def has(self, address: int) -> bool:
        """The operator with this OperatorEntry is named."""
        return address in self._addresses

    def add(self, operator: Operator) -> bool:
        """The operator was just defined; whether it is one that is named and that was not known before.

        A kernel that is registered before the schema makes the entry: such an operator is defined and has its hooks.
        """
        if operator.address in self._addresses:
            return False
        wanted = any(matches(operator.qualified) for matches in self._matchers)
        if wanted:
            self._addresses.add(operator.address)
        return wanted

    def all(self) -> list[Operator]:
        """Those that need hooks: named, or the beginning of the trace."""
        return _distinct((*self.named, *self.since))


def _distinct(operators: Iterable[Operator]) -> list[Operator]:
    return list({operator.address: operator for operator in operators}.values())


class TraceHooks:
    """Places the hooks for the operators of a trace, and later for those that are defined while it runs."""

    def __init__(
        self,
        installer: HookInstaller,
        functions: OperatorFunctions,
        all_calls: AllCalls,
        request: TraceRequest,
        note: Callable[[str], None],
    ) -> None:
        """``note`` gets what the user must know at once."""
        self._installer = installer
        self._functions = functions
        self._all_calls = all_calls
        self._request = request
        self._note = note
        self._stops_at_all_boxed = False

    def place(self, operators: TracedOperators) -> None:
        """Place all of them. Raises TargetError."""
        if self._request.everything:
            self._installer.everything(self._all_calls)
            return
        wanted = operators.all()
        functions = [each for operator in wanted for each in self._functions_of(operator)]
        boxed = self._request.boxed or self._needs_all_boxed(wanted, functions)
        self._place_functions(functions)
        for operator in wanted:
            for entry in self._functions.boxed_entries(operator):
                self._installer.boxed_entry(entry, not boxed)
        if self._request.verbose:
            self._installer.structured(wanted)
        self._installer.extensions(self._all_calls)
        if boxed:
            self._stop_at_all_boxed()
        self._installer.definitions(lambda operator: self._defined(operator, operators))

    def _functions_of(self, operator: Operator) -> list[OperatorFunction]:
        return self._functions.functions(operator)

    def _needs_all_boxed(self, wanted: Sequence[Operator], functions: Sequence[OperatorFunction]) -> bool:
        """No operator has functions of its own, so that only the dispatcher's own functions see them."""
        owners = {function.operator.address for function in functions}
        without = [operator.qualified for operator in wanted if operator.address not in owners]
        if not without or self._request.boxed:
            return False
        how = "they are not traced; --boxed does it" if functions else "every boxed call of any operator is stopped at"
        self._note(f"no functions of their own in libtorch: {', '.join(without[:8])}: {how}")
        return not functions

    def _place_functions(self, functions: Sequence[OperatorFunction]) -> None:
        if len(functions) > FUNCTION_LIMIT:
            raise TargetError(
                f"{len(functions)} functions would be stopped at; more than {FUNCTION_LIMIT} breakpoints are too slow",
                help="name fewer operators, or use --all",
            )
        for function in functions:
            self._installer.function(function, self._request.verbose)

    def _stop_at_all_boxed(self) -> None:
        """Stop at the boxed calls of all operators, once."""
        if not self._stops_at_all_boxed:
            self._stops_at_all_boxed = True
            for shared in self._all_calls.shared_lookups():
                self._installer.shared_lookup(shared)
            self._installer.python_kernels()

    def _defined(self, operator: Operator, operators: TracedOperators) -> None:
        """An operator was defined while the trace runs; without functions of its own it needs the shared lookups."""
        if not operators.add(operator):
            return
        functions = self._functions_of(operator)
        for function in functions:
            self._installer.function(function, self._request.verbose)
        if not functions:
            self._stop_at_all_boxed()


class HookInstaller:
    """Places hooks of one trace. ``count`` is how many there are."""

    def __init__(
        self,
        session: Session,
        control: RunControl,
        functions: OperatorFunctions,
        all_calls: AllCalls,
        tracer: Tracer,
        returns: bool,
    ) -> None:
        self.count = 0
        self._all_calls = all_calls
        self._session = session
        self._architecture = session.memory.architecture
        self._at_entry = at_entry(self._architecture)
        self._arguments = self._architecture.argument_registers
        self._control = control
        self._functions = functions
        self._tracer = tracer
        self._with_returns = returns
        self._boxed_callers: dict[int, str] = {}

    def hook(self, spec: HookSpec) -> None:
        """Place a hook of the trace."""
        self._control.place(spec)
        self.count += 1

    def definitions(self, defined: Callable[[Operator], None]) -> None:
        """Call ``defined`` for every operator that is defined from now on, before it has kernels."""
        for spec in definition_hooks(self._session, self._functions, defined):
            self.hook(spec)

    # --- an operator's own functions -------------------------------------------------------------

    def function(self, function: OperatorFunction, entry: bool) -> None:
        """The lookup; on demand the function's entry, its invocations of kernels, and its returns."""
        tracer, operator, event, sites = self._tracer, function.operator, function.event, function.sites
        start, place = function.function.start, place_of(function.function, sites)
        for address, frame in ((sites.lookup, sites.frame), *sites.others):
            self.hook(
                HookSpec(
                    address,
                    frame,
                    lambda tid, cfa, bits: tracer.lookup(operator, event, tid, cfa, place, bits),
                    sites.keyset,
                )
            )
        if entry:
            self.hook(
                HookSpec(start, self._at_entry, lambda tid, cfa, _: tracer.entry(operator, event, tid, cfa, start))
            )
        if self._with_returns:
            for invocation in sites.invocations:
                self._invocation(invocation)
            self._returns(sites.returns)

    def _returns(self, addresses: Sequence[int]) -> None:
        for address in addresses:
            self.hook(HookSpec(address, self._at_entry, lambda tid, cfa, _: self._tracer.returned(tid, cfa)))

    def _invocation(self, one: Invocation) -> None:
        tracer, through = self._tracer, one.through
        frame = self._frame(one.address)
        if not frame:
            return
        load = one.displacement if one.in_memory else None
        self.hook(
            HookSpec(
                one.address,
                frame,
                lambda tid, cfa, pointer: tracer.invoke(tid, cfa, through, pointer),
                one.pointer,
                load,
            )
        )
        after = self._frame(one.after) if one.after else None
        if after and one.after:
            self.hook(HookSpec(one.after, after, lambda tid, cfa, _: tracer.invoked(tid, cfa)))

    def _frame(self, address: int) -> CfaRule | None:
        return frame_at(self._architecture, self._functions.finder.tables, address, self._at_entry.size)

    # --- structured kernels ----------------------------------------------------------------------

    def structured(self, operators: Sequence[Operator]) -> None:
        """The meta and impl functions, each once."""
        functions = {each.start: (kind, each) for op in operators for kind, each in self._functions.structured(op)}
        for start, (kind, function) in functions.items():
            handler = self._structured(start, kind, function.demangled[0].partition("(")[0])
            self.hook(HookSpec(start, self._at_entry, handler))

    def _structured(self, start: int, kind: str, name: str) -> Callable[[int, int, int], bool]:
        return lambda tid, cfa, _: self._tracer.function(tid, cfa, start, kind, name)

    # --- boxed calls -----------------------------------------------------------------------------

    def boxed_entry(self, entry: BoxedEntry, calls: bool) -> None:
        """The boxed entry of a kernel; ``calls``: callBoxed counts, too, not only redispatchBoxed."""
        operator = entry.operator
        self._boxed_function(entry.address, lambda handle: operator if handle == operator.address else None, calls)

    def python_kernels(self) -> None:
        """The boxed function that all Python kernels share: redispatchBoxed to them."""
        for address in self._functions.python_entries():
            self._boxed_function(address, self._tracer.operator, calls=False)

    def _boxed_function(self, address: int, operator_of: Callable[[int], Operator | None], calls: bool) -> None:
        function = self._session.symbolizer.function(address)
        if not function or function.start != address:
            return
        tracer, control = self._tracer, self._control
        place = StopPlace(address, function.start, function.start + function.size, self._at_entry.size)

        def entered(tid: int, cfa: int, bits: int) -> bool:
            event = self._boxed_event(self._architecture.return_address(control.read, cfa))
            if not event or (event == "callBoxed" and not calls):
                return False
            operator = operator_of(int.from_bytes(control.read(control.register(self._arguments[1]), 8), "little"))
            if not operator:
                return False
            over = tracer.lookup(operator, event, tid, cfa, place, bits)
            tracer.kernel_entered(tid, cfa)
            return over

        self.hook(HookSpec(address, self._at_entry, entered, self._arguments[2]))
        if self._with_returns:
            self._returns(self._functions.returns(function))

    def shared_lookup(self, shared: SharedLookup) -> None:
        """A function that dispatches for all operators, like ``Dispatcher::callBoxed``: all of them stop there."""
        tracer, control, sites = self._tracer, self._control, shared.sites
        place = place_of(shared.function, sites)._replace(is_open=self._all_calls.open_at(sites.lookup))

        def looked_up(tid: int, cfa: int, bits: int) -> bool:
            operator = tracer.operator(control.register(sites.entry))
            return bool(operator and tracer.lookup(operator, shared.event, tid, cfa, place, bits))

        self.hook(HookSpec(sites.lookup, sites.frame, looked_up, sites.keyset))
        if self._with_returns:
            self._returns(sites.returns)

    def everything(self, everything: AllCalls) -> None:
        """Every call of every operator."""
        self._lookups(everything, everything.lookups(), redispatches=False)
        for shared in (*everything.shared_lookups(), *everything.inlined_in_extensions()):
            if shared.event in ("call", "callBoxed"):
                self.shared_lookup(shared)

    def extensions(self, everything: AllCalls) -> None:
        """Dispatches by libraries and programs with a dispatcher of their own, inlined or not."""
        self._lookups(everything, everything.lookups_of_extensions(), redispatches=True)
        for shared in everything.inlined_in_extensions():
            self.shared_lookup(shared)

    def _lookups(self, everything: AllCalls, addresses: Sequence[int], redispatches: bool) -> None:
        stop = LookupStop(self._session, self._control, self._tracer, self._functions, everything, redispatches)
        for address in addresses:
            self.hook(HookSpec(address, self._at_entry, stop, self._arguments[1]))

    def _boxed_event(self, returns_to: int) -> str:
        """The event of a boxed entry that returns there; "" inside an unboxed call, which was reported."""
        event = self._boxed_callers.get(returns_to)
        if event is None:
            event = self._boxed_callers[returns_to] = self._classify(returns_to)
        return event

    def _classify(self, returns_to: int) -> str:
        try:
            function = self._session.symbolizer.function(returns_to - 1)
        except GdbextError:
            return ""
        role = classify(function)
        if not function or role.role is Role.OPERATOR or role.role.is_layer:
            return ""
        if role.role.opens:
            return role.event
        wanted = STEP_CALLBACKS.address(self._session.symbolizer)
        return "callBoxed" if wanted in self._functions.calls_of(function) else "redispatchBoxed"


def place_of(function: Function, sites: LookupSites) -> StopPlace:
    """The place of a lookup in a function."""
    code = (0, 0) if sites.tail_calls else (function.start, function.start + function.size)
    return StopPlace(sites.lookup, *code, sites.frame.size)
