"""Operator and keyset of a dispatch call, recovered from its frames and proven by the operator's dispatch table.

The operator is known, in falling order, by the static handle of ``at::_ops::NAME``; by a handle that a frame passes on;
by the address of an entry of its table; by the functor that a kernel was called with, which is in one table only.

A value counts as the keyset only if looking it up in *this* operator's table gives the very kernel that runs in the
call's inner frame. *exact*: read at the call instruction's own argument, and proven; *verified*: the only word of the
frame that is proven, by a kernel that few keysets lead to. A redispatch keeps to the keys of its caller's keyset: a
value with others is not believed, unless it was read twice. Any word of zeros is the empty keyset: it counts only with
other evidence.

A fallback of PyTorch's that redispatches with everything below its own key, or that ends in a virtual call, has left
the stack while that runs. It counts as entered if its keyset was read and what runs is what it is known to call. The
Python dispatcher (torch/csrc/PyInterpreter.cpp, ``python_dispatcher``, torch 2.0 to 2.13) calls
``Dispatcher::callBoxedForDispatchKey``: the kernel is that of a key which Python names, and the call makes its keyset
anew of the arguments and the thread's state, so that it may have keys of a higher priority.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import suppress
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.vocabulary import Certainty
from gdbext.errors import GdbextError, MemoryFault
from gdbext.torch import assumed_symbols
from gdbext.torch.memoized import memoized
from gdbext.torch.registry.dispatch_table import RegisteredKernels
from gdbext.torch.stack.dispatch_calls import DispatchCall, RecoveredCall
from gdbext.torch.stack.kernel_match import KernelMatcher
from gdbext.torch.stack.roles import Role, is_python_dispatcher, static_handle, static_handles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Optional

    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.registry import Dispatcher, Operator
    from gdbext.torch.registry.kernel import KernelFunction
    from gdbext.torch.stack.call_arguments import CallSites
    from gdbext.torch.stack.lookup_sites import SiteFinder

    Proof = Optional[tuple[Operator, str]]
    """An operator, and the sentence that says why it is proven; None if no operator is."""

_KEYSET_ARGUMENTS = 4
"""Arguments of a call among which its keyset can be."""
_HANDLE_ARGUMENTS = 3
"""Arguments among which a handle can be: the first, behind a hidden result pointer, behind that and ``this``."""


class _Limits(NamedTuple):
    """What the origin of a call's keyset says about it."""

    keys: int
    """Bits of the keys that it may have: those of its caller for a redispatch; else all."""
    is_call: bool
    """The call is known to make its keyset of its arguments."""


class _OperatorCall(NamedTuple):
    """A dispatch call of a known operator; what is recovered of it goes into ``result``."""

    stack: NativeStack
    call: DispatchCall
    operator: Operator
    result: RecoveredCall


class OperatorSearch:
    """Finds the operator of a dispatch call: proven by an address that only this operator has."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        memory: Memory,
        symbolizer: Symbolizer,
        sites: CallSites,
        matcher: KernelMatcher,
        registered: RegisteredKernels,
    ) -> None:
        """``matcher`` and ``registered`` tell which kernel a function is, by its name and without one."""
        self._registered = registered
        self._dispatcher = dispatcher
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._matcher = matcher
        self._static_operators: dict[str, Operator | None] = {}
        """Operators by the mangled name of the function that has the static handle."""

    def find(
        self, stack: NativeStack, call: DispatchCall, outer: Operator | None, evidence: list[str]
    ) -> Operator | None:
        """The operator of a dispatch call, None if none is proven; adds the reasons to ``evidence``. ``outer`` is the
        operator of the next call further out. Raises GdbextError if the dispatcher cannot be read."""
        if call.operator_struct:
            operator = self._operator_of_struct(call, evidence)
        else:
            proof = (
                self._by_passed_handle(stack, call)
                or self._by_table_entry(stack, call)
                or self._by_functor_passed(stack, call)
                or self._by_handle_in_frames(stack, call)
                or (self._outer_again(stack, call, outer) if outer else None)
                or self._by_kernel_alone(stack, call)
            )
            operator = proof[0] if proof else None
            evidence += [proof[1]] if proof else []
        if not operator or operator.is_named:
            return operator
        name = repr(operator.qualified[:80])
        evidence.append(f"this is not an operator: its name, {name}, is invalid or another operator's")
        return None

    def _operator_of_struct(self, call: DispatchCall, evidence: list[str]) -> Operator | None:
        """The operator of ``at::_ops::NAME::call``: that of the function's static handle, else (the handle is not
        initialized, or has no symbol) the only registered one that NAME can mean. Adds the reason to ``evidence``."""
        mangled, name = call.mangled.split(".", 1)[0], call.operator_struct
        if mangled not in self._static_operators:
            address = self._symbolizer.address_of(static_handle(mangled), assumed_symbols.STATIC_HANDLE.library)
            definition = self._memory.try_u64(address) if address else 0
            operator = self._dispatcher.by_def(definition) if definition else None
            handle = f"static handle of at::_ops::{name} at {address:#x}"
            if operator and operator.struct != name:
                evidence.append(f"the {handle} leads to {operator.qualified[:80]!r}")
                operator = None
            elif operator:
                evidence.append(f"{handle}: OperatorDef {definition:#x}")
            self._static_operators[mangled] = operator
        operator = self._static_operators[mangled]
        if operator:
            return operator
        # torchgen joins name and overload by an underscore (torchgen/model.py, unambiguous_name)
        addresses = [
            address
            for qualified, address in self._dispatcher.names.items()
            if qualified.startswith("aten::") and qualified[6:].replace(".", "_") == name
        ]
        operator = self._dispatcher.by_def(addresses[0]) if len(addresses) == 1 else None
        if operator:
            evidence.append(f"the only registered operator that at::_ops::{name} can mean")
        return operator

    def _by_passed_handle(self, stack: NativeStack, call: DispatchCall) -> Proof:
        """By an OperatorHandle that one of the call's frames passes on, or that its outermost function was given."""
        outside = call.header[0] + 1
        has_caller = call.event and not call.is_inlined and not call.elided and outside < len(stack)
        for level in (*reversed(call.header), *([outside] if has_caller else ())):
            for number in range(_HANDLE_ARGUMENTS):
                operator = self._operator_at(self._sites.argument(stack, level, number))
                if not operator:
                    continue
                place = f"{self._sites.place(number)} of the call in frame #{level}"
                if level == outside:
                    return operator, f"handle in {place}, which enters the dispatcher"
                if not self._has_another_functor(stack, call, operator):
                    return operator, f"handle in {place}: OperatorDef {operator.address:#x} is registered"
        return None

    def _has_another_functor(self, stack: NativeStack, call: DispatchCall, operator: Operator) -> bool:
        """True if the running kernel was called with a functor that no kernel of ``operator`` has: what looked like the
        operator's handle was left on the stack, in the space that the result has now. Many operators share the wrappers
        of one signature."""
        functor = self._passed_functor(stack, call)
        return bool(functor) and functor not in operator.functors

    def _operator_at(self, value: int | None) -> Operator | None:
        """The operator if ``value`` is an OperatorDef*, or a pointer to an OperatorHandle; else None."""
        if not value or value & 7:
            return None
        operator = self._dispatcher.by_def(value)
        if not operator:
            first = self._memory.try_u64(value)
            operator = self._dispatcher.by_def(first) if first else None
        return operator

    def _only_operator(
        self, stack: NativeStack, call: DispatchCall, operator_of: Callable[[int], Operator | None]
    ) -> Operator | None:
        """The one operator that ``operator_of`` returns for words of the call's frames; None for none or several."""
        words = (word for level in reversed(call.header) for _, word in self._matcher.words(stack, level))
        operators = {operator.address: operator for operator in map(operator_of, words) if operator}
        return operators.popitem()[1] if len(operators) == 1 else None

    def _by_handle_in_frames(self, stack: NativeStack, call: DispatchCall) -> Proof:
        """By a handle among the words of the call's frames, if the operator's table has the kernel that runs."""

        def operator_of(word: int) -> Operator | None:
            """The operator of the handle ``word``; None for another word, or if its table lacks the kernel."""
            operator = self._operator_at(word)
            if not operator or self._has_another_functor(stack, call, operator):
                return None
            return operator if self._matcher.indices(stack, call.kernel, operator) else None

        operator = self._only_operator(stack, call, operator_of)
        if not operator:
            return None
        return operator, f"OperatorDef {operator.address:#x} in the frame; its dispatch table has the running kernel"

    @cached_property
    def _sorted_definitions(self) -> list[int]:
        return sorted(self._dispatcher.entries)

    def _by_table_entry(self, stack: NativeStack, call: DispatchCall) -> Proof:
        """By what ``OperatorEntry::lookup`` returned, if one of the call's frames still has it: the address of the
        dispatch table entry whose kernel runs."""
        kernel_level = call.kernel
        if kernel_level is None:
            return None
        functor = self._passed_functor(stack, call)

        def operator_of(word: int) -> Operator | None:
            """The operator whose table has, at the address ``word``, an entry whose kernel runs; else None."""
            after = 0 if word & 7 else bisect_right(self._sorted_definitions, word)
            operator = self._dispatcher.by_def(self._sorted_definitions[after - 1]) if after else None
            index = operator.index_of_entry(word) if operator else None
            if not operator or index is None:
                return None
            kernel = operator.kernel(index)
            is_same = kernel.valid and functor in (None, kernel.functor)
            return operator if is_same and self._matcher.matches_frame(stack, kernel_level, kernel) else None

        operator = self._only_operator(stack, call, operator_of)
        if not operator:
            return None
        return (
            operator,
            f"address of a dispatch table entry of OperatorDef {operator.address:#x}, whose kernel is running",
        )

    def _by_functor_passed(self, stack: NativeStack, call: DispatchCall) -> Proof:
        """By the functor that the running kernel was called with, if it is in one operator's table only."""
        functor = self._passed_functor(stack, call)
        if not functor or functor & 7:
            return None
        reason = f"the kernel's functor {functor:#x} is in only one operator's dispatch table"
        return self._only_with_kernel(stack, call, self._operators_with_functor(functor), reason)

    @memoized
    def _operators_with_functor(self, functor: int) -> list[Operator]:
        """The operators that have a kernel with this functor. Reads every table, which takes a tenth of a second."""
        operators: list[Operator] = []
        wanted = struct.pack("<Q", functor)
        for definition in self._dispatcher.entries:
            with suppress(MemoryFault):
                has_word = wanted in self._dispatcher.read_table(definition)
                operator = self._dispatcher.by_def(definition) if has_word else None
                operators += [operator] if operator and functor in operator.functors else []
        return operators

    def _only_with_kernel(
        self, stack: NativeStack, call: DispatchCall, operators: Iterable[Operator | None], reason: str
    ) -> Proof:
        """The one of ``operators`` whose table has the kernel that runs, and ``reason``; None if none or several
        have."""
        candidates = [each for each in operators if each and self._matcher.indices(stack, call.kernel, each)]
        return (candidates[0], reason) if len(candidates) == 1 else None

    def _outer_again(self, stack: NativeStack, call: DispatchCall, outer: Operator) -> Proof:
        """``outer``, the operator of the call further out, if its kernel has this call inlined and no frame has the
        handle: the keyset that was passed selects, in that operator's table, the function that runs. A boxed kernel,
        which serves many operators, proves nothing."""
        if not call.is_inlined or call.kernel is None or call.header[-1] != call.kernel + 1:
            return None
        for number in (1, 2):  # behind the functor, and behind a hidden result pointer if there is one
            value = self._sites.argument(stack, call.header[-1], number)
            if not value or value & ~self._dispatcher.keys.known_bits:
                continue
            if self._matcher.matches_frame(stack, call.kernel, outer.kernel_for(value)[1]._replace(boxed=0)):
                place = self._sites.place(number)
                return outer, f"{outer.qualified} again: {value:#x} in {place} selects the running kernel"
        return None

    def _by_kernel_alone(self, stack: NativeStack, call: DispatchCall) -> Proof:
        """The only operator that has the running code as a kernel: code without a name, or a function that a wrapper
        calls through a pointer."""
        if call.kernel is None:
            return None
        function = self._sites.function(stack, call.kernel)
        body = self._matcher.wrapped_function(stack, call.kernel)
        if not function or (function.names and not body):
            return None
        entry = self._registered.at(function.start, function.module)
        operators = map(self._dispatcher.by_def, entry.operators if entry else ())
        reason = f"the code at {body or function.start:#x} is a kernel of only one operator"
        return self._only_with_kernel(stack, call, operators, reason)

    def _passed_functor(self, stack: NativeStack, call: DispatchCall) -> int | None:
        """Address of the functor passed to an unboxed kernel: the first argument, or the second behind the result's
        address. None if it is unknown: without the first argument, the second may be the keyset or, for a boxed kernel,
        the handle. (Code without optimization leaves its own first argument where it is.)"""
        if call.kernel is None or call.header[-1] != call.kernel + 1 or call.elided:
            return None
        level = call.header[-1]
        if not self._sites.site(stack, level).through_pointer:
            return None
        first, second = self._sites.arguments(stack, level, 2)
        if first is None:
            is_address = second and self._symbolizer.modules.mapping_at(second)
            return second if is_address and not self._operator_at(second) else None
        in_stack = stack.frames[level].sp <= first < stack.frames[-1].cfa
        return second if in_stack else first


_VIRTUAL_CALLS = (
    (assumed_symbols.AUTOGRAD_FALLBACKS, assumed_symbols.AUTOGRAD_FALLBACKS),
    ((assumed_symbols.PYTHON_DISPATCHERS_FALLBACK,), (assumed_symbols.PYTHON_DISPATCHERS_CALL,)),
)
"""Parts of the names of kernels that end in a virtual call, and of the functions that they call."""


def _redispatches_below_its_key(function: str) -> bool:
    """A kernel of that name is known to redispatch with everything below its own key."""
    return any(part in function for part in assumed_symbols.KERNELS_BELOW_THEIR_KEY)


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
        """Everything that can be proven of a dispatch call. After an error what was proven before it remains.

        ``outer`` is the operator of the next call further out, ``around`` that call itself. ``is_call``: it makes its
        keyset of its arguments; False: it has only keys of the call around it; None: unknown. ``for_key``: it calls the
        kernel of a key that was named, whatever keyset it makes.
        """
        result = RecoveredCall()
        try:
            operator = result.operator = self._operators.find(stack, call, outer, result.evidence)
            if not operator:
                return result
            work = _OperatorCall(stack, call, operator, result)
            if for_key:
                if not self._accept_key_named_by_python(work, around):
                    self._infer_entry_from_kernel(work)
                return result
            caller = around if is_call is False and around and around.operator is operator else None
            self._find_keyset(work, self._limits(operator, caller, is_call is True))
            function = stack.function(call.header[0]) if result.keyset is None and caller else None
            if caller and function and any(map(_redispatches_below_its_key, function.demangled)):
                self._accept_below_caller(work, caller)
        except GdbextError as error:
            result.evidence.append(f"recovery stopped: {error.what}")
        return result

    def tail_called_kernel(
        self, stack: NativeStack, call: DispatchCall, outer: RecoveredCall
    ) -> tuple[DispatchCall, RecoveredCall] | None:
        """The redispatch for which the kernel of ``call`` (recovered as ``outer``) left by a tail call: a boxed
        fallback that ends with ``op.redispatchBoxed(…)``; None without one. What runs is a kernel of the operator then,
        but not the one that ``outer`` looked up."""
        if call.kernel is None or not outer.kernel or not outer.operator:
            return None
        if self._matcher.matches_frame(stack, call.kernel, outer.kernel):
            return None
        result = RecoveredCall(operator=outer.operator)
        work = _OperatorCall(stack, call, outer.operator, result)
        if _redispatches_below_its_key(self._dispatcher.kernels.name(outer.kernel).function):
            self._accept_below_caller(work, outer)
        if not result.kernel:
            self._infer_entry_from_kernel(work)
        if not result.kernel:
            return None
        outer.evidence.append("its kernel tail-called another kernel of the operator, which is running")
        event = "redispatch" if outer.kernel.unboxed else "redispatchBoxed"  # a boxed fallback has no arguments
        return DispatchCall([call.kernel], event, elided=True, kernel=call.kernel), result

    def _limits(self, operator: Operator, caller: RecoveredCall | None, is_call: bool = False) -> _Limits:
        """The limits of a call's keyset. A redispatch has only keys of ``caller``, the call around it, unless that is
        at BackendSelect, whose kernels make a keyset of the options (BackendSelectFallbackKernel.cpp)."""
        keys = self._dispatcher.keys
        if not caller or caller.keyset is None or caller.operator is not operator:
            return _Limits(keys.known_bits, is_call)
        makes_keyset = caller.index == keys.index_of_key("BackendSelect")
        return _Limits(keys.known_bits if makes_keyset else caller.keyset, is_call)

    def _must_be_empty(self, operator: Operator, limits: _Limits) -> bool:
        """True if the keyset can only be empty: a redispatch's caller has an empty one, or no tensor adds to a call's
        keyset and the keys that every thread includes fall through. Raises GdbextError.

        That the operator takes no tensors must be said by its extractor and by its schema: damaged memory may have a
        word of zeros anywhere.
        """
        if not limits.keys or not limits.is_call:
            return not limits.keys
        schema, keys = operator.schema, self._dispatcher.keys
        if operator.extractor.reverse_arguments or not schema or schema.missing:
            return False
        if "Tensor" in schema.text.partition(" -> ")[0]:
            return False
        return not keys.default_included & operator.extractor.mask(keys, keys.default_included)

    def _find_keyset(self, work: _OperatorCall, limits: _Limits) -> None:
        """Set the keyset of the result, and its proof; if none is proven, only the table entry of the running
        kernel."""
        for level in reversed(work.call.header):  # nearest to the kernel first
            if self._accept_passed_keyset(work, level, limits):
                return
        if self._accept_keyset_at_lookup(work, limits):
            return
        self._accept_only_word(work, limits.keys)
        if work.result.confidence is Certainty.UNKNOWN:
            self._infer_entry_from_kernel(work)

    def _accept_passed_keyset(self, work: _OperatorCall, level: int, limits: _Limits) -> bool:
        """Accept a keyset that frame ``level`` passes in an argument register, if it selects the kernel that runs and
        keeps to ``limits``; False if there is none."""
        stack, call, operator, result = work
        outside = call.header[0] + 1
        for position, value, index, kernel in self._possible_keysets(work, level):
            if call.kernel is not None:
                entry = self._matcher.entry_of_frame(stack, call.kernel, kernel)
                may_run = entry != 0
            else:  # no kernel was entered yet
                entry = 0
                may_run = self._matcher.is_code(kernel) and (call.detail is Role.LOOKUP or kernel.valid)
            if not may_run and not self._left_by_tail_call(work, value):
                continue
            if value & ~limits.keys:
                # unless the caller of the function that redispatches passed that keyset, too
                is_known = not call.is_inlined and not call.elided and outside < len(stack)
                if not is_known or value not in self._sites.arguments(stack, outside, _KEYSET_ARGUMENTS):
                    result.evidence.append(
                        f"keyset {value:#x} has keys that its caller's keyset, {limits.keys:#x}, lacks"
                    )
                    continue
            place = f"{self._sites.place(position)} by the call in frame #{level}"
            is_certain = value or self._is_empty_twice(work) or self._must_be_empty(operator, limits)
            if not is_certain:
                result.evidence.append(f"an empty keyset in {place}: not accepted, since any zero word looks like one")
                continue
            result.evidence.append(f"keyset {value:#x} passed in {place}")
            result.accept(value, index, kernel, Certainty.EXACT, entry)
            return True
        return False

    def _possible_keysets(self, work: _OperatorCall, level: int) -> Iterator[tuple[int, int, int, KernelFunction]]:
        """(argument register's number, value, table index and kernel that the value selects) of each argument of the
        call that frame ``level`` made that is where a keyset is passed."""
        stack, call, operator, _ = work
        values = self._sites.arguments(stack, level, _KEYSET_ARGUMENTS)
        first = values[0]

        def is_at_keyset(position: int, kernel: KernelFunction) -> bool:
            """True if the argument at ``position`` must be the keyset of the call, if that enters ``kernel``."""
            if call.elided and level == call.header[0]:
                # at::_ops::NAME::redispatch(keyset, …); behind a result pointer, which leads to the stack above, if any
                sp = stack.frames[level].sp
                uses_sret = first is not None and sp <= first < sp + (1 << 26)  # 64 MiB: no stack is larger
                return first is not None and position == (1 if uses_sret else 0)
            if call.detail is Role.LOOKUP and level == call.header[-1]:
                return position == 1  # OperatorEntry::lookup(this, keyset)
            if call.kernel != level - 1 or not self._sites.site(stack, level).through_pointer:
                return False
            # an unboxed kernel is called as (functor, keyset, …), or as (result, functor, keyset, …) if the result is
            # returned through memory: the second argument is the keyset or the functor, never anything else
            has_unboxed = kernel.unboxed or kernel.sym_unboxed
            return bool(has_unboxed) and (position == 1 or (position == 2 and first not in (None, kernel.functor)))

        for position, value in enumerate(values):
            if value is None or not self._dispatcher.keys.can_be_keyset(value):
                continue
            index, kernel = operator.kernel_for(value)
            if value == kernel.functor:  # not a keyset, though its bits may be those of one: an address in the heap
                continue
            # behind the operator's handle or entry, or the kernel's functor
            before = values[position - 1] if position else None
            is_behind = before and (
                before in (operator.address, kernel.functor)
                or (not before & 7 and self._memory.try_u64(before) == operator.address)
            )
            if is_behind or is_at_keyset(position, kernel):
                yield position, value, index, kernel

    def _is_empty_twice(self, work: _OperatorCall) -> bool:
        """True if the call's frames pass an empty keyset that is a constant in the code, or that two words say: one
        word of zeros alone proves nothing."""
        places = [
            self._sites.places(work.stack, level, position)
            for level in work.call.header
            for position, value, _, _ in self._possible_keysets(work, level)
            if not value
        ]
        return frozenset() in places or any(first.isdisjoint(second) for first, second in combinations(places, 2))

    def _accept_keyset_at_lookup(self, work: _OperatorCall, limits: _Limits) -> bool:
        """Accept the keyset in the register that the lookup reads, if the thread is at that very instruction (a
        breakpoint of dispatch-break); else False."""
        stack, call, operator, result = work
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
        if not value and not self._must_be_empty(operator, limits):
            result.evidence.append(
                f"{sites.keyset} is empty at the lookup instruction: not accepted, since any zero word looks like one"
            )
            return False
        result.evidence.append(f"keyset {value:#x} in {sites.keyset} at the lookup instruction")
        result.accept(value, *operator.kernel_for(value), Certainty.EXACT)
        return True

    @cached_property
    def _lookups(self) -> SiteFinder:
        """Finds the instructions of functions that look a keyset up."""
        from gdbext.torch.stack.lookup_sites import SiteFinder  # 2 ms, at a breakpoint alone

        dispatcher = self._dispatcher
        backends, table = dispatcher.keys.num_backends, dispatcher.first_entry
        return SiteFinder(self._memory, self._modules, self._symbolizer, backends, table)

    def _left_by_tail_call(self, work: _OperatorCall, keyset: int) -> bool:
        """True if the kernel that ``keyset`` selects left by a tail call for what runs in its place.

        Proof: the call's frames still hold the address of this very table entry, which lookup returned for this call
        (needed if the entry left by a virtual tail call, whose target no code tells). Or it is a fallback of PyTorch
        that is known to do so, or a boxed kernel that may jump to another kernel of the operator.
        """
        stack, call, operator, _ = work
        index, kernel = operator.kernel_for(keyset)
        entry = self._dispatcher.table_entry(operator.address, index)
        for level in call.header:
            registers = stack.frames[level].registers
            saved = map(registers.get, self._memory.architecture.callee_saved)
            if entry in saved or entry in self._sites.arguments(stack, level, _KEYSET_ARGUMENTS):
                in_table = operator.kernel(index)
                if self._matcher.is_code(in_table) and (call.kernel is None or in_table.valid or in_table.unboxed != 0):
                    return True
                break
        return call.kernel is not None and (
            self._left_for_frame(stack, call.kernel, operator, keyset)
            or self._matcher.may_have_left(stack, call.kernel, kernel, operator)
        )

    def _accept_only_word(self, work: _OperatorCall, allowed: int) -> None:
        """Accept the only word of the call's frames, with no keys but those of the bits ``allowed``, that selects the
        running kernel."""
        stack, call, operator, result = work
        if call.kernel is None:
            return
        entries = len(self._matcher.indices(stack, call.kernel, operator))
        # autograd's kernels are in one of eight table entries, a composite kernel in most: any word selects that
        if entries * 4 > len(operator.table):
            result.evidence.append(f"no word of a frame can prove a keyset: {entries} table entries have this kernel")
            return
        proven: dict[int, str] = {}
        """Words that select the running kernel → where each is, for people."""
        keys = self._dispatcher.keys
        for level in reversed(call.header):
            for place, value in self._matcher.words(stack, level):
                if value in proven or not keys.looks_computed(value) or self._modules.mapping_at(value):
                    continue
                _, kernel = operator.kernel_for(value)
                if kernel.valid and value != kernel.functor and self._matcher.matches_frame(stack, call.kernel, kernel):
                    proven[value] = f"{place} of frame #{level}"
        # Dispatcher::call and callBoxed mask their keyset by the operator's non-fallthrough keys
        is_masked = call.event in ("call", "callBoxed")
        possible = [
            value
            for value in proven
            if not value & ~allowed and not (is_masked and value & ~operator.extractor.mask(keys, value))
        ]
        if len(possible) == 1:
            value = possible[0]
            index, kernel = operator.kernel_for(value)
            result.evidence.append(f"keyset {value:#x} in {proven[value]}: the only word that selects this kernel")
            entry = self._matcher.entry_of_frame(stack, call.kernel, kernel)
            result.accept(value, index, kernel, Certainty.VERIFIED, entry)
        elif possible:
            words = ", ".join(f"{value:#x}" for value in possible)
            result.evidence.append(f"several words select this kernel: {words}")

    def _infer_entry_from_kernel(self, work: _OperatorCall) -> None:
        """Set the kernel of the result by the function that runs, without a keyset: the table index, too, if only one
        entry has that kernel."""
        stack, call, operator, result = work
        indices = self._matcher.indices(stack, call.kernel, operator)
        if not indices or call.kernel is None:
            return
        kernel = operator.kernel(indices[0])
        result.entry = self._matcher.entry_of_frame(stack, call.kernel, kernel)
        if len(indices) == 1:
            result.index, result.kernel, result.confidence = indices[0], kernel, Certainty.INFERRED
            result.evidence.append("the running kernel is in only one table entry")
        elif all(operator.kernel(index).same_code == kernel.same_code for index in indices):
            others = {operator.kernel(index) for index in indices} - {kernel}
            names = {self._dispatcher.kernels.name(other).function for other in (kernel, *others)} if others else ()
            # if it calls what its functor holds, and that differs, what it calls is not known
            result.kernel = kernel if len(names) < 2 else kernel._replace(functor=0)
            result.confidence = Certainty.INFERRED
            result.evidence.append(f"the running kernel is in {len(indices)} table entries")

    # --- PyTorch's own fallbacks, and the Python dispatcher's calls ---

    def _left_for_frame(self, stack: NativeStack, level: int, operator: Operator, keyset: int) -> bool:
        """True if ``keyset`` selects a fallback of PyTorch's that left by a tail call for what runs in frame ``level``:
        a virtual function that it is known to call, or the kernel for the keys below its own."""
        for _ in range(4):  # in a row, at most one for each kind (negation, conjugation, zeros, tracing)
            index, kernel = operator.kernel_for(keyset)
            if self._ends_in_virtual_call(stack, level, kernel):
                return True
            if not kernel.valid or not _redispatches_below_its_key(self._dispatcher.kernels.name(kernel).function):
                return False
            keyset = self._keyset_below(keyset, index)
            if not keyset or not self._dispatcher.keys.can_be_keyset(keyset):
                return False
            if self._matcher.matches_frame(stack, level, operator.kernel_for(keyset)[1]):
                return True
        return False

    def _ends_in_virtual_call(self, stack: NativeStack, level: int, kernel: KernelFunction) -> bool:
        """True if the kernel is known to end in a virtual call of the function of frame ``level``, by their names."""
        function = stack.function(level)
        name = self._dispatcher.kernels.name(kernel).function
        texts = " ".join(function.demangled) if function else ""
        return any(
            any(part in name for part in kernels) and any(part in texts for part in called)
            for kernels, called in _VIRTUAL_CALLS
        )

    def _accept_below_caller(self, work: _OperatorCall, caller: RecoveredCall) -> None:
        """Accept the keyset of ``caller`` without its highest key and those above, if the kernel that this selects is
        what runs: so do fallbacks redispatch."""
        stack, call, operator, result = work
        if call.kernel is None or caller.keyset is None or caller.index is None:
            return
        value = self._keyset_below(caller.keyset, caller.index)
        if not self._dispatcher.keys.can_be_keyset(value):
            return
        index, kernel = operator.kernel_for(value)
        entry = self._matcher.entry_of_frame(stack, call.kernel, kernel) if kernel.valid else 0
        if entry or self._left_for_frame(stack, call.kernel, operator, value):
            result.evidence.append(f"keyset {value:#x}: the keys below that of the fallback that redispatches here")
            result.accept(value, index, kernel, Certainty.VERIFIED, entry)

    def _keyset_below(self, keyset: int, index: int) -> int:
        """The keys of ``keyset`` that have a lower priority than the key of the table's entry ``index``."""
        keys = self._dispatcher.keys
        key = keys.key_of_index(index)
        value = keyset & keys.full_after(key)
        # FULL_AFTER keeps the Python dispatcher's key, and its fallback removes it
        return value & ~keys.bits_of(key) if key == "PythonDispatcher" else value

    def _accept_key_named_by_python(self, work: _OperatorCall, around: RecoveredCall | None) -> bool:
        """Accept the key that the Python dispatcher named in ``work``, if the kernel of that key is what runs; else
        False. It is the highest key, PythonDispatcher aside, of the keyset of the call ``around`` it. Raises
        GdbextError."""
        stack, call, operator, result = work
        keys = self._dispatcher.keys
        if call.kernel is None or not around or around.operator is not operator:
            return False
        if not is_python_dispatcher(stack, call.header[0]) or around.keyset is None:
            return False
        wanted = around.keyset & ~keys.bits_of("PythonDispatcher")
        if not wanted:
            return False
        index, kernel = operator.kernel_for(wanted)
        entry = self._matcher.entry_of_frame(stack, call.kernel, kernel) if kernel.valid else 0
        if not entry and not self._left_for_frame(stack, call.kernel, operator, wanted):
            return False
        result.evidence.append(
            f"the Python dispatcher was asked for {keys.key_of_index(index)}, whose kernel is running"
        )
        # a boxed call (BoxedKernel_impl.h) passes the keyset behind the operator's handle
        _, handle, keyset = self._sites.arguments(stack, call.header[-1], 3)
        is_handle = handle and not handle & 7 and self._memory.try_u64(handle) == operator.address
        if not keyset or not is_handle or not keys.can_be_keyset(keyset):
            keyset = None
            result.evidence.append("the keyset that the Python dispatcher passes is unknown")
        result.accept(keyset, index, kernel, Certainty.INFERRED if keyset is None else Certainty.EXACT, entry)
        return True
