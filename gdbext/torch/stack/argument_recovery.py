"""The arguments of dispatch calls on a stack: from the boxed stack, or from registers and stack slots.

The C++ signature comes from the name of ``at::_ops::NAME::call`` or ``redispatch``, so nothing is guessed from the
schema but names and whether the result goes through a hidden pointer. A word is *exact* if the calling code loaded it
for the call; *verified* if the called function has saved it, or if it is among the arguments on the stack, and there is
a tensor behind it; a number in such a place is *inferred*, and verified when two places agree. Places that contradict
each other make the argument unknown.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import AUTOGRAD_KERNELS, STABLE_HANDLES, STABLE_KERNEL
from gdbext.torch.registry.schema import hidden_result, schema_results, schema_types
from gdbext.torch.stack.call_arguments import CallSites, SavedArguments
from gdbext.torch.stack.dispatch_calls import DispatchCall, RecoveredCall, frames_with_types
from gdbext.torch.stack.kernel_match import BETWEEN, functor_words, registered_signature, unboxed_entry_signature
from gdbext.torch.stack.roles import KernelSignature, operator_method, parameters
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_values import LIST_LIMIT, Value, has_destructor, list_value, used_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gdbext.engine.arch import Slot
    from gdbext.engine.process.code_reader import FunctionCode
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.values.cpp_values import CppValues

_MOVABLE = "the copy that was passed, as it is now"
"""The place of a value that need not be the one that was passed."""


class Sighting(NamedTuple):
    """The value of an argument in one place."""

    value: Value
    certainty: Certainty
    place: str
    boxed: bool = False
    """It is from the stack of a boxed kernel."""


class FoundArgument(NamedTuple):
    """An argument; ``value`` None if it is unknown."""

    name: str
    type: str
    value: Value | None
    certainty: Certainty
    place: str
    boxed: bool = False


class Signature(NamedTuple):
    """The signature of a function that is called: the slots of each schema argument, behind whatever else it takes."""

    kinds: tuple[str, ...]
    slots: tuple[tuple[Slot, ...], ...]
    keyset: Slot | None
    """The slot of the keyset, for functions that take one."""


class _InspectedCall(NamedTuple):
    """A dispatch call whose arguments are recovered."""

    stack: NativeStack
    call: DispatchCall
    recovered: RecoveredCall
    schema: str
    num_arguments: int
    """Number of the operator's arguments."""
    kinds: tuple[str, ...] | None
    """C++ types of the arguments by the operator's own functions; None if these do not say them."""
    hidden: bool | None
    """The result goes through a hidden pointer; None if that is unknown."""


class ArgumentRecovery:
    """Finds arguments on stacks of one process.

    The methods that look in one kind of place yield (number of the argument, value in that place).
    """

    def __init__(
        self, memory: Memory, symbolizer: Symbolizer, sites: CallSites, code: FunctionCode, values: CppValues
    ) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._code = code
        self._values = values
        self._parameters: dict[str, tuple[str, ...] | None] = {}
        """C++ types of the arguments, by an operator's struct."""

    def find(self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall) -> tuple[FoundArgument, ...]:
        """The arguments of a call in the order of the schema; () without a schema. Raises MemoryFault, BadData."""
        operator = recovered.operator
        schema = operator.schema if operator else None
        if not operator or not schema:
            return ()
        wanted = schema_types(schema.text)
        if operator.struct not in self._parameters:
            # the C++ types of the operator's arguments, by the names of its own functions
            name, event = operator_method(call.mangled)
            is_own = call.mangled and name == operator.struct
            types = parameters(demangle(call.mangled))[1 if event == "redispatch" else 0 :] if is_own else None
            self._parameters[operator.struct] = None if types is None else tuple(types)
        kinds = self._parameters[operator.struct]
        if kinds is not None and len(kinds) != len(wanted):
            kinds = None
        hidden = hidden_result(schema.text)
        inspected = _InspectedCall(stack, call, recovered, schema.text, len(wanted), kinds, hidden)
        sightings: list[list[Sighting]] = [[] for _ in wanted]
        sources = chain(
            self._on_boxed_stack(inspected),
            self._at_opener(inspected),
            self._at_unboxed_entry(inspected),
            self._at_body(inspected),
            self._in_stable_values(inspected, [kind for kind, _ in wanted]),
            self._at_typed_frames(inspected) if kinds is None else (),
        )
        for number, sighting in sources:
            value = self._values.of_schema_type(wanted[number][0], sighting.value)
            sightings[number].append(sighting._replace(value=value))
        return tuple(_judged(name, kind, seen) for (kind, name), seen in zip(wanted, sightings))

    def with_inner_values(
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
        if len(arguments) != len(inside) or not any(mark in texts for mark in AUTOGRAD_KERNELS[1:]):
            return arguments
        return tuple(
            further._replace(certainty=min(further.certainty, Certainty.VERIFIED), place=f"{further.place}, further in")
            if not own.value and further.value and not own.place
            else own
            for own, further in zip(arguments, inside)
        )

    def _on_boxed_stack(self, inspected: _InspectedCall) -> Iterator[tuple[int, Sighting]]:
        """The IValues that a boxed kernel was given."""
        stack, recovered, kernel = inspected.stack, inspected.recovered, inspected.recovered.kernel
        for level in reversed(inspected.call.header):
            values = self._sites.arguments(stack, level, 5)  # result, functor, operator, keyset, boxed stack
            if recovered.keyset is None or recovered.keyset not in values or not kernel:
                continue
            address = (*values, None)[values.index(recovered.keyset) + 1]
            inner = self._sites.function(stack, level - 1) if level else None
            # it calls the boxed function of the kernel: directly, or there is no other
            is_boxed = (inner and inner.start == kernel.boxed) or not (kernel.unboxed or kernel.sym_unboxed)
            if address is None or address & 7 or not is_boxed:
                continue
            boxed_values = self._boxed_values(address, inspected.num_arguments)
            for number, value in boxed_values:
                yield number, Sighting(value, Certainty.EXACT, "the boxed stack", True)
            if boxed_values:
                return

    def _boxed_values(self, vector: int, count: int) -> list[tuple[int, Value]]:
        """(number, value) of the arguments on the boxed stack, a vector of IValues at that address.

        [] if it does not hold just ``count`` arguments: a kernel may have taken them off already. A None may be what
        was left when an unboxed kernel was given the value (``std::move`` in make_boxed_from_unboxed_functor.h), so it
        says nothing.
        """
        try:
            size = self._values.ivalue_size
            first, length = vector_span(self._memory, vector, size, 1 << 12)
            if length != count:
                return []
            values = [(number, self._values.boxed(first + size * number)) for number in range(count)]
            return [(number, value) for number, value in values if value.text != "None"]
        except GdbextError:
            return []

    def _at_opener(self, inspected: _InspectedCall) -> Iterator[tuple[int, Sighting]]:
        """Places where the opening function was called, and where it has saved what it was given."""
        stack, call = inspected.stack, inspected.call
        if inspected.kinds is None or inspected.hidden is None:
            return
        before = ["keyset"] if call.event.startswith("redispatch") else []
        signature = self._signature(inspected.kinds, inspected.hidden, before)
        if not signature:
            return
        opener = call.header[0]
        caller = opener if call.elided else opener + 1
        if caller < len(stack):
            target = self._sites.direct_target(stack, caller)
            called = self._symbolizer.function(target) if target else None
            if called and called.start == target and call.mangled in called.names:
                yield from self._passed(stack, caller, signature, inspected.recovered, not call.elided)
        function = stack.function(opener)
        if not call.elided and function and call.mangled and call.mangled in function.names:
            yield from self._saved(stack, opener, signature)

    def _at_unboxed_entry(self, inspected: _InspectedCall) -> Iterator[tuple[int, Sighting]]:
        """Places where the unboxed function of a kernel was called, and where it has saved what it was given. Its types
        are known by the operator's own functions, or by the kernel itself."""
        stack, kernel_level = inspected.stack, inspected.call.kernel
        kernel, operator = inspected.recovered.kernel, inspected.recovered.operator
        function = self._sites.function(stack, kernel_level) if kernel_level is not None else None
        if not kernel or not operator or not function or kernel_level is None:
            return
        entered: KernelSignature | None = None
        if inspected.kinds is None:
            entered = unboxed_entry_signature(operator, kernel, function.start, function.names)
        elif kernel.unboxed and function.start == kernel.unboxed and inspected.hidden is not None:
            entered = KernelSignature(inspected.kinds, inspected.hidden)
        if not entered or len(entered.parameters) != inspected.num_arguments:
            return
        signature = self._signature(entered.parameters, entered.hidden, ["functor", "keyset"])
        if signature:
            is_pointer_call = self._sites.site(stack, kernel_level + 1).through_pointer is True
            certain = not inspected.call.elided and is_pointer_call
            yield from self._called(stack, kernel_level, signature, inspected.recovered, certain)

    def _at_body(self, inspected: _InspectedCall) -> Iterator[tuple[int, Sighting]]:
        """Places where the kernel's own function was called, if no name tells it: its wrapper has called it through the
        pointer that the functor holds. The operator has its type, but for a keyset that it may take first."""
        stack, kernel_level, recovered = inspected.stack, inspected.call.kernel, inspected.recovered
        kernel, operator = recovered.kernel, recovered.operator
        if not kernel or not operator or kernel_level is None or not kernel.functor or recovered.keyset is None:
            return
        inward = range(kernel_level - 1, max(kernel_level - 1 - BETWEEN, -1), -1)
        level = next((level for level in inward if self._sites.is_through_pointer(stack, level + 1)), None)
        function = self._sites.function(stack, level) if level is not None else None
        if level is None or not function or function.start not in functor_words(self._memory, kernel.functor):
            return
        registered = registered_signature(operator, symbolic=not kernel.unboxed)
        if not registered or len(registered.parameters) != inspected.num_arguments:
            return
        keyed = self._signature(registered.parameters, registered.hidden, ["keyset"])
        plain = self._signature(registered.parameters, registered.hidden, [])
        if not keyed or not plain or not keyed.keyset or keyed.keyset.register is None:
            return
        first = self._sites.argument(stack, level + 1, keyed.keyset.register)
        if first is not None:
            signature = keyed if first == recovered.keyset else plain
            yield from self._called(stack, level, signature, recovered, True)

    def _at_typed_frames(self, inspected: _InspectedCall) -> Iterator[tuple[int, Sighting]]:
        """Places where layers of the call and the kernel's own function, whose names have the types, were called, and
        where they have saved what they were given."""
        stack, call = inspected.stack, inspected.call
        if inspected.hidden is None:
            return
        for frame in frames_with_types(stack, call, inspected.num_arguments):
            signature = self._signature(frame.kinds, inspected.hidden, frame.before)
            outer = frame.level + 1
            if not signature:
                continue
            certain = False
            is_inside = call.kernel is not None and frame.level < call.kernel  # of the kernel: nothing left between
            if outer < len(stack) and (is_inside or not call.elided):  # did the outer frame call just this function?
                inner, target = stack.function(frame.level), self._sites.direct_target(stack, outer)
                through_pointer = self._sites.site(stack, outer).through_pointer
                certain = through_pointer is True or bool(inner and inner.start == target)
            yield from self._called(stack, frame.level, signature, inspected.recovered, certain)

    def _called(
        self, stack: NativeStack, level: int, signature: Signature, recovered: RecoveredCall, certain: bool
    ) -> Iterator[tuple[int, Sighting]]:
        """Places where the function of frame ``level`` was called, if it is ``certain`` that the frame around it did
        so, and where it has saved what it was given."""
        sightings = self._saved(stack, level, signature)
        if certain:
            sightings = chain(self._passed(stack, level + 1, signature, recovered, True), sightings)
        for number, sighting in sightings:
            # a class with a destructor that is passed by value is in the caller's memory, from where it may have been
            # moved to the next function since (``std::forward`` in KernelFunction_impl.h)
            kind = signature.kinds[number].removeprefix("std::optional<").removesuffix(">").rstrip()
            if not has_destructor(kind):
                yield number, sighting
            elif sighting.value.text not in ("0", "undefined", '""', "[]"):  # what is left behind after a move
                certainty = min(sighting.certainty, Certainty.INFERRED)  # it may have been given another value, too
                yield number, sighting._replace(certainty=certainty, place=_MOVABLE)

    def _signature(self, kinds: Sequence[str], hidden: bool, before: Sequence[str]) -> Signature | None:
        """The signature with a hidden result and the words ``before`` the arguments; None for an unknown type."""
        leading = self._memory.architecture.leading_arguments(hidden) + len(before)
        slots = self._values.slots(kinds, leading)
        if not slots:
            return None
        keyset = slots[leading - 1][0] if "keyset" in before else None
        return Signature(tuple(kinds), tuple(slots[leading:]), keyset)

    def _passed(
        self, stack: NativeStack, level: int, signature: Signature, recovered: RecoveredCall, on_stack: bool
    ) -> Iterator[tuple[int, Sighting]]:
        """The words that frame ``level`` passed to the function that it called, with ``on_stack`` also those in memory;
        none if the word in the keyset's slot is another keyset: then the signature is another one."""
        passed = self._sites.arguments(stack, level, 6)
        keyset_slot = signature.keyset
        keyset = passed[keyset_slot.register] if keyset_slot and keyset_slot.register is not None else None
        if keyset is not None and recovered.keyset is not None and keyset != recovered.keyset:
            return
        sp = stack.frames[level].sp

        def word(slot: Slot, _size: int) -> tuple[int | None, bool]:
            if slot.register is not None:
                return passed[slot.register], True
            if slot.float_register is not None:
                return self._sites.float_argument(stack, level, slot.float_register), True
            if slot.offset is None or not on_stack:
                return None, False
            return self._memory.try_u64(sp + slot.offset), False

        yield from self._sightings(signature, word, f"the call in frame #{level}")

    def _saved(self, stack: NativeStack, level: int, signature: Signature) -> Iterator[tuple[int, Sighting]]:
        """The words that the function of frame ``level`` was given, if it has saved them."""
        frame, function = stack.frames[level], self._sites.function(stack, level)
        if not function or not frame.cfa:
            return
        saved = SavedArguments(self._memory, self._code, stack, level, function)

        def word(slot: Slot, size: int) -> tuple[int | None, bool]:
            return saved.argument_word(slot, size), slot.offset is None and frame.pc == function.start

        yield from self._sightings(signature, word, f"frame #{level}")

    def _sightings(
        self, signature: Signature, word: Callable[[Slot, int], tuple[int | None, bool]], place: str
    ) -> Iterator[tuple[int, Sighting]]:
        """The values of the arguments whose words are all known.

        ``word`` takes a slot and the number of its bytes that matter, and returns its word (None if unknown) and
        whether that is certainly what was passed.
        """
        for number, (kind, slots) in enumerate(zip(signature.kinds, signature.slots)):
            read = [word(slot, used_bytes(kind, position)) for position, slot in enumerate(slots)]
            words = [value for value, _ in read if value is not None]
            if len(words) != len(read):
                continue
            try:
                value = self._values.read(kind, words)
            except GdbextError:
                continue
            certainty = Certainty.VERIFIED if value.proven else Certainty.INFERRED
            yield number, Sighting(value, Certainty.EXACT if all(exact for _, exact in read) else certainty, place)

    def _in_stable_values(self, inspected: _InspectedCall, kinds: Sequence[str]) -> Iterator[tuple[int, Sighting]]:
        """The arguments, of schema types ``kinds``, of an operator with the stable ABI (torch/csrc/shim_common.cpp,
        torch/csrc/stable, 2.9 to 2.13). Raises MemoryFault, BadData.

        The kernel makes an array of StableIValues and calls ``fn(StableIValue*, num_args, num_outputs)``. The
        extension's wrapper makes a ``std::tuple`` of them, in its frame while its own kernel runs (``boxer_impl`` of
        library.h). Results are written over the first words.
        """
        stack, call = inspected.stack, inspected.call
        function = stack.function(call.kernel) if call.kernel else None
        if call.kernel is None or not function or STABLE_KERNEL not in function.name:
            return
        array, count = self._sites.arguments(stack, call.kernel, 2)
        if array is None or count != len(kinds):
            return
        words = self._memory.words(array, count)
        overwritten = len(schema_results(inspected.schema)) if may_write_stable_results(stack, call.kernel) else 0
        for number, (kind, word) in enumerate(zip(kinds, words)):
            if number < overwritten:
                continue
            if kind.endswith("?") and not word:
                yield number, Sighting(Value("None"), Certainty.VERIFIED, "its StableIValues")
            elif kind in _WORD_TYPES:
                value = self._values.read(_WORD_TYPES[kind], [word])
                certainty = Certainty.VERIFIED if value.proven or value.text == "None" else Certainty.INFERRED
                yield number, Sighting(value, certainty, "its StableIValues")
        if kinds and not overwritten:
            for number, value in self._read_tuple(stack, call.kernel, kinds, words):
                yield number, Sighting(value, Certainty.INFERRED, "the wrapper's tuple")

    def _read_tuple(
        self, stack: NativeStack, kernel_level: int, kinds: Sequence[str], words: Sequence[int]
    ) -> Iterator[tuple[int, Value]]:
        """Optionals and lists, which are nowhere else, by number; none if no tuple has arguments of these schema
        types, or several differ. The tuple is recognized by the elements whose ``words`` are known."""
        offsets: list[int] = []
        size = 0
        for shape in map(_shape, reversed(kinds)):  # libstdc++ has a tuple's elements in reverse
            if not shape or "Tensor" not in kinds:
                return
            offsets.insert(0, _aligned(size, shape[1]))
            size = offsets[0] + shape[0]
        # without optimization six frames are the wrapper's: ``boxer::boxed_fn``, ``std::apply``, …
        low, high = stack.frames[max(kernel_level - 6, 0)].sp, stack.frames[kernel_level].sp
        raw = self._memory.read(low, high - low) if 0 < high - low <= 1 << 16 else b""
        tuples = [
            low + start
            for start in range(0, len(raw) - size + 1, 8)
            if all(
                _may_be_element(kind, word, raw[start + offset :], low + start + offset)
                for kind, word, offset in zip(kinds, words, offsets)
            )
        ]
        for number, kind in enumerate(kinds if tuples else ()):
            values = [self._element(kind, address + offsets[number]) for address in tuples]
            if kind not in _WORD_TYPES and values[0] and all(value == values[0] for value in values):
                yield number, values[0]

    def _element(self, kind: str, address: int) -> Value | None:
        """The value of the tuple's element at ``address``, of a schema type; None if it cannot be read."""
        try:
            if kind.endswith("?"):
                size = (_shape(kind[:-1]) or (0, 0))[0]
                return self._element(kind[:-1], address) if self._memory.u8(address + size) else None
            if kind == "Tensor":
                return self._values.read(_WORD_TYPES[kind], [self._memory.u64(address)])
            element = kind.partition("[")[0]
            if element == kind:
                return self._values.stored(_STORED_TYPES[kind], address)
            if element != "Tensor":
                return self._values.stored(f"std::vector<{_STORED_TYPES[element]}, std::allocator<", address)
            first, count = vector_span(self._memory, address, _SHAPES[element][0], LIST_LIMIT)
            handles = self._memory.words(first, 2 * count)[::2]
            return list_value([self._values.read(_WORD_TYPES[element], [handle]) for handle in handles], count)
        except (GdbextError, KeyError):
            return None


def _judged(name: str, kind: str, sightings: Sequence[Sighting]) -> FoundArgument:
    """The argument by all places together: the most certain value; unknown if equally certain ones differ."""
    if not sightings:
        return FoundArgument(name, kind, None, Certainty.UNKNOWN, "")
    best = max(sighting.certainty for sighting in sightings)
    strongest = [sighting for sighting in sightings if sighting.certainty == best]
    if len({sighting.value for sighting in strongest}) > 1:
        return FoundArgument(name, kind, None, Certainty.UNKNOWN, "places that contradict each other")
    first = strongest[0]
    agreeing = [sighting for sighting in sightings if sighting.value == first.value]
    if best is Certainty.INFERRED and len(agreeing) > 1 and first.place != _MOVABLE:
        best = Certainty.VERIFIED
    return FoundArgument(name, kind, first.value, best, first.place, first.boxed)


_WORD_TYPES = {"Tensor": "at::Tensor const&", "int": "long", "float": "double", "bool": "bool"}
"""Schema types whose StableIValue lasts as long as the call, and what its word is: a tensor's handle is a pointer to an
``at::Tensor`` (torch/csrc/stable/stableivalue_conversions.h). Optionals and lists are freed when they are read; an
optional without a value is a zero."""
_SHAPES = {
    "Tensor": (16, 8),
    "str": (32, 8),
    **dict.fromkeys(("int", "SymInt", "float"), (8, 8)),
    **dict.fromkeys(("bool", "ScalarType", "Layout", "MemoryFormat"), (1, 1)),
}
"""Bytes and alignment of what the wrapper makes of a StableIValue: a tensor is a shared pointer of its handle."""
_STORED_TYPES = {
    "str": "std::__cxx11::basic_string<",
    "int": "long",
    "SymInt": "long",
    "float": "double",
    "bool": "bool",
    "ScalarType": "c10::ScalarType",
    "Layout": "c10::Layout",
    "MemoryFormat": "c10::MemoryFormat",
}
"""C++ types of the tuple's elements, by schema type."""


def may_write_stable_results(stack: NativeStack, kernel_level: int) -> bool:
    """The extension's wrapper, which frame ``kernel_level`` called, may be writing its results, or have written them:
    it runs itself, or makes or deletes what only has a handle."""
    inner = stack.function(kernel_level - 2) if kernel_level >= 2 else None
    return kernel_level < 2 or bool(inner and any(name.startswith(STABLE_HANDLES) for name in inner.names))


def _may_be_element(kind: str, word: int, raw: bytes, address: int) -> bool:
    """The bytes ``raw`` at ``address`` may be the tuple's element of a schema type whose StableIValue is ``word``."""
    if kind in _WORD_TYPES:
        size = 1 if kind == "bool" else 8
        return raw[:size] == word.to_bytes(8, "little")[:size]
    if kind.endswith("?"):
        size = _SHAPES[kind[:-1]][0] if "[" not in kind else 24
        return raw[size] == bool(word)
    first, second, third = (int.from_bytes(raw[offset : offset + 8], "little") for offset in (0, 8, 16))
    if "[" in kind:  # the vector's begin, end, and end of its capacity
        return first <= second <= third and not (first | second | third) & 7 and bool(first) == bool(third)
    if kind == "str":  # libstdc++ has up to 15 bytes of a string (its address, its length) in the object itself
        return (first == address + 16) == (second <= 15)
    return True


def _shape(kind: str) -> tuple[int, int] | None:
    """Bytes and alignment of a tuple's element of a schema type; None for one that is not known."""
    if kind.endswith("?"):
        inner = _shape(kind[:-1])
        return (_aligned(inner[0] + 1, inner[1]), inner[1]) if inner else None
    if "[" in kind:
        return None if kind.startswith("bool[") else (24, 8)
    return _SHAPES.get(kind)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
