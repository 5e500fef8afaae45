"""The dispatcher of the target and its operators: their names, schemas, kernels and dispatch tables.

The singleton is found by symbols alone. ``c10::Dispatcher`` has every operator twice: in the list ``operators_``, whose
nodes hold the ``OperatorDef`` themselves, and in the hash map ``operatorLookupTable_`` from name to ``OperatorHandle``.
The map is read, since it is one block of memory; the list is 3,600 nodes all over the heap.
Source: ATen/core/dispatch/Dispatcher.h, OperatorEntry.h, DispatchKeyExtractor.h, 2.13.0.
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
from gdbext.torch.memoized import memoized
from gdbext.torch.registry.kernel import KernelFunction, KernelReader
from gdbext.torch.registry.operator_names import ambiguous_operator, matcher, unknown_operator
from gdbext.torch.registry.schema import SchemaReader, SchemaText, is_operator_name
from gdbext.torch.singleton import find_singleton, not_yet
from gdbext.torch.structures import AnnotatedSchema, CppSignature, DispatcherStruct, LookupTable, OperatorEntry
from gdbext.torch.values.containers import MapSlots, map_slots, optional_shape, string_reader
from gdbext.torch.values.cpp_objects import type_name
from gdbext.torch.values.key_names import Extractor, KeyNames

if TYPE_CHECKING:
    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.torch.registry.kernel import PythonSource


class Operator:
    """One registered operator. Everything is read when it is first needed; all members raise MemoryFault and BadData.

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
        """``aten::add``."""
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
        """NAME of the generated struct ``at::_ops::NAME`` for it (torchgen/model.py); "" if it is not of aten."""
        namespace, _, base = self.name.partition("::")
        if namespace != "aten":
            return ""
        return f"{base}_{self.overload}" if self.overload else base

    @cached_property
    def is_named(self) -> bool:
        """True if its name is a valid one, and the one under which the dispatcher's lookup table has it: else the
        memory at ``address`` is damaged, or no OperatorDef."""
        return is_operator_name(*self._names) and self.dispatcher.is_registered_as(self.address, *self._names)

    @cached_property
    def _table(self) -> bytes:
        return self.dispatcher.read_table(self.address)

    def kernel(self, index: int) -> KernelFunction:
        """The kernel in ``dispatchTable_`` at a table index. Raises BadData for an index out of range."""
        kernel = self._kernels.get(index)
        if not kernel:
            if not 0 <= index < self.dispatcher.keys.num_slots:
                raise BadData(f"dispatch table index {index} is out of range")
            kernel = self.dispatcher.kernels.parse(self._table, index * self.dispatcher.kernels.size)
            self._kernels[index] = kernel
        return kernel

    def index_of_entry(self, address: int) -> int | None:
        """The table index of the ``KernelFunction`` at ``address``, None if that is not an entry of this table."""
        offset, size = address - self.dispatcher.table_entry(self.address, 0), self.dispatcher.kernels.size
        return offset // size if 0 <= offset < len(self._table) and offset % size == 0 else None

    def forget_table(self) -> None:
        """Read the dispatch table anew when it is next needed: a kernel may have been registered since."""
        for stale in ("_table", "table", "functors"):
            self.__dict__.pop(stale, None)
        self._kernels.clear()

    def kernel_for(self, keyset: int) -> tuple[int, KernelFunction]:
        """(table index, kernel) that ``OperatorEntry::lookup`` returns for the bits of a keyset. Raises BadData for a
        bit that no key has."""
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

    @property
    def _entry(self) -> OperatorEntry:
        return OperatorEntry(self.dispatcher.space, self.address)

    @cached_property
    def extractor(self) -> Extractor:
        """Which keys of a call count, and from which arguments they are taken."""
        extractor, memory = self._entry.dispatchKeyExtractor_, self.dispatcher.memory
        return Extractor(
            extractor.nonFallthroughKeys_,
            memory.words(extractor.nonFallthroughKeysPerBackend_, self.dispatcher.keys.num_backends),
            extractor.requiresBitsetPerBackend_ != 0,
            extractor.dispatch_arg_indices_reverse_,
        )

    @cached_property
    def has_schema(self) -> bool:
        """False for an operator that has kernels and was never defined."""
        optional = self._entry.place(OperatorEntry.schema_)
        return self.dispatcher.memory.u8(optional + self.dispatcher.optional_schema.engaged) != 0

    @cached_property
    def schema(self) -> SchemaText | None:
        """The schema as PyTorch prints it, None without one. Raises also LayoutError."""
        return self.dispatcher.schemas.read(self.dispatcher.schema_of(self.address)) if self.has_schema else None

    @cached_property
    def results(self) -> str | None:
        """The results of the schema, None without one. Raises also LayoutError."""
        return self.dispatcher.schemas.results(self.dispatcher.schema_of(self.address)) if self.has_schema else None

    def function_type(self, symbolic: bool = False) -> str:
        """The C++ type of its kernels, without their keyset: ``at::Tensor (at::Tensor const&, long)``; "" if all are
        boxed. ``symbolic``: of those that take ``c10::SymInt``. It is kept to check registrations, so operators of
        stripped libraries have it, too. Raises also LayoutError."""
        entry, memory = self._entry, self.dispatcher.memory
        signature = entry.sym_cpp_signature_ if symbolic else entry.cpp_signature_
        shape = optional_shape(self.dispatcher.layout, CppSignature.OF)
        if not memory.u8(signature + shape.engaged):
            return ""
        return type_name(memory, CppSignature(self.dispatcher.space, signature + shape.value).signature)

    @cached_property
    def debug(self) -> str:
        """The place where the schema was registered ("registered at FILE:LINE"); "" without a schema."""
        if not self.has_schema:
            return ""
        schema = AnnotatedSchema(self.dispatcher.space, self.dispatcher.schema_of(self.address))
        return self.dispatcher.strings.read(schema.debug)


class Dispatcher:
    """The target's ``c10::Dispatcher``.

    Raises TargetError when there is none (yet), LayoutError when the layout lacks a structure.
    """

    def __init__(
        self, memory: Memory, layout: Layout, symbolizer: Symbolizer, python_source: PythonSource | None = None
    ) -> None:
        """``python_source`` names kernels that are Python functions."""
        self.memory = memory
        self.layout = layout
        self.space = Space(memory, layout)
        self.symbolizer = symbolizer
        self.keys = KeyNames(layout)
        self.kernels = KernelReader(memory, layout, symbolizer, python_source)
        self.strings = string_reader(memory, layout)
        self.nameless: dict[int, MemoryFault] = {}
        """OperatorDefs whose names are in memory that cannot be read, once ``names`` has been read."""
        table = OperatorEntry.dispatchTable_.field(layout)
        self._name_at = OperatorEntry.name_.offset(self.space)
        self._table_at, self._table_size = table.offset, table.size
        self.optional_schema = optional_shape(layout, AnnotatedSchema.OF)
        self._schema_at = OperatorEntry.schema_.offset(self.space) + self.optional_schema.value
        if self._table_size != self.kernels.size * self.keys.num_slots:
            slots = self._table_size // self.kernels.size
            raise LayoutError(f"the layout's dispatch table has {slots} slots, its keys {self.keys.num_slots}")
        self.address = find_singleton(memory, symbolizer)
        self._members = DispatcherStruct(self.space, self.address)
        if not memory.u64(self._members.operators_):
            raise not_yet("its operator list is all zero")

    @cached_property
    def schemas(self) -> SchemaReader:
        """The reader of schemas. Raises LayoutError."""
        return SchemaReader(self.memory, self.layout, self.strings, self.symbolizer)

    @cached_property
    def _slots(self) -> MapSlots:
        """The lookup table: OperatorName (two strings) and OperatorHandle (OperatorDef*, list iterator)."""
        return self.memory.read_consistently(self._read_slots)

    def _read_slots(self) -> MapSlots:
        """As ``_slots``, in one attempt. A c10::LeftRight keeps two copies of the table; readers use the one at
        _foregroundDataIndex (c10/util/LeftRight.h)."""
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
        """True if the lookup table has the OperatorDef at ``address`` under this name; a long name is compared by its
        length only."""
        slot, size = self._slots.at(self._slot_of[address]), self.strings.size
        texts = ((name, 0), (overload, size))
        return all(self.strings.may_be(text, slot.raw, offset, slot.address + offset) for text, offset in texts)

    def by_def(self, address: int) -> Operator | None:
        """The operator whose OperatorDef is at ``address``, None when no such operator is registered."""
        return self._operator(address) if address in self.entries else None

    @memoized
    def _operator(self, address: int) -> Operator:
        """The one object for the operator whose OperatorDef is at ``address``."""
        return Operator(self, address)

    @cached_property
    def names(self) -> dict[str, int]:
        """Qualified name ("aten::add.Tensor") to OperatorDef, of all operators but the ``nameless``.

        Raises BadData, and MemoryFault where not a single name can be read.
        """
        return self.memory.read_consistently(self._read_names)

    def _read_names(self) -> dict[str, int]:
        """As ``names``, in one attempt; sets ``nameless``, too. A second attempt reads the slots again."""
        names: dict[str, int] = {}
        self.nameless.clear()
        size, unpack = self.strings.size, struct.Struct("<Q").unpack_from
        slots = self.__dict__.pop("_slots", None) or self._read_slots()
        for entry in slots:
            address = unpack(entry.raw, 2 * size)[0]
            try:
                try:
                    name = self.strings.parse(entry.raw, 0, entry.address)
                    overload = self.strings.parse(entry.raw, size, entry.address + size)
                except MemoryFault:
                    name, overload = self.read_name(address)  # its OperatorEntry has a second copy
                names[f"{name}.{overload}" if overload else name] = address
            except MemoryFault as error:
                self.nameless[address] = error
        if self.nameless and not names:
            raise next(iter(self.nameless.values()))
        self.__dict__["_slots"] = slots
        return names

    def operators(self) -> list[Operator]:
        """All operators, sorted by qualified name."""
        return [self._operator(self.names[name]) for name in sorted(self.names)]

    def find(self, pattern: str) -> list[Operator]:
        """Operators that match a user's ``pattern`` (see ``operator_names.matcher``), sorted by name; [] if none does.
        A qualified name matches only that operator."""
        if pattern in self.names:
            return [self._operator(self.names[pattern])]
        matches = matcher(pattern)
        return [self._operator(self.names[name]) for name in sorted(self.names) if matches(name)]

    def find_one(self, pattern: str) -> Operator:
        """The one operator that ``pattern`` means: the exact overload, else the only one there is.

        Raises UsageError: unknown (with the closest names) or ambiguous (with all overloads).
        """
        operators = self.find(pattern)
        if not operators:
            raise self.unknown(pattern)
        exact = [operator for operator in operators if operator.qualified == pattern]
        if len(exact) == 1 or len(operators) == 1:
            return (exact or operators)[0]
        raise ambiguous_operator(pattern, [operator.qualified for operator in operators])

    def unknown(self, pattern: str) -> UsageError:
        """The error for a word that matches no operator, with the closest names."""
        return unknown_operator(pattern, self.names, len(self.nameless))

    def read_name(self, address: int) -> tuple[str, str]:
        """(name, overload) of the OperatorEntry at ``address``. Raises MemoryFault, BadData."""
        size, start = self.strings.size, address + self._name_at
        raw = self.memory.read(start, 2 * size)
        return self.strings.parse(raw, 0, start, 4096), self.strings.parse(raw, size, start + size, 4096)

    def read_table(self, address: int) -> bytes:
        """The bytes of ``dispatchTable_`` in the OperatorEntry at ``address``. Raises MemoryFault."""
        return self.memory.read(address + self._table_at, self._table_size)

    @property
    def first_entry(self) -> range:
        """The offsets of the table's first entry in an OperatorEntry."""
        return range(self._table_at, self._table_at + self.kernels.size)

    def table_entry(self, address: int, index: int) -> int:
        """Address of the entry of ``dispatchTable_`` at a table index, in the OperatorEntry at ``address``."""
        return address + self._table_at + index * self.kernels.size

    def schema_of(self, address: int) -> int:
        """Address of the FunctionSchema of the OperatorEntry at ``address``, if that has one."""
        return address + self._schema_at

    @property
    def fallbacks(self) -> int:
        """Address of the table ``backendFallbackKernels_``."""
        return self._members.backendFallbackKernels_

    @cached_property
    def registering_thread(self) -> int | None:
        """Thread id of the holder of the registration lock, None if it is free or cannot be read.

        ``guard_`` is a shared_ptr to { atomic<bool> alive; mutex } (a plain mutex ``mutex_`` before 2.0).
        """
        members = self._members
        try:
            mutex = members.guard_ + 8 if members.has(DispatcherStruct.guard_) else members.mutex_
            return (recorded_owner(self.memory, mutex) or None) if self.memory.u32(mutex) else None
        except (MemoryFault, LayoutError):
            return None
