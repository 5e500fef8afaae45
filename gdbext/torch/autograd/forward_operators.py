"""From the name of a node to the operator whose derivative it is.

tools/autograd/load_derivatives.py (2.13.0) makes the name of a node of that of its operator: the words between
underscores, each with a capital, then "Backward" and a number for each further formula. Two operators may give the
same name: ``_softmax``, ``softmax``. The one meant has a kernel of its own for autograd; where both have one, it is the
public one, which has the formula, while the other is what its kernels call (``convolution``, ``_convolution``).
"""

from __future__ import annotations

import re
from functools import cached_property

from gdbext.errors import GdbextError
from gdbext.torch import symbols
from gdbext.torch.registry.operators import Dispatcher, Operator

_NODE = re.compile(r"(\w+?Backward)(?:Autograd[A-Za-z]+)?\d+(_copy)?(?:[A-Z]\w*)?$")
"""``SumBackwardAutogradNestedTensor0`` is for one dispatch key, ``ForeachAddBackward1Scalar`` for one overload."""
_NAMESPACE = "aten::"
_OUT = "out"
_KEY = "AutogradCPU"


def node_prefix(operator: str) -> str:
    """``AddmmBackward`` of ``addmm``; ``operator`` has neither namespace nor overload."""
    titled = "".join(word.title() for word in operator.split("_"))
    return (titled + "Backward").replace("ForwardBackward", "Backward")


class ForwardOperators:
    """The operators of one dispatcher, by the names of their nodes."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._known: dict[str, str | None] = {}

    def of(self, node: str) -> str | None:
        """``aten::addmm`` of ``AddmmBackward0``; None where no operator, or more than one, can be meant."""
        if node not in self._known:
            found = _NODE.match(node)
            try:
                self._known[node] = self._meant(found.group(1), found.group(2) or "") if found else None
            except GdbextError:
                self._known[node] = None
        return self._known[node]

    @cached_property
    def _overloads(self) -> dict[str, list[Operator]]:
        """All but those with ``out``, by name without namespace."""
        found: dict[str, list[Operator]] = {}
        for operator in self._dispatcher.operators():
            if operator.name.startswith(_NAMESPACE) and not operator.overload.endswith(_OUT):
                found.setdefault(operator.name[len(_NAMESPACE) :], []).append(operator)
        return found

    @cached_property
    def _by_prefix(self) -> dict[str, set[str]]:
        """Names of operators without namespace and overload."""
        found: dict[str, set[str]] = {}
        for base in self._overloads:
            found.setdefault(node_prefix(base), set()).add(base)
        return found

    def _meant(self, prefix: str, suffix: str) -> str | None:
        if suffix:
            return self._one({f"{base}{suffix}" for base in self._by_prefix.get(prefix, ())})
        return self._one(self._by_prefix.get(prefix, set()))

    def _one(self, bases: set[str]) -> str | None:
        candidates = {base for base in bases if self._has_autograd_kernel(base)}
        for shadowed in ("{}_", "_{}"):  # the in-place form, the implementation
            candidates -= {shadowed.format(base) for base in candidates}
        return _NAMESPACE + candidates.pop() if len(candidates) == 1 else None

    def _has_autograd_kernel(self, base: str) -> bool:
        """One of the overloads is differentiated by generated code; those with ``out`` never are."""
        index = self._dispatcher.keys.index_of_key(_KEY)
        for operator in self._overloads.get(base, ()):
            kernel = operator.kernel(index)
            functions = self._dispatcher.kernels.name(kernel)
            if any(symbols.AUTOGRAD_KERNELS[0] in name for name in (functions.function, *functions.aliases)):
                return True
        return False
