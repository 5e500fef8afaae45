"""Why a key was chosen, and which keys the redispatches from a kernel are expected to lead to.

Generated kernels and the fallbacks of libtorch pass the keyset on in known ways, and those are recognized by the
kernel's own function; an unknown kernel ends the chain. Sources, 2.13.0: tools/autograd/gen_variable_type.py,
gen_inplace_or_view_type.py, gen_trace_type.py, aten/src/ATen/core/VariableFallbackKernel.cpp,
PythonFallbackKernel.cpp, native/MathBitsFallback.h, autocast_mode.h,
torch/csrc/autograd/autograd_not_implemented_fallback.cpp.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.vocabulary import Certainty
from gdbext.errors import BadData, GdbextError
from gdbext.torch.assumed_symbols import AUTOGRAD_KERNELS, KERNELS_BELOW_THEIR_KEY, VIEW_KERNELS
from gdbext.torch.registry.kernel import KernelFacts
from gdbext.torch.stack import Argument, DispatchFrame, DispatchKeySet
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.stack.dispatch_calls import DispatchCall, RecoveredCall
from gdbext.torch.stack.roles import PLAIN, Role, classify

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

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


class KeySetExplanation:
    """Says why the keys of dispatches in one process won: the keys of each proven tensor argument."""

    def __init__(self, tensors: TensorReader, keys: KeyNames) -> None:
        self._tensors = tensors
        self._keys = keys

    def explained(
        self, steps: Sequence[DispatchFrame], with_arguments: Sequence[DispatchFrame], positions: Container[int]
    ) -> tuple[DispatchFrame, ...]:
        """The dispatcher's frames of a stack; the evidence of those at ``positions`` also says why the key won.

        ``with_arguments`` are the same frames with their arguments.
        """
        return tuple(
            frame._replace(evidence=(*frame.evidence, *self._lines(frame, other.arguments)))
            if position in positions
            else frame
            for position, (frame, other) in enumerate(zip(steps, with_arguments))
        )

    def _lines(self, step: DispatchFrame, arguments: Sequence[Argument]) -> list[str]:
        """Sentences for ``--why``; at least why the key won, if operator and keyset are known."""
        if step.op is None or not step.keyset or step.key is None:
            return []
        highest = self._keys.key_of_index(self._keys.table_index(step.keyset.bits))
        lines = [f"{highest} has the highest priority of {self._keys.text(step.keyset.bits)}"]
        certain = (argument for argument in arguments if argument.confidence >= Certainty.VERIFIED)
        for argument in certain:
            for tensor in argument.tensors[:4]:
                with suppress(GdbextError):
                    keyset = self._tensors.key_set(tensor.address)
                    if tensor.address:
                        names = self._keys.text(keyset)
                        lines.append(f"argument {argument.name}: {tensor.short} has {names} {keyset:#x}")
        return lines


class PendingRedispatch:
    """The key that an innermost kernel was expected to redispatch to and did not reach.

    Only for the innermost dispatch call of a stack: further out, the next call is on the stack.
    """

    def __init__(self, tables: DispatchTables, memory: Memory, symbolizer: Symbolizer) -> None:
        self._tables = tables
        self._predictor = RedispatchPredictor(tables)
        self._memory = memory
        self._symbolizer = symbolizer
        self._lookups: dict[tuple[int, int, int], ExpectedLookup] = {}
        """By operator, keyset and table index: threads of a pool wait in the same kernel."""
        self._redispatching: dict[int, bool] = {}
        """Answers by the target of a call."""

    def next_key(
        self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, code: FunctionCode
    ) -> str | None:
        """The expected next key, None if none is expected or the kernel may have returned from it already.

        Evidence is added to ``recovered``. Before the kernel is entered, it is the looked-up key itself.
        """
        operator, keyset, index = recovered.operator, recovered.keyset, recovered.index
        if not operator or keyset is None or index is None:
            return None
        keys = self._tables.dispatcher.keys
        if call.kernel is None:
            return keys.key_of_index(index)
        cache_key = (operator.address, keyset, index)
        try:
            if cache_key not in self._lookups:
                entry = self._tables.entry(operator, index)
                self._lookups[cache_key] = self._predictor.expected_lookup(operator, keyset, entry)
        except GdbextError as error:
            recovered.evidence.append(f"the expected next key is unknown: {error.what}")
            return None
        lookup = self._lookups[cache_key]
        if lookup.certainty != EXPECTED or not lookup.next_keyset:
            return None
        ahead = self._redispatch_ahead(stack, call.kernel, code)
        if ahead is None:
            return None
        key = keys.key_of_index(keys.table_index(lookup.next_keyset.bits))
        recovered.evidence.append(f"{key} was not entered: {lookup.why}; its redispatch at {ahead:#x} is still ahead")
        return key

    def _redispatch_ahead(self, stack: NativeStack, kernel_level: int, code: FunctionCode) -> int | None:
        """Address behind the first redispatch of the kernel's code, if all of its redispatches lie behind the frame's
        pc; else None."""
        for level in range(kernel_level, -1, -1):
            calls = code.of(stack.function(level)).calls
            redispatches = [call.end for call in calls if call.target and self._is_redispatch(call.target)]
            if redispatches:
                return redispatches[0] if min(redispatches) > stack.frames[level].pc else None
        return None

    def _is_redispatch(self, target: int) -> bool:
        """A direct call of that address enters the dispatcher by a redispatch."""
        if target not in self._redispatching:
            start = follow_stub(self._memory, target)
            function = self._symbolizer.function(start)
            role = classify(function) if function and function.start == start else PLAIN
            opens = role.role in (Role.OPERATOR, Role.DISPATCHER)
            self._redispatching[target] = opens and role.event.startswith("redispatch")
        return self._redispatching[target]


EXPECTED, UNKNOWN, END = "expected", "unknown", "end"


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


def key_set(keys: KeyNames, bits: int) -> DispatchKeySet:
    """A keyset with its keys as PyTorch prints them."""
    return DispatchKeySet(bits, keys.decode(bits))


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
        """The keyset without the keys that a call of this operator skips because they fall through."""
        return keyset & operator.extractor.mask(self._keys, keyset)

    def chain(self, operator: Operator, keyset: int) -> tuple[ExpectedLookup, ...]:
        """All expected lookups (64 at most) from ``keyset`` on: that one as it is, later ones without keys that fall
        through.

        Raises BadData, MemoryFault.
        """
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
        """The lookup that enters the kernel of ``entry`` with ``keyset``, and the next one that is expected of it."""
        keys = self._keys
        name = self._kernels.name(entry.kernel, entry.key, operator.name)
        following, certainty, why = self._next_keyset(keyset, entry, name)
        if following is not None:
            following = self.masked(operator, following)
            if (following >> keys.num_backends).bit_length() >= (keyset >> keys.num_backends).bit_length():
                raise BadData(f"the chain of {operator.qualified} does not descend at {entry.key}")
        kernel = self._kernels.registered(entry.kernel, name)._replace(aliases=())
        return ExpectedLookup(
            entry.key,
            ChosenKernel(kernel, entry.debug or None, entry.reason, entry.path, name, entry.consistent),
            key_set(keys, keyset),
            None if following is None else keys.highest_key(following),
            None if following is None else key_set(keys, following),
            certainty,
            why,
        )

    def _next_keyset(self, keyset: int, entry: ComputedEntry, name: KernelName) -> tuple[int | None, str, str]:
        """(keyset of the kernel's redispatch, certainty, reason); the keyset is None unless one is expected."""
        key, function = entry.key, name.function
        if name.kind == "missing":
            return None, END, "missing: PyTorch raises NotImplementedError here"
        if name.kind == "fallthrough":
            below = keyset & self._keys.full_after(key)
            return below, EXPECTED, "fallthrough: a call masks this key out and takes the next one"
        if name.kind == "ambiguous":
            return None, END, "ambiguous: PyTorch raises an error here"
        if name.kind == "python":
            return None, UNKNOWN, "a Python function: the tables do not tell what it calls next"
        if entry.source == "CompositeImplicitAutograd":
            return None, END, "composite: calls other operators"
        if entry.source.startswith("CompositeExplicitAutograd"):
            return None, END, "composite: calls other operators, below autograd"
        if key.startswith("Autograd") and any(mark in function for mark in AUTOGRAD_KERNELS):
            return keyset & self._after_autograd, EXPECTED, "autograd: records the call, redispatches below autograd"
        if key == "ADInplaceOrView" and any(mark in function for mark in VIEW_KERNELS):
            return keyset & self._after_views, EXPECTED, "views and versions: redispatches below ADInplaceOrView"
        for mark, what in KERNELS_BELOW_THEIR_KEY.items():
            if function.startswith(mark) or function.endswith("::" + mark):
                return keyset & self._keys.full_after(key), EXPECTED, f"{what}, then redispatches below {key}"
        if key.startswith("Autocast"):
            why = "autocast: casts the arguments and calls the operator again without autocast"
            return self._keys.minus(keyset, self._autocast), EXPECTED, why
        if key in ("Python", "PythonDispatcher", "PreDispatch", "Fake"):
            return None, UNKNOWN, "goes to Python: the mode or tensor subclass decides"
        if key == "BackendSelect":
            return None, UNKNOWN, "chooses the backend by the device argument"
        if key.startswith(("FuncTorch", "Batched", "VmapMode", "Functionalize")):
            return None, UNKNOWN, f"{key}: unwraps its tensors and calls operators again"
        if self._keys.bits_of(key) and self._keys.bits_of(key) & ~self._backends == 0:
            return None, END, "backend: computes the result"
        if key == "Undefined":
            return None, END, "no tensor arguments: computes the result"
        return None, UNKNOWN, "a kernel of its own: what it calls next is not known"
