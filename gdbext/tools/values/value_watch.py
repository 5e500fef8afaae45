"""Watches operators while the process runs: what each is called with, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gdbext.engine.unwind.frame_steps import CfaRule, at_entry, frame_at
from gdbext.errors import BadData, GdbextError, MemoryFault
from gdbext.live.dispatch_description import Describer
from gdbext.live.host import HookSpec, RunControl
from gdbext.live.operator_functions import BoxedEntry, OperatorFunction, OperatorFunctions
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.tools.values.launch import AFTER, BEFORE, KernelLaunch, LaunchValues
from gdbext.tools.values.value_site import (
    AwaitedCall,
    AwaitedKernels,
    Passed,
    ReturnWatch,
    ValueSite,
    passed_at,
    passed_at_entry,
    result_pointer,
    value_site,
)
from gdbext.torch.registry.schema import aliased_arguments, schema_results, schema_types
from gdbext.torch.stack import DispatchEvent
from gdbext.torch.stack.roles import operator_method
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_values import CppValues, Value

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.live.all_calls import AllCalls
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


class _OpenCall(NamedTuple):
    """A call that has not come back."""

    cfa: int
    operator: Operator
    found: LookupResult
    call: int
    arguments: tuple[tuple[str, Value | None], ...]
    result: int
    """Address of the result: the hidden pointer, or the boxed stack; 0 where it is not known."""
    is_boxed: bool


class _WatchedCaller(NamedTuple):
    """An operator's own function that asks for a lookup, and how its frame is found from there."""

    operator: Operator
    site: ValueSite | None
    frame: CfaRule


class ValueWatch:
    """The watch of one run of dispatch-values."""

    def __init__(
        self, session: Session, control: RunControl, describer: Describer, request: ValueRequest, sink: ValueSink
    ) -> None:
        self._session = session
        self._control = control
        self._describer = describer
        self._request = request
        self._sink = sink
        self._reporter = TensorReporter(session)
        self._described = LaunchValues(self._reporter, request.statistics)
        self._values = CppValues(session.memory, session.layout, self._described.tensor_text)
        self._calls: dict[int, int] = {}
        self._entries: dict[int, tuple[int, int, Passed]] = {}
        """Thread → the function that was entered last, the end of its frame, and its argument registers."""
        self._callers: dict[int, _WatchedCaller | None] = {}
        self._types: dict[int, dict[str, str]] = {}
        self._functions = OperatorFunctions(session)
        self._top = session.memory.architecture.stack_pointer
        self._returns: ReturnWatch[_OpenCall] = ReturnWatch(control, session.memory.architecture, self._returned)
        self._arguments = session.memory.architecture.argument_registers
        self.count = 0
        """Number of calls that were seen."""
        self.hooks = 0
        self.over = False
        """True when the limit was reached."""

    # --- hooks -----------------------------------------------------------------------------------

    def function(self, function: OperatorFunction) -> None:
        """Watch a function of an operator's own."""
        site = value_site(self._session, function.operator, function.function, function.sites.lookup)
        if function.event != "call" and not self._request.redispatches:
            return
        architecture = self._session.memory.architecture
        if site and site.lost:
            self._hook(HookSpec(site.start, at_entry(architecture), self._entered(site)))
        for address, frame in ((function.sites.lookup, function.sites.frame), *function.sites.others):
            handler = self._unboxed(function.operator, function.event, site)
            self._hook(HookSpec(address, frame, handler, function.sites.keyset))

    def _entered(self, site: ValueSite) -> Callable[[int, int, int], bool]:
        """Handle the entry of a function that does not keep all its arguments until the lookup."""
        architecture = self._session.memory.architecture

        def entered(tid: int, cfa: int, _value: int) -> bool:
            self._entries[tid] = (site.start, cfa, passed_at_entry(architecture, site, self._control))
            return False

        return entered

    def boxed_entry(self, entry: BoxedEntry, is_call: Callable[[int], bool]) -> None:
        """Watch the boxed entry of a kernel; ``is_call`` says whether a caller is ``callBoxed``."""
        control, operators = self._control, {entry.operator.address: entry.operator}

        def entered(tid: int, cfa: int, bits: int) -> bool:
            if not is_call(self._session.memory.architecture.return_address(control.read, cfa)):
                return False
            return self._called_boxed("callBoxed", tid, cfa, bits, operators)

        frame = at_entry(self._session.memory.architecture)
        self._hook(HookSpec(entry.address, frame, entered, self._arguments[2]))

    def boxed_calls(self, places: Sequence[int], operators: Mapping[int, Operator]) -> None:
        """Watch the ``places`` where ``callBoxed`` calls a kernel, for operators that have no other place of their own.
        ``operators``, by address, may become more."""
        architecture, tables = self._session.memory.architecture, self._functions.finder.tables

        def calls(tid: int, cfa: int, bits: int) -> bool:
            return self._called_boxed("callBoxed", tid, cfa, bits, operators)

        for address in places:
            frame = frame_at(architecture, tables, address, architecture.call_pushes)
            if frame:
                self._hook(HookSpec(address, frame, calls, self._arguments[2]))

    def own_lookups(self, calls: AllCalls, operators: Mapping[int, Operator]) -> None:
        """Watch calls that libraries and programs make with a dispatcher of their own."""
        awaited = AwaitedKernels(self._session, self._control, self._describer, self._hook, self._kernel_entered)
        awaited.place(calls, operators)

    def _kernel_entered(self, tid: int, cfa: int, call: AwaitedCall, site: ValueSite | None) -> bool:
        operator, bits = call.operator, call.found.keyset.bits
        if call.boxed:
            return self._called_boxed("callBoxed", tid, cfa, bits, {operator.address: operator})
        return self._called(tid, cfa, operator, "call", bits, site)

    def python_kernels(
        self, entries: Sequence[int], operators: Mapping[int, Operator], is_call: Callable[[int], bool]
    ) -> None:
        """Watch redispatches of these operators to Python kernels, which share the boxed functions ``entries``."""
        if not self._request.redispatches:
            return
        control = self._control

        def entered(tid: int, cfa: int, bits: int) -> bool:
            if is_call(self._session.memory.architecture.return_address(control.read, cfa)):
                return False
            return self._called_boxed("redispatchBoxed", tid, cfa, bits, operators)

        for address in entries:
            self._hook(HookSpec(address, at_entry(self._session.memory.architecture), entered, self._arguments[2]))

    def _called_boxed(self, event: str, tid: int, cfa: int, bits: int, operators: Mapping[int, Operator]) -> bool:
        """The registers hold functor, OperatorHandle&, keyset and Stack* (BoxedKernel.h)."""
        handle = int.from_bytes(self._control.read(self._control.register(self._arguments[1]), 8), "little")
        operator = operators.get(handle)
        return bool(operator and self._called(tid, cfa, operator, event, bits, None))

    def everything(self, lookups: Sequence[int]) -> None:
        """Watch every call that asks ``OperatorEntry::lookup`` out of line: those of all operators of libtorch."""
        frame = at_entry(self._session.memory.architecture)
        for address in lookups:
            self._hook(HookSpec(address, frame, self._looked_up, self._arguments[1]))

    def _looked_up(self, tid: int, cfa: int, bits: int) -> bool:
        """``cfa`` is lookup's own: its caller's stack pointer."""
        returns_to = self._session.memory.architecture.return_address(self._control.read, cfa)
        if returns_to not in self._callers:
            self._callers[returns_to] = self._caller(returns_to, self._control.register(self._arguments[0]))
        caller = self._callers[returns_to]
        if not caller:
            return False
        base = cfa if caller.frame.register == self._top else self._control.register(caller.frame.register)
        return self._called(tid, base + caller.frame.offset, caller.operator, "call", bits, caller.site)

    def _caller(self, returns_to: int, entry: int) -> _WatchedCaller | None:
        """None for a redispatch, and for code that is no operator's own."""
        function = self._session.symbolizer.function(returns_to - 1)
        operator = self._describer.operator(entry)
        if not function or not operator:
            return None
        if not any(operator_method(name) == (operator.struct, "call") for name in function.names):
            return None
        architecture, tables = self._session.memory.architecture, self._functions.finder.tables
        frame = frame_at(architecture, tables, returns_to, architecture.call_pushes)
        site = value_site(self._session, operator, function, returns_to)
        return _WatchedCaller(operator, site, frame) if frame else None

    def _hook(self, spec: HookSpec) -> None:
        self._control.place(spec)
        self.hooks += 1

    def _unboxed(self, operator: Operator, event: str, site: ValueSite | None) -> Callable[[int, int, int], bool]:
        return lambda tid, cfa, bits: self._called(tid, cfa, operator, event, bits, site)

    # --- a call ----------------------------------------------------------------------------------

    def _called(self, tid: int, cfa: int, operator: Operator, event: str, bits: int, site: ValueSite | None) -> bool:
        """A lookup with keyset ``bits``, in the frame that ends at ``cfa``. Raises OSError, MemoryFault."""
        if self._request.tid not in (None, tid):
            return False
        try:
            found = self._describer.find(operator, event, bits)
        except BadData:
            return False
        if not self._wanted(found):
            return False
        memory = self._session.memory
        memory.forget()
        call = self._calls[operator.address] = self._calls.get(operator.address, -1) + 1
        self.count += 1
        opened = self._opened(tid, cfa, operator, found, call, site)
        stays = False
        if self._request.before:
            stays = self._sink.launch(self._launch(BEFORE, tid, opened, ()), self._reporter)
        if self._request.after and not stays:
            self.hooks += self._returns.expect(tid, opened.cfa, opened)
        if self._request.is_last(self.count) and not self._request.after:
            self.over = True
        return stays or self.over

    def _wanted(self, found: LookupResult) -> bool:
        request = self._request
        if request.key and found.key != request.key:
            return False
        return not request.kernel or fnmatchcase(found.kernel.function, f"*{request.kernel}*")

    def _opened(
        self, tid: int, cfa: int, operator: Operator, found: LookupResult, call: int, site: ValueSite | None
    ) -> _OpenCall:
        memory, register = self._session.memory, self._control.register
        if found.event in (DispatchEvent.CALL_BOXED, DispatchEvent.REDISPATCH_BOXED):
            stack = register(self._arguments[3])
            return _OpenCall(cfa, operator, found, call, tuple(self._boxed(operator, stack)), stack, True)
        if not site:
            return _OpenCall(cfa, operator, found, call, (), 0, False)
        start, entry, passed = self._entries.get(tid, (0, 0, None))
        if not passed or (start, entry) != (site.start, cfa):
            passed = passed_at(memory.architecture, site, self._control, cfa, memory.try_u64)
        arguments = site.values(self._values, passed, cfa, memory.try_u64)
        result = result_pointer(memory.architecture, passed) if site.hidden else 0
        return _OpenCall(cfa, operator, found, call, tuple(arguments), result, False)

    def _boxed(self, operator: Operator, stack: int) -> list[tuple[str, Value | None]]:
        schema = operator.schema
        names = schema.arguments if schema else ()
        return list(zip(names, self._boxed_values(stack, len(names))))

    def _boxed_values(self, stack: int, count: int) -> list[Value | None]:
        """The last ``count`` IValues of a stack."""
        try:
            first, length = vector_span(self._session.memory, stack, self._values.ivalue_size, 1 << 12)
        except GdbextError:
            return [None] * count
        if length < count:
            return [None] * count
        start = first + (length - count) * self._values.ivalue_size
        return [self._boxed_value(start + number * self._values.ivalue_size) for number in range(count)]

    def _boxed_value(self, address: int) -> Value | None:
        try:
            return self._values.boxed(address)
        except GdbextError:
            return None

    # --- its return ------------------------------------------------------------------------------

    def _returned(self, tid: int, opened: _OpenCall) -> bool:
        self._session.memory.forget()
        launch = self._launch(AFTER, tid, opened, self._results(opened))
        stays = self._sink.launch(launch, self._reporter)
        if self._request.is_last(self.count) and not self._returns.is_inside(tid):
            self.over = True
        return stays or self.over

    def _results(self, opened: _OpenCall) -> list[tuple[str, Value | None]]:
        """The values that the operator returned."""
        schema = opened.operator.schema
        if not schema:
            return []
        wanted = schema_results(schema.text)
        if opened.is_boxed:
            return [(each.name, value) for each, value in zip(wanted, self._boxed_values(opened.result, len(wanted)))]
        aliased = aliased_arguments(schema.text)
        given = dict(opened.arguments)
        found: list[tuple[str, Value | None]] = []
        for number, each in enumerate(wanted):
            if each.alias in aliased:
                found.append((each.name, given.get(aliased[each.alias])))
            else:
                found.append((each.name, self._new_result(opened.result, number, [other.kind for other in wanted])))
        return found

    def _new_result(self, result: int, number: int, kinds: Sequence[str]) -> Value | None:
        """One that the function made, where its hidden pointer leads. libstdc++'s tuples have the last member first."""
        if not result or any(kind not in ("Tensor", "Tensor[]") for kind in kinds):
            return None
        memory = self._session.memory
        try:
            if kinds == ["Tensor[]"]:
                first, count = vector_span(memory, result, 8, _LIST_LIMIT)
                return self._values.read("c10::ArrayRef<at::Tensor>", (first, count))
            if "Tensor[]" in kinds:
                return None
            return self._values.tensor(memory.u64(result + 8 * (len(kinds) - 1 - number)))
        except (BadData, MemoryFault):
            return None

    # --- what is reported ------------------------------------------------------------------------

    def _launch(
        self, when: str, tid: int, opened: _OpenCall, results: Sequence[tuple[str, Value | None]]
    ) -> KernelLaunch:
        found = opened.found
        kinds = self._argument_types(opened.operator)
        values = [self._described.described(name, value, kinds.get(name, "")) for name, value in opened.arguments]
        values += [self._described.described(name, value, "") for name, value in results]
        return KernelLaunch(
            when,
            found.op,
            found.overload,
            opened.call,
            found.kernel.function,
            found.key,
            tid,
            tuple(values),
            len(results),
        )

    def _argument_types(self, operator: Operator) -> dict[str, str]:
        """Argument → its type in the schema."""
        if operator.address not in self._types:
            schema = operator.schema
            wanted = schema_types(schema.text) if schema else ()
            self._types[operator.address] = {name: kind for kind, name in wanted}
        return self._types[operator.address]
