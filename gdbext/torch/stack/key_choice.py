"""The reason why a key was chosen, and the keys that the redispatches from a kernel are expected to lead to.

Generated kernels and the fallbacks of libtorch pass the keyset on in known ways, and those are recognized by the
kernel's own function; an unknown kernel ends the chain. Sources, 2.13.0: tools/autograd/gen_variable_type.py,
gen_inplace_or_view_type.py, gen_trace_type.py, aten/src/ATen/core/VariableFallbackKernel.cpp, PythonFallbackKernel.cpp,
native/MathBitsFallback.h, autocast_mode.h, torch/csrc/autograd/autograd_not_implemented_fallback.cpp.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.vocabulary import Certainty
from gdbext.errors import BadData, GdbextError
from gdbext.torch.assumed_symbols import (
    AUTOGRAD_KERNELS,
    BATCH_LOOPS,
    KERNELS_BELOW_THEIR_KEY,
    MISSING_AUTOGRAD,
    RAISING_KERNELS,
    VIEW_KERNELS,
)
from gdbext.torch.memoized import memoized
from gdbext.torch.registry.kernel import KernelFacts
from gdbext.torch.stack import Argument, DispatchFrame, DispatchKeySet
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.stack.dispatch_calls import DispatchCall, RecoveredCall
from gdbext.torch.stack.roles import PLAIN, Role, classify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.engine.process.code_reader import FunctionCode
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.unwind import NativeStack
    from gdbext.engine.vocabulary import Inline, Internal
    from gdbext.torch.registry import Operator
    from gdbext.torch.registry.dispatch_table import ComputedEntry, DispatchTables
    from gdbext.torch.registry.kernel import KernelName, RegisteredKernel
    from gdbext.torch.state.tensor import TensorReader
    from gdbext.torch.values.key_names import KeyNames

Steps = list[tuple[DispatchFrame, DispatchCall, RecoveredCall]]
"""The steps of a stack, each with the frames that it was made of, and what was recovered from them."""


def with_key_choice(
    step: DispatchFrame, arguments: Sequence[Argument], tensors: TensorReader, keys: KeyNames
) -> DispatchFrame:
    """The pass ``step``, with sentences in its evidence that say why its key was chosen: its priority, and the keys of
    each tensor among ``arguments`` that is proven (four of a list at most)."""
    if step.op is None or not step.keyset or step.key is None:
        return step
    highest = keys.key_of_index(keys.table_index(step.keyset.bits))
    sentences = [f"{highest} has the highest priority of {keys.text(step.keyset.bits)}"]
    for argument in arguments:
        if argument.confidence < Certainty.VERIFIED:
            continue
        for tensor in argument.tensors[:4]:
            with suppress(GdbextError):
                keyset = tensors.key_set(tensor.address)
                if tensor.address:
                    names = keys.text(keyset)
                    sentences.append(f"argument {argument.name}: {tensor.short} has {names} {keyset:#x}")
    return step._replace(evidence=(*step.evidence, *sentences))


class PendingRedispatch:
    """Tells the key that the innermost kernel of a stack should redispatch to next. Further out, the next call is on
    the stack."""

    def __init__(self, tables: DispatchTables, memory: Memory, symbolizer: Symbolizer) -> None:
        self._tables = tables
        self._predictor = RedispatchPredictor(tables)
        self._memory = memory
        self._symbolizer = symbolizer

    def next_key(
        self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, code: FunctionCode
    ) -> str | None:
        """The expected next key; before the kernel is entered, the looked-up key itself. None if none is expected, or
        the kernel may have returned from its redispatch already. Evidence is added to ``recovered``."""
        operator, keyset, index = recovered.operator, recovered.keyset, recovered.index
        if not operator or keyset is None or index is None:
            return None
        keys = self._tables.dispatcher.keys
        if call.kernel is None:
            return keys.key_of_index(index)
        try:
            lookup = self._expected_lookup(operator, keyset, index)
        except GdbextError as error:
            recovered.evidence.append(f"the expected next key is unknown: {error.what}")
            return None
        if lookup.certainty != EXPECTED or not lookup.next_keyset:
            return None
        ahead = self._redispatch_ahead(stack, call.kernel, code)
        if ahead is None:
            return None
        key = keys.key_of_index(keys.table_index(lookup.next_keyset.bits))
        recovered.evidence.append(f"{key} was not entered: {lookup.why}; its redispatch at {ahead:#x} is still ahead")
        return key

    @memoized
    def _expected_lookup(self, operator: Operator, keyset: int, index: int) -> ExpectedLookup:
        """The lookup with ``keyset``, which leads to that table index; threads of a pool wait in the same kernel."""
        return self._predictor.expected_lookup(operator, keyset, self._tables.entry(operator, index))

    def _redispatch_ahead(self, stack: NativeStack, kernel_level: int, code: FunctionCode) -> int | None:
        """Return address of the first redispatch in the code of the kernel, or of the functions that it called; None if
        there is none, or the frame's pc has passed one."""
        for level in range(kernel_level, -1, -1):
            calls = code.of(stack.function(level)).calls
            redispatches = [call.end for call in calls if call.target and self._redispatches(call.target)]
            if redispatches:
                return redispatches[0] if min(redispatches) > stack.frames[level].pc else None
        return None

    @memoized
    def _redispatches(self, target: int) -> bool:
        """True if a direct call of ``target`` enters the dispatcher by a redispatch."""
        start = follow_stub(self._memory, target)
        function = self._symbolizer.function(start)
        role = classify(function) if function and function.start == start else PLAIN
        return role.role in (Role.OPERATOR, Role.DISPATCHER) and role.event.startswith("redispatch")


EXPECTED, UNKNOWN, END = "expected", "unknown", "end"


def raises_only(function: str) -> str:
    """What a kernel lacks that does nothing but raise an error, by the kernel's function; "" for any other kernel."""
    return next((words for mark, words in RAISING_KERNELS.items() if _is_function(function, mark)), "")


def missing_formula(function: str) -> str:
    """What a gradient lacks if the kernel only stands in for an autograd formula; "" for any other kernel."""
    return next((words for mark, words in MISSING_AUTOGRAD.items() if mark in function), "")


def _is_function(function: str, name: str) -> bool:
    """True if the function is ``name`` or begins with it, its anonymous namespaces and those outside left out."""
    plain = function.replace("(anonymous namespace)::", "")
    return plain.startswith(name) or f"::{name}" in plain.partition("<")[0]


class _Choice(NamedTuple):
    kernel: Inline[RegisteredKernel]
    registered_at: str | None
    reason: str
    """The reason why the table entry holds this kernel, in PyTorch's words."""
    path: str
    """The step of ``OperatorEntry::computeDispatchTableEntryWithDebug`` that chose it."""
    name: Internal[KernelName]
    consistent: Internal[bool]
    """The table in memory holds what the registrations lead to."""


class ChosenKernel(_Choice, KernelFacts):
    """The kernel of a table entry."""


class ExpectedLookup(NamedTuple):
    """One lookup of an expected chain of redispatches."""

    key: str
    kernel: ChosenKernel
    keyset: DispatchKeySet
    next: str | None
    """The highest key of ``next_keyset``."""
    next_keyset: DispatchKeySet | None
    """The keyset that the kernel is expected to redispatch with; None if it redispatches no more, or that is unknown.
    """
    certainty: str
    """"expected", "end" (it calls nothing of this operator any more) or "unknown"."""
    why: str


class RedispatchPredictor:
    """Expected chains of redispatches of operators of one dispatcher."""

    def __init__(self, tables: DispatchTables) -> None:
        self._tables = tables
        dispatcher = tables.dispatcher
        self._keys = dispatcher.keys
        self._kernels = dispatcher.kernels
        constant = dispatcher.layout.constant
        self._after_autograd = constant("keyset.after_autograd_keyset")
        self._after_views = constant("keyset.after_ADInplaceOrView_keyset")
        self._autocast = constant("keyset.autocast_dispatch_keyset")
        self._backends = constant("keyset.autogradother_backends") | constant("keyset.backend_functionality_keys")

    def masked(self, operator: Operator, keyset: int) -> int:
        """``keyset`` without the keys whose kernels fall through in this operator: calls skip them."""
        return keyset & operator.extractor.mask(self._keys, keyset)

    def computes(self, key: str) -> bool:
        """True if kernels for this key, a runtime key or an alias, compute results, as those of backends do."""
        if key in self._keys.alias_keys:
            return key.startswith("Composite")
        bits = self._keys.bits_of(key)
        return bits != 0 and bits & ~self._backends == 0

    def chain(self, operator: Operator, keyset: int) -> tuple[ExpectedLookup, ...]:
        """The lookup with ``keyset`` and all that are expected to follow it by redispatches (64 at most); these are
        without keys that fall through. Raises BadData, MemoryFault."""
        registrations = self._tables.registrations(operator)
        entries = self._tables.table(operator, registrations)
        lookups: list[ExpectedLookup] = []
        seen: set[int] = set()
        following: int | None = keyset
        while following is not None and following not in seen and len(lookups) < 64:
            seen.add(following)
            lookups.append(self.expected_lookup(operator, following, entries[self._keys.table_index(following)]))
            redispatch = lookups[-1].next_keyset
            following = redispatch.bits if redispatch else None
        return tuple(lookups)

    def expected_lookup(self, operator: Operator, keyset: int, entry: ComputedEntry) -> ExpectedLookup:
        """The lookup with ``keyset``, which leads to the table's ``entry``, and the keyset that its kernel is expected
        to redispatch with. Raises BadData, MemoryFault."""
        keys = self._keys
        name = self._kernels.name(entry.kernel, entry.key, operator.name)
        following, certainty, why = self._next_keyset(keyset, entry, name)
        if following is not None:
            following = self.masked(operator, following)
            if (following >> keys.num_backends).bit_length() >= (keyset >> keys.num_backends).bit_length():
                raise BadData(f"the chain of {operator.qualified} does not descend in priority at {entry.key}")
        kernel = self._kernels.registered(entry.kernel, name)._replace(aliases=())
        return ExpectedLookup(
            entry.key,
            ChosenKernel(kernel, entry.debug or None, entry.reason, entry.path, name, entry.consistent),
            DispatchKeySet.of_bits(keyset, keys),
            None if following is None else keys.highest_key(following),
            None if following is None else DispatchKeySet.of_bits(following, keys),
            certainty,
            why,
        )

    def _next_keyset(self, keyset: int, entry: ComputedEntry, name: KernelName) -> tuple[int | None, str, str]:
        """(keyset with which the kernel called ``name`` of ``entry`` redispatches, certainty, reason in words); the
        keyset is None unless the certainty is EXPECTED."""
        key, function = entry.key, name.function
        if name.kind == "missing":
            return None, END, "missing: PyTorch raises NotImplementedError here"
        if name.kind == "fallthrough":
            below = keyset & self._keys.full_after(key)
            return below, EXPECTED, "fallthrough: a call masks this key out and takes the next one"
        if name.kind == "ambiguous":
            return None, END, "ambiguous: PyTorch raises an error here"
        raised = raises_only(function)
        if raised:
            return None, END, raised
        if name.kind == "python":
            return None, UNKNOWN, "a Python function: the dispatch tables do not say what it calls next"
        if entry.source == "CompositeImplicitAutograd":
            return None, END, "composite: calls other operators"
        if entry.source.startswith("CompositeExplicitAutograd"):
            return None, END, "composite: calls other operators, below autograd"
        if key.startswith("Autograd") and any(mark in function for mark in AUTOGRAD_KERNELS):
            missing = missing_formula(function)
            action = f"{missing}; " if missing else "autograd: records the call, "
            return keyset & self._after_autograd, EXPECTED, f"{action}redispatches below autograd"
        if key == "ADInplaceOrView" and any(mark in function for mark in VIEW_KERNELS):
            return keyset & self._after_views, EXPECTED, "views and versions: redispatches below ADInplaceOrView"
        for mark, action in KERNELS_BELOW_THEIR_KEY.items():
            if function.startswith(mark) or function.endswith("::" + mark):
                return keyset & self._keys.full_after(key), EXPECTED, f"{action}, then redispatches below {key}"
        if key.startswith("Autocast"):
            why = "autocast: casts the arguments and calls the operator again without autocast"
            return self._keys.minus(keyset, self._autocast), EXPECTED, why
        if key in ("Python", "PythonDispatcher", "PreDispatch", "Fake"):
            return None, UNKNOWN, "calls Python: the mode or tensor subclass decides"
        if key == "BackendSelect":
            return None, UNKNOWN, "chooses the backend by the device argument"
        if function.endswith(BATCH_LOOPS):
            return None, UNKNOWN, f"{key}: no batching rule, so the operator is called for one sample after the other"
        if key.startswith(("FuncTorch", "Batched", "VmapMode", "Functionalize")):
            return None, UNKNOWN, f"{key}: unwraps its tensors and calls operators again"
        if self.computes(key):
            return None, END, "backend: computes the result"
        if key == "Undefined":
            return None, END, "no tensor arguments: computes the result"
        return None, UNKNOWN, "a custom kernel: what it calls next is unknown"
