"""Operator and keyset of a dispatch call, recovered from its frames and proven by the operator's dispatch table.

Nothing is believed because it looks like a keyset. A value counts when looking it up in *this* operator's table gives
the very kernel that runs in the call's inner frame. *exact*: read at the call instruction's own argument, and proven;
*verified*: the only word of the frame that is proven, by a kernel that few keysets lead to. A redispatch goes on with
keys of its caller's keyset: what has others is not believed, unless it was read twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.unwind.unwinder import NativeStack
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import BadData, GdbextError
from gdbext.torch.assumed_symbols import AUTOGRAD_KERNELS, KERNELS_BELOW_THEIR_KEY
from gdbext.torch.registry.dispatch_table import RegisteredKernels
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.registry.operators import Dispatcher, Operator
from gdbext.torch.stack.call_arguments import CallSites
from gdbext.torch.stack.dispatch_calls import DispatchCall
from gdbext.torch.stack.kernel_match import KernelMatcher
from gdbext.torch.stack.lookup_sites import SiteFinder, static_handles
from gdbext.torch.stack.operator_search import OperatorSearch
from gdbext.torch.stack.roles import Role

MAX_STACK = 1 << 26
"""Bytes from a frame to the outermost one that a pointer into the stack may span."""
_KEYSET_ARGUMENTS = 4
"""Arguments of a call among which its keyset can be."""
_DISTINCTIVE = 4
"""A kernel in one of so many table entries, at most, tells keysets apart. Autograd's kernels stand in one of eight, a
composite kernel in most of them: any word leads to it."""
_MAKES_KEYSETS = "BackendSelect"
"""The key whose kernels redispatch with a keyset that they make of the options (BackendSelectFallbackKernel.cpp)."""
_TENSOR_KEYS = ("CPU", "QuantizedCPU", "SparseCPU", "SparseCsrCPU", "NestedTensorCPU")
"""Per-backend functionalities that a tensor itself has (c10/core/DispatchKey.h, FORALL_FUNCTIONALITY_KEYS), by a
runtime key of each; autograd is the one that tensors do not have alone."""


class RecoveredCall:
    """The knowledge of a dispatch call. ``confidence`` is that of the keyset."""

    def __init__(self, operator: Operator | None = None) -> None:
        self.operator = operator
        self.keyset: int | None = None
        self.index: int | None = None
        self.kernel: KernelFunction | None = None
        self.entry = 0
        """The one of the kernel's functions that runs; 0 where none does yet."""
        self.confidence = Certainty.UNKNOWN
        self.evidence: list[str] = []


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
        caller: RecoveredCall | None = None,
    ) -> RecoveredCall:
        """Everything that can be proven of a dispatch call; a fault costs the field that it concerns.

        ``outer`` is the operator of the next call further out, ``caller`` that call itself where this one redispatches.
        """
        result = RecoveredCall()
        try:
            result.operator = self._operators.find(stack, call, outer, result.evidence)
            if result.operator is not None:
                self._find_keyset(stack, call, result, result.operator, self._given(result.operator, caller))
                if result.keyset is None and caller is not None and caller.operator is result.operator:
                    self._below_callers_key(stack, call, result, caller)
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
        if call.kernel is None or outer.kernel is None or outer.operator is None:
            return None
        if self._matcher.matches_frame(stack, call.kernel, outer.kernel):
            return None
        result = RecoveredCall(operator=outer.operator)
        self._from_kernel_alone(stack, call, result, outer.operator)
        if result.kernel is None:
            return None
        outer.evidence.append("its kernel left by a tail call: another kernel of the operator runs")
        event = "redispatch" if outer.kernel.unboxed else "redispatchBoxed"  # a boxed fallback has no arguments
        return DispatchCall([call.kernel], event, elided=True, kernel=call.kernel), result

    # --- the keyset ------------------------------------------------------------------------------

    def _given(self, operator: Operator, caller: RecoveredCall | None) -> int:
        """The keys that a redispatch by ``caller`` may go on with; all of them where it does not go on with its own."""
        if caller is None or caller.operator is not operator or caller.keyset is None:
            return self._dispatcher.keys.known_bits
        return caller.keyset if caller.index != self._makes_keysets else self._dispatcher.keys.known_bits

    @cached_property
    def _makes_keysets(self) -> int:
        return self._dispatcher.keys.index_of_key(_MAKES_KEYSETS)

    def _find_keyset(
        self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, operator: Operator, given: int
    ) -> None:
        for level in _calls_inward(call):
            if self._exact(stack, call, level, result, operator, given):
                return
        if self._at_lookup(stack, call, result, operator):
            return
        self._only_candidate(stack, call, result, operator, given)
        if result.confidence is Certainty.UNKNOWN:
            self._from_kernel_alone(stack, call, result, operator)

    def _exact(
        self, stack: NativeStack, call: DispatchCall, level: int, result: RecoveredCall, operator: Operator, given: int
    ) -> bool:
        """Reads the keyset where frame ``level`` passes it on: behind the handle or functor that it belongs to."""
        values = self._sites.arguments(stack, level, _KEYSET_ARGUMENTS)
        by_position = self._position_in_unboxed_call(stack, call, level, values[0])
        if call.elided and level == call.header[0]:
            by_position = self._position_in_redispatch(stack, level, values[0])
        elif call.detail is Role.LOOKUP and level == call.header[-1]:
            by_position = _position_in_lookup
        for position, value in enumerate(values):
            if value is None or not self._possible(value):
                continue
            index, kernel = operator.kernel_for(value)
            if value == kernel.functor:  # not a keyset, though its bits may be those of one: an address in the heap
                continue
            before = values[position - 1] if position else None
            if not self._belongs(before, operator, kernel) and not by_position(position, kernel):
                continue
            entry = self._running(stack, call, kernel)
            if entry is None and not self._entry_in_hand(stack, call, operator, index):
                continue
            if value & ~given and not self._passed_in(stack, call, value):
                result.evidence.append(f"keyset {value:#x} has keys that its caller's, {given:#x}, has not")
                continue
            place = f"{self._sites.place(position)} by the call in frame #{level}"
            result.evidence.append(f"keyset {value:#x} passed in {place}")
            self._accept(result, value, index, kernel, Certainty.EXACT)
            result.entry = entry or 0
            return True
        return False

    def _at_lookup(self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, operator: Operator) -> bool:
        """Reads the keyset in the register that the code keeps it in, where the thread stands at the very instruction
        that looks it up: a breakpoint of dispatch-break."""
        if call.kernel is not None or call.header[-1] != 0:
            return False
        frame, function = stack.frames[0], stack.function(0)
        if function is None:
            return False
        sites = self._lookups.find(function.start, function.size, static_handles(self._symbolizer, function))
        if sites is None or frame.pc not in (sites.lookup, *(address for address, _ in sites.others)):
            return False
        value, entry = frame.registers.get(sites.keyset), frame.registers.get(sites.entry) if sites.entry else None
        if value is None or not self._possible(value) or entry not in (None, operator.address):
            return False
        index, kernel = operator.kernel_for(value)
        result.evidence.append(f"keyset {value:#x} in {sites.keyset}, at the instruction that looks it up")
        self._accept(result, value, index, kernel, Certainty.EXACT)
        return True

    @cached_property
    def _lookups(self) -> SiteFinder:
        dispatcher = self._dispatcher
        table = range(dispatcher.table_address(0), dispatcher.table_address(0) + dispatcher.kernels.size)
        return SiteFinder(self._memory, self._modules, self._symbolizer, dispatcher.keys.num_backends, table)

    def _passed_in(self, stack: NativeStack, call: DispatchCall, keyset: int) -> bool:
        """The caller of the function that redispatches passed that keyset, too."""
        level = call.header[0] + 1
        if call.hosted or call.elided or level >= len(stack):
            return False
        return keyset in self._sites.arguments(stack, level, _KEYSET_ARGUMENTS)

    def _position_in_unboxed_call(
        self, stack: NativeStack, call: DispatchCall, level: int, first: int | None
    ) -> Callable[[int, KernelFunction], bool]:
        """The position of the keyset in a call to an unboxed kernel, where it must have one.

        The kernel is called as (functor, keyset, …), or as (result, functor, keyset, …) where the result is returned
        through memory. So the second argument is the keyset or the functor, never anything else; the third is the
        keyset if the first is not the functor.
        """
        calls_kernel = call.kernel == level - 1 and self._sites.site(stack, level).through_pointer

        def must_be_keyset(position: int, kernel: KernelFunction) -> bool:
            if not calls_kernel or not (kernel.unboxed or kernel.sym_unboxed):
                return False
            return position == 1 or (position == 2 and first is not None and first != kernel.functor)

        return must_be_keyset

    def _position_in_redispatch(
        self, stack: NativeStack, level: int, first: int | None
    ) -> Callable[[int, KernelFunction], bool]:
        """The position of the keyset in a call to ``at::_ops::NAME::redispatch``, where it must have one.

        It is the first one, or the second behind a pointer to where the result goes: a place on the stack above.
        """
        sp = stack.frames[level].sp
        hidden = first is not None and sp <= first < sp + MAX_STACK
        keyset_at = None if first is None else 1 if hidden else 0
        return lambda position, _kernel: position == keyset_at

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

    def _entry_in_hand(self, stack: NativeStack, call: DispatchCall, operator: Operator, index: int) -> bool:
        """The call's frames hold the address of this very table entry: what lookup returned for this call.

        Needed where the entry left by a virtual tail call, whose target no code tells.
        """
        for level in call.header:
            registers = stack.frames[level].registers
            saved = (registers.get(register) for register in self._memory.architecture.callee_saved)
            passed = self._sites.arguments(stack, level, _KEYSET_ARGUMENTS)
            if any(value and operator.index_of_entry(value) == index for value in (*saved, *passed)):
                return self._matcher.is_code(operator.kernel(index))
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
        for level in _calls_inward(call):
            for place, value in self._matcher.words(stack, level):
                if value in proven or not self._looks_computed(value):
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
            self._accept(result, value, index, kernel, Certainty.VERIFIED)
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
            result.kernel, result.confidence = kernel, Certainty.INFERRED
            result.evidence.append(f"the running kernel serves {len(indices)} table entries")

    def _below_callers_key(
        self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, caller: RecoveredCall
    ) -> None:
        """A fallback that is known to go on with everything below its own key, and the kernel for that is what runs."""
        operator, function = result.operator, stack.function(call.header[0])
        if operator is None or function is None or call.kernel is None:
            return
        if caller.keyset is None or caller.index is None:
            return
        if not any(known in text for text in function.demangled for known in KERNELS_BELOW_THEIR_KEY):
            return
        keys = self._dispatcher.keys
        value = caller.keyset & keys.full_after(keys.key_of_index(caller.index))
        if not self._possible(value):
            return
        index, kernel = operator.kernel_for(value)
        entry = self._matcher.entry_of_frame(stack, call.kernel, kernel) if kernel.valid else 0
        if entry or self._is_autograd_fallback(stack, call.kernel, kernel):
            result.evidence.append(
                f"keyset {value:#x}: what is below the key of the fallback that goes on in this frame"
            )
            self._accept(result, value, index, kernel, Certainty.VERIFIED)
            result.entry = entry

    def _is_autograd_fallback(self, stack: NativeStack, level: int, kernel: KernelFunction) -> bool:
        """The kernel is PyTorch's fallback of autograd, which leaves by a virtual call for the frame's function."""
        running, named = stack.function(level), self._dispatcher.kernels.name(kernel).function
        return running is not None and all(
            any(part in text for part in AUTOGRAD_KERNELS[1:]) for text in (named, " ".join(running.demangled))
        )

    def _accept(
        self, result: RecoveredCall, keyset: int, index: int, kernel: KernelFunction, confidence: Certainty
    ) -> None:
        result.keyset, result.index, result.kernel, result.confidence = keyset, index, kernel, confidence
        result.evidence.append(
            f"table index {index}: boxed {kernel.boxed:#x}, unboxed {kernel.unboxed:#x}, functor {kernel.functor:#x}"
        )

    def _possible(self, value: int) -> bool:
        """A call can have this keyset: only known bits. The empty set is one (no tensor argument, nothing included).

        Backends without any functionality are a small number rather: no tensor has them, nor does masking leave them.
        """
        keys = self._dispatcher.keys
        if value & ~keys.known_bits or 0 < value < 1 << keys.num_backends:
            return False
        try:
            keys.table_index(value)
        except BadData:
            return False
        return True

    def _looks_computed(self, value: int) -> bool:
        """A keyset as the dispatcher computes it, and not a pointer or a number that happens to have such bits.

        Backends come from tensors, and a tensor has a dense, sparse, quantized or nested functionality beside its
        backend; what TLS includes has no backend. So there are backend bits exactly where there is such a
        functionality.
        """
        if not value or not self._possible(value):
            return False
        keys = self._dispatcher.keys
        if bool(value & keys.backend_mask) != bool(value & self._tensor_functionalities):
            return False
        if not value >> keys.num_backends:
            return False
        return self._modules.mapping_at(value) is None

    @cached_property
    def _tensor_functionalities(self) -> int:
        keys = self._dispatcher.keys
        bits = 0
        for slot in keys.slots:
            if slot.name in _TENSOR_KEYS:
                bits |= slot.bits & ~keys.backend_mask
        return bits


def _calls_inward(call: DispatchCall) -> list[int]:
    """The call's frames that called further in, the one nearest to the kernel first."""
    return list(reversed(call.header))


def _position_in_lookup(position: int, _kernel: KernelFunction) -> bool:
    """The position of the keyset in ``OperatorEntry::lookup(this, keyset)``."""
    return position == 1
