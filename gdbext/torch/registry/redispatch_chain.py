"""Predicts a kernel's next step: the redispatches that are expected from a keyset down to the backend.

Nothing here is read from running code. Generated kernels and the fallbacks of libtorch pass the keyset on in known
ways, and those are recognised by the kernel's own function; an unknown kernel ends the chain.
Sources, 2.13.0: tools/autograd/gen_variable_type.py, gen_inplace_or_view_type.py, gen_trace_type.py,
aten/src/ATen/core/VariableFallbackKernel.cpp, PythonFallbackKernel.cpp, native/MathBitsFallback.h,
autocast_mode.h, torch/csrc/autograd/autograd_not_implemented_fallback.cpp.
"""

from __future__ import annotations

from gdbext.engine.record import Record
from gdbext.errors import BadData
from gdbext.torch.assumed_symbols import AUTOGRAD_KERNELS, KERNELS_BELOW_THEIR_KEY, VIEW_KERNELS
from gdbext.torch.registry.dispatch_table import ComputedEntry, DispatchTables
from gdbext.torch.registry.kernel import KernelName
from gdbext.torch.registry.operators import Operator

CHAIN_LIMIT = 64
EXPECTED, UNKNOWN, END = "expected", "unknown", "end"

_PEELS = ("FuncTorch", "Batched", "VmapMode", "Functionalize")
_PYTHON_KEYS = ("Python", "PythonDispatcher", "PreDispatch", "Fake")


class ExpectedLookup(Record):
    """One lookup of a chain. ``next_keyset`` is what its kernel is expected to redispatch with, None at the end.

    ``certainty``: "expected" (the kernel's known way), "end" (it calls nothing of this operator any more) or "unknown".
    """

    keyset: int
    entry: ComputedEntry
    name: KernelName
    next_keyset: int | None
    certainty: str
    why: str


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

    def chain(self, operator: Operator, keyset: int) -> list[ExpectedLookup]:
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
            following = links[-1].next_keyset
        return links

    def link(self, operator: Operator, keyset: int, entry: ComputedEntry) -> ExpectedLookup:
        """The expected next step of the kernel of ``entry``, entered with ``keyset``."""
        name = self._kernels.name(entry.kernel, entry.key, operator.name)
        following, certainty, why = self._step(keyset, entry, name)
        if following is not None:
            following = self.masked(operator, following)
        if following is not None and self._priority(following) >= self._priority(keyset):
            raise BadData(f"the chain of {operator.qualified} does not descend at {entry.key}")
        return ExpectedLookup(keyset, entry, name, following, certainty, why)

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
            return (self._keys.minus(keyset, self._autocast), EXPECTED,
                    "autocast: casts the arguments and calls the operator again without autocast")  # fmt: skip
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
