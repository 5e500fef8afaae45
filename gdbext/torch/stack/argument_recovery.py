"""The arguments of dispatch calls on a stack: from the boxed stack, or from registers and stack slots.

The C++ signature comes from the name of ``at::_ops::NAME::call`` or ``redispatch``, so nothing is guessed from the
schema but names and whether the result goes through a hidden pointer. A word is *exact* if the calling code loaded it
for the call; *verified* if the called function has saved it, or if it is among the arguments on the stack, and there is
a tensor behind it; a number in such a place is *inferred*, and verified when two independent places agree. Places that
contradict each other make the argument unknown.

What the running code may have overwritten is inferred at most, and unknown where a result could be in its place: values
that were moved on, memory of others, the boxed stack, StableIValues, and the tensors to which the operator writes, for
their sizes are those of now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from gdbext.engine.arch import Slot
from gdbext.engine.formats.demangle import demangle
from gdbext.engine.process.code_reader import FunctionCode
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.unwind import NativeStack
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import AUTOGRAD_FALLBACKS, BOXED_STACK_CHANGES, STABLE_KERNEL
from gdbext.torch.registry.schema import aliased_arguments, hidden_result, schema_results, schema_types
from gdbext.torch.stack.call_arguments import CallSites, SavedArguments
from gdbext.torch.stack.dispatch_calls import DispatchCall, RecoveredCall, frames_with_types
from gdbext.torch.stack.kernel_match import BETWEEN, functor_words, registered_signature, unboxed_entry_signature
from gdbext.torch.stack.roles import KernelSignature, operator_method, parameters
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_values import LIST_LIMIT, CppValues, Value, has_destructor, list_value, used_bytes

_MOVABLE = "the copy that was passed, as it is now"
"""The place of a value that need not be the one that was passed."""


class Sighting(NamedTuple):
    """The value of one argument of an operator as one register, stack slot or boxed stack has it."""

    position: int
    """The argument's index in the schema."""
    value: Value
    certainty: Certainty
    place: str
    """Where the value was read, for people: "frame #3"."""
    boxed: bool = False
    """It is from the stack of a boxed kernel."""
    addresses: frozenset[int] = frozenset()
    """Of the stack slots that it was read from."""


class FoundArgument(NamedTuple):
    """An argument as all sightings together tell it; ``value`` is None if it is unknown."""

    name: str
    type: str
    """The type in the schema."""
    value: Value | None
    certainty: Certainty
    place: str
    boxed: bool = False


class Signature(NamedTuple):
    """How a function of a dispatch takes the operator's arguments: the C++ type of each, and the registers or stack
    slots that it is passed in; ``keyset`` is the slot of the function's DispatchKeySet, None if it takes none."""

    kinds: tuple[str, ...]
    slots: tuple[tuple[Slot, ...], ...]
    keyset: Slot | None


class _InspectedCall(NamedTuple):
    """A dispatch call whose arguments are recovered."""

    stack: NativeStack
    call: DispatchCall
    recovered: RecoveredCall
    schema: str
    types: tuple[str, ...]
    """Schema types of the operator's arguments."""
    kinds: tuple[str, ...] | None
    """C++ types of the arguments by the operator's own functions; None if these do not say them."""
    uses_sret: bool | None
    """The result is returned through a pointer before the arguments; None if that is unknown."""


class ArgumentRecovery:
    """Finds the arguments of dispatch calls on stacks of one process."""

    def __init__(
        self, memory: Memory, symbolizer: Symbolizer, sites: CallSites, code: FunctionCode, values: CppValues
    ) -> None:
        """``sites`` tells what callers passed, ``code`` what callees saved, ``values`` what such words mean."""
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._code = code
        self._values = values
        self._kinds: dict[str, tuple[str, ...] | None] = {}
        """C++ types of the arguments by NAME of ``at::_ops::NAME``; None if the first call seen does not say them."""

    def find(self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall) -> tuple[FoundArgument, ...]:
        """The arguments of a call in the order of the schema; () without a schema. Raises MemoryFault, BadData."""
        operator = recovered.operator
        schema = operator.schema if operator else None
        if not operator or not schema:
            return ()
        wanted = schema_types(schema.text)
        if operator.struct not in self._kinds:
            struct, event = operator_method(call.mangled)
            own_types = parameters(demangle(call.mangled)) if call.mangled and struct == operator.struct else None
            if own_types and event == "redispatch":
                del own_types[0]  # the keyset
            self._kinds[operator.struct] = None if own_types is None else tuple(own_types)
        kinds = self._kinds[operator.struct]
        if kinds is not None and len(kinds) != len(wanted):
            kinds = None
        types = tuple(kind for kind, _ in wanted)
        inspected = _InspectedCall(stack, call, recovered, schema.text, types, kinds, hidden_result(schema.text))
        sightings: list[list[Sighting]] = [[] for _ in wanted]
        for sighting in chain(
            self._on_boxed_stack(inspected),
            self._at_opener(inspected),
            self._at_unboxed_entry(inspected),
            self._at_body(inspected),
            self._in_stable_values(inspected),
            self._at_typed_frames(inspected) if kinds is None else (),
        ):
            value = self._values.of_schema_type(types[sighting.position], sighting.value)
            sightings[sighting.position].append(sighting._replace(value=value))
        found = [_judged(name, kind, seen) for (kind, name), seen in zip(wanted, sightings)]
        written = aliased_arguments(schema.text).values() if call.kernel is not None else ()
        return tuple(_at_most_inferred(argument) if argument.name in written else argument for argument in found)

    def with_inner_values(
        self,
        stack: NativeStack,
        arguments: tuple[FoundArgument, ...],
        inner: DispatchCall,
        inside: tuple[FoundArgument, ...],
    ) -> tuple[FoundArgument, ...]:
        """The arguments of a call of autograd's fallback; those that are unknown and nowhere contradicted are taken
        from ``inside``, the arguments of the call ``inner`` that the fallback made.

        The fallback passes on the boxed stack that it was given, and an unboxed kernel may have moved the values out of
        it since (basicAutogradNotImplementedFallbackImpl, torch 2.0 to 2.13).
        """
        fallback = stack.function(inner.header[0])  # the opener of ``inner`` is inlined into it
        names = " ".join(fallback.demangled) if fallback else ""
        if len(arguments) != len(inside) or not any(part in names for part in AUTOGRAD_FALLBACKS):
            return arguments
        completed = list(arguments)
        for index, (own, further) in enumerate(zip(arguments, inside)):
            if further.value and not own.value and not own.place:
                certainty = min(further.certainty, Certainty.VERIFIED)
                completed[index] = further._replace(certainty=certainty, place=f"{further.place}, further in")
        return tuple(completed)

    def _on_boxed_stack(self, inspected: _InspectedCall) -> Iterator[Sighting]:
        """The IValues on the boxed stack (a ``std::vector``) that a boxed kernel was given.

        None if it does not hold as many as there are arguments: a kernel may have taken them off already. A None may
        be what was left when an unboxed kernel was given the value (``std::move`` in
        make_boxed_from_unboxed_functor.h), so it says nothing.
        """
        stack, keyset, kernel = inspected.stack, inspected.recovered.keyset, inspected.recovered.kernel
        size, count = self._values.ivalue_size, len(inspected.types)
        for level in reversed(inspected.call.header):
            passed = self._sites.arguments(stack, level, 5)  # result, functor, operator, keyset, boxed stack
            if keyset is None or keyset not in passed or not kernel:
                continue
            vector = (*passed, None)[passed.index(keyset) + 1]
            inner = self._sites.function(stack, level - 1) if level else None
            # it calls the boxed function of the kernel: directly, or there is no other
            is_boxed = (inner and inner.start == kernel.boxed) or not (kernel.unboxed or kernel.sym_unboxed)
            if vector is None or vector & 7 or not is_boxed:
                continue
            try:
                first, length = vector_span(self._memory, vector, size, 1 << 12)
                boxed = [self._values.boxed(first + size * index) for index in range(count if length == count else 0)]
            except GdbextError:
                continue
            values = [(index, value) for index, value in enumerate(boxed) if value.text != "None"]
            if values:
                if not (kernel.boxed_only or len(schema_results(inspected.schema)) < count):
                    # the unboxed function may have returned, and its results have taken their place
                    callee = stack.function(level - 2) if level >= 2 else None
                    if level < 2 or (callee and any(name.startswith(BOXED_STACK_CHANGES) for name in callee.names)):
                        return
                yield from (Sighting(*row, Certainty.EXACT, "the boxed stack", True) for row in values)
                return

    def _at_opener(self, inspected: _InspectedCall) -> Iterator[Sighting]:
        """What the caller of ``at::_ops::NAME::call`` (or of another function that opens the call) passed to it, and
        what that function has saved of it."""
        stack, call = inspected.stack, inspected.call
        if inspected.kinds is None or inspected.uses_sret is None:
            return
        before = ["keyset"] if call.event.startswith("redispatch") else []
        signature = self._signature(inspected.kinds, inspected.uses_sret, before)
        if not signature:
            return
        opener = call.header[0]
        caller = opener if call.elided else opener + 1
        if caller < len(stack):
            target = self._sites.direct_target(stack, caller)
            called = self._symbolizer.function(target) if target else None
            if called and called.start == target and call.mangled in called.names:
                sightings = self._passed(stack, caller, signature, inspected.recovered, on_stack=not call.elided)
                yield from _after_moves(signature, sightings)
        function = stack.function(opener)
        if not call.elided and function and call.mangled and call.mangled in function.names:
            yield from _after_moves(signature, self._saved(stack, opener, signature))

    def _at_unboxed_entry(self, inspected: _InspectedCall) -> Iterator[Sighting]:
        """What was passed to the unboxed function of the kernel, and what it has saved of it. Its C++ types are known
        by the operator's own functions, or by the kernel itself."""
        stack, kernel_level = inspected.stack, inspected.call.kernel
        kernel, operator = inspected.recovered.kernel, inspected.recovered.operator
        function = self._sites.function(stack, kernel_level) if kernel_level is not None else None
        if not kernel or not operator or not function or kernel_level is None:
            return
        entered: KernelSignature | None = None
        if inspected.kinds is None:
            entered = unboxed_entry_signature(operator, kernel, function.start, function.names)
        elif kernel.unboxed and function.start == kernel.unboxed and inspected.uses_sret is not None:
            entered = KernelSignature(inspected.kinds, inspected.uses_sret)
        if not entered or len(entered.parameters) != len(inspected.types):
            return
        signature = self._signature(entered.parameters, entered.hidden, ["functor", "keyset"])
        if signature:
            is_pointer_call = self._sites.site(stack, kernel_level + 1).through_pointer is True
            is_certain = not inspected.call.elided and is_pointer_call
            yield from self._called(stack, kernel_level, signature, inspected.recovered, is_certain)

    def _at_body(self, inspected: _InspectedCall) -> Iterator[Sighting]:
        """What was passed to the kernel's own function if that has no name: the kernel's wrapper has called it through
        the pointer that the functor holds. It takes what the operator takes, and perhaps a keyset first."""
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
        if not registered or len(registered.parameters) != len(inspected.types):
            return
        keyed = self._signature(registered.parameters, registered.hidden, ["keyset"])
        plain = self._signature(registered.parameters, registered.hidden, [])
        if not keyed or not plain or not keyed.keyset or keyed.keyset.register is None:
            return  # a keyset that is passed in memory cannot be compared
        first = self._sites.argument(stack, level + 1, keyed.keyset.register)
        if first is not None:
            signature = keyed if first == recovered.keyset else plain
            yield from self._called(stack, level, signature, recovered, is_certain=True)

    def _at_typed_frames(self, inspected: _InspectedCall) -> Iterator[Sighting]:
        """What was passed to frames of the call whose mangled names have the operator's types (layers of the
        dispatcher, the kernel's own function), and what they have saved of it."""
        stack, call = inspected.stack, inspected.call
        if inspected.uses_sret is None:
            return
        for frame in frames_with_types(stack, call, len(inspected.types)):
            signature = self._signature(frame.kinds, inspected.uses_sret, frame.before)
            outer = frame.level + 1
            if not signature:
                continue
            is_certain = False
            is_inside = call.kernel is not None and frame.level < call.kernel  # of the kernel: nothing left between
            if outer < len(stack) and (is_inside or not call.elided):  # did the outer frame call just this function?
                inner, target = stack.function(frame.level), self._sites.direct_target(stack, outer)
                through_pointer = self._sites.site(stack, outer).through_pointer
                is_certain = through_pointer is True or bool(inner and inner.start == target)
            yield from self._called(stack, frame.level, signature, inspected.recovered, is_certain)

    def _called(
        self, stack: NativeStack, level: int, signature: Signature, recovered: RecoveredCall, is_certain: bool
    ) -> Iterator[Sighting]:
        """What was passed to the function of frame ``level``, and what it has saved of it. ``is_certain``: the frame
        around it called that very function; else what that frame passed is not considered."""
        sightings = self._saved(stack, level, signature)
        if is_certain:
            sightings = chain(self._passed(stack, level + 1, signature, recovered, on_stack=True), sightings)
        yield from _after_moves(signature, sightings)

    def _signature(self, kinds: Sequence[str], uses_sret: bool, before: Sequence[str]) -> Signature | None:
        """The signature of a function that takes a result's address (if it ``uses_sret``), one word for each name in
        ``before``, and parameters of the C++ types ``kinds``; None for an unknown type."""
        leading = self._memory.architecture.leading_arguments(uses_sret) + len(before)
        slots = self._values.slots(kinds, leading)
        if not slots:
            return None
        keyset = slots[leading - 1][0] if "keyset" in before else None
        return Signature(tuple(kinds), tuple(slots[leading:]), keyset)

    def _passed(
        self, stack: NativeStack, level: int, signature: Signature, recovered: RecoveredCall, on_stack: bool
    ) -> Iterator[Sighting]:
        """What frame ``level`` passed to the function that it called: in registers, and if ``on_stack`` (they are not
        overwritten) also in stack slots. None if another keyset was passed than ``recovered`` has: the function has
        another signature then."""
        passed = self._sites.arguments(stack, level, 6)
        keyset_slot = signature.keyset
        keyset = passed[keyset_slot.register] if keyset_slot and keyset_slot.register is not None else None
        if keyset is not None and recovered.keyset is not None and keyset != recovered.keyset:
            return
        sp = stack.frames[level].sp
        callee = self._sites.function(stack, level - 1) if level and on_stack else None
        saved = SavedArguments(self._memory, self._code, stack, level - 1, callee) if callee else None

        def read(slot: Slot, _size: int) -> _SlotWord:
            """The word in a slot; certain in a register, whose origin is in the calling code and its own frame."""
            if slot.register is not None:
                return _SlotWord(passed[slot.register], self._sites.is_own(stack, level, slot.register))
            if slot.float_register is not None:
                return _SlotWord(self._sites.float_argument(stack, level, slot.float_register), True)
            if slot.offset is None or not saved or not saved.keeps_slot(sp + slot.offset):
                return _SlotWord(None, False)
            return _SlotWord(self._memory.try_u64(sp + slot.offset), False, sp + slot.offset)

        yield from self._sightings(signature, read, f"the call in frame #{level}")

    def _saved(self, stack: NativeStack, level: int, signature: Signature) -> Iterator[Sighting]:
        """What the function of frame ``level`` was given, if it has saved it, or has only just been entered."""
        frame, function = stack.frames[level], self._sites.function(stack, level)
        if not function or not frame.cfa:
            return
        saved = SavedArguments(self._memory, self._code, stack, level, function)

        def read(slot: Slot, size: int) -> _SlotWord:
            """The word in a slot; certain in a register if none of the function's instructions has run."""
            address = frame.cfa + slot.offset if slot.offset is not None else 0
            if address and not saved.keeps_slot(address):
                return _SlotWord(None, False)
            word = saved.argument_word(slot, size)
            return _SlotWord(word, slot.offset is None and frame.pc == function.start, address)

        yield from self._sightings(signature, read, f"frame #{level}")

    def _sightings(
        self, signature: Signature, read: Callable[[Slot, int], _SlotWord], place: str
    ) -> Iterator[Sighting]:
        """The values of the arguments whose words are all known; ``read`` takes a slot and the number of its bytes that
        the argument uses. ``place`` is that of the sightings."""
        for index, (kind, slots) in enumerate(zip(signature.kinds, signature.slots)):
            read_words = [read(slot, used_bytes(kind, position)) for position, slot in enumerate(slots)]
            words = [word.value for word in read_words if word.value is not None]
            if len(words) != len(read_words):
                continue
            try:
                value = self._values.read(kind, words)
            except GdbextError:
                continue
            certainty = Certainty.VERIFIED if value.proven else Certainty.INFERRED
            if all(word.is_certain for word in read_words):
                certainty = Certainty.EXACT
            addresses = frozenset(word.address for word in read_words if word.address)
            yield Sighting(index, value, certainty, place, addresses=addresses)

    def _in_stable_values(self, inspected: _InspectedCall) -> Iterator[Sighting]:
        """The arguments of an operator with the stable ABI (torch/csrc/shim_common.cpp, torch/csrc/stable, 2.9 to
        2.13). Raises MemoryFault, BadData.

        The kernel makes an array of StableIValues and calls ``fn(StableIValue*, num_args, num_outputs)``, which owns
        the array from its first instruction on, and writes the results over its first words. The extension's wrapper
        makes a ``std::tuple`` of the arguments, in its frame while its own kernel runs (``boxer_impl`` of library.h).

        A tensor of the array is an argument if a live shared pointer in the frames inside owns its handle (tensor.h): a
        result's handle is a copy, which nothing owns. Any other word where a result may be is an argument if it is in
        a tuple with such tensors.
        """
        stack, call, types, kernel = inspected.stack, inspected.call, inspected.types, inspected.recovered.kernel
        function = stack.function(call.kernel) if call.kernel else None
        if call.kernel is None or not function or STABLE_KERNEL not in function.name:
            return
        if not kernel or not self._sites.is_through_pointer(stack, call.kernel):
            return
        array, count = self._sites.arguments(stack, call.kernel, 2)
        if array is None or count != len(types):
            return
        words = self._memory.words(array, count)
        wrapper = self._sites.function(stack, call.kernel - 1)
        has_begun = not wrapper or stack.frames[call.kernel - 1].pc != wrapper.start
        # without optimization six frames are the wrapper's: ``boxer::boxed_fn``, ``std::apply``, …
        low, high = stack.frames[max(call.kernel - 6, 0)].sp, stack.frames[call.kernel].sp
        raw = self._memory.read(low, high - low) if 0 < high - low <= 1 << 16 else b""
        owned = self._owned_handles(raw, {word for word, kind in zip(words, types) if kind == "Tensor"})
        tuples = self._stable_tuples(types, words, raw, low) if owned else []
        results = len(schema_results(inspected.schema)) if has_begun and not tuples else 0
        certainty = Certainty.INFERRED if has_begun else Certainty.VERIFIED
        for index, (kind, word) in enumerate(zip(types, words)):
            is_owned = kind == "Tensor" and word in owned
            if not is_owned and (index < results or (kind == "Tensor" and has_begun)):
                continue
            if kind.endswith("?") and not word:
                yield Sighting(index, Value("None"), certainty, "its StableIValues")
            elif kind in _WORD_TYPES:
                value = self._values.read(_WORD_TYPES[kind], [word])
                yield Sighting(index, value, certainty, "its StableIValues")
        for index, (kind, offset) in enumerate(zip(types, _tuple_layout(types)[0]) if tuples else ()):
            values = [self._element(kind, address + offset) for address in tuples]
            if kind not in _WORD_TYPES and values[0] and all(value == values[0] for value in values):
                yield Sighting(index, values[0], Certainty.INFERRED, "the wrapper's tuple")

    def _owned_handles(self, raw: bytes, handles: Collection[int]) -> frozenset[int]:
        """Those of the ``handles`` that a ``std::shared_ptr`` in ``raw``, bytes of a stack, owns: the handle is before
        the address of a control block in use that has it (libstdc++'s _Sp_counted_deleter: a vtable, two counts, the
        deleter if that is no empty class, and the pointer)."""
        words = [int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw) - 7, 8)]
        owned = set()
        for handle, block in zip(words, words[1:]):
            if handle in handles and handle and block and not block & 7:
                content = self._memory.try_read(block, 32)
                is_used = int.from_bytes(content[8:12], "little") > 0
                pointers = [int.from_bytes(content[at : at + 8], "little") for at in (16, 24)]
                if len(content) == 32 and is_used and handle in pointers:
                    owned.add(handle)
        return frozenset(owned)

    def _stable_tuples(self, types: Sequence[str], words: Sequence[int], raw: bytes, low: int) -> list[int]:
        """Addresses of what can be the ``std::tuple`` of arguments of these schema types in ``raw``, bytes of a stack
        from address ``low`` on. ``words`` are the StableIValues; its tensors must be owned ones."""
        offsets, size = _tuple_layout(types)
        if not offsets or "Tensor" not in types:
            return []
        tensors = [(word, offset) for word, kind, offset in zip(words, types, offsets) if kind == "Tensor"]

        def may_be_tuple(start: int) -> bool:
            """Each element of a tuple at ``raw[start:]`` fits the StableIValue of its argument."""
            return all(
                _may_be_element(kind, word, raw[start + offset :], low + start + offset)
                for kind, word, offset in zip(types, words, offsets)
            ) and all(
                word in self._owned_handles(raw[start + offset : start + offset + 16], {word})
                for word, offset in tensors
            )

        return [low + start for start in filter(may_be_tuple, range(0, len(raw) - size + 1, 8))]

    def _element(self, kind: str, address: int) -> Value | None:
        """The value of the element, of schema type ``kind``, at an address in a wrapper's tuple; None if it cannot be
        read. A Tensor is a shared pointer to a handle: two words."""
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


class _SlotWord(NamedTuple):
    """The word in an argument's slot, None if it is unknown, and whether it is certainly what was passed."""

    value: int | None
    is_certain: bool
    address: int = 0
    """That of a stack slot; 0 for a register."""


def _after_moves(signature: Signature, sightings: Iterable[Sighting]) -> Iterator[Sighting]:
    """The sightings of a function's arguments. A class with a destructor that is passed by value is in the caller's
    memory, from where it may have been moved to the next function since (``std::forward`` in KernelFunction_impl.h); it
    is INFERRED at most."""
    for sighting in sightings:
        kind = signature.kinds[sighting.position].removeprefix("std::optional<").removesuffix(">").rstrip()
        if not has_destructor(kind):
            yield sighting
        elif sighting.value.text not in ("0", "undefined", '""', "[]"):  # what is left behind after a move
            yield sighting._replace(certainty=min(sighting.certainty, Certainty.INFERRED), place=_MOVABLE)


def _at_most_inferred(argument: FoundArgument) -> FoundArgument:
    """The argument, INFERRED at most."""
    return argument._replace(certainty=min(argument.certainty, Certainty.INFERRED))


def _judged(name: str, kind: str, sightings: Sequence[Sighting]) -> FoundArgument:
    """The argument by its sightings: the most certain value; unknown if equally certain ones differ. An INFERRED value
    that two places have, which are not the same memory, is VERIFIED."""
    if not sightings:
        return FoundArgument(name, kind, value=None, certainty=Certainty.UNKNOWN, place="")
    best = max(sighting.certainty for sighting in sightings)
    strongest = [sighting for sighting in sightings if sighting.certainty == best]
    if len({sighting.value for sighting in strongest}) > 1:
        return FoundArgument(name, kind, None, Certainty.UNKNOWN, "places that contradict each other")
    first = strongest[0]
    agreeing = [sighting for sighting in sightings if sighting.value == first.value and sighting.place != _MOVABLE]
    is_agreed = any(one.addresses.isdisjoint(other.addresses) for one, other in zip(agreeing, agreeing[1:]))
    if best is Certainty.INFERRED and is_agreed:
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


def _tuple_layout(types: Sequence[str]) -> tuple[list[int], int]:
    """(offsets of the elements, size) of a wrapper's tuple for arguments of these schema types, in bytes; ([], 0) if
    one of them is unknown."""
    offsets: list[int] = []
    size = 0
    for shape in map(_shape, reversed(types)):  # libstdc++ has a tuple's elements in reverse
        if not shape:
            return [], 0
        offsets.insert(0, _aligned(size, shape[1]))
        size = offsets[0] + shape[0]
    return offsets, size


def _may_be_element(kind: str, word: int, raw: bytes, address: int) -> bool:
    """True if ``raw``, the bytes from ``address`` on, can begin with an element of schema type ``kind`` of a wrapper's
    tuple, for an argument whose StableIValue is ``word``."""
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
    """(size, alignment), in bytes, of an element of schema type ``kind`` in a wrapper's tuple; None if unknown."""
    if kind.endswith("?"):
        inner = _shape(kind[:-1])
        return (_aligned(inner[0] + 1, inner[1]), inner[1]) if inner else None
    if "[" in kind:
        return None if kind.startswith("bool[") else (24, 8)
    return _SHAPES.get(kind)


def _aligned(offset: int, alignment: int) -> int:
    """``offset`` rounded up to a multiple of ``alignment``."""
    return -(-offset // alignment) * alignment
