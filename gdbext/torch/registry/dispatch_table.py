"""Registrations of an operator and its dispatch table, recomputed from them and compared with the one in memory.

The algorithm is that of OperatorEntry::computeDispatchTableEntryWithDebug (ATen/core/dispatch/OperatorEntry.cpp,
2.13.0): the steps 1, 2.1 to 2.5, 3 and 4 of the comment in its source are the ``path`` of a table entry. Which runtime
keys an alias key (Autograd, CompositeImplicitAutograd, …) serves is from c10/core/DispatchKeySet.cpp
(runtimeDispatchKeySetHas, getBackendKeySetFromAutograd); it changes from version to version, and the layout has it as
this build's libc10 gave it.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.errors import BadData, GdbextError, MemoryFault
from gdbext.torch.memoized import memoized
from gdbext.torch.registry.kernel import UNNAMED, KernelFacts, KernelFunction, RegisteredKernel
from gdbext.torch.structures import AnnotatedKernel, OperatorEntry
from gdbext.torch.values.containers import check_hashed, has_cxx11_abi, list_items, map_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gdbext.engine.process.modules import Module
    from gdbext.engine.vocabulary import Inline, Internal
    from gdbext.torch.registry import Dispatcher, Operator

    Jumps = Callable[[int, int], Iterable[int]]
    """(entry of a kernel, its functor) → where it jumps to in the end."""


def registration_text(debug: str) -> str:
    """ "registered at FILE:LINE" for people. A kernel in Python has the line of ``torch.library.Library(…)``, whichever
    line registers it (torch/library.py, Library.__init__, 2.0 to 2.15): "Library made at FILE:LINE"."""
    place = debug.removeprefix("registered at ")
    file, _, line = place.rpartition(":")
    is_made = place != debug and file.endswith((".py", ">")) and line.isdigit()
    return f"Library made at {place}" if is_made else debug


class Candidate(NamedTuple):
    """An alias key that may fill a slot: PyTorch's word for it and the step of the algorithm that takes it."""

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


MISSING = KernelFunction(functor=0, boxed=0, unboxed=0, sym_unboxed=0)

_AMBIGUOUS = "ambiguous autogradother"


class _AnnotatedKernel(NamedTuple):
    key: str
    alias: bool
    """``key`` is an alias key: it fills the table entries of several runtime keys."""
    active: bool
    """False if a later registration under the same key overrides it."""
    kernel: Inline[RegisteredKernel]
    """Without its name, unless that was requested."""
    debug: str
    """The text "registered at FILE:LINE", as PyTorch has it."""
    inferred_schema: str | None
    """The schema inferred from a C++ kernel's signature, None without one, or if it was not requested."""
    value: Internal[int] = 0
    """The value of ``key``."""
    schema_address: Internal[int] = 0
    """Address of the FunctionSchema of ``inferred_schema``; 0 without one."""


class OperatorRegistration(_AnnotatedKernel, KernelFacts):
    """One kernel that was registered under ``key``."""


class ComputedEntry(NamedTuple):
    """One entry of a dispatch table, as it is in memory and as PyTorch computes it from the registrations."""

    slot: int
    """The table index."""
    key: str
    kernel: KernelFunction
    """The kernel in memory."""
    expected: KernelFunction
    """The kernel that the registrations lead to; another one contradicts the table."""
    reason: str
    """PyTorch's word for the step that chose ``expected``: "kernel", "math kernel"."""
    path: str
    """The number of that step: "1", "2.3"."""
    debug: str
    """Where ``expected`` was registered."""
    source: str
    """The key, alias key or "fallback" under which the kernel was registered; "" when missing."""

    @property
    def consistent(self) -> bool:
        """True if the table in memory holds what the registrations lead to."""
        return self.kernel == self.expected


class DispatchTables:
    """Registrations and tables of all operators of one dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        """Prepare what is the same for all operators: which registrations may fill each entry. Raises LayoutError."""
        self.dispatcher = dispatcher
        self._memory = dispatcher.memory
        self._strings = dispatcher.strings
        self._keys = dispatcher.keys
        keys, layout = dispatcher.keys, dispatcher.layout
        self.autogradother_backends = layout.constant("keyset.autogradother_backends")
        # Undefined, which no keyset can hold, has slot 0; these aliases fill it, too
        fills_undefined = {
            "CompositeExplicitAutogradNonFunctional",
            "CompositeExplicitAutograd",
            "CompositeImplicitAutograd",
        }
        alias_keysets: dict[str, int] = layout.dispatch("runtime_keysets")
        steps = [step for step in _STEPS if step.alias in alias_keysets]
        self.candidates: tuple[tuple[Candidate, ...], ...] = tuple(
            tuple(
                step
                for step in steps
                if (alias_keysets[step.alias] & slot.bits == slot.bits if index else step.alias in fills_undefined)
            )
            for index, slot in enumerate(keys.slots)
        )
        """The aliases that may fill each table slot, strongest first."""
        backends: dict[str, int] = layout.dispatch("backends_of_autograd")
        self.backends_of_autograd: tuple[int, ...] = tuple(backends.get(str(slot.value), 0) for slot in keys.slots)
        """The value of ``getBackendKeySetFromAutograd`` for the key of each table slot: 0 for all but autograd keys."""
        space = dispatcher.space
        self._annotated_size = AnnotatedKernel.size(space)
        self._kernel_at, self._debug_at = AnnotatedKernel.kernel.offset(space), AnnotatedKernel.debug.offset(space)
        self._schema_at = AnnotatedKernel.inferred_function_schema.offset(space)
        self._sized_lists = has_cxx11_abi(dispatcher.layout)
        self._value_size = 8 + (24 if self._sized_lists else 16)
        self._plans: dict[frozenset[str], list[ComputedEntry]] = {}
        """Keys with an active kernel → the table of the first operator that has kernels for just these."""

    def registrations(self, operator: Operator) -> list[OperatorRegistration]:
        """Everything in ``kernels_``, by rising value of the DispatchKey, the active kernel of each key first. Raises
        BadData if the map or one of its lists is inconsistent, MemoryFault."""
        entry, names = OperatorEntry(self.dispatcher.space, operator.address), self._keys.key_names
        address = entry.place(OperatorEntry.kernels_)
        entries = list(map_slots(self._memory, address, self._value_size))
        check_hashed(self._memory, address, self._value_size, entries, 2)
        registrations: list[OperatorRegistration] = []
        for value, header in sorted((entry.raw[0] | entry.raw[1] << 8, entry.address + 8) for entry in entries):
            if not 0 < value < len(names) or names[value].endswith("Undefined"):
                raise BadData(f"the kernels at {address:#x} are registered under key {value}, which does not exist")
            key = names[value]
            # each re-run of a notebook cell that registers adds a kernel
            nodes = list_items(self._memory, header, 4096, self._sized_lists)
            if not nodes:
                raise BadData(f"{operator.qualified} has an empty list of kernels for {key}: one is being registered")
            registrations.extend(self._read(key, value, node, number == 0) for number, node in enumerate(nodes))
        return registrations

    def active_keys(self, operator: Operator) -> list[str]:
        """The keys, aliases too, for which the operator has a kernel. Raises as ``registrations``."""
        return [registration.key for registration in self.registrations(operator) if registration.active]

    def _read(self, key: str, value: int, address: int, active: bool) -> OperatorRegistration:
        """The AnnotatedKernel at ``address``, which is registered under ``key`` (a DispatchKey of that value)."""
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
        """``backendFallbackKernels_`` in table order; the kernel is invalid if there is none."""
        size, start = self._annotated_size, self.dispatcher.fallbacks
        return tuple(
            self._read(slot.name, slot.value, start + index * size, True) for index, slot in enumerate(self._keys.slots)
        )

    def inferred_schema(self, registration: OperatorRegistration) -> str | None:
        """The schema that PyTorch inferred from the signature of the registered C++ kernel, None without one. Raises
        BadData, MemoryFault."""
        if not registration.schema_address:
            return None
        return self.dispatcher.schemas.read(registration.schema_address).text

    def table(
        self, operator: Operator, registrations: Sequence[OperatorRegistration] | None = None
    ) -> list[ComputedEntry]:
        """All entries of the operator's table, computed from ``registrations`` (by default they are read). Raises
        BadData, MemoryFault."""
        if registrations is None:
            registrations = self.registrations(operator)
        computation = _Computation(self, operator, registrations)
        plan = self._plans.get(computation.keys)
        if plan is not None:
            return computation.as_planned(plan)
        entries = self._plans[computation.keys] = [computation.entry(index) for index in range(self._keys.num_slots)]
        return entries

    def entry(self, operator: Operator, index: int) -> ComputedEntry:
        """One entry of the table. Raises BadData (also for an index out of range), MemoryFault."""
        self._keys.key_of_index(index)
        return _Computation(self, operator, self.registrations(operator)).entry(index)


class _Computation:
    """Computes the table of one operator from its registrations."""

    def __init__(
        self, tables: DispatchTables, operator: Operator, registrations: Sequence[OperatorRegistration]
    ) -> None:
        """``registrations`` are all of the operator's."""
        self._operator = operator
        self._dispatcher = operator.dispatcher
        self._tables = tables
        self._active: Mapping[str, OperatorRegistration] = {
            kernel.key: kernel for kernel in registrations if kernel.active
        }
        self.keys = frozenset(self._active)  # they alone decide which registration fills an entry
        keys = self._dispatcher.keys
        slots = [keys.slot_of_value.get(kernel.value) for kernel in self._active.values()]
        self._direct = [keys.slots[slot].bits for slot in slots if slot is not None]
        """The bits of each runtime key that has an active kernel of its own."""

    def as_planned(self, plan: Sequence[ComputedEntry]) -> list[ComputedEntry]:
        """All entries, taken from ``plan``: the table of another operator with registrations under the same ``keys``,
        which alone decide the steps."""
        fills = {key: (active.kernel.words, active.debug) for key, active in self._active.items()}
        entries = []
        for kernel, (slot, key, _, expected, reason, path, debug, source) in zip(self._operator.table, plan):
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
        for alias, reason, path in self._tables.candidates[index]:
            active = self._active.get(alias)
            if not active:
                continue
            if alias == "CompositeImplicitAutograd":
                if key == "AutogradOther" and self._has_kernel_within(self._tables.autogradother_backends):
                    # a math kernel and a kernel for one of its backends: PyTorch refuses to choose
                    marker = KernelFunction(0, self._dispatcher.kernels.ambiguous_address, 0, 0)
                    debug = "ambiguous_autogradother"
                    return ComputedEntry(index, key, kernel, marker, _AMBIGUOUS, "2.3", debug, alias)
                # a kernel of its own backend (or of all backends) keeps a math kernel out of an autograd slot
                backends = self._tables.backends_of_autograd[index]
                if "CompositeExplicitAutograd" in self._active or self._has_kernel_within(backends):
                    continue
            return ComputedEntry(index, key, kernel, active.kernel.words, reason, path, active.debug, active.key)
        general = self._tables.fallbacks[index]
        if general.kernel.valid:
            words, debug = general.kernel.words, general.debug
            return ComputedEntry(index, key, kernel, words, "backend fallback", "3", debug, "fallback")
        return ComputedEntry(index, key, kernel, MISSING, "missing", "4", debug="", source="")

    def _has_kernel_within(self, keyset: int) -> bool:
        """True if a runtime key whose bits are all in ``keyset`` has a kernel of its own
        (``hasKernelForAnyDispatchKey``)."""
        return any(keyset & bits == bits for bits in self._direct)


class KernelEntry(NamedTuple):
    """A function of registered kernels."""

    boxed: bool
    """It is the boxed function of every kernel that has it."""
    has_unboxed: bool
    """Some kernel whose boxed function it is has an unboxed one, too."""
    jumped_to: bool
    """It is not in a dispatch table itself: a function that is leaves by a jump for it."""
    operators: tuple[int, ...]
    """Addresses of the OperatorDefs whose tables have such a kernel."""


class RegisteredKernels:
    """Recognizes functions of registered kernels in one process; the tables are read when it is first used."""

    def __init__(self, dispatcher: Dispatcher, jumps: Jumps) -> None:
        """``jumps`` takes a function of a kernel and the kernel's functor, and returns the functions for which that may
        leave by jumps (``TailCalls.ends``)."""
        self._dispatcher = dispatcher
        self._jumps = jumps

    @memoized
    def at(self, start: int, module: Module) -> KernelEntry | None:
        """The function at ``start`` as one of registered kernels: it is in their tables, or functions of ``module``
        that are leave by a jump for it; None if no registered kernel has it."""
        direct = self._definitions_by_word.get(start)
        if direct:
            return self._entry(start, {start}, direct, False)
        entries = self._reached_in(module).get(start, set())
        definitions = {definition for word in entries for definition in self._definitions_by_word[word]}
        return self._entry(start, entries, definitions, True) if entries else None

    def _entry(self, start: int, entries: set[int], definitions: Iterable[int], jumped_to: bool) -> KernelEntry | None:
        """As ``at``, by the kernels of the operators at ``definitions`` that have one of the functions ``entries``: the
        function at ``start`` itself, or, if ``jumped_to``, functions that jump there."""
        boxed = unboxed = both = False
        operators = set()
        for operator, kernel in self._kernels(definitions):
            own_entries = entries.intersection(kernel.same_code)
            if jumped_to and not any(start in self._jumps(entry, kernel.functor) for entry in own_entries):
                continue
            if kernel.boxed in own_entries:
                boxed, both = True, both or bool(kernel.unboxed)
            elif own_entries:
                unboxed = True
            else:
                continue
            operators.add(operator.address)
        if not operators:
            return None
        return KernelEntry(boxed and not unboxed, both, jumped_to, tuple(sorted(operators)))

    def _kernels(self, definitions: Iterable[int]) -> Iterator[tuple[Operator, KernelFunction]]:
        """Each different kernel in the tables of the operators at ``definitions``."""
        for operator in filter(None, map(self._dispatcher.by_def, definitions)):
            yield from ((operator, kernel) for kernel in set(operator.table) if kernel.valid)

    @cached_property
    def _definitions_by_word(self) -> dict[int, set[int]]:
        """Every word of every dispatch table, functions among them → addresses of the OperatorDefs that have it."""
        definitions: dict[int, set[int]] = {}
        with suppress(GdbextError):
            for definition in self._dispatcher.entries:
                with suppress(MemoryFault):
                    for word in set(array("Q", self._dispatcher.read_table(definition))):
                        definitions.setdefault(word, set()).add(definition)
        definitions.pop(0, None)
        return definitions

    @memoized
    def _reached_in(self, module: Module) -> dict[int, set[int]]:
        """Start of a function → functions of kernels in ``module`` that leave by jumps for it. {} for a module with
        thousands of kernels (a stripped libtorch); a user's library has tens."""
        low, high = module.span
        words = [word for word in self._definitions_by_word if low <= word < high]
        reached: dict[int, set[int]] = {}
        if len(words) > 4096:
            return reached
        for word in words:
            kernels = self._kernels(self._definitions_by_word[word])
            for functor in {kernel.functor for _, kernel in kernels if word in kernel.same_code}:
                for target in self._jumps(word, functor):
                    reached.setdefault(target, set()).add(word)
        return reached
