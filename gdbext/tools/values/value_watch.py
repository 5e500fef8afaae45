"""Watches operators while the process runs: at which places each is seen, what it is called with and returns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from gdbext.engine.unwind.frame_steps import CfaRule, cfa_rule_at, cfa_rule_at_entry
from gdbext.errors import BadData, GdbextError, MemoryFault, UsageError
from gdbext.live.all_calls import AllCalls
from gdbext.live.dispatch_description import Describer
from gdbext.live.host import Handler, HookSpec, RunControl
from gdbext.live.operator_functions import OperatorFunction, OperatorFunctions
from gdbext.live.registrations import definition_hooks
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.tools.values.launch import AFTER, BEFORE, KernelLaunch, LaunchValues
from gdbext.tools.values.value_site import (
    ArgumentRegisters,
    ValueSite,
    kernel_site,
    registers_at,
    registers_at_entry,
    result_pointer,
    value_site,
)
from gdbext.torch.registry.operator_names import matcher
from gdbext.torch.registry.schema import aliased_arguments, schema_results, schema_types
from gdbext.torch.stack import DispatchEvent
from gdbext.torch.stack.roles import operator_method
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_values import CppValues, Value

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.live.dispatch_description import LookupResult
    from gdbext.torch.registry import Operator

_LIST_LIMIT = 256


class ValueRequest(NamedTuple):
    """The user's request. ``key`` and ``kernel`` ("" for any) filter; ``limit`` 0: any number of calls."""

    patterns: Sequence[str]
    before: bool = True
    after: bool = True
    key: str = ""
    kernel: str = ""
    limit: int = 0
    tid: int | None = None
    statistics: bool = True
    everything: bool = False
    """All calls of all operators."""
    redispatches: bool = False
    """Redispatches count, too, not only calls."""

    def is_last(self, count: int) -> bool:
        """True if so many calls reach the limit."""
        return bool(self.limit) and count >= self.limit


class ValueSink(Protocol):
    """The receiver of launches. Raises OSError."""

    def launch(self, launch: KernelLaunch, reporter: TensorReporter) -> bool:
        """True: the process is to stay stopped."""


Call = TypeVar("Call")


class CallWatch(Generic[Call]):
    """The calls that one run of dispatch-values sees, which its ``sink`` gets, and their limit."""

    def __init__(self, session: Session, control: RunControl, request: ValueRequest, sink: ValueSink) -> None:
        self._session = session
        self._control = control
        self._request = request
        self._sink = sink
        self._reporter = TensorReporter(session)
        self._described = LaunchValues(self._reporter, request.statistics)
        self._values = CppValues(session.memory, session.layout, self._described.tensor_text)
        self._architecture = session.memory.architecture
        self._at_entry = cfa_rule_at_entry(self._architecture)
        self._open: dict[int, list[tuple[int, Call]]] = {}
        """Thread → (CFA, call) of those that have not returned: the CFA tells recursive calls apart."""
        self._return_hooks: set[int] = set()
        self.count = 0
        """Number of calls that were seen."""
        self.hooks = 0
        self.over = False
        """True when the limit was reached."""

    @abstractmethod
    def _launch(self, moment: str, tid: int, call: Call) -> KernelLaunch:
        """The call as it is reported; AFTER: with its results."""

    def _hook(self, spec: HookSpec) -> None:
        self._control.place(spec)
        self.hooks += 1

    def _begin(self, tid: int, cfa: int, call: Call) -> bool:
        """Report a call that was seen, in the frame that ends at ``cfa``; True: the process is to stay stopped."""
        request, stays = self._request, False
        self.count += 1
        if request.before:
            stays = self._sink.launch(self._launch(BEFORE, tid, call), self._reporter)
        if request.after and not stays:
            calls = self._open.setdefault(tid, [])
            while calls and calls[-1][0] <= cfa:  # ended by an exception
                calls.pop()
            calls.append((cfa, call))
            returns_to = self._architecture.return_address(self._control.read, cfa)
            if returns_to not in self._return_hooks:
                self._return_hooks.add(returns_to)
                rule = CfaRule(self._architecture.stack_pointer, 0, 0)
                self._hook(HookSpec(returns_to, rule, self._returned))
        if request.is_last(self.count) and not request.after:
            self.over = True
        return stays or self.over

    def _returned(self, tid: int, stack_pointer: int, _value: int) -> bool:
        """A frame has returned: it is a call's if its CFA is the stack pointer now. True: the process stays stopped."""
        calls = self._open.get(tid, [])
        while calls and calls[-1][0] < stack_pointer:
            calls.pop()
        if not calls or calls[-1][0] != stack_pointer:
            return False
        call = calls.pop()[1]
        self._session.memory.forget()
        stays = self._sink.launch(self._launch(AFTER, tid, call), self._reporter)
        if self._request.is_last(self.count) and not calls:
            self.over = True
        return stays or self.over


class _OpenCall(NamedTuple):
    """A call that has not returned."""

    operator: Operator
    lookup: LookupResult
    number: int
    """It counts the operator's calls from 0."""
    arguments: tuple[tuple[str, Value | None], ...]
    result: int
    """Address of the result: the sret pointer, or the boxed stack; 0 where it is not known."""
    is_boxed: bool


class _WatchedCaller(NamedTuple):
    """An operator's own function that asks for a lookup, and how its frame is found from there."""

    operator: Operator
    site: ValueSite | None
    frame: CfaRule


class ValueWatch(CallWatch[_OpenCall]):
    """The operators of one run of dispatch-values."""

    def __init__(
        self, session: Session, control: RunControl, describer: Describer, request: ValueRequest, sink: ValueSink
    ) -> None:
        super().__init__(session, control, request, sink)
        self._describer = describer
        self._call_numbers: dict[int, int] = {}
        """By OperatorEntry."""
        self._entries: dict[int, tuple[int, int, ArgumentRegisters]] = {}
        """Thread → the function that was entered last, the end of its frame, and its argument registers."""
        self._callers: dict[int, _WatchedCaller | None] = {}
        self._types: dict[int, dict[str, str]] = {}
        """OperatorEntry → argument → its type in the schema."""
        self._tables = OperatorFunctions(session).finder.tables
        self._arguments = self._architecture.argument_registers

    def function(self, function: OperatorFunction) -> None:
        """Watch a function of an operator's own."""
        operator, event = function.operator, function.event
        site = value_site(self._session, operator, function.function, function.sites.lookup)
        if event != "call" and not self._request.redispatches:
            return
        if site and site.lost:  # the function does not keep all its arguments until the lookup
            self._hook(HookSpec(site.start, self._at_entry, self._function_entered(site)))

        def looked_up(tid: int, cfa: int, bits: int) -> bool:
            return self._called(tid, cfa, operator, event, bits, site)

        for address, frame in ((function.sites.lookup, function.sites.frame), *function.sites.others):
            self._hook(HookSpec(address, frame, looked_up, function.sites.keyset))

    def _function_entered(self, site: ValueSite) -> Handler:
        def entered(tid: int, cfa: int, _value: int) -> bool:
            self._entries[tid] = (site.start, cfa, registers_at_entry(self._architecture, site, self._control))
            return False

        return entered

    def boxed_entry(self, address: int, operator: Operator, is_call: Callable[[int], bool]) -> None:
        """Watch the boxed entry of a kernel; ``is_call`` says whether a caller is ``callBoxed``."""
        operators = {operator.address: operator}

        def entered(tid: int, cfa: int, bits: int) -> bool:
            returns_to = self._architecture.return_address(self._control.read, cfa)
            return is_call(returns_to) and self._called_boxed("callBoxed", tid, cfa, bits, operators)

        self._hook(HookSpec(address, self._at_entry, entered, self._arguments[2]))

    def boxed_calls(self, places: Sequence[int], operators: Mapping[int, Operator]) -> None:
        """Watch the ``places`` where ``callBoxed`` calls a kernel, for operators that have no other place of their own.
        ``operators``, by address, may become more."""

        def calls(tid: int, cfa: int, bits: int) -> bool:
            return self._called_boxed("callBoxed", tid, cfa, bits, operators)

        for address in places:
            frame = cfa_rule_at(self._architecture, self._tables, address, self._architecture.call_pushes)
            if frame:
                self._hook(HookSpec(address, frame, calls, self._arguments[2]))

    def own_lookups(self, calls: AllCalls, operators: Mapping[int, Operator]) -> None:
        """Watch calls that libraries and programs make with a dispatcher of their own: the lookup says which operator,
        and the entry of its kernel has the arguments. ``operators``, by address, may become more."""
        control, architecture = self._control, self._architecture
        pending: dict[int, tuple[Operator, LookupResult]] = {}
        hooked: set[int] = set()

        def entered(address: int, tid: int, cfa: int, _value: int) -> bool:
            operator, lookup = pending.get(tid, (None, None))
            if not operator or not lookup or address not in lookup.addresses:
                return False
            is_boxed, bits = address == lookup.boxed_address, lookup.keyset.bits
            words = [control.register(name) for name in self._arguments]
            if bits not in (words[2:3] if is_boxed else words[1:3]):
                return False  # another dispatch, of no wanted operator
            del pending[tid]
            if is_boxed:
                return self._called_boxed("callBoxed", tid, cfa, bits, {operator.address: operator})
            return self._called(tid, cfa, operator, "call", bits, kernel_site(self._session, operator, address))

        def expect(tid: int, operator: Operator | None, bits: int) -> None:
            """Wait for the entry of the kernel that a thread's lookup gives."""
            pending.pop(tid, None)
            if operator:
                lookup = self._describer.find(operator, "call", bits)
                pending[tid] = operator, lookup
                for address in lookup.addresses - hooked:
                    hooked.add(address)
                    self._hook(HookSpec(address, self._at_entry, partial(entered, address)))

        def looked_up(tid: int, cfa: int, bits: int) -> bool:
            if calls.event_at(architecture.return_address(control.read, cfa)) == "call":
                expect(tid, operators.get(control.register(self._arguments[0])), bits)
            return False

        def inlined(entry: str, tid: int, _cfa: int, bits: int) -> bool:
            expect(tid, operators.get(control.register(entry)), bits)
            return False

        for address in calls.lookups_of_extensions():
            self._hook(HookSpec(address, self._at_entry, looked_up, self._arguments[1]))
        for shared in calls.inlined_in_extensions():
            if shared.event == "call":
                sites = shared.sites
                self._hook(HookSpec(sites.lookup, sites.frame, partial(inlined, sites.entry), sites.keyset))

    def python_kernels(
        self, entries: Sequence[int], operators: Mapping[int, Operator], is_call: Callable[[int], bool]
    ) -> None:
        """Watch redispatches of these operators to Python kernels, which share the boxed functions ``entries``."""

        def entered(tid: int, cfa: int, bits: int) -> bool:
            returns_to = self._architecture.return_address(self._control.read, cfa)
            return not is_call(returns_to) and self._called_boxed("redispatchBoxed", tid, cfa, bits, operators)

        for address in entries if self._request.redispatches else ():
            self._hook(HookSpec(address, self._at_entry, entered, self._arguments[2]))

    def _called_boxed(self, event: str, tid: int, cfa: int, bits: int, operators: Mapping[int, Operator]) -> bool:
        """The registers hold functor, OperatorHandle&, keyset and Stack* (BoxedKernel.h)."""
        handle = int.from_bytes(self._control.read(self._control.register(self._arguments[1]), 8), "little")
        operator = operators.get(handle)
        return bool(operator and self._called(tid, cfa, operator, event, bits, None))

    def everything(self, lookups: Sequence[int]) -> None:
        """Watch every call that asks ``OperatorEntry::lookup`` out of line: those of all operators of libtorch."""
        for address in lookups:
            self._hook(HookSpec(address, self._at_entry, self._looked_up, self._arguments[1]))

    def _looked_up(self, tid: int, cfa: int, bits: int) -> bool:
        """``cfa`` is lookup's own: its caller's stack pointer."""
        returns_to = self._architecture.return_address(self._control.read, cfa)
        if returns_to not in self._callers:
            self._callers[returns_to] = self._caller(returns_to, self._control.register(self._arguments[0]))
        caller = self._callers[returns_to]
        if not caller:
            return False
        frame = caller.frame
        base = cfa if frame.register == self._architecture.stack_pointer else self._control.register(frame.register)
        return self._called(tid, base + frame.offset, caller.operator, "call", bits, caller.site)

    def _caller(self, returns_to: int, entry: int) -> _WatchedCaller | None:
        """None for a redispatch, and for code that is no operator's own. ``entry``: the OperatorEntry."""
        function = self._session.symbolizer.function(returns_to - 1)
        operator = self._describer.operator(entry)
        if not function or not operator:
            return None
        if not any(operator_method(name) == (operator.struct, "call") for name in function.names):
            return None
        frame = cfa_rule_at(self._architecture, self._tables, returns_to, self._architecture.call_pushes)
        site = value_site(self._session, operator, function, returns_to)
        return _WatchedCaller(operator, site, frame) if frame else None

    def _called(self, tid: int, cfa: int, operator: Operator, event: str, bits: int, site: ValueSite | None) -> bool:
        """A lookup with keyset ``bits``, in the frame that ends at ``cfa``. Raises OSError, MemoryFault."""
        request, memory = self._request, self._session.memory
        if request.tid not in (None, tid):
            return False
        try:
            lookup = self._describer.find(operator, event, bits)
        except BadData:
            return False
        if request.key and lookup.key != request.key:
            return False
        if request.kernel and not fnmatchcase(lookup.kernel.function, f"*{request.kernel}*"):
            return False
        memory.forget()
        number = self._call_numbers[operator.address] = self._call_numbers.get(operator.address, -1) + 1
        arguments: Sequence[tuple[str, Value | None]] = ()
        result, is_boxed = 0, lookup.event in (DispatchEvent.CALL_BOXED, DispatchEvent.REDISPATCH_BOXED)
        if is_boxed:
            result = self._control.register(self._arguments[3])
            names = operator.schema.arguments if operator.schema else ()
            arguments = list(zip(names, self._boxed_values(result, len(names))))
        elif site:
            start, entry, registers = self._entries.get(tid, (0, 0, None))
            if not registers or (start, entry) != (site.start, cfa):
                registers = registers_at(self._architecture, site, self._control, cfa, memory.try_u64)
            arguments = site.values(self._values, registers, cfa, memory.try_u64)
            result = result_pointer(self._architecture, registers) if site.uses_sret else 0
        return self._begin(tid, cfa, _OpenCall(operator, lookup, number, tuple(arguments), result, is_boxed))

    def _boxed_values(self, stack: int, count: int) -> list[Value | None]:
        """The last ``count`` IValues of a stack."""
        size = self._values.ivalue_size
        values: list[Value | None] = [None] * count
        try:
            first, length = vector_span(self._session.memory, stack, size, 1 << 12)
        except GdbextError:
            return values
        if length >= count:
            start = first + (length - count) * size
            for number in range(count):
                with suppress(GdbextError):
                    values[number] = self._values.boxed(start + number * size)
        return values

    def _results(self, opened: _OpenCall) -> list[tuple[str, Value | None]]:
        """The values that the operator returned."""
        schema = opened.operator.schema
        if not schema:
            return []
        wanted = schema_results(schema.text)
        names, kinds = [result.name for result in wanted], [result.kind for result in wanted]
        if opened.is_boxed:
            return list(zip(names, self._boxed_values(opened.result, len(wanted))))
        aliased, arguments = aliased_arguments(schema.text), dict(opened.arguments)
        values = [
            arguments.get(aliased[result.alias])
            if result.alias in aliased
            else self._sret_result(opened.result, index, kinds)
            for index, result in enumerate(wanted)
        ]
        return list(zip(names, values))

    def _sret_result(self, address: int, index: int, kinds: Sequence[str]) -> Value | None:
        """Result ``index`` read from the sret object; libstdc++ stores tuple members in reverse."""
        if not address or any(kind not in ("Tensor", "Tensor[]") for kind in kinds):
            return None
        memory = self._session.memory
        try:
            if kinds == ["Tensor[]"]:
                first, count = vector_span(memory, address, 8, _LIST_LIMIT)
                return self._values.read("c10::ArrayRef<at::Tensor>", (first, count))
            if "Tensor[]" in kinds:
                return None
            return self._values.tensor(memory.u64(address + 8 * (len(kinds) - 1 - index)))
        except (BadData, MemoryFault):
            return None

    def _launch(self, moment: str, tid: int, call: _OpenCall) -> KernelLaunch:
        lookup, operator = call.lookup, call.operator
        if operator.address not in self._types:
            types = schema_types(operator.schema.text) if operator.schema else ()
            self._types[operator.address] = {name: kind for kind, name in types}
        kinds = self._types[operator.address]
        results = self._results(call) if moment == AFTER else []
        values = [self._described.describe(name, value, kinds.get(name, "")) for name, value in call.arguments]
        values += [self._described.describe(name, value, "") for name, value in results]
        words = lookup.op, lookup.overload, call.number, lookup.kernel.function, lookup.key
        return KernelLaunch(moment, *words, tid, tuple(values), len(results))


@dataclass
class WatchedOperators:
    """Places the hooks of one watch. An operator without functions of its own is seen where the dispatcher's
    ``callBoxed`` calls kernels, and at the function that all Python kernels share: all boxed calls stop there. Boxed
    entries of its own kernels would not do: most extensions' operators are called through autograd's fallback first."""

    _session: Session
    _control: RunControl
    _watch: ValueWatch
    _note: Callable[[str], None]
    """Gets what the user must know at once."""
    _known: set[int] = field(default_factory=set, init=False)
    _boxed: dict[int, Operator] = field(default_factory=dict, init=False)
    """Operators that only boxed calls show, by OperatorEntry."""
    _sees_boxed_calls: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._all_calls = AllCalls(self._session)
        self._functions = self._all_calls.functions

    def everything(self) -> None:
        """Watch every operator. Raises TargetError."""
        self._watch.everything(self._all_calls.lookups())

    def place(self, patterns: Sequence[str]) -> None:
        """Watch those that the patterns mean, now or later. Raises UsageError for what cannot be seen, TargetError."""
        if not patterns:
            return
        dispatcher, missing = self._session.dispatcher, []
        for pattern in patterns:
            operators = dispatcher.find(pattern)
            for operator in operators:
                self._add(operator)
            if not operators:
                missing.append(dispatcher.unknown(pattern))
        matchers = [matcher(pattern) for pattern in patterns]

        def defined(operator: Operator) -> None:
            if any(matches(operator.qualified) for matches in matchers):
                self._add(operator)

        hooks = definition_hooks(self._session, self._functions, defined)
        for spec in hooks:
            self._control.place(spec)
        if missing and not hooks:  # an operator that is registered later could not be seen
            raise missing[0]
        for error in missing:
            self._note(f"{error} ({error.help}): waiting for it")
        if not self._boxed:
            return
        names = ", ".join([operator.qualified for operator in self._boxed.values()][:8])
        if self._sees_boxed_calls:
            self._note(f"no functions of their own: {names}: every boxed call of any operator is stopped at")
            return
        what = f"calls of {names} cannot be watched"
        why = "they have no functions of their own, and callBoxed was not found"
        if not self._watch.hooks:
            raise UsageError(what, why=why, help="watch an operator that they call")
        self._note(f"{what}: {why}")

    def _add(self, operator: Operator) -> None:
        if operator.address in self._known:
            return
        self._known.add(operator.address)
        own = self._functions.functions(operator)
        for function in own:
            self._watch.function(function)
        if not own:
            if not self._boxed:
                self._stop_at_boxed_calls()
            self._boxed[operator.address] = operator
        if own or not self._sees_boxed_calls:
            for entry in self._functions.boxed_entries(operator):
                self._watch.boxed_entry(entry, operator, self._is_boxed_call)

    def _stop_at_boxed_calls(self) -> None:
        before = self._watch.hooks
        self._watch.boxed_calls(self._all_calls.boxed_calls(), self._boxed)
        self._sees_boxed_calls = self._watch.hooks > before
        self._watch.own_lookups(self._all_calls, self._boxed)
        for text in self._all_calls.not_seen():
            self._note(f"{text}: what they call is not watched")
        self._watch.python_kernels(self._functions.python_entries(), self._boxed, self._is_boxed_call)

    def _is_boxed_call(self, returns_to: int) -> bool:
        return self._all_calls.boxed_event(returns_to) == "callBoxed"
