"""Registrations of an operator and its dispatch table, recomputed from them and compared with the one in memory.

The algorithm is that of OperatorEntry::computeDispatchTableEntryWithDebug (ATen/core/dispatch/OperatorEntry.cpp,
2.13.0): the steps 1, 2.1 to 2.5, 3 and 4 of the comment in its source are the ``path`` of a table entry.

Alias keys: which runtime keys a kernel registered under Autograd, CompositeImplicitAutograd, … serves.

Source: c10/core/DispatchKeySet.cpp (runtimeDispatchKeySetHas, getBackendKeySetFromAutograd) and the candidates in
OperatorEntry::computeDispatchTableEntryWithDebug (ATen/core/dispatch/OperatorEntry.cpp), 2.13.0. The key sets behind
the aliases change from version to version; the layout has them as this build's libc10 gave them.
"""

from __future__ import annotations

from array import array
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.errors import BadData, GdbextError, MemoryFault
from gdbext.torch.registry.kernel import UNNAMED, KernelFacts, KernelFunction, RegisteredKernel
from gdbext.torch.structures import AnnotatedKernel
from gdbext.torch.values.containers import check_hashed, has_cxx11_abi, list_items, map_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.modules import Module
    from gdbext.engine.vocabulary import Inline, Internal
    from gdbext.torch.registry import Dispatcher, Operator
    from gdbext.torch.values.key_names import KeyNames

    Jumps = Callable[[int, int], Iterable[int]]
    """(entry of a kernel, its functor) → where it jumps to in the end."""


class Candidate(NamedTuple):
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
"""The steps in order of precedence."""

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
        """The aliases that may fill each table slot, strongest first."""
        backends: dict[str, int] = layout.dispatch("backends_of_autograd")
        self.backends_of_autograd: tuple[int, ...] = tuple(backends.get(str(key.value), 0) for key in keys.slots)
        """The value of ``getBackendKeySetFromAutograd`` for the key of each table slot: 0 for all but autograd keys."""

    def includes(self, alias: str, key: str) -> bool:
        """``isIncludedInAlias(key, alias)`` for a runtime key; never true for Undefined."""
        index = self._keys.index_of_key(key)
        return index != 0 and self._included(alias, index)

    def _serves(self, alias: str, index: int) -> bool:
        return alias in _FILLS_UNDEFINED if index == 0 else self._included(alias, index)

    def _included(self, alias: str, index: int) -> bool:
        bits = self._keys.slots[index].bits
        return self._sets[alias] & bits == bits


REGISTRATION_LIMIT = 4096
"""Kernels registered under one key of one operator: each re-run of a registering notebook cell adds one."""
MISSING = KernelFunction(0, 0, 0, 0)

_COMPOSITE_IMPLICIT = "CompositeImplicitAutograd"
_COMPOSITE_EXPLICIT = "CompositeExplicitAutograd"
_AMBIGUOUS = "ambiguous autogradother"


class _AnnotatedKernel(NamedTuple):
    key: str
    alias: bool
    """``key`` is an alias key: it fills the table entries of several runtime keys."""
    active: bool
    """False where a later registration under the same key overrides it."""
    kernel: Inline[RegisteredKernel]
    """Without its name, unless that was asked for."""
    debug: str
    """The text "registered at FILE:LINE", as PyTorch has it."""
    inferred_schema: str | None
    """The schema inferred from a C++ kernel's signature, None without one, or where it was not asked for."""
    value: Internal[int] = 0
    """Of ``key``."""
    schema_address: Internal[int] = 0
    """Address of the FunctionSchema of ``inferred_schema``; 0 without one."""


class OperatorRegistration(_AnnotatedKernel, KernelFacts):
    """One kernel that was registered under ``key``."""


class ComputedEntry(NamedTuple):
    """One entry of a dispatch table.

    ``kernel`` is what memory holds; ``reason`` (PyTorch's word), ``path`` and ``debug`` say which registration it
    should be. ``expected`` is that registration's kernel; where it differs from ``kernel``, the table and the
    registrations contradict each other.
    """

    slot: int
    key: str
    kernel: KernelFunction
    expected: KernelFunction
    reason: str
    path: str
    debug: str
    source: str
    """The key, alias key or "fallback" under which the kernel was registered; "" when missing."""

    @property
    def consistent(self) -> bool:
        """True if the table in memory holds what the registrations lead to."""
        return self.kernel == self.expected


class DispatchTables:
    """Registrations and tables of all operators of one dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self._memory = dispatcher.memory
        self._strings = dispatcher.strings
        self._keys = dispatcher.keys
        self.rules = AliasRules(dispatcher.keys, dispatcher.layout)
        space = dispatcher.space
        self._annotated_size = AnnotatedKernel.size(space)
        self._kernel_at, self._debug_at = AnnotatedKernel.kernel.offset(space), AnnotatedKernel.debug.offset(space)
        self._schema_at = AnnotatedKernel.inferred_function_schema.offset(space)
        self._sized_lists = has_cxx11_abi(dispatcher.layout)
        self._value_size = 8 + (24 if self._sized_lists else 16)
        self._plans: dict[frozenset[str], list[ComputedEntry]] = {}
        """Keys with an active kernel → the table of the first operator that has kernels for just these."""

    # --- registrations ---------------------------------------------------------------------------

    def registrations(self, operator: Operator) -> list[OperatorRegistration]:
        """Everything in ``kernels_``, by rising key value, the active kernel of each key first.

        Raises BadData when the map or one of its lists does not hold together, MemoryFault.
        """
        address = self.dispatcher.kernels_map(operator.address)
        entries = map_entries(self._memory, address, self._value_size)
        check_hashed(self._memory, address, self._value_size, entries, 2)
        found: list[OperatorRegistration] = []
        for value, header in sorted((entry.raw[0] | entry.raw[1] << 8, entry.address + 8) for entry in entries):
            key = self._key_name(value, address)
            nodes = list_items(self._memory, header, REGISTRATION_LIMIT, self._sized_lists)
            if not nodes:
                raise BadData(f"{operator.qualified} has an empty list of kernels for {key}: one is being registered")
            found.extend(self._read(key, value, node, number == 0) for number, node in enumerate(nodes))
        return found

    def _key_name(self, value: int, where: int) -> str:
        names = self._keys.key_names
        if not 0 < value < len(names) or names[value].endswith("Undefined"):
            raise BadData(f"the kernels at {where:#x} are registered under key {value}, which does not exist")
        return names[value]

    def _read(self, key: str, value: int, address: int, active: bool) -> OperatorRegistration:
        raw = self._memory.read(address, self._annotated_size)
        schema = int.from_bytes(raw[self._schema_at : self._schema_at + 8], "little")
        debug = self._strings.parse(raw, self._debug_at, address + self._debug_at)
        kernel = self.dispatcher.kernels.parse(raw, self._kernel_at)
        alias = key in self._keys.alias_keys
        return OperatorRegistration(
            key, alias, active, self.dispatcher.kernels.registered(kernel, UNNAMED), debug, None, value, schema
        )

    @cached_property
    def fallbacks(self) -> tuple[OperatorRegistration, ...]:
        """``backendFallbackKernels_`` in table order; the kernel is invalid where there is none."""
        size, start = self._annotated_size, self.dispatcher.fallbacks
        return tuple(
            self._read(slot.name, slot.value, start + index * size, True) for index, slot in enumerate(self._keys.slots)
        )

    def inferred_schema(self, registration: OperatorRegistration) -> str | None:
        """The schema inferred from a C++ kernel's signature, None without one. Raises BadData, MemoryFault."""
        if not registration.schema_address:
            return None
        return self.dispatcher.schemas.read(registration.schema_address).text

    # --- the computed table ----------------------------------------------------------------------

    def table(
        self, operator: Operator, registrations: Sequence[OperatorRegistration] | None = None
    ) -> list[ComputedEntry]:
        """The whole table, missing entries included. Raises BadData, MemoryFault."""
        if registrations is None:
            registrations = self.registrations(operator)
        computation = _Computation(self, operator, registrations)
        alike = self._plans.get(computation.keys)
        if alike is not None:
            return computation.as_in(alike)
        made = self._plans[computation.keys] = [computation.entry(index) for index in range(self._keys.num_slots)]
        return made

    def entry(self, operator: Operator, index: int) -> ComputedEntry:
        """One entry of the table. Raises BadData (also for an index out of range), MemoryFault."""
        self._keys.key_of_index(index)
        return _Computation(self, operator, self.registrations(operator)).entry(index)


class _Computation:
    """The table of one operator, from its registrations."""

    def __init__(
        self, tables: DispatchTables, operator: Operator, registrations: Sequence[OperatorRegistration]
    ) -> None:
        self._operator = operator
        self._dispatcher = operator.dispatcher
        self._rules = tables.rules
        self._fallbacks = tables.fallbacks
        self._active: Mapping[str, OperatorRegistration] = {one.key: one for one in registrations if one.active}
        self.keys = frozenset(self._active)
        """Nothing else decides which registration fills an entry."""
        keys = self._dispatcher.keys
        slots = [keys.slot_of_value.get(one.value) for one in self._active.values()]
        self._direct = [keys.slots[slot].bits for slot in slots if slot is not None]

    def as_in(self, alike: Sequence[ComputedEntry]) -> list[ComputedEntry]:
        """All entries: they come from the registrations under the same keys as those of another operator with the
        same ``keys``."""
        fills = {key: (one.kernel.words, one.debug) for key, one in self._active.items()}
        entries = []
        for kernel, (slot, key, _, expected, reason, path, debug, source) in zip(self._operator.table, alike):
            if source in fills and reason != _AMBIGUOUS:
                expected, debug = fills[source]
            entries.append(ComputedEntry(slot, key, kernel, expected, reason, path, debug, source))
        return entries

    def entry(self, index: int) -> ComputedEntry:
        """The entry for one table slot."""
        key = self._dispatcher.keys.slots[index].name
        kernel = self._operator.table[index]
        direct = self._active.get(key)
        if direct:
            return ComputedEntry(index, key, kernel, direct.kernel.words, "kernel", "1", direct.debug, key)
        for candidate in self._rules.candidates[index]:
            found = self._active.get(candidate.alias)
            if not found:
                continue
            if candidate.alias == _COMPOSITE_IMPLICIT and key == "AutogradOther" and self._other_backends:
                return self._ambiguous(index, key, kernel)
            if candidate.alias == _COMPOSITE_IMPLICIT and self._has_backend_kernel(index):
                continue
            reason, path = candidate.reason, candidate.path
            return ComputedEntry(index, key, kernel, found.kernel.words, reason, path, found.debug, found.key)
        general = self._fallbacks[index]
        if general.kernel.valid:
            words, debug = general.kernel.words, general.debug
            return ComputedEntry(index, key, kernel, words, "backend fallback", "3", debug, "fallback")
        return ComputedEntry(index, key, kernel, MISSING, "missing", "4", "", "")

    def _ambiguous(self, index: int, key: str, kernel: KernelFunction) -> ComputedEntry:
        """AutogradOther with a math kernel and a kernel for one of its backends: PyTorch refuses to choose."""
        marker = KernelFunction(0, self._dispatcher.kernels.ambiguous_address, 0, 0)
        debug = "ambiguous_autogradother"
        return ComputedEntry(index, key, kernel, marker, _AMBIGUOUS, "2.3", debug, _COMPOSITE_IMPLICIT)

    def _has_backend_kernel(self, index: int) -> bool:
        """A kernel of its own backend (or of all backends) keeps a math kernel out of an autograd slot."""
        return _COMPOSITE_EXPLICIT in self._active or self._any_within(self._rules.backends_of_autograd[index])

    @cached_property
    def _other_backends(self) -> bool:
        return self._any_within(self._rules.autogradother_backends)

    def _any_within(self, keyset: int) -> bool:
        """``hasKernelForAnyDispatchKey``: a key with a kernel of its own is wholly inside the set."""
        return any(keyset & bits == bits for bits in self._direct)


_MOST_ENTRIES = 4096
"""Kernels of one library whose jumps are followed; a user's has tens, a stripped libtorch thousands."""


class KernelEntry(NamedTuple):
    """A function of registered kernels. ``jumped_to``: not an entry of the table itself, but what one ends in."""

    boxed: bool
    """Every kernel that has it has it as its boxed function."""
    has_unboxed: bool
    """Some kernel that has it as its boxed function has an unboxed one, too."""
    jumped_to: bool
    operators: tuple[int, ...]
    """OperatorDefs whose tables have such a kernel."""


class RegisteredKernels:
    """Answers for one process; the tables are gone through when it is first asked."""

    def __init__(self, dispatcher: Dispatcher, jumps: Jumps) -> None:
        self._dispatcher = dispatcher
        self._jumps = jumps
        self._found: dict[tuple[int, int], KernelEntry | None] = {}
        self._reached: dict[int, dict[int, set[int]]] = {}
        """Entries that jump to a function, by the beginning of its module."""

    def at(self, start: int, module: Module) -> KernelEntry | None:
        """The entries whose kernel is the function at ``start``, or those in the module that jump there; None where no
        registered kernel has it."""
        place = start, module.start
        if place not in self._found:
            self._found[place] = self._look(start, module)
        return self._found[place]

    def _look(self, start: int, module: Module) -> KernelEntry | None:
        direct = self._definitions_by_word.get(start)
        if direct:
            return self._entry(start, {start}, direct, False)
        entries = self._reached_in(module).get(start, set())
        definitions = {each for entry in entries for each in self._definitions_by_word[entry]}
        return self._entry(start, entries, definitions, True) if entries else None

    def _entry(self, start: int, entries: set[int], definitions: Iterable[int], jumped_to: bool) -> KernelEntry | None:
        boxed = unboxed = both = False
        operators = set()
        for operator, kernel in self._kernels(definitions):
            if jumped_to and not any(self._leads(one, kernel, start) for one in entries):
                continue
            if kernel.boxed in entries:
                boxed, both = True, both or bool(kernel.unboxed)
            elif kernel.unboxed in entries or kernel.sym_unboxed in entries:
                unboxed = True
            else:
                continue
            operators.add(operator.address)
        if not operators:
            return None
        return KernelEntry(boxed and not unboxed, both, jumped_to, tuple(sorted(operators)))

    def _leads(self, entry: int, kernel: KernelFunction, start: int) -> bool:
        return entry in kernel[1:] and start in self._jumps(entry, kernel.functor)

    def _kernels(self, definitions: Iterable[int]) -> Iterable[tuple[Operator, KernelFunction]]:
        for definition in definitions:
            operator = self._dispatcher.by_def(definition)
            if operator:
                for kernel in set(operator.table):
                    if kernel.valid:
                        yield operator, kernel

    @cached_property
    def _definitions_by_word(self) -> dict[int, set[int]]:
        """Every word of every dispatch table, with the operators that have it: functions among them."""
        found: dict[int, set[int]] = {}
        try:
            definitions = self._dispatcher.entries
        except GdbextError:
            return found
        for definition in definitions:
            try:
                words = array("Q", self._dispatcher.read_table(definition))
            except MemoryFault:
                continue
            for word in set(words):
                found.setdefault(word, set()).add(definition)
        found.pop(0, None)
        return found

    def _reached_in(self, module: Module) -> dict[int, set[int]]:
        """Functions that the entries in that module jump to in the end."""
        if module.start not in self._reached:
            self._reached[module.start] = self._follow(module)
        return self._reached[module.start]

    def _follow(self, module: Module) -> dict[int, set[int]]:
        low, high = module.span
        entries = [word for word in self._definitions_by_word if low <= word < high]
        found: dict[int, set[int]] = {}
        if len(entries) > _MOST_ENTRIES:
            return found
        for entry in entries:
            functors = {
                kernel.functor for _, kernel in self._kernels(self._definitions_by_word[entry]) if entry in kernel[1:]
            }
            for functor in functors:
                for target in self._jumps(entry, functor):
                    found.setdefault(target, set()).add(entry)
        return found
