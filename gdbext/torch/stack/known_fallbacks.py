"""PyTorch's own fallbacks and what they go on with: kernels that leave by a tail call, for another kernel or for a
function that no code tells, and the call that the Python dispatcher makes.

A fallback that redispatches with everything below its own key, or that hands over to a virtual function, is not on the
stack any more while that runs. It counts as entered where its keyset was read and what runs is what it is known to go
on with. The Python dispatcher (torch/csrc/PyInterpreter.cpp, ``python_dispatcher``, torch 2.0 to 2.13) calls
``Dispatcher::callBoxedForDispatchKey``: the kernel is that of a key which Python names, and the keyset one that the
call makes anew of the arguments and the thread's state, so that it may have keys of a higher priority.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gdbext.engine.process.symbolizer import demangle
from gdbext.engine.vocabulary import Certainty
from gdbext.errors import GdbextError
from gdbext.torch import assumed_symbols
from gdbext.torch.registry.schema import schema_results, schema_types
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_values import LIST_LIMIT, Value, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gdbext.engine.process.memory import Memory
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.registry import Dispatcher, Operator
    from gdbext.torch.registry.kernel import KernelFunction
    from gdbext.torch.stack.call_arguments import CallSites
    from gdbext.torch.stack.dispatch_calls import DispatchCall
    from gdbext.torch.stack.kernel_match import KernelMatcher
    from gdbext.torch.values.cpp_values import CppValues

_PYTHON_DISPATCHER = "PythonDispatcher"
_KEYSET_ARGUMENTS = 3
"""Functor, handle and keyset of a boxed call (BoxedKernel_impl.h)."""
_VIRTUAL_CALLS = (
    (assumed_symbols.AUTOGRAD_KERNELS[1:], assumed_symbols.AUTOGRAD_KERNELS[1:]),
    ((assumed_symbols.PYTHON_DISPATCHERS_FALLBACK,), (assumed_symbols.PYTHON_DISPATCHERS_CALL,)),
)
"""Parts of the names of kernels that end in a virtual call, and of the functions that they call."""
_TAIL_CALLS = 4
"""Fallbacks in a row that left by tail calls, at most: one for each kind (negation, conjugation, zeros, tracing)."""


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


STABLE_TYPES = {"Tensor": "at::Tensor const&", "int": "long", "float": "double", "bool": "bool"}
"""Schema types whose StableIValue lasts as long as the call, and what its word is: a tensor's handle is a pointer to an
``at::Tensor`` (torch/csrc/stable/stableivalue_conversions.h). Optionals and lists are freed when they are read; an
optional without a value is a zero."""


def stable_words(memory: Memory, sites: CallSites, stack: NativeStack, call: DispatchCall, count: int) -> Sequence[int]:
    """The StableIValues that the kernel of an operator with the stable ABI passed on: it makes an array of them, and
    calls ``fn(StableIValue*, num_args, num_outputs)`` (torch/csrc/shim_common.cpp, 2.13). () for other kernels.

    Raises MemoryFault.
    """
    function = stack.function(call.kernel) if call.kernel else None
    if call.kernel is None or not function or assumed_symbols.STABLE_KERNEL not in function.name:
        return ()
    values, given = sites.arguments(stack, call.kernel, 2)
    return memory.words(values, count) if values is not None and given == count else ()


def returns_from_stable(stack: NativeStack, kernel: int) -> bool:
    """The extension's wrapper, which frame ``kernel`` called, may be writing its results, or have written them: it runs
    itself, or makes or deletes what only has a handle."""
    inner = stack.function(kernel - 2) if kernel >= 2 else None
    return kernel < 2 or bool(inner and any(one.startswith(assumed_symbols.STABLE_HANDLES) for one in inner.names))


STABLE_TUPLE = "the wrapper's tuple"


def stable_values(
    memory: Memory, values: CppValues, sites: CallSites, stack: NativeStack, call: DispatchCall, text: str, count: int
) -> Iterator[tuple[int, Value, str]]:
    """The arguments, by number, of an operator with the stable ABI and the schema ``text``, and where they were found.
    Raises MemoryFault, BadData."""
    words = stable_words(memory, sites, stack, call, count) if text else ()
    lost = len(schema_results(text)) if words and returns_from_stable(stack, call.kernel or 0) else 0
    kinds = [kind for kind, _ in schema_types(text)] if words else []
    for number, (kind, word) in enumerate(zip(kinds, words)):
        if number >= lost and kind.endswith("?") and not word:
            yield number, Value("None"), _STABLE_WORDS
        elif number >= lost and kind in STABLE_TYPES:
            yield number, values.read(STABLE_TYPES[kind], [word]), _STABLE_WORDS
    if kinds and not lost:
        for number, value in StableTuple(memory, values, kinds, words).values(stack, call.kernel or 0):
            yield number, value, STABLE_TUPLE


_STABLE_WORDS = "its StableIValues"
_SHAPES = {
    "Tensor": (16, 8),
    "str": (32, 8),
    **dict.fromkeys(("int", "SymInt", "float"), (8, 8)),
    **dict.fromkeys(("bool", "ScalarType", "Layout", "MemoryFormat"), (1, 1)),
}
"""Bytes and alignment of what the wrapper makes of a StableIValue: a tensor is a shared pointer of its handle."""
_READ_AS = {
    "str": "std::__cxx11::basic_string<",
    "int": "long",
    "SymInt": "long",
    "float": "double",
    "bool": "bool",
    "ScalarType": "c10::ScalarType",
    "Layout": "c10::Layout",
    "MemoryFormat": "c10::MemoryFormat",
}
_WRAPPERS = 6
"""Frames of the wrapper, without optimisation: ``boxer::boxed_fn``, ``boxer_impl::boxed_fn``, ``std::apply``, …"""


class StableTuple:
    """The ``std::tuple`` of its arguments that an extension's wrapper has in its frame while its kernel runs
    (``boxer_impl`` of torch/csrc/stable/library.h, 2.9 to 2.13), found by those of which the words are known.

    Optionals and lists are nowhere else. libstdc++ has a tuple's elements in reverse.
    """

    def __init__(self, memory: Memory, values: CppValues, kinds: Sequence[str], words: Sequence[int]) -> None:
        """``kinds`` are types of the schema."""
        self._memory = memory
        self._values = values
        self._kinds = kinds
        self._words = words
        self._offsets: list[int] = []
        self._size = 0
        for shape in map(_shape, reversed(kinds)):
            if not shape or "Tensor" not in kinds:
                self._size = 0
                break
            self._offsets.insert(0, _aligned(self._size, shape[1]))
            self._size = self._offsets[0] + shape[0]

    def values(self, stack: NativeStack, kernel: int) -> Iterator[tuple[int, Value]]:
        """The arguments that nothing else has, by number; none where there is no such tuple, or several that differ.
        Raises MemoryFault."""
        low, high = stack.frames[max(kernel - _WRAPPERS, 0)].sp, stack.frames[kernel].sp
        raw = self._memory.read(low, high - low) if self._size and 0 < high - low <= _WRAPPERS_BYTES else b""
        found = [low + at for at in range(0, len(raw) - self._size + 1, 8) if self._is_at(raw, at, low)]
        for number, kind in enumerate(self._kinds if found else ()):
            seen = [self._read(kind, one + self._offsets[number]) for one in found]
            if kind not in STABLE_TYPES and seen[0] and all(one == seen[0] for one in seen):
                yield number, seen[0]

    def _is_at(self, raw: bytes, at: int, low: int) -> bool:
        """All that is known of the arguments is so there."""
        return all(
            self._may_be(kind, word, raw[at + offset :], low + at + offset)
            for kind, word, offset in zip(self._kinds, self._words, self._offsets)
        )

    def _may_be(self, kind: str, word: int, raw: bytes, address: int) -> bool:
        if kind in STABLE_TYPES:
            size = 1 if kind == "bool" else 8
            return raw[:size] == word.to_bytes(8, "little")[:size]
        if kind.endswith("?"):
            size = _SHAPES[kind[:-1]][0] if "[" not in kind else 24
            return raw[size] == bool(word)
        if "[" in kind:
            begin, end, capacity = (int.from_bytes(raw[each : each + 8], "little") for each in (0, 8, 16))
            return begin <= end <= capacity and not (begin | end | capacity) & 7 and bool(begin) == bool(capacity)
        if kind == "str":
            data, length = (int.from_bytes(raw[each : each + 8], "little") for each in (0, 8))
            return (data == address + 16) == (length <= _INSIDE)
        return True

    def _read(self, kind: str, address: int) -> Value | None:
        """The object there of a type of the schema; None where it cannot be read."""
        try:
            if kind.endswith("?"):
                size = (_shape(kind[:-1]) or (0, 0))[0]
                return self._read(kind[:-1], address) if self._memory.u8(address + size) else None
            if kind == "Tensor":
                return self._values.read(STABLE_TYPES[kind], [self._memory.u64(address)])
            element = kind.partition("[")[0]
            if element == kind:
                return self._values.stored(_READ_AS[kind], address)
            if element != "Tensor":
                return self._values.stored(f"std::vector<{_READ_AS[element]}, std::allocator<", address)
            first, count = vector_span(self._memory, address, _SHAPES[element][0], LIST_LIMIT)
            handles = self._memory.words(first, 2 * count)[::2]
            return joined([self._values.read(STABLE_TYPES[element], [one]) for one in handles], count)
        except (GdbextError, KeyError):
            return None


_INSIDE = 15
"""Bytes of a text that a string of libstdc++ holds in itself."""
_WRAPPERS_BYTES = 1 << 16


def _shape(kind: str) -> tuple[int, int] | None:
    """Bytes and alignment of what a schema type is in C++ there, None for one that is not known."""
    if kind.endswith("?"):
        inner = _shape(kind[:-1])
        return (_aligned(inner[0] + 1, inner[1]), inner[1]) if inner else None
    if "[" in kind:
        return None if kind.startswith("bool[") else (24, 8)
    return _SHAPES.get(kind)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


class KnownFallbacks:
    """Answers for stacks of one process."""

    def __init__(self, dispatcher: Dispatcher, memory: Memory, matcher: KernelMatcher, sites: CallSites) -> None:
        self._dispatcher = dispatcher
        self._memory = memory
        self._matcher = matcher
        self._sites = sites
        self._hands_over: dict[tuple[KernelFunction, int], bool] = {}

    # --- kernels that are gone -------------------------------------------------------------------

    def left_for_frame(self, stack: NativeStack, level: int, operator: Operator, keyset: int) -> bool:
        """The kernel for ``keyset`` is a fallback that left by a tail call for what runs in frame ``level``: a virtual
        function of its own, or the kernel for everything below its key."""
        for _ in range(_TAIL_CALLS):
            index, kernel = operator.kernel_for(keyset)
            if self._hands_over_to(stack, level, kernel):
                return True
            if not kernel.valid or not self.goes_below_its_key(kernel):
                return False
            keyset = self._below(keyset, index)
            if not keyset or not self._dispatcher.keys.can_be_keyset(keyset):
                return False
            if self._matcher.matches_frame(stack, level, operator.kernel_for(keyset)[1]):
                return True
        return False

    def goes_below_its_key(self, kernel: KernelFunction) -> bool:
        """It is known to redispatch with everything below its own key."""
        return _is_below(self._dispatcher.kernels.name(kernel).function)

    def _hands_over_to(self, stack: NativeStack, level: int, kernel: KernelFunction) -> bool:
        """The kernel leaves by a virtual call for the frame's function."""
        running = stack.function(level)
        key = kernel, running.start if running else 0
        if key not in self._hands_over:
            named = self._dispatcher.kernels.name(kernel).function
            texts = " ".join(running.demangled) if running else ""
            self._hands_over[key] = any(
                any(one in named for one in kernels) and any(one in texts for one in called)
                for kernels, called in _VIRTUAL_CALLS
            )
        return self._hands_over[key]

    # --- what is below a key ---------------------------------------------------------------------

    def below_callers_key(
        self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, caller: RecoveredCall
    ) -> None:
        """A fallback that is known to go on with everything below its own key, and the kernel for that is what runs."""
        function = stack.function(call.header[0])
        if function and any(_is_below(name) for name in function.demangled):
            self.below_key_of(caller, stack, call, result)

    def below_key_of(
        self, caller: RecoveredCall, stack: NativeStack, call: DispatchCall, result: RecoveredCall
    ) -> None:
        """The keyset of ``caller`` below its own key, where the kernel for that is what runs."""
        operator = result.operator
        if not operator or call.kernel is None or caller.keyset is None or caller.index is None:
            return
        value = self._below(caller.keyset, caller.index)
        if not self._dispatcher.keys.can_be_keyset(value):
            return
        index, kernel = operator.kernel_for(value)
        entry = self._matcher.entry_of_frame(stack, call.kernel, kernel) if kernel.valid else 0
        if entry or self.left_for_frame(stack, call.kernel, operator, value):
            result.evidence.append(f"keyset {value:#x}: what is below the key of the fallback that goes on here")
            accept(result, value, index, kernel, Certainty.VERIFIED)
            result.entry = entry

    def _below(self, keyset: int, index: int) -> int:
        """The rest of ``keyset`` below the key at ``index``."""
        keys = self._dispatcher.keys
        key = keys.key_of_index(index)
        value = keyset & keys.full_after(key)
        if key == _PYTHON_DISPATCHER:  # FULL_AFTER keeps it, and its fallback removes it
            value &= ~keys.bits_of(key)
        return value

    # --- the Python dispatcher -------------------------------------------------------------------

    def chosen_by_python(
        self, stack: NativeStack, call: DispatchCall, result: RecoveredCall, around: RecoveredCall | None
    ) -> bool:
        """The call for the key that Python named: the highest one of the keyset around it, but for its own, if the
        kernel of that key is what runs. Raises GdbextError."""
        operator, keys = result.operator, self._dispatcher.keys
        if not operator or call.kernel is None or not around or around.operator is not operator:
            return False
        if not is_python_dispatcher(stack, call.header[0]):
            return False
        if around.keyset is None or not around.keyset & ~keys.bits_of(_PYTHON_DISPATCHER):
            return False
        wanted = around.keyset & ~keys.bits_of(_PYTHON_DISPATCHER)
        index, kernel = operator.kernel_for(wanted)
        entry = self._matcher.entry_of_frame(stack, call.kernel, kernel) if kernel.valid else 0
        if not entry and not self.left_for_frame(stack, call.kernel, operator, wanted):
            return False
        result.evidence.append(f"Python was asked for {keys.key_of_index(index)}, and its kernel is what runs")
        keyset = self._passed_keyset(stack, call.header[-1], operator)
        if keyset is None:
            result.evidence.append("which keyset the Python dispatcher's call passes is not known")
        accept(result, keyset, index, kernel, Certainty.INFERRED if keyset is None else Certainty.EXACT)
        result.entry = entry
        return True

    def _passed_keyset(self, stack: NativeStack, level: int, operator: Operator) -> int | None:
        """The keyset that a boxed call passes behind the operator's handle; None where it cannot be read."""
        _, handle, keyset = self._sites.arguments(stack, level, _KEYSET_ARGUMENTS)
        if not handle or not keyset or handle & 7 or self._memory.try_u64(handle) != operator.address:
            return None
        return keyset if self._dispatcher.keys.can_be_keyset(keyset) else None


def is_python_dispatcher(stack: NativeStack, level: int) -> bool:
    """The frame is the function that asks the Python dispatcher which kernel is meant."""
    function = stack.function(level)
    return bool(function and _asks_python(function.names))


@lru_cache(maxsize=1024)
def _asks_python(names: tuple[str, ...]) -> bool:
    """Asked of the same few functions at each of thousands of levels of a recursion."""
    return any(assumed_symbols.PYTHON_DISPATCHERS_CALL in demangle(name) for name in names)


def accept(
    result: RecoveredCall, keyset: int | None, index: int, kernel: KernelFunction, confidence: Certainty
) -> None:
    """Keep what was found of the keyset, with the table entry that it leads to."""
    result.keyset, result.index, result.kernel, result.confidence = keyset, index, kernel, confidence
    result.evidence.append(
        f"table index {index}: boxed {kernel.boxed:#x}, unboxed {kernel.unboxed:#x}, functor {kernel.functor:#x}"
    )


def _is_below(name: str) -> bool:
    return any(known in name for known in assumed_symbols.KERNELS_BELOW_THEIR_KEY)
