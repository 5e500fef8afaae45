"""The arguments of dispatch calls on a stack: from the boxed stack, or from registers and stack slots.

The C++ signature comes from the name of ``at::_ops::NAME::call`` or ``redispatch``, so nothing is guessed from the
schema but names and whether the result goes through a hidden pointer. A word is *exact* where the calling code loaded
it for the call; *verified* where the called function keeps it, or where it stands among the arguments on the stack, and
there is a tensor behind it; a number in such a place is *inferred*, and verified when two places agree. Places that
contradict each other make the argument unknown.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import AUTOGRAD_KERNELS
from gdbext.torch.registry.schema import hidden_result, schema_types
from gdbext.torch.stack.call_arguments import AS_IT_IS, CallSites, FoundArgument, KeptArguments, Sighting, judged
from gdbext.torch.stack.dispatch_calls import DispatchCall, frames_with_types
from gdbext.torch.stack.kernel_match import BETWEEN, entered_unboxed, functor_words, registered_signature
from gdbext.torch.stack.known_fallbacks import STABLE_TUPLE, RecoveredCall, stable_values
from gdbext.torch.stack.roles import KernelSignature, operator_method, parameters
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_objects import has_destructor, used_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gdbext.engine.arch import Slot
    from gdbext.engine.process.code_reader import FunctionCode
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Function, Symbolizer
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.registry import Operator
    from gdbext.torch.registry.kernel import KernelFunction
    from gdbext.torch.values.cpp_values import CppValues, Value

_REGISTERS = 6
_STACK_LIMIT = 1 << 12
"""IValues on a boxed stack."""
_BOXED_ARGUMENTS = 5
_LEFT_BEHIND = ("0", "undefined", '""', "[]")
"""The kinds of code after one of these, or from the start."""


class Signature(NamedTuple):
    """The signature of a function that is called: words of each schema argument, behind whatever else it takes."""

    kinds: tuple[str, ...]
    slots: tuple[tuple[Slot, ...], ...]
    keyset: Slot | None
    """The place of the keyset, for functions that take one."""


class ArgumentRecovery:
    """Finds arguments on stacks of one process."""

    def __init__(
        self, memory: Memory, symbolizer: Symbolizer, sites: CallSites, code: FunctionCode, values: CppValues
    ) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._code = code
        self._values = values
        self._parameters: dict[str, tuple[str, ...] | None] = {}

    def find(self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall) -> tuple[FoundArgument, ...]:
        """The arguments of a call in the order of the schema; () without a schema. Raises MemoryFault, BadData."""
        operator = recovered.operator
        schema = operator.schema if operator else None
        if not operator or not schema:
            return ()
        wanted = schema_types(schema.text)
        sightings: list[list[Sighting]] = [[] for _ in wanted]
        for source in (self._boxed, self._unboxed, self._in_kernel, self._in_body, self._stable, self._by_names):
            for number, sighting in source(stack, call, recovered, operator, len(wanted)):
                value = self._values.of_schema_type(wanted[number][0], sighting.value)
                sightings[number].append(sighting._replace(value=value))
        return tuple(judged(name, kind, seen) for (kind, name), seen in zip(wanted, sightings))

    def completed(
        self,
        stack: NativeStack,
        arguments: tuple[FoundArgument, ...],
        inner: DispatchCall,
        inside: tuple[FoundArgument, ...],
    ) -> tuple[FoundArgument, ...]:
        """The arguments of a call of autograd's fallback, with those that are known ``inside`` its own call ``inner``.

        It passes on the boxed stack that it was given, and an unboxed kernel may have moved the values out of it since
        (basicAutogradNotImplementedFallbackImpl, torch 2.0 to 2.13).
        """
        function = stack.function(inner.header[0])
        texts = " ".join(function.demangled) if function else ""
        if len(arguments) != len(inside) or not any(one in texts for one in AUTOGRAD_KERNELS[1:]):
            return arguments
        return tuple(
            known._replace(certainty=min(known.certainty, Certainty.VERIFIED), place=f"{known.place}, further in")
            if not mine.value and known.value and not mine.place
            else mine
            for mine, known in zip(arguments, inside)
        )

    # --- boxed -----------------------------------------------------------------------------------

    def _boxed(
        self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, _operator: Operator, count: int
    ) -> Iterator[tuple[int, Sighting]]:
        """The IValues that a boxed kernel was given."""
        for level in reversed(call.header):
            values = self._sites.arguments(stack, level, _BOXED_ARGUMENTS)
            if recovered.keyset is None or recovered.keyset not in values:
                continue
            at = values.index(recovered.keyset) + 1
            address = values[at] if at < len(values) else None
            if address is None or address & 7 or not self._is_boxed(stack, level, recovered):
                continue
            found = self._boxed_values(address, count)
            yield from ((number, Sighting(value, Certainty.EXACT, "the boxed stack", True)) for number, value in found)
            if found:
                return

    def _is_boxed(self, stack: NativeStack, level: int, recovered: RecoveredCall) -> bool:
        """The frame calls the boxed function of the kernel: directly, or there is no other."""
        kernel = recovered.kernel
        if not kernel:
            return False
        inner = self._sites.function(stack, level - 1) if level else None
        if inner and inner.start == kernel.boxed:
            return True
        return not kernel.unboxed and not kernel.sym_unboxed

    def _boxed_values(self, vector: int, count: int) -> list[tuple[int, Value]]:
        """[] where the stack does not hold just these arguments: a kernel may have taken them off already.

        A None may be what was left when an unboxed kernel was given the value (``std::move`` in
        make_boxed_from_unboxed_functor.h), so it says nothing.
        """
        try:
            size = self._values.ivalue_size
            first, length = vector_span(self._memory, vector, size, _STACK_LIMIT)
            if length != count:
                return []
            found = [(number, self._values.boxed(first + size * number)) for number in range(count)]
            return [(number, value) for number, value in found if value.text != "None"]
        except GdbextError:
            return []

    # --- unboxed ---------------------------------------------------------------------------------

    def _unboxed(
        self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, operator: Operator, count: int
    ) -> Iterator[tuple[int, Sighting]]:
        """Places where the opener was called, and where it keeps what it was given."""
        kinds = self._operator_parameters(call, operator, count)
        hidden = hidden_result(operator.schema.text) if operator.schema else None
        if kinds is None or hidden is None:
            return
        opener = call.header[0]
        plain, keyed = self._signature(kinds, hidden, []), self._signature(kinds, hidden, ["keyset"])
        if not plain or not keyed:
            return
        outer = keyed if call.event.startswith("redispatch") else plain
        entered = opener if call.elided else opener + 1
        if self._calls_opener(stack, entered, call):
            yield from self._passed(stack, entered, outer, recovered, not call.elided)
        if not call.elided and self._is_opener(stack, opener, call):
            yield from self._kept(stack, opener, outer)

    def _in_kernel(
        self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, operator: Operator, count: int
    ) -> Iterator[tuple[int, Sighting]]:
        """The unboxed function of a kernel: where it was called, and where it keeps what it was given."""
        kernel = recovered.kernel
        function = self._sites.function(stack, call.kernel) if call.kernel is not None else None
        if not kernel or not function or call.kernel is None:
            return
        found = self._entered(call, kernel, function, operator, count)
        signature = self._signature(found.parameters, found.hidden, ["functor", "keyset"]) if found else None
        if signature:
            certain = not call.elided and self._sites.site(stack, call.kernel + 1).through_pointer is True
            yield from self._called(stack, call.kernel, signature, recovered, certain)

    def _entered(
        self, call: DispatchCall, kernel: KernelFunction, function: Function, operator: Operator, count: int
    ) -> KernelSignature | None:
        """The signature of that entry: by the operator's own functions, or by what the kernel itself tells."""
        kinds = self._operator_parameters(call, operator, count)
        if kinds is None:
            found = entered_unboxed(operator, kernel, function.start, function.names)
            return found if found and len(found.parameters) == count else None
        hidden = hidden_result(operator.schema.text) if operator.schema else None
        is_entry = kernel.unboxed and function.start == kernel.unboxed
        return KernelSignature(kinds, hidden) if is_entry and hidden is not None else None

    def _in_body(
        self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, operator: Operator, count: int
    ) -> Iterator[tuple[int, Sighting]]:
        """The kernel's own function where no name tells it: its wrapper has called it through the pointer that the
        functor holds. The operator has its type, but for a keyset that it may take first."""
        kernel, level = recovered.kernel, self._body_of(stack, call, recovered)
        if not kernel or level is None or recovered.keyset is None:
            return
        found = registered_signature(operator, symbolic=not kernel.unboxed)
        if not found or len(found.parameters) != count:
            return
        keyed = self._signature(found.parameters, found.hidden, ["keyset"])
        plain = self._signature(found.parameters, found.hidden, [])
        if not keyed or not plain or not keyed.keyset or keyed.keyset.register is None:
            return
        first = self._sites.argument(stack, level + 1, keyed.keyset.register)
        if first is not None:
            signature = keyed if first == recovered.keyset else plain
            yield from self._called(stack, level, signature, recovered, True)

    def _body_of(self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall) -> int | None:
        kernel, level = recovered.kernel, call.kernel
        if not kernel or level is None or not kernel.functor:
            return None
        pointers = functor_words(self._memory, kernel.functor)
        for inner in range(level - 1, max(level - 1 - BETWEEN, -1), -1):
            if self._sites.is_through_pointer(stack, inner + 1):
                function = self._sites.function(stack, inner)
                return inner if function and function.start in pointers else None
        return None

    def _stable(
        self, stack: NativeStack, call: DispatchCall, _recovered: RecoveredCall, operator: Operator, count: int
    ) -> Iterator[tuple[int, Sighting]]:
        """The words that an operator with the stable ABI was given. Its results are written over the first of them."""
        text = operator.schema.text if operator.schema else ""
        for number, value, place in stable_values(self._memory, self._values, self._sites, stack, call, text, count):
            certain = (value.proven or value.text == "None") and place != STABLE_TUPLE
            yield number, Sighting(value, Certainty.VERIFIED if certain else Certainty.INFERRED, place)

    def _by_names(
        self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, operator: Operator, count: int
    ) -> Iterator[tuple[int, Sighting]]:
        """Layers of the call, and the kernel's own function, whose names have the types."""
        hidden = hidden_result(operator.schema.text) if operator.schema else None
        if hidden is None or self._operator_parameters(call, operator, count) is not None:
            return
        for frame in frames_with_types(stack, call, count):
            signature = self._signature(frame.kinds, hidden, frame.before)
            if not signature:
                continue
            outer = frame.level + 1
            is_inside = call.kernel is not None and frame.level < call.kernel  # of the kernel: nothing left between
            certain = outer < len(stack) and (is_inside or not call.elided) and self._called_from(stack, outer)
            yield from self._called(stack, frame.level, signature, recovered, certain)

    def _called_from(self, stack: NativeStack, level: int) -> bool:
        """The frame called just the function that stands further in."""
        inner, target = stack.function(level - 1), self._sites.direct_target(stack, level)
        site = self._sites.site(stack, level)
        return site.through_pointer is True or bool(inner and inner.start == target)

    def _called(
        self, stack: NativeStack, level: int, signature: Signature, recovered: RecoveredCall, certain: bool
    ) -> Iterator[tuple[int, Sighting]]:
        """Places where the function of frame ``level`` was called, if it is ``certain`` that the frame around it did
        so, and where it keeps what it was given."""
        seen = self._kept(stack, level, signature)
        if certain:
            seen = chain(self._passed(stack, level + 1, signature, recovered, True), seen)
        for number, sighting in seen:
            if not _may_be_moved(signature.kinds[number]):
                yield number, sighting
            elif sighting.value.text not in _LEFT_BEHIND:  # the function may have given it another value, too
                certainty = min(sighting.certainty, Certainty.INFERRED)
                yield number, sighting._replace(certainty=certainty, place=AS_IT_IS)

    def _operator_parameters(self, call: DispatchCall, operator: Operator, count: int) -> tuple[str, ...] | None:
        """The C++ types of the operator's arguments, by the names of its own functions."""
        struct = operator.struct
        if struct not in self._parameters:
            self._parameters[struct] = self._read_parameters(call, struct)
        found = self._parameters[struct]
        return found if found is not None and len(found) == count else None

    def _read_parameters(self, call: DispatchCall, struct: str) -> tuple[str, ...] | None:
        if not call.mangled or operator_method(call.mangled)[0] != struct:
            return None
        found = parameters(demangle(call.mangled))
        return tuple(found[1:] if operator_method(call.mangled)[1] == "redispatch" else found)

    def _signature(self, kinds: Sequence[str], hidden: bool, before: Sequence[str]) -> Signature | None:
        """The signature with a hidden result and the words ``before`` the arguments; None for a type that is not
        known."""
        leading = self._memory.architecture.leading_arguments(hidden) + len(before)
        slots = self._values.slots(kinds, leading)
        if not slots:
            return None
        keyset = slots[leading - 1][0] if "keyset" in before else None
        return Signature(tuple(kinds), tuple(slots[leading:]), keyset)

    def _calls_opener(self, stack: NativeStack, level: int, call: DispatchCall) -> bool:
        """The call that frame ``level`` made names the opening function."""
        if level >= len(stack):
            return False
        target = self._sites.direct_target(stack, level)
        function = self._symbolizer.function(target) if target else None
        return bool(function and function.start == target and call.mangled in function.names)

    @staticmethod
    def _is_opener(stack: NativeStack, level: int, call: DispatchCall) -> bool:
        function = stack.function(level)
        return bool(function and call.mangled and call.mangled in function.names)

    # --- words -----------------------------------------------------------------------------------

    def _passed(
        self, stack: NativeStack, level: int, signature: Signature, recovered: RecoveredCall, on_stack: bool
    ) -> Iterator[tuple[int, Sighting]]:
        """The words that frame ``level`` passed to the function that it called."""
        passed = self._sites.arguments(stack, level, _REGISTERS)
        if not _takes_keyset(signature, passed, recovered):
            return
        sp = stack.frames[level].sp
        place = f"the call in frame #{level}"

        def word(slot: Slot, _size: int) -> tuple[int | None, bool]:
            if slot.register is not None:
                return passed[slot.register], True
            if slot.float_register is not None:
                return self._sites.float_argument(stack, level, slot.float_register), True
            if slot.offset is None or not on_stack:
                return None, False
            return self._memory.try_u64(sp + slot.offset), False

        yield from self._sightings(signature, word, place)

    def _kept(self, stack: NativeStack, level: int, signature: Signature) -> Iterator[tuple[int, Sighting]]:
        """The words that the function of frame ``level`` was given, where it keeps them."""
        frame, function = stack.frames[level], self._sites.function(stack, level)
        if not function or not frame.cfa:
            return
        kept = KeptArguments(self._memory, self._code, stack, level, function)

        def word(slot: Slot, size: int) -> tuple[int | None, bool]:
            return kept.word(slot, size), slot.offset is None and frame.pc == function.start

        yield from self._sightings(signature, word, f"frame #{level}")

    def _sightings(
        self, signature: Signature, word: Callable[[Slot, int], tuple[int | None, bool]], place: str
    ) -> Iterator[tuple[int, Sighting]]:
        """``word`` gives a slot's word, of which so many bytes matter, and whether it is just what was passed."""
        for number, (kind, slots) in enumerate(zip(signature.kinds, signature.slots)):
            found = [word(slot, used_bytes(kind, at)) for at, slot in enumerate(slots)]
            words = [value for value, _ in found if value is not None]
            if len(words) != len(found):
                continue
            try:
                value = self._values.read(kind, words)
            except GdbextError:
                continue
            if all(exact for _, exact in found):
                certainty = Certainty.EXACT
            else:
                certainty = Certainty.VERIFIED if value.proven else Certainty.INFERRED
            yield number, Sighting(value, certainty, place)


def _may_be_moved(kind: str) -> bool:
    """A class with a destructor that is passed by value: in the caller's memory, from where it may have been moved on
    to the next function since (``std::forward`` in KernelFunction_impl.h)."""
    return has_destructor(kind.removeprefix("std::optional<").removesuffix(">").rstrip())


def _takes_keyset(signature: Signature, passed: Sequence[int | None], recovered: RecoveredCall) -> bool:
    """True if the word in the keyset's place is the keyset, as far as both are known: else the signature is another
    one."""
    slot = signature.keyset
    seen = passed[slot.register] if slot and slot.register is not None else None
    return seen is None or recovered.keyset is None or seen == recovered.keyset
