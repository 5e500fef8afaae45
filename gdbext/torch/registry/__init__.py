"""The dispatcher's registry: operators, schemas, kernels, registrations and computed tables.

The dispatcher of the target and its operators.

The singleton is found by symbols alone. ``c10::Dispatcher`` keeps every operator twice: in the list ``operators_``,
whose nodes hold the ``OperatorDef`` themselves, and in the hash map ``operatorLookupTable_`` from name to
``OperatorHandle``. The map is one block of memory, so it is what we read; the list is 3,600 nodes all over the heap and
serves for cross-checking. Source: ATen/core/dispatch/Dispatcher.h, OperatorEntry.h, DispatchKeyExtractor.h, 2.13.0.
"""

from __future__ import annotations

import struct
from collections.abc import Set
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.glibc.sync_objects import recorded_owner
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, LayoutError, MemoryFault, UsageError
from gdbext.torch.registry.kernel import KernelFunction, KernelReader
from gdbext.torch.registry.operator_names import ambiguous_operator, matcher, unknown_operator
from gdbext.torch.registry.schema import SchemaReader, SchemaText, is_name
from gdbext.torch.singleton import find_singleton, not_yet
from gdbext.torch.structures import AnnotatedSchema, CppSignature, DispatcherStruct, LookupTable, OperatorEntry
from gdbext.torch.values.containers import MapEntry, MapSlots, map_slots, optional_shape, string_reader
from gdbext.torch.values.cpp_objects import type_name
from gdbext.torch.values.key_names import Extractor, KeyNames

if TYPE_CHECKING:
    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.torch.registry.kernel import PythonSource


class Operator:
    """One registered operator. Everything is read when it is first asked for.

    ``address`` is that of its ``Dispatcher::OperatorDef``, which is also that of its ``impl::OperatorEntry``.
    """

    def __init__(self, dispatcher: Dispatcher, address: int) -> None:
        self.dispatcher = dispatcher
        self.address = address
        self._kernels: dict[int, KernelFunction] = {}

    def __repr__(self) -> str:
        return f"Operator({self.qualified!r}, {self.address:#x})"

    @cached_property
    def _names(self) -> tuple[str, str]:
        return self.dispatcher.read_name(self.address)

    @property
    def name(self) -> str:
        """``aten::add``. Raises MemoryFault, BadData, as everything here."""
        return self._names[0]

    @property
    def overload(self) -> str:
        """``Tensor``; "" for the default overload."""
        return self._names[1]

    @property
    def qualified(self) -> str:
        """``aten::add.Tensor``, as PyTorch writes an OperatorName."""
        name, overload = self._names
        return f"{name}.{overload}" if overload else name

    @property
    def struct(self) -> str:
        """NAME of its ``at::_ops::NAME`` (torchgen/model.py), "" for one that was not generated into libtorch."""
        namespace, _, base = self.name.partition("::")
        if namespace != "aten":
            return ""
        return f"{base}_{self.overload}" if self.overload else base

    @cached_property
    def is_named(self) -> bool:
        """Its name is one, and the one under which the dispatcher has it."""
        return is_name(*self._names) and self.dispatcher.is_registered_as(self.address, *self._names)

    @cached_property
    def _table(self) -> bytes:
        return self.dispatcher.read_table(self.address)

    def kernel(self, index: int) -> KernelFunction:
        """The entry of ``dispatchTable_`` at a table index. Raises BadData for an index out of range."""
        kernel = self._kernels.get(index)
        if not kernel:
            if not 0 <= index < self.dispatcher.keys.num_slots:
                raise BadData(f"dispatch table index {index} is out of range")
            kernel = self.dispatcher.kernels.parse(self._table, index * self.dispatcher.kernels.size)
            self._kernels[index] = kernel
        return kernel

    def index_of_entry(self, address: int) -> int | None:
        """The table index of the ``KernelFunction`` at ``address``, None where that is not an entry of this table."""
        offset, size = address - self.dispatcher.table_address(self.address), self.dispatcher.kernels.size
        return offset // size if 0 <= offset < len(self._table) and offset % size == 0 else None

    def forget_table(self) -> None:
        """Read the dispatch table anew when it is next asked for: a kernel may have been registered since."""
        for stale in ("_table", "table", "functors"):
            self.__dict__.pop(stale, None)
        self._kernels.clear()

    def kernel_for(self, keyset: int) -> tuple[int, KernelFunction]:
        """(table index, kernel) that ``OperatorEntry::lookup`` finds for a keyset. Raises BadData for a bad keyset."""
        index = self.dispatcher.keys.table_index(keyset)
        return index, self.kernel(index)

    @cached_property
    def table(self) -> tuple[KernelFunction, ...]:
        """All entries of ``dispatchTable_`` in table order."""
        return self.dispatcher.kernels.parse_table(self._table)

    @cached_property
    def functors(self) -> frozenset[int]:
        """Addresses of the functors of all entries."""
        return frozenset(kernel.functor for kernel in self.table)

    @cached_property
    def extractor(self) -> Extractor:
        """The rule which of a call's keys count, and which arguments they are taken from."""
        return self.dispatcher.read_extractor(self.address)

    @cached_property
    def has_schema(self) -> bool:
        """False for an operator that has kernels and was never defined."""
        return self.dispatcher.memory.u8(self.dispatcher.schema_engaged(self.address)) != 0

    @cached_property
    def schema(self) -> SchemaText | None:
        """The schema as PyTorch prints it, None without one. Raises also LayoutError."""
        if not self.has_schema:
            return None
        return self.dispatcher.schemas.read(self.dispatcher.schema_of(self.address))

    @cached_property
    def results(self) -> str | None:
        """The results of the schema, None without one. Raises also LayoutError."""
        return self.dispatcher.schemas.results(self.dispatcher.schema_of(self.address)) if self.has_schema else None

    def function_type(self, symbolic: bool = False) -> str:
        """The C++ type of its kernels, without their keyset: ``at::Tensor (at::Tensor const&, long)``; "" where all are
        boxed. ``symbolic``: of those that take ``c10::SymInt``. Raises also LayoutError."""
        return self.dispatcher.read_function_type(self.address, symbolic)

    @cached_property
    def debug(self) -> str:
        """The place where the schema was registered ("registered at FILE:LINE"); "" without a schema."""
        if not self.has_schema:
            return ""
        return self.dispatcher.strings.read(self.dispatcher.schema_debug(self.address))


class Dispatcher:
    """The target's ``c10::Dispatcher``.

    Raises TargetError when there is none (yet), LayoutError when the layout lacks a structure.
    """

    def __init__(
        self, memory: Memory, layout: Layout, symbolizer: Symbolizer, python_source: PythonSource | None = None
    ) -> None:
        self.memory = memory
        self.layout = layout
        self.space = Space(memory, layout)
        self.symbolizer = symbolizer
        self.keys = KeyNames(layout)
        self.kernels = KernelReader(memory, layout, symbolizer, python_source)
        self.strings = string_reader(memory, layout)
        self._operators: dict[int, Operator] = {}
        self.nameless: dict[int, MemoryFault] = {}
        """OperatorDefs whose names lie in memory that cannot be read, once ``names`` has been asked for."""
        self._read_offsets(layout)
        self.address = find_singleton(memory, symbolizer)
        self._members = DispatcherStruct(self.space, self.address)
        if not memory.u64(self._members.operators_):
            raise not_yet("its operator list is all zero")

    def _read_offsets(self, layout: Layout) -> None:
        entry, table = OperatorEntry, OperatorEntry.dispatchTable_.field(layout)
        self._name_at, self._table_at, self._table_size = entry.name_.offset(self.space), table.offset, table.size
        optional = optional_shape(layout, AnnotatedSchema.OF)
        start = entry.schema_.offset(self.space)
        self._schema_at, self._schema_engaged_at = start + optional.value, start + optional.engaged
        if self._table_size != self.kernels.size * self.keys.num_slots:
            slots = self._table_size // self.kernels.size
            raise LayoutError(f"the layout's dispatch table has {slots} slots, its keys {self.keys.num_slots}")

    @cached_property
    def schemas(self) -> SchemaReader:
        """The printer of FunctionSchemas. Raises LayoutError."""
        return SchemaReader(self.memory, self.layout, self.strings, self.symbolizer)

    # --- the operators ---------------------------------------------------------------------------

    @cached_property
    def _slots(self) -> MapSlots:
        """The lookup table: OperatorName (two strings) and OperatorHandle (OperatorDef*, list iterator)."""
        return self.memory.consistent(self._read_slots)

    def _read_slots(self) -> MapSlots:
        # c10::LeftRight keeps two copies; readers use the one at _foregroundDataIndex (c10/util/LeftRight.h).
        lookup = self._members.operatorLookupTable_
        second = LookupTable._data.field(self.layout).size // 2
        data = lookup._data + (lookup._foregroundDataIndex & 1) * second
        return map_slots(self.memory, data, 2 * self.strings.size + 16)

    @cached_property
    def _slot_of(self) -> dict[int, int]:
        """OperatorDef to its slot of the lookup table."""
        return self._slots.by_word(2 * self.strings.size)

    @property
    def entries(self) -> Set[int]:
        """Addresses of all OperatorDefs: the closed set that proves a pointer. Raises BadData, MemoryFault."""
        return self._slot_of.keys()

    def is_registered_as(self, address: int, name: str, overload: str) -> bool:
        """The lookup table has that OperatorDef under this name, as far as its slots themselves tell."""
        slot, size = self._slots.at(self._slot_of[address]), self.strings.size
        texts = ((name, 0), (overload, size))
        return all(self.strings.may_be(text, slot.raw, at, slot.address + at) for text, at in texts)

    def by_def(self, address: int) -> Operator | None:
        """The operator whose OperatorDef is at ``address``, None when no such operator is registered."""
        if address not in self.entries:
            return None
        return self._operator(address)

    def _operator(self, address: int) -> Operator:
        operator = self._operators.get(address)
        if not operator:
            operator = self._operators[address] = Operator(self, address)
        return operator

    @cached_property
    def names(self) -> dict[str, int]:
        """Qualified name ("aten::add.Tensor") to OperatorDef, of all operators but the ``nameless``.

        Raises BadData, and MemoryFault where not a single name can be read.
        """
        return self.memory.consistent(self._read_names)

    def _read_names(self) -> dict[str, int]:
        names: dict[str, int] = {}
        self.nameless.clear()
        unpack = struct.Struct("<Q").unpack_from
        slots = self.__dict__.pop("_slots", None) or self._read_slots()  # read again, those of another moment
        for entry in slots:
            address = unpack(entry.raw, 2 * self.strings.size)[0]
            try:
                names[self._name_in(entry)] = address
            except MemoryFault as error:
                self.nameless[address] = error
        if self.nameless and not names:
            raise next(iter(self.nameless.values()))
        self.__dict__["_slots"] = slots
        return names

    def _name_in(self, entry: MapEntry) -> str:
        """The name in a slot of the lookup table; its operator has a second copy. Raises BadData, MemoryFault."""
        size = self.strings.size
        try:
            name = self.strings.parse(entry.raw, 0, entry.address)
            overload = self.strings.parse(entry.raw, size, entry.address + size)
        except MemoryFault:
            name, overload = self.read_name(struct.unpack_from("<Q", entry.raw, 2 * size)[0])
        return f"{name}.{overload}" if overload else name

    def operators(self) -> list[Operator]:
        """All operators, sorted by qualified name."""
        return [self._operator(self.names[name]) for name in sorted(self.names)]

    def find(self, pattern: str) -> list[Operator]:
        """Operators that a user's word means, sorted by name.

        A qualified name means just that operator; see ``operator_names.matcher`` for the other forms. Empty when
        nothing matches.
        """
        if pattern in self.names:
            return [self._operator(self.names[pattern])]
        matches = matcher(pattern)
        return [self._operator(self.names[name]) for name in sorted(self.names) if matches(name)]

    def find_one(self, pattern: str) -> Operator:
        """The one operator that ``pattern`` means: the exact overload, else the only one there is.

        Raises UsageError: unknown (with the closest names) or ambiguous (with all overloads).
        """
        found = self.find(pattern)
        if not found:
            raise self.unknown(pattern)
        exact = [operator for operator in found if operator.qualified == pattern]
        if len(exact) == 1 or len(found) == 1:
            return (exact or found)[0]
        raise ambiguous_operator(pattern, [operator.qualified for operator in found])

    def unknown(self, pattern: str) -> UsageError:
        """The error for a word that matches no operator, with the closest names."""
        return unknown_operator(pattern, self.names, len(self.nameless))

    # --- one operator's parts --------------------------------------------------------------------

    def read_name(self, address: int) -> tuple[str, str]:
        """(name, overload) of the OperatorEntry at ``address``. Raises MemoryFault, BadData."""
        size, at = self.strings.size, address + self._name_at
        raw = self.memory.read(at, 2 * size)
        return self.strings.parse(raw, 0, at, 4096), self.strings.parse(raw, size, at + size, 4096)

    def read_table(self, address: int) -> bytes:
        """The bytes of ``dispatchTable_``. Raises MemoryFault."""
        return self.memory.read(address + self._table_at, self._table_size)

    def table_address(self, address: int) -> int:
        """Address of the entry's ``dispatchTable_``."""
        return address + self._table_at

    @property
    def first_entry(self) -> range:
        """The offsets of the table's first entry in an OperatorEntry."""
        return range(self._table_at, self._table_at + self.kernels.size)

    def table_entry(self, address: int, index: int) -> int:
        """Address of the entry of ``dispatchTable_`` at a table index."""
        return address + self._table_at + index * self.kernels.size

    def kernels_map(self, address: int) -> int:
        """Address of the entry's ``kernels_`` map."""
        return OperatorEntry(self.space, address).place(OperatorEntry.kernels_)

    def schema_of(self, address: int) -> int:
        """Address of the entry's FunctionSchema, if it has one."""
        return address + self._schema_at

    def schema_engaged(self, address: int) -> int:
        """Address at which the optional AnnotatedSchema says whether it holds one."""
        return address + self._schema_engaged_at

    def schema_debug(self, address: int) -> int:
        """Address of the schema's ``debug`` string."""
        return AnnotatedSchema(self.space, address + self._schema_at).debug

    def read_function_type(self, address: int, symbolic: bool) -> str:
        """The function type that the entry's kernels were checked with when they were registered: that is how operators
        without symbols tell it, too. Raises MemoryFault, BadData, LayoutError."""
        entry = OperatorEntry(self.space, address)
        found = entry.sym_cpp_signature_ if symbolic else entry.cpp_signature_
        shape = optional_shape(self.layout, CppSignature.OF)
        if not self.memory.u8(found + shape.engaged):
            return ""
        return type_name(self.memory, CppSignature(self.space, found + shape.value).signature)

    def read_extractor(self, address: int) -> Extractor:
        """The entry's DispatchKeyExtractor. Raises MemoryFault."""
        found = OperatorEntry(self.space, address).dispatchKeyExtractor_
        return Extractor(
            found.nonFallthroughKeys_,
            self.memory.words(found.nonFallthroughKeysPerBackend_, self.keys.num_backends),
            found.requiresBitsetPerBackend_ != 0,
            found.dispatch_arg_indices_reverse_,
        )

    @property
    def fallbacks(self) -> int:
        """Address of the table ``backendFallbackKernels_``."""
        return self._members.backendFallbackKernels_

    # --- is it being changed? --------------------------------------------------------------------

    @cached_property
    def registering_thread(self) -> int | None:
        """Thread id of who holds the registration lock, None when nobody does or it cannot be read.

        ``guard_`` is a shared_ptr to { atomic<bool> alive; mutex } (a plain mutex ``mutex_`` before 2.0).
        """
        found = self._members
        try:
            mutex = found.guard_ + 8 if found.has(DispatcherStruct.guard_) else found.mutex_
            return (recorded_owner(self.memory, mutex) or None) if self.memory.u32(mutex) else None
        except (MemoryFault, LayoutError):
            return None
