"""Watches operators while the process runs: the places of each, the registers and stack slots of its arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from gdbext.engine.arch import Architecture, Slot
from gdbext.engine.arch.argument_places import SavedArgument, saved_arguments
from gdbext.engine.formats.demangle import demangle
from gdbext.engine.unwind.frame_steps import CfaRule, cfa_rule_at, cfa_rule_at_entry
from gdbext.errors import BadData, GdbextError, MemoryFault, UsageError
from gdbext.live.dispatch_description import Describer, LookupResult
from gdbext.live.dispatch_places import AllCalls, OperatorFunction, OperatorFunctions
from gdbext.live.host import HookSpec, RunControl
from gdbext.live.registrations import definition_hooks
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.tools.values.launch import AFTER, BEFORE, KernelLaunch, LaunchValues
from gdbext.torch.registry.operator_names import matcher
from gdbext.torch.registry.schema import aliased_arguments, hidden_result, schema_results, schema_types
from gdbext.torch.stack import DispatchEvent
from gdbext.torch.stack.kernel_match import unboxed_entry_signature
from gdbext.torch.stack.roles import operator_method, parameters
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_values import CppValues, Value, argument_slots, used_bytes

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.symbolizer import Function
    from gdbext.torch.registry import Operator

ReadWord = Callable[[int], "int | None"]


class ArgumentRegisters(NamedTuple):
    """The values that the argument registers had when a function was called; None for one that did not survive."""

    words: tuple[int | None, ...]
    floats: tuple[int | None, ...]
    """As many floating-point registers as the function takes."""


class ValueSite(NamedTuple):
    """An instruction of a function, and where the function's arguments are there."""

    names: tuple[str, ...]
    """Of the arguments, in the schema."""
    kinds: tuple[str, ...]
    """The C++ types of the arguments."""
    slots: tuple[tuple[Slot, ...], ...]
    """The registers or stack slots in which each argument was passed."""
    places: dict[str, SavedArgument]
    """Argument register → where its value is now."""
    uses_sret: bool
    """The caller passes a pointer to the result."""
    start: int
    """Address of the function."""
    lost: frozenset[str]
    """Argument registers whose values are no longer completely available."""

    @property
    def floats(self) -> int:
        """Number of arguments that are passed in registers for floating-point numbers."""
        return sum(slot.float_register is not None for slots in self.slots for slot in slots)

    def values(
        self, values: CppValues, registers: ArgumentRegisters, cfa: int, read_word: ReadWord
    ) -> list[tuple[str, Value | None]]:
        """(name, value) of each argument; value None if it is no longer available. ``values`` decodes words;
        ``read_word``: address → word of memory, None if unreadable."""

        def read(slot: Slot) -> int | None:
            """The word in a register or on the stack; None if it is not available."""
            if slot.register is not None:
                return registers.words[slot.register]
            if slot.float_register is not None:
                return registers.floats[slot.float_register]
            return None if slot.offset is None else read_word(cfa + slot.offset)

        arguments: list[tuple[str, Value | None]] = []
        for number, name in enumerate(self.names):
            slots = self.slots[number] if number < len(self.slots) else ()
            words = [word for word in map(read, slots) if word is not None]
            value = None
            if words and len(words) == len(slots):
                with suppress(BadData, MemoryFault):
                    value = values.read(self.kinds[number], words)
            arguments.append((name, value))
        return arguments


def value_site(session: Session, operator: Operator, function: Function, address: int) -> ValueSite | None:
    """The site at ``address`` in ``at::_ops::NAME::call`` or ``redispatch``; None in any other function."""
    mangled = next((name for name in function.names if operator_method(name)[0] == operator.struct), None)
    schema = operator.schema
    uses_sret = hidden_result(schema.text) if schema else None
    if not mangled or not schema or uses_sret is None:
        return None
    kinds = parameters(demangle(mangled))
    architecture = session.memory.architecture
    leading = architecture.leading_arguments(uses_sret)
    if operator_method(mangled)[1] == "redispatch":
        kinds, leading = kinds[1:], leading + 1
    names = [name for _, name in schema_types(schema.text)]
    if len(names) != len(kinds):
        return None
    slots = _slots(session, kinds, leading)
    try:
        raw = session.memory.read(function.start, function.size)
    except GdbextError:
        return None
    places = saved_arguments(architecture, list(architecture.decode(raw, function.start)), address)
    lost = frozenset(lost_registers(architecture, kinds, slots, places, uses_sret))
    return ValueSite(tuple(names), tuple(kinds), slots, places, uses_sret, function.start, lost)


def kernel_site(session: Session, operator: Operator, address: int) -> ValueSite | None:
    """The site at the first instruction of the operator's unboxed kernel at ``address``, which gets functor and keyset
    before its arguments. None if neither the function's name nor the operator tells the types of the arguments."""
    kernel = next((kernel for kernel in operator.table if address in (kernel.unboxed, kernel.sym_unboxed)), None)
    names = session.symbolizer.names_at(address)
    signature = unboxed_entry_signature(operator, kernel, address, names) if kernel else None
    schema = operator.schema
    arguments = [name for _, name in schema_types(schema.text)] if schema else []
    if not signature or len(arguments) != len(signature.parameters):
        return None
    architecture = session.memory.architecture
    leading = architecture.leading_arguments(signature.hidden) + 2  # functor and keyset (KernelFunction_impl.h)
    slots, places = _slots(session, signature.parameters, leading), _places_at_entry(architecture)
    return ValueSite(tuple(arguments), signature.parameters, slots, places, signature.hidden, address, frozenset())


def _places_at_entry(architecture: Architecture) -> dict[str, SavedArgument]:
    """ValueSite.places at a function's first instruction: each argument register still has its value."""
    registers = (*architecture.argument_registers, *architecture.float_argument_registers)
    return {name: SavedArgument(name) for name in registers}


def lost_registers(
    architecture: Architecture,
    kinds: Sequence[str],
    slots: Sequence[Sequence[Slot]],
    places: Mapping[str, SavedArgument],
    uses_sret: bool,
) -> Iterator[str]:
    """The argument registers whose values ``places`` do not save completely, for arguments of these types."""
    names, floats = architecture.argument_registers, architecture.float_argument_registers
    if uses_sret and architecture.result_pointer not in places:
        yield architecture.result_pointer
    for kind, passed in zip(kinds, slots):
        for number, slot in enumerate(passed):
            name = "" if slot.register is None else names[slot.register]
            if slot.float_register is not None:
                name = floats[slot.float_register]
            if name and (name not in places or places[name].size < used_bytes(kind, number)):
                yield name


def _slots(session: Session, kinds: Sequence[str], leading: int) -> tuple[tuple[Slot, ...], ...]:
    """The slots of arguments of these types after ``leading`` other words (sret, functor, keyset)."""
    return tuple(argument_slots(session.memory.architecture, session.layout, kinds, leading)[leading:])


def registers_at(
    architecture: Architecture, site: ValueSite, control: RunControl, cfa: int, word: ReadWord
) -> ArgumentRegisters:
    """The argument registers, as they were when the function was called, of a thread that is stopped at the site.
    ``cfa``: of the function's frame; ``word``: address → word of memory."""
    floats = architecture.float_argument_registers[: site.floats]

    def register(name: str) -> int:
        return control.float_register(name) if name in floats else control.register(name)

    def value(name: str) -> int | None:
        place = None if name in site.lost else site.places.get(name)
        return place.word(register, word, cfa) if place else None

    return ArgumentRegisters(tuple(map(value, architecture.argument_registers)), tuple(map(value, floats)))


class ValueRequest(NamedTuple):
    """The user's request; "" and 0 stand for no limit."""

    patterns: Sequence[str]
    """Of the names of operators and compiled functions."""
    before: bool = True
    """Report calls before the kernel runs."""
    after: bool = True
    """Report calls after they returned."""
    key: str = ""
    kernel: str = ""
    """A part of the kernel's name."""
    limit: int = 0
    """Number of calls after which the watch ends."""
    tid: int | None = None
    statistics: bool = True
    """Report statistics of tensors."""
    everything: bool = False
    """All calls of all operators."""
    redispatches: bool = False
    """Redispatches count, too, not only calls."""

    def reaches_limit(self, count: int) -> bool:
        return bool(self.limit) and count >= self.limit


class ValueSink(Protocol):
    """The receiver of launches. Raises OSError."""

    def launch(self, launch: KernelLaunch, reporter: TensorReporter) -> bool:
        """Receive a launch; True: the process must stay stopped."""


Call = TypeVar("Call")


class CallWatch(Generic[Call]):
    """Passes the calls that one run of dispatch-values sees to its ``sink``, up to the limit."""

    def __init__(self, session: Session, control: RunControl, request: ValueRequest, sink: ValueSink) -> None:
        """Make the readers of values; hooks are placed later."""
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
        """Thread → (CFA, call) of those that have not returned: the CFA distinguishes recursive calls."""
        self._return_hooks: set[int] = set()
        self.count = 0  # number of calls that were seen
        self.hooks = 0
        self.over = False  # true when the limit was reached

    @abstractmethod
    def _launch(self, moment: str, tid: int, call: Call) -> KernelLaunch:
        """The report of a call; ``moment``: BEFORE, or AFTER with its results."""

    def _hook(self, spec: HookSpec) -> None:
        """Place a hook and count it."""
        self._control.place(spec)
        self.hooks += 1

    def _begin(self, tid: int, cfa: int, call: Call) -> bool:
        """Report a call that begins in the frame with that CFA, and hook its return address; True: the process must
        stay stopped."""
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
                rule = CfaRule(self._architecture.stack_pointer, offset=0, size=0)
                self._hook(HookSpec(returns_to, rule, self._returned))
        if request.reaches_limit(self.count) and not request.after:
            self.over = True
        return stays or self.over

    def _returned(self, tid: int, stack_pointer: int, _value: int) -> bool:
        """Report the call whose CFA is the stack pointer now, because it has just returned; True: the process must stay
        stopped."""
        calls = self._open.get(tid, [])
        while calls and calls[-1][0] < stack_pointer:
            calls.pop()
        if not calls or calls[-1][0] != stack_pointer:
            return False
        call = calls.pop()[1]
        self._session.memory.forget()
        stays = self._sink.launch(self._launch(AFTER, tid, call), self._reporter)
        if self._request.reaches_limit(self.count) and not calls:
            self.over = True
        return stays or self.over


class _OpenCall(NamedTuple):
    """A call that has not returned."""

    operator: Operator
    lookup: LookupResult
    number: int
    """Number of the operator's call, from 0."""
    arguments: tuple[tuple[str, Value | None], ...]
    result: int
    """Address of the result: the sret pointer, or the boxed stack; 0 if it is not known."""
    is_boxed: bool


class _WatchedCaller(NamedTuple):
    """An operator's own function that calls lookup, and the rule of its frame after the call."""

    operator: Operator
    site: ValueSite | None
    frame: CfaRule


class ValueWatch(CallWatch[_OpenCall]):
    """The operators of one run of dispatch-values."""

    def __init__(
        self, session: Session, control: RunControl, describer: Describer, request: ValueRequest, sink: ValueSink
    ) -> None:
        """``describer`` looks up kernels."""
        super().__init__(session, control, request, sink)
        self._describer = describer
        self._call_numbers: dict[int, int] = {}  # OperatorEntry → number of its last call
        self._entries: dict[int, tuple[int, int, ArgumentRegisters]] = {}
        """Thread → (start, CFA, argument registers) of the function that it entered last."""
        self._callers: dict[int, _WatchedCaller | None] = {}
        self._types: dict[int, dict[str, str]] = {}  # OperatorEntry → argument → its type in the schema
        self._tables = OperatorFunctions(session).finder.tables
        self._arguments = self._architecture.argument_registers

    def watch_function(self, function: OperatorFunction) -> None:
        """Watch a function of an operator's own."""
        operator, event = function.operator, function.event
        site = value_site(self._session, operator, function.function, function.sites.lookup)
        if event != "call" and not self._request.redispatches:
            return

        def entered(site: ValueSite, tid: int, cfa: int, _value: int) -> bool:
            """Store the argument registers at the function's first instruction."""
            registers = registers_at(self._architecture, site, self._control, cfa, self._session.memory.try_u64)
            self._entries[tid] = (site.start, cfa, registers)
            return False

        if site and site.lost:  # the function does not keep all its arguments until the lookup
            entry = site._replace(places=_places_at_entry(self._architecture), lost=frozenset())
            self._hook(HookSpec(site.start, self._at_entry, partial(entered, entry)))

        def looked_up(tid: int, cfa: int, bits: int) -> bool:
            return self._called(tid, cfa, operator, event, bits, site)

        for address, frame in ((function.sites.lookup, function.sites.frame), *function.sites.others):
            self._hook(HookSpec(address, frame, looked_up, function.sites.keyset))

    def watch_boxed_entries(
        self,
        addresses: Sequence[int],
        operators: Mapping[int, Operator],
        is_call: Callable[[int], bool],
        event: str = "callBoxed",
    ) -> None:
        """Watch the boxed functions at ``addresses``, as they are entered by ``event``: "callBoxed" or
        "redispatchBoxed". ``operators``: by address; the mapping may grow. ``is_call``: True for a return address in
        ``callBoxed``."""

        def entered(tid: int, cfa: int, bits: int) -> bool:
            """Report the call if the event matches."""
            returns_to = self._architecture.return_address(self._control.read, cfa)
            is_wanted = is_call(returns_to) == (event == "callBoxed")
            return is_wanted and self._called_boxed(event, tid, cfa, bits, operators)

        for address in addresses:
            self._hook(HookSpec(address, self._at_entry, entered, self._arguments[2]))

    def watch_boxed_calls(self, places: Sequence[int], operators: Mapping[int, Operator]) -> None:
        """Watch the ``places`` where ``callBoxed`` calls a kernel, for ``operators`` without functions of their own, by
        address; the mapping may grow."""

        def calls(tid: int, cfa: int, bits: int) -> bool:
            """Report the call, with the keyset ``bits``."""
            return self._called_boxed("callBoxed", tid, cfa, bits, operators)

        for address in places:
            frame = cfa_rule_at(self._architecture, self._tables, address, self._architecture.call_pushes)
            if frame:
                self._hook(HookSpec(address, frame, calls, self._arguments[2]))

    def watch_extensions(self, calls: AllCalls, operators: Mapping[int, Operator]) -> None:
        """Watch calls that libraries and programs make with a dispatcher of their own: the lookup shows the operator,
        and the entry of its kernel the arguments. ``operators``: by address; the mapping may grow."""
        control, architecture = self._control, self._architecture
        pending: dict[int, tuple[Operator, LookupResult]] = {}
        hooked: set[int] = set()

        def entered(address: int, tid: int, cfa: int, _value: int) -> bool:
            """Report the call if the kernel at ``address`` is the one that the thread's last lookup returned."""
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
            """Expect the entry of the kernel that a thread's lookup returns; ``operator`` None: of no kernel."""
            pending.pop(tid, None)
            if operator:
                lookup = self._describer.find(operator, "call", bits)
                pending[tid] = operator, lookup
                for address in lookup.addresses - hooked:
                    hooked.add(address)
                    self._hook(HookSpec(address, self._at_entry, partial(entered, address)))

        def looked_up(tid: int, cfa: int, bits: int) -> bool:
            """Handle the entry of a copy of lookup."""
            if calls.event_at(architecture.return_address(control.read, cfa)) == "call":
                expect(tid, operators.get(control.register(self._arguments[0])), bits)
            return False

        def inlined(entry: str, tid: int, _cfa: int, bits: int) -> bool:
            """Handle an inlined lookup; ``entry``: the register with the OperatorEntry*."""
            expect(tid, operators.get(control.register(entry)), bits)
            return False

        for address in calls.lookups_of_extensions():
            self._hook(HookSpec(address, self._at_entry, looked_up, self._arguments[1]))
        for shared in calls.inlined_in_extensions():
            if shared.event == "call":
                sites = shared.sites
                self._hook(HookSpec(sites.lookup, sites.frame, partial(inlined, sites.entry), sites.keyset))

    def _called_boxed(self, event: str, tid: int, cfa: int, bits: int, operators: Mapping[int, Operator]) -> bool:
        """Handle a boxed call: the registers hold functor, OperatorHandle&, keyset and Stack* (BoxedKernel.h)."""
        handle = int.from_bytes(self._control.read(self._control.register(self._arguments[1]), 8), "little")
        operator = operators.get(handle)
        return bool(operator and self._called(tid, cfa, operator, event, bits, None))

    def watch_lookups(self, lookups: Sequence[int]) -> None:
        """Watch every call that calls a copy of ``OperatorEntry::lookup``: those of all operators of libtorch."""
        for address in lookups:
            self._hook(HookSpec(address, self._at_entry, self._looked_up, self._arguments[1]))

    def _looked_up(self, tid: int, cfa: int, bits: int) -> bool:
        """Handle the entry of lookup; ``cfa`` is its own: its caller's stack pointer."""
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
        """The operator's function that a lookup returns to; None for a redispatch, and for code that belongs to no
        single operator. ``entry``: the OperatorEntry."""
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
        """Handle a lookup with keyset ``bits`` in the frame with that CFA; True: the process must stay stopped.
        ``site``: where its arguments are, None if unknown. Raises OSError, MemoryFault."""
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
            if site.uses_sret and self._architecture.result_pointer in self._arguments:
                result = registers.words[self._arguments.index(self._architecture.result_pointer)] or 0
        return self._begin(tid, cfa, _OpenCall(operator, lookup, number, tuple(arguments), result, is_boxed))

    def _boxed_values(self, stack: int, count: int) -> list[Value | None]:
        """The last ``count`` IValues of the Stack at that address; None for each that cannot be read."""
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
        """(name, value) of each result of the operator; None for a value that is not known."""
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
                first, count = vector_span(memory, address, 8, 256)
                return self._values.read("c10::ArrayRef<at::Tensor>", (first, count))
            if "Tensor[]" in kinds:
                return None
            return self._values.tensor(memory.u64(address + 8 * (len(kinds) - 1 - index)))
        except (BadData, MemoryFault):
            return None

    def _launch(self, moment: str, tid: int, call: _OpenCall) -> KernelLaunch:
        """The report of an operator's call, with the types of its schema."""
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
    """Places the hooks of one watch.

    An operator without functions of its own is watched where the dispatcher's ``callBoxed`` calls kernels, and at the
    function that all Python kernels share, so all boxed calls stop. The boxed entries of its own kernels are not
    enough, because most operators of extensions are first called through autograd's fallback.
    """

    _session: Session
    _control: RunControl
    _watch: ValueWatch
    _note: Callable[[str], None]
    """Shows a note at once."""
    _redispatches: bool
    """Redispatches count, too, not only calls."""
    _watched: set[int] = field(default_factory=set, init=False)
    """OperatorEntries of all watched operators."""
    _boxed: dict[int, Operator] = field(default_factory=dict, init=False)
    """OperatorEntry → operator that only boxed calls show."""
    _sees_boxed_calls: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._all_calls = AllCalls(self._session)
        self._functions = self._all_calls.functions

    def place(self, patterns: Sequence[str]) -> None:
        """Watch the operators that match, now or later. Raises UsageError for one that cannot be seen, TargetError."""
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
            """Watch an operator that was registered now, if it matches."""
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
            self._note(f"no functions of their own: {names}: every boxed call of any operator stops")
            return
        what = f"calls of {names} cannot be watched"
        why = "they have no functions of their own, and callBoxed was not found"
        if not self._watch.hooks:
            raise UsageError(what, why=why, help="watch an operator that they call")
        self._note(f"{what}: {why}")

    def _add(self, operator: Operator) -> None:
        """Watch an operator, once."""

        def is_boxed_call(returns_to: int) -> bool:
            return self._all_calls.boxed_event(returns_to) == "callBoxed"

        if operator.address in self._watched:
            return
        self._watched.add(operator.address)
        own = self._functions.functions(operator)
        for function in own:
            self._watch.watch_function(function)
        if not own:
            if not self._boxed:  # the first: stop at all boxed calls
                before = self._watch.hooks
                self._watch.watch_boxed_calls(self._all_calls.boxed_calls(), self._boxed)
                self._sees_boxed_calls = self._watch.hooks > before
                self._watch.watch_extensions(self._all_calls, self._boxed)
                for text in self._all_calls.not_seen():
                    self._note(f"{text}: their calls are not watched")
                if self._redispatches:
                    entries = self._functions.python_entries()
                    self._watch.watch_boxed_entries(entries, self._boxed, is_boxed_call, "redispatchBoxed")
            self._boxed[operator.address] = operator
        if own or not self._sees_boxed_calls:
            entries = self._functions.boxed_entries(operator)
            self._watch.watch_boxed_entries(entries, {operator.address: operator}, is_boxed_call)
