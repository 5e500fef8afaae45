"""Alias keys: which runtime keys a kernel registered under Autograd, CompositeImplicitAutograd, … serves.

Source: c10/core/DispatchKeySet.cpp (runtimeDispatchKeySetHas, getBackendKeySetFromAutograd) and the candidates in
OperatorEntry::computeDispatchTableEntryWithDebug (ATen/core/dispatch/OperatorEntry.cpp), 2.13.0. The key sets behind
the aliases change from version to version; the layout has them as this build's libc10 gave them.
"""

from __future__ import annotations

from gdbext.layouts.layout import Layout
from gdbext.model.record import Record
from gdbext.torch.values.key_names import KeyNames


class Candidate(Record):
    """One alias key that may fill a slot: PyTorch's word for it and the step of the algorithm that takes it."""

    alias: str
    reason: str
    path: str


_STEPS = (
    Candidate("CompositeExplicitAutogradNonFunctional", "default backend kernel", "2.1"),
    Candidate("CompositeExplicitAutograd", "default backend kernel", "2.2"),
    Candidate("CompositeImplicitAutogradNestedTensor", "nested kernel", "2.3"),
    Candidate("CompositeImplicitAutograd", "math kernel", "2.3"),
    Candidate("Autograd", "autograd kernel", "2.4"),
    Candidate("FuncTorchBatchedDecomposition", "batched kernel", "2.5"),
)
"""In order of precedence."""

_FILLS_UNDEFINED = (
    "CompositeExplicitAutogradNonFunctional",
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
)
"""Aliases that also fill the slot of Undefined, which no keyset can hold."""


class AliasRules:
    """The alias keys of one torch build, worked out for every slot once."""

    def __init__(self, keys: KeyNames, layout: Layout) -> None:
        self._keys = keys
        self._sets: dict[str, int] = layout.dispatch("runtime_keysets")
        self.autogradother_backends = layout.constant("keyset.autogradother_backends")
        steps = [step for step in _STEPS if step.alias in self._sets]
        self.candidates: tuple[tuple[Candidate, ...], ...] = tuple(
            tuple(step for step in steps if self._serves(step.alias, index)) for index in range(keys.num_slots)
        )
        """For each table slot the aliases that may fill it, strongest first."""
        backends: dict[str, int] = layout.dispatch("backends_of_autograd")
        self.backends_of_autograd: tuple[int, ...] = tuple(backends.get(str(key.value), 0) for key in keys.slots)
        """For each table slot ``getBackendKeySetFromAutograd`` of its key: 0 for all but autograd keys."""

    def includes(self, alias: str, key: str) -> bool:
        """``isIncludedInAlias(key, alias)`` for a runtime key; never true for Undefined."""
        index = self._keys.index_of_key(key)
        return index != 0 and self._included(alias, index)

    def _serves(self, alias: str, index: int) -> bool:
        return alias in _FILLS_UNDEFINED if index == 0 else self._included(alias, index)

    def _included(self, alias: str, index: int) -> bool:
        bits = self._keys.slots[index].bits
        return self._sets[alias] & bits == bits
