"""The key that an innermost kernel was expected to go to and did not reach: where the trace would have stopped.

Why this key won: the keys that each tensor argument of a call on the stack has, as far as these are proven.

Predicts a kernel's next step: the redispatches that are expected from a keyset down to the backend.

Nothing here is read from running code. Generated kernels and the fallbacks of libtorch pass the keyset on in known
ways, and those are recognised by the kernel's own function; an unknown kernel ends the chain.
Sources, 2.13.0: tools/autograd/gen_variable_type.py, gen_inplace_or_view_type.py, gen_trace_type.py,
aten/src/ATen/core/VariableFallbackKernel.cpp, PythonFallbackKernel.cpp, native/MathBitsFallback.h,
autocast_mode.h, torch/csrc/autograd/autograd_not_implemented_fallback.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.vocabulary import Certainty
from gdbext.errors import BadData, GdbextError
from gdbext.torch.assumed_symbols import AUTOGRAD_KERNELS, KERNELS_BELOW_THEIR_KEY, VIEW_KERNELS
from gdbext.torch.registry.kernel import KernelFacts
from gdbext.torch.stack import Argument, ArgumentTensor, DispatchFrame, DispatchKeySet
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.stack.dispatch_calls import DispatchCall
from gdbext.torch.stack.known_fallbacks import RecoveredCall
from gdbext.torch.stack.roles import Role, classify

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
_TENSORS_OF_LIST = 4
"""Tensors of a list whose keys are told."""


class KeySetExplanation:
    """Explains steps of one process."""

    def __init__(self, tensors: TensorReader, keys: KeyNames) -> None:
        self._tensors = tensors
        self._keys = keys

    def explained(
        self, steps: Sequence[DispatchFrame], found: Sequence[DispatchFrame], which: Container[int]
    ) -> tuple[DispatchFrame, ...]:
        """The dispatcher's frames of a stack; the evidence of those at the positions ``which`` joined by why the key
        won. ``found`` are the same ones with their arguments."""
        return tuple(
            frame._replace(evidence=(*frame.evidence, *self._lines(frame, other.arguments)))
            if position in which
            else frame
            for position, (frame, other) in enumerate(zip(steps, found))
        )

    def _lines(self, step: DispatchFrame, arguments: Sequence[Argument]) -> list[str]:
        """Sentences for ``--why``; at least why the key won, where operator and keyset are known."""
        if step.op is None or not step.keyset or step.key is None:
            return []
        highest = self._keys.key_of_index(self._keys.table_index(step.keyset.bits))
        lines = [f"{highest} has the highest priority of {self._keys.text(step.keyset.bits)}"]
        for argument in arguments:
            if argument.confidence < Certainty.VERIFIED:  # not what was passed for sure
                continue
            for tensor in argument.tensors[:_TENSORS_OF_LIST]:
                lines += self._brings(argument.name, tensor)
        return lines

    def _brings(self, name: str, tensor: ArgumentTensor) -> list[str]:
        try:
            keyset = self._tensors.key_set(tensor.address)
        except GdbextError:
            return []
        return [f"argument {name}: {tensor.short} has {self._keys.text(keyset)} {keyset:#x}"] if tensor.address else []


class PendingRedispatch:
    """Answers for the innermost dispatch call of a stack only: further out, the next call is on the stack."""

    def __init__(self, tables: DispatchTables, memory: Memory, symbolizer: Symbolizer) -> None:
        self._tables = tables
        self._chains = RedispatchPredictor(tables)
        self._memory = memory
        self._symbolizer = symbolizer
        self._links: dict[tuple[int, int, int], ExpectedLookup] = {}
        """Links by operator, keyset and table index: threads of a pool wait in the same kernel."""
        self._redispatching: dict[int, bool] = {}
        """Answers by the target of a call."""

    def next_key(
        self, stack: NativeStack, call: DispatchCall, recovered: RecoveredCall, code: FunctionCode
    ) -> str | None:
        """The expected next key, None where none is expected or the kernel may have come back from it already.

        Evidence is added to ``recovered``. Before the kernel is entered, it is the looked-up key itself.
        """
        if not recovered.operator or recovered.keyset is None or recovered.index is None:
            return None
        keys = self._tables.dispatcher.keys
        if call.kernel is None:
            return keys.key_of_index(recovered.index)
        try:
            link = self._link(recovered.operator, recovered.keyset, recovered.index)
        except GdbextError as error:
            recovered.evidence.append(f"the expected next key is unknown: {error.what}")
            return None
        if link.certainty != EXPECTED or not link.next_keyset:
            return None
        place = self._redispatch_ahead(stack, call.kernel, code)
        if place is None:
            return None
        key = keys.key_of_index(keys.table_index(link.next_keyset.bits))
        recovered.evidence.append(f"{key} was not entered: {link.why}; its redispatch at {place:#x} is still ahead")
        return key

    def _link(self, operator: Operator, keyset: int, index: int) -> ExpectedLookup:
        place = (operator.address, keyset, index)
        link = self._links.get(place)
        if not link:
            entry = self._tables.entry(operator, index)
            link = self._links[place] = self._chains.link(operator, keyset, entry)
        return link

    def _redispatch_ahead(self, stack: NativeStack, kernel: int, code: FunctionCode) -> int | None:
        """The redispatch of the kernel's code, if every place that does one lies behind where it stands now."""
        for level in range(kernel, -1, -1):
            calls = code.of(stack.function(level)).calls
            places = [call.end for call in calls if call.target and self._redispatches_at(call.target)]
            if places:
                return places[0] if min(places) > stack.frames[level].pc else None
        return None

    def _redispatches_at(self, target: int) -> bool:
        if target not in self._redispatching:
            self._redispatching[target] = self._enters_dispatcher(target)
        return self._redispatching[target]

    def _enters_dispatcher(self, target: int) -> bool:
        start = follow_stub(self._memory, target)
        function = self._symbolizer.function(start)
        if not function or function.start != start:
            return False
        role = classify(function)
        return role.role in (Role.OPERATOR, Role.DISPATCHER) and role.event.startswith("redispatch")


CHAIN_LIMIT = 64
EXPECTED, UNKNOWN, END = "expected", "unknown", "end"

_PEELS = ("FuncTorch", "Batched", "VmapMode", "Functionalize")
_PYTHON_KEYS = ("Python", "PythonDispatcher", "PreDispatch", "Fake")


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
    """The keyset that the kernel is expected to redispatch with; None where it redispatches no more, or nobody
    knows."""
    certainty: str
    """"expected", "end" (it calls nothing of this operator any more) or "unknown"."""
    why: str


def key_set(keys: KeyNames, bits: int) -> DispatchKeySet:
    """A keyset with its keys as PyTorch prints them."""
    return DispatchKeySet(bits, keys.decode(bits))


class RedispatchPredictor:
    """Expected chains of operators of one dispatcher."""

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
        """All expected lookups from ``keyset`` on: that one as it is, later ones without keys that fall through.

        Raises BadData, MemoryFault.
        """
        registrations = self._tables.registrations(operator)
        entries = self._tables.table(operator, registrations)
        links: list[ExpectedLookup] = []
        seen: set[int] = set()
        following: int | None = keyset
        while following is not None and following not in seen and len(links) < CHAIN_LIMIT:
            seen.add(following)
            links.append(self.link(operator, following, entries[self._keys.table_index(following)]))
            redispatch = links[-1].next_keyset
            following = redispatch.bits if redispatch else None
        return tuple(links)

    def link(self, operator: Operator, keyset: int, entry: ComputedEntry) -> ExpectedLookup:
        """The expected next step of the kernel of ``entry``, entered with ``keyset``."""
        name = self._kernels.name(entry.kernel, entry.key, operator.name)
        following, certainty, why = self._step(keyset, entry, name)
        if following is not None:
            following = self.masked(operator, following)
        if following is not None and self._priority(following) >= self._priority(keyset):
            raise BadData(f"the chain of {operator.qualified} does not descend at {entry.key}")
        keys, kernel = self._keys, self._kernels.registered(entry.kernel, name)._replace(aliases=())
        return ExpectedLookup(
            entry.key,
            ChosenKernel(kernel, entry.debug or None, entry.reason, entry.path, name, entry.consistent),
            key_set(keys, keyset),
            None if following is None else keys.highest_key(following),
            None if following is None else key_set(keys, following),
            certainty,
            why,
        )

    def _priority(self, keyset: int) -> int:
        return (keyset >> self._keys.num_backends).bit_length()

    def _step(self, keyset: int, entry: ComputedEntry, name: KernelName) -> tuple[int | None, str, str]:
        if name.kind == "missing":
            return None, END, "missing: PyTorch raises NotImplementedError here"
        if name.kind == "fallthrough":
            below = keyset & self._keys.full_after(entry.key)
            return below, EXPECTED, "fallthrough: a call masks this key out and takes the next one"
        if name.kind == "ambiguous":
            return None, END, "ambiguous: PyTorch raises an error here"
        if name.kind == "python":
            return None, UNKNOWN, "a Python function: the tables do not tell what it calls next"
        if entry.source == "CompositeImplicitAutograd":
            return None, END, "composite: calls other operators"
        if entry.source.startswith("CompositeExplicitAutograd"):
            return None, END, "composite: calls other operators, below autograd"
        return self._by_function(keyset, entry, name.function)

    def _by_function(self, keyset: int, entry: ComputedEntry, function: str) -> tuple[int | None, str, str]:
        key = entry.key
        if key.startswith("Autograd") and any(mark in function for mark in AUTOGRAD_KERNELS):
            return keyset & self._after_autograd, EXPECTED, "autograd: records the call, redispatches below autograd"
        if key == "ADInplaceOrView" and any(mark in function for mark in VIEW_KERNELS):
            return keyset & self._after_views, EXPECTED, "views and versions: redispatches below ADInplaceOrView"
        for mark, what in KERNELS_BELOW_THEIR_KEY.items():
            if function.startswith(mark) or function.endswith("::" + mark):
                return keyset & self._keys.full_after(key), EXPECTED, f"{what}, then redispatches below {key}"
        if key.startswith("Autocast"):
            return (
                self._keys.minus(keyset, self._autocast),
                EXPECTED,
                "autocast: casts the arguments and calls the operator again without autocast",
            )
        if key in _PYTHON_KEYS:
            return None, UNKNOWN, "goes to Python: the mode or tensor subclass decides"
        if key == "BackendSelect":
            return None, UNKNOWN, "chooses the backend by the device argument"
        if key.startswith(_PEELS):
            return None, UNKNOWN, f"{key}: unwraps its tensors and calls operators again"
        if self._keys.bits_of(key) and self._keys.bits_of(key) & ~self._backends == 0:
            return None, END, "backend: computes the result"
        if key == "Undefined":
            return None, END, "no tensor arguments: computes the result"
        return None, UNKNOWN, "a kernel of its own: what it calls next is not known"
