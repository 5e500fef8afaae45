"""Operator and keyset of a dispatch call, recovered from its frames and proven by the operator's dispatch table.

Nothing is believed because it looks like a keyset. A value counts when looking it up in *this* operator's table gives
the very kernel that runs in the call's inner frame. *exact*: read at the call instruction's own argument, and proven;
*verified*: the only word of the frame that is proven, by a kernel that few keysets lead to. A redispatch goes on with
keys of its caller's keyset: what has others is not believed, unless it was read twice. The empty keyset is what any
word of zeros is: it counts where something else says so, too.
"""

from __future__ import annotations

from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.vocabulary import Certainty
from gdbext.errors import GdbextError
from gdbext.torch.registry.dispatch_table import RegisteredKernels
from gdbext.torch.stack.dispatch_calls import DispatchCall
from gdbext.torch.stack.kernel_match import KernelMatcher, in_lookup
from gdbext.torch.stack.known_fallbacks import KnownFallbacks, RecoveredCall, accept
from gdbext.torch.stack.operator_search import OperatorSearch
from gdbext.torch.stack.roles import Role, static_handles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.registry import Dispatcher, Operator
    from gdbext.torch.registry.kernel import KernelFunction
    from gdbext.torch.stack.call_arguments import CallSites
    from gdbext.torch.stack.lookup_sites import SiteFinder

_KEYSET_ARGUMENTS = 4
"""Arguments of a call among which its keyset can be."""
_DISTINCTIVE = 4
"""A kernel in one of so many table entries, at most, tells keysets apart. Autograd's kernels stand in one of eight, a
composite kernel in most of them: any word leads to it."""
_MAKES_KEYSETS = "BackendSelect"
"""The key whose kernels redispatch with a keyset that they make of the options (BackendSelectFallbackKernel.cpp)."""


class _Given(NamedTuple):
    """The limits of a call's keyset by what it is made of."""

    keys: int
    """The keys that a redispatch may go on with: its caller's; all of them where it does not go on with its own."""
    is_call: bool
    """The call is known to make its keyset of its arguments."""


class CallRecovery:
    """Recovers the dispatch calls on stacks of one process."""

    def __init__(self, dispatcher: Dispatcher, memory: Memory, symbolizer: Symbolizer, sites: CallSites) -> None:
        self._dispatcher = dispatcher
        self._memory = memory
        self._symbolizer = symbolizer
        self._modules = symbolizer.modules
        self._sites = sites
        self._matcher = KernelMatcher(memory, symbolizer, sites)
        self.registered = RegisteredKernels(dispatcher, self._matcher.jumps)
        """Registered kernels of code without names."""
        self._operators = OperatorSearch(dispatcher, memory, symbolizer, sites, self._matcher, self.registered)

    def recover(
        self,
        stack: NativeStack,
        call: DispatchCall,
        outer: Operator | None = None,
        around: RecoveredCall | None = None,
        is_call: bool | None = False,
        for_key: bool = False,
    ) -> RecoveredCall:
        """Everything that can be proven of a dispatch call; a fault costs the field that it concerns.

        ``outer`` is the operator of the next call further out, ``around`` that call itself. ``is_call``: it makes its
        keyset of its arguments; False: it goes on with the keys of the call around it; None: unknown. ``for_key``: it
        calls the kernel of a key that was named, whatever keyset it makes.
        """
        caller = around if is_call is False else None
        result = RecoveredCall()
        try:
            result.operator = self._operators.find(stack, call, outer, result.evidence)
            if result.operator and for_key:
                if not self._fallbacks.chosen_by_python(stack, call, result, around):
                    self._from_kernel_alone(stack, call, result, result.operator)
            elif result.operator:
                given = self._given(result.operator, caller, is_call is True)
                self._find_keyset(stack, call, result, result.operator, given)
                if result.keyset is None and caller and caller.operator is result.operator:
                    self._fallbacks.below_callers_key(stack, call, result, caller)
        except GdbextError as error:
            result.evidence.append(f"stopped here: {error.what}")
        return result

    # --- a kernel that is gone --------------------------------------------------------------------

    def tail_called_kernel(
        self, stack: NativeStack, call: DispatchCall, outer: RecoveredCall
    ) -> tuple[DispatchCall, RecoveredCall] | None:
        """The call that a kernel left by a tail call: a boxed fallback that ends with ``op.redispatchBoxed(…)``.

        Known by the kernel that runs: the operator has it in its table, but not where ``outer`` was looked up.
        """
        if call.kernel is None or not outer.kernel or not outer.operator:
            return None
        if self._matcher.matches_frame(stack, call.kernel, outer.kernel):
            return None
        result = RecoveredCall(operator=outer.operator)
        if self._fallbacks.goes_below_its_key(outer.kernel):
            self._fallbacks.below_key_of(outer, stack, call, result)
        if not result.kernel:
            self._from_kernel_alone(stack, call, result, outer.operator)
        if not result.kernel:
            return None
        outer.evidence.append("its kernel left by a tail call: another kernel of the operator runs")
        event = "redispatch" if outer.kernel.unboxed else "redispatchBoxed"  # a boxed fallback has no arguments
        return DispatchCall([call.kernel], event, elided=True, kernel=call.kernel), result

    # --- the keyset ------------------------------------------------------------------------------

    def _given(self, operator: Operator, caller: RecoveredCall | None, is_call: bool = False) -> _Given:
        goes_on = caller and caller.operator is operator and caller.index != self._makes_keysets
        if not caller or caller.keyset is None or not goes_on:
            return _Given(self._dispatcher.keys.known_bits, is_call)
        return _Given(caller.keyset, is_call)

    def _is_empty(self, operator: Operator, given: _Given) -> bool:
        """The keyset must be empty: a redispatch's caller has an empty one, or a call's operator has no tensors and
        what every thread includes falls through. Raises GdbextError."""
        if not given.keys or not given.is_call:
            return not given.keys
        keys = self._dispatcher.keys
        included = keys.default_included
        return _takes_no_tensor(operator) and not included & operator.extractor.mask(keys, included)

    @cached_property
    def _fallbacks(self) -> KnownFallbacks:
        return KnownFallbacks(self._dispatcher, self._memory, self._matcher, self._sites)

    @cached_property
    def _makes_keysets(self) -> int:
        return self._dispatcher.keys.index_of_key(_MAKES_KEYSETS)

    def _find_keyset(
        self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, operator: Operator, given: _Given
    ) -> None:
        for level in _calls_inward(call):
            if self._exact(stack, call, level, result, operator, given):
                return
        if self._at_lookup(stack, call, result, operator, given):
            return
        self._only_candidate(stack, call, result, operator, given.keys)
        if result.confidence is Certainty.UNKNOWN:
            self._from_kernel_alone(stack, call, result, operator)

    def _exact(
        self,
        stack: NativeStack,
        call: DispatchCall,
        level: int,
        result: RecoveredCall,
        operator: Operator,
        given: _Given,
    ) -> bool:
        """Reads the keyset where frame ``level`` passes it on: behind the handle or functor that it belongs to."""
        for position, value, index, kernel in self._passed_on(stack, call, level, operator):
            entry = self._running(stack, call, kernel)
            if entry is None and not self._goes_on_elsewhere(stack, call, operator, value):
                continue
            if value & ~given.keys and not self._passed_in(stack, call, value):
                result.evidence.append(f"keyset {value:#x} has keys that its caller's, {given.keys:#x}, has not")
                continue
            place = f"{self._sites.place(position)} by the call in frame #{level}"
            if not value and not self._is_empty_twice(stack, call, operator) and not self._is_empty(operator, given):
                result.evidence.append(
                    f"an empty keyset in {place}: any word of zeros is one, and nothing else says so"
                )
                continue
            result.evidence.append(f"keyset {value:#x} passed in {place}")
            accept(result, value, index, kernel, Certainty.EXACT)
            result.entry = entry or 0
            return True
        return False

    def _passed_on(
        self, stack: NativeStack, call: DispatchCall, level: int, operator: Operator
    ) -> Iterator[tuple[int, int, int, KernelFunction]]:
        """Arguments of the call that frame ``level`` made which stand where its keyset stands: position, value, and the
        table index and kernel that this leads to."""
        values = self._sites.arguments(stack, level, _KEYSET_ARGUMENTS)
        by_position = self._matcher.in_unboxed_call(stack, level, call.kernel, values[0])
        if call.elided and level == call.header[0]:
            by_position = self._matcher.in_redispatch(stack, level, values[0])
        elif call.detail is Role.LOOKUP and level == call.header[-1]:
            by_position = in_lookup
        for position, value in enumerate(values):
            if value is None or not self._dispatcher.keys.can_be_keyset(value):
                continue
            index, kernel = operator.kernel_for(value)
            if value == kernel.functor:  # not a keyset, though its bits may be those of one: an address in the heap
                continue
            before = values[position - 1] if position else None
            if self._belongs(before, operator, kernel) or by_position(position, kernel):
                yield position, value, index, kernel

    def _is_empty_twice(self, stack: NativeStack, call: DispatchCall, operator: Operator) -> bool:
        """The call's frames pass an empty keyset that their code makes, or that they have in two places."""
        places = [
            self._sites.places(stack, level, position)
            for level in call.header
            for position, value, _, _ in self._passed_on(stack, call, level, operator)
            if not value
        ]
        return frozenset() in places or any(one.isdisjoint(other) for one, other in combinations(places, 2))

    def _at_lookup(
        self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, operator: Operator, given: _Given
    ) -> bool:
        """Reads the keyset in the register that the code keeps it in, where the thread stands at the very instruction
        that looks it up: a breakpoint of dispatch-break."""
        if call.kernel is not None or call.header[-1] != 0:
            return False
        frame, function = stack.frames[0], stack.function(0)
        if not function:
            return False
        sites = self._lookups.find(function.start, function.size, static_handles(self._symbolizer, function))
        if not sites or frame.pc not in (sites.lookup, *(address for address, _ in sites.others)):
            return False
        value, entry = frame.registers.get(sites.keyset), frame.registers.get(sites.entry) if sites.entry else None
        if value is None or not self._dispatcher.keys.can_be_keyset(value) or entry not in (None, operator.address):
            return False
        if not value and not self._is_empty(operator, given):
            result.evidence.append(
                f"{sites.keyset} is empty at the instruction that looks it up, and nothing else says so"
            )
            return False
        index, kernel = operator.kernel_for(value)
        result.evidence.append(f"keyset {value:#x} in {sites.keyset}, at the instruction that looks it up")
        accept(result, value, index, kernel, Certainty.EXACT)
        return True

    @cached_property
    def _lookups(self) -> SiteFinder:
        from gdbext.torch.stack.lookup_sites import SiteFinder  # 2 ms, at a breakpoint alone

        dispatcher = self._dispatcher
        backends, table = dispatcher.keys.num_backends, dispatcher.first_entry
        return SiteFinder(self._memory, self._modules, self._symbolizer, backends, table)

    def _passed_in(self, stack: NativeStack, call: DispatchCall, keyset: int) -> bool:
        """The caller of the function that redispatches passed that keyset, too."""
        level = call.header[0] + 1
        if call.hosted or call.elided or level >= len(stack):
            return False
        return keyset in self._sites.arguments(stack, level, _KEYSET_ARGUMENTS)

    def _belongs(self, before: int | None, operator: Operator, kernel: KernelFunction) -> bool:
        """The argument before a keyset is the operator's handle or entry, its kernel entry or the kernel's functor."""
        if before is None:
            return False
        if before in (operator.address, kernel.functor) and before:
            return True
        return self._memory.try_u64(before) == operator.address if before and not before & 7 else False

    def _running(self, stack: NativeStack, call: DispatchCall, kernel: KernelFunction) -> int | None:
        """The function of the table entry that runs in the call's kernel frame, None where it is not what runs there;
        0 without such a frame, where nothing contradicts it."""
        if call.kernel is not None:
            return self._matcher.entry_of_frame(stack, call.kernel, kernel) or None
        may_run = self._matcher.is_code(kernel) and (call.detail is Role.LOOKUP or kernel.valid)
        return 0 if may_run else None

    def _goes_on_elsewhere(self, stack: NativeStack, call: DispatchCall, operator: Operator, keyset: int) -> bool:
        """The kernel for that keyset left by a tail call for what runs in its place: the call's frames still hold what
        lookup returned, or it is one of PyTorch's fallbacks of which that is known."""
        index, kernel = operator.kernel_for(keyset)
        if self._entry_in_hand(stack, call, operator, index):
            return True
        if call.kernel is None:
            return False
        if self._fallbacks.left_for_frame(stack, call.kernel, operator, keyset):
            return True
        return self._matcher.may_have_left(stack, call.kernel, kernel, operator)

    def _entry_in_hand(self, stack: NativeStack, call: DispatchCall, operator: Operator, index: int) -> bool:
        """The call's frames hold the address of this very table entry: what lookup returned for this call.

        Needed where the entry left by a virtual tail call, whose target no code tells.
        """
        entry = self._dispatcher.table_entry(operator.address, index)
        for level in call.header:
            registers = stack.frames[level].registers
            saved = map(registers.get, self._memory.architecture.callee_saved)
            if entry in saved or entry in self._sites.arguments(stack, level, _KEYSET_ARGUMENTS):
                kernel = operator.kernel(index)
                return self._matcher.is_code(kernel) and (call.kernel is None or kernel.valid or kernel.unboxed != 0)
        return False

    def _only_candidate(
        self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, operator: Operator, given: int
    ) -> None:
        if call.kernel is None:
            return
        serves = len(self._matcher.indices(stack, call.kernel, operator))
        if serves * _DISTINCTIVE > len(operator.table):
            result.evidence.append(f"no word of a frame proves a keyset: nearly any leads to this kernel ({serves} do)")
            return
        proven: dict[int, str] = {}
        keys = self._dispatcher.keys
        for level in _calls_inward(call):
            for place, value in self._matcher.words(stack, level):
                if value in proven or not keys.looks_computed(value) or self._modules.mapping_at(value):
                    continue
                _, kernel = operator.kernel_for(value)
                if kernel.valid and value != kernel.functor and self._matcher.matches_frame(stack, call.kernel, kernel):
                    proven[value] = f"{place} of frame #{level}"
        possible = [
            value for value in proven if not value & ~given and self._could_be_called_with(value, call, operator)
        ]
        if len(possible) == 1:
            value = possible[0]
            index, kernel = operator.kernel_for(value)
            result.evidence.append(f"keyset {value:#x} in {proven[value]}: the only word that leads to this kernel")
            accept(result, value, index, kernel, Certainty.VERIFIED)
            result.entry = self._matcher.entry_of_frame(stack, call.kernel, kernel)
        elif possible:
            result.evidence.append("several words lead to this kernel: " + ", ".join(f"{v:#x}" for v in possible))

    def _could_be_called_with(self, keyset: int, call: DispatchCall, operator: Operator) -> bool:
        """``Dispatcher::call`` and ``callBoxed`` mask their keyset by the operator's non-fallthrough keys."""
        if call.event not in ("call", "callBoxed"):
            return True
        return keyset & ~operator.extractor.mask(self._dispatcher.keys, keyset) == 0

    def _from_kernel_alone(
        self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, operator: Operator
    ) -> None:
        indices = self._matcher.indices(stack, call.kernel, operator)
        if not indices or call.kernel is None:
            return
        kernel = operator.kernel(indices[0])
        result.entry = self._matcher.entry_of_frame(stack, call.kernel, kernel)
        same = all(operator.kernel(index).same_code == kernel.same_code for index in indices)
        if len(indices) == 1:
            result.index, result.kernel, result.confidence = indices[0], kernel, Certainty.INFERRED
            result.evidence.append("the running kernel stands in one table entry only")
        elif same:
            others = {operator.kernel(index) for index in indices} - {kernel}
            names = {self._dispatcher.kernels.name(each).function for each in (kernel, *others)} if others else ()
            # where it calls what its functor holds, and that differs, what it calls is not known
            result.kernel = kernel if len(names) < 2 else kernel._replace(functor=0)
            result.confidence = Certainty.INFERRED
            result.evidence.append(f"the running kernel serves {len(indices)} table entries")


def _calls_inward(call: DispatchCall) -> list[int]:
    """The call's frames that called further in, the one nearest to the kernel first."""
    return list(reversed(call.header))


def _takes_no_tensor(operator: Operator) -> bool:
    """Nothing of the operator's arguments adds to a keyset, as two parts of its entry have it: a word of zeros alone
    is what any damaged memory has. Raises GdbextError."""
    if operator.extractor.reverse_arguments:
        return False
    schema = operator.schema
    return bool(schema and not schema.missing and "Tensor" not in schema.text.partition(" -> ")[0])
