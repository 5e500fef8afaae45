"""Summaries of C++ objects of PyTorch, from memory alone, for the debuggers' pretty-printers.

Layouts: c10/util/ArrayRef.h, SmallVector.h, intrusive_ptr.h, ATen/core/Dict.h, List.h, dispatch/Dispatcher.h, 2.13.0.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Callable

from gdbext.engine.layouts.declarations import Member, Space
from gdbext.engine.vocabulary import counted
from gdbext.errors import BadData, GdbextError
from gdbext.tools.tensor.cpp_object import (
    ELEMENT_LIMIT,
    LONGEST,
    TENSOR_CLASSES,
    BoxedValues,
    Child,
    CppObject,
    TypeSummary,
    count_text,
    summarized_type,
)
from gdbext.tools.tensor.tensor_report import TensorReporter
from gdbext.torch.assumed_symbols import UNDEFINED_TENSOR
from gdbext.torch.structures import OperatorHandle
from gdbext.torch.values.cpp_objects import strong_references, weak_references
from gdbext.torch.values.cpp_values import CppValues
from gdbext.torch.values.value_structures import ArrayRef, SmallVector
from gdbext.torch.values.value_text import nested_text

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session

    Summarize = Callable[[CppObject], TypeSummary]


class TypeSummaries:
    """Summarizes the objects of one session's process. An uninitialized one raises BadData, which becomes its text."""

    def __init__(self, session: Session) -> None:
        """Prepare the readers. Raises NotTorch, LayoutError."""
        self._session = session
        self._memory = memory = session.memory
        self._layout = session.layout
        self._space = Space(memory, session.layout)
        self._values = CppValues(memory, session.layout, lambda address: session.tensors.read_alive(address).short)
        self._reporter = cache(lambda: TensorReporter(session))
        self._boxed = cache(lambda: BoxedValues(memory, session.layout, self._values))

        def dtype(value: CppObject, size: int) -> TypeSummary:
            return TypeSummary(self._values.dtype(value.number(memory, 0, size)))

        def schema(value: CppObject) -> TypeSummary:
            return TypeSummary(session.dispatcher.schemas.read(value.memory_address()).text)

        self._by_name: dict[str, Summarize] = {
            "c10::DispatchKeySet": lambda value: TypeSummary(self._keyset_text(value.number(memory, 0, 8))),
            "c10::DispatchKey": self._key,
            "c10::OperatorName": self._operator_name,
            "c10::OperatorHandle": self._operator_handle,
            "c10::TypedOperatorHandle": self._operator_handle,
            "c10::KernelFunction": self._kernel,
            "c10::FunctionSchema": schema,
            "at::Tensor": self._tensor,
            "at::TensorBase": self._tensor,
            **dict.fromkeys(TENSOR_CLASSES, lambda value: self._tensor_at(value.memory_address())),
            "c10::Storage": self._storage,
            "c10::StorageImpl": lambda value: self._storage_at(value.memory_address()),
            "c10::Scalar": lambda value: TypeSummary(self._values.stored("c10::Scalar", value.memory_address()).text),
            "c10::IValue": lambda value: self._boxed().of_value(value.memory_address()),
            "c10::Device": lambda value: TypeSummary(self._values.device(value.number(memory, 0, 2))),
            "c10::ScalarType": lambda value: dtype(value, 1),
            "caffe2::TypeMeta": lambda value: dtype(value, 2),
            "c10::SymInt": self._symint,
            "c10::ArrayRef": self._array,
            "c10::SmallVector": self._small_vector,
            "c10::SmallVectorImpl": self._small_vector,
            "c10::intrusive_ptr": self._pointer,
            "c10::Dict": lambda value: self._boxed().of_dict(value.number(memory, 0, 8)),
            "c10::List": lambda value: self._boxed().of_list(value.number(memory, 0, 8)),
        }

    def of(self, value: CppObject) -> TypeSummary | None:
        """The object's summary, or the reason why it has none; None for a type that is not summarized."""
        summarized = summarized_type(value.type)
        if not summarized:
            return None
        try:
            return self._by_name[summarized.name](value)
        except GdbextError as error:
            return TypeSummary(f"<{error.what}>")

    def _keyset_text(self, bits: int) -> str:
        """``DispatchKeySet(CPU, AutogradCPU)``. Raises BadData for bits that are no key set."""
        keys = self._session.dispatch_keys
        if keys.stray(bits):
            raise BadData(f"{bits:#x} is not a DispatchKeySet")
        names = keys.decode(bits)
        return f"DispatchKeySet({', '.join(names)})" if names or not bits else f"DispatchKeySet({bits:#x})"

    def _key(self, value: CppObject) -> TypeSummary:
        """The name of a c10::DispatchKey, a 16-bit enumerator."""
        names = self._session.dispatch_keys.key_names
        number = value.number(self._memory, 0, 2)
        if number >= len(names):
            raise BadData(f"there is no DispatchKey {number}")
        return TypeSummary(names[number])

    def _operator_name(self, value: CppObject) -> TypeSummary:
        """``aten::add.Tensor``: a c10::OperatorName is two strings."""
        strings = self._session.dispatcher.strings
        name = strings.read(value.memory_address(), 4096)
        overload = strings.read(value.memory_address() + strings.size, 4096)
        return TypeSummary(f"{name}.{overload}" if overload else name)

    def _operator_handle(self, value: CppObject) -> TypeSummary:
        """The operator's name, and its schema as a child."""
        address = self._number(value, OperatorHandle.operatorDef_)
        operator = self._session.dispatcher.by_def(address)
        if not operator:
            raise BadData(f"there is no operator at {address:#x}")
        return TypeSummary(operator.qualified, (Child("schema", operator.schema.text),) if operator.schema else ())

    def _kernel(self, value: CppObject) -> TypeSummary:
        """The kernel's C++ function, and the pointers that a c10::KernelFunction holds as children."""
        reader = self._session.dispatcher.kernels
        kernel = reader.parse(value.bytes(self._memory, reader.size), 0)
        name = reader.name(kernel)
        if name.kind == "unknown":
            raise BadData(f"no function of a library is at {kernel.boxed:#x}")
        members = ((member, getattr(kernel, member)) for member in ("functor", "boxed", "unboxed", "sym_unboxed"))
        children = tuple(Child(member, f"{address:#x}") for member, address in members if address)
        return TypeSummary(name.function or "no kernel", children)

    def _tensor(self, value: CppObject) -> TypeSummary:
        """An at::Tensor, which is a pointer to a TensorImpl."""
        address = value.number(self._memory, 0, 8)
        if not address:
            raise BadData("there is no tensor: it was moved from, or is not initialized")
        return self._tensor_at(address)

    def _tensor_at(self, address: int) -> TypeSummary:
        """The TensorImpl at ``address``, with its keys, strides and up to 16 values as children."""
        facts = self._session.tensors.read_alive(address)
        if facts.implementation == UNDEFINED_TENSOR:
            return TypeSummary(facts.short)
        text = facts.short
        with suppress(GdbextError):
            text += " requires_grad" if self._reporter().fields.requires_grad(address) else ""
        children = [Child("keys", self._keyset_text(facts.key_set))]
        if facts.strides is not None:
            children.append(Child("strides", f"[{', '.join(map(str, facts.strides))}]"))
        values = self._reporter().values(address, 16)
        if values is not None:
            children.append(Child("values", nested_text(values)))
        return TypeSummary(text, tuple(children))

    def _storage(self, value: CppObject) -> TypeSummary:
        address = value.number(self._memory, 0, 8)
        return self._storage_at(address) if address else TypeSummary("no storage")

    def _storage_at(self, address: int) -> TypeSummary:
        """The StorageImpl at ``address``; one without references is a freed one."""
        storage = self._reporter().fields.storage_at(address)
        if not storage.shared_by:
            raise BadData(f"there is no storage at {address:#x}")
        where = f" at {storage.data:#x}" if storage.data else ", no memory"
        references = counted(storage.shared_by, "reference")
        return TypeSummary(f"{storage.size} bytes on {storage.device}{where}, {references}")

    def _symint(self, value: CppObject) -> TypeSummary:
        word = value.number(self._memory, 0, 8)
        return TypeSummary(self._values.symint(word - (1 << 64) if word >> 63 else word).text)

    def _number(self, value: CppObject, member: Member[int]) -> int:
        """The 8-byte ``member`` of the object."""
        return value.number(self._memory, member.offset(self._space), 8)

    def _array(self, value: CppObject) -> TypeSummary:
        first = self._number(value, ArrayRef.Data)
        return self._elements(value, first, self._number(value, ArrayRef.Length))

    def _small_vector(self, value: CppObject) -> TypeSummary:
        """The elements of a c10::SmallVector; size and capacity are checked against each other."""
        size = SmallVector.Size.field(self._layout)
        # c10/util/SmallVector.h: vectors of elements of less than 4 bytes count them in 64 bits, all others in 32.
        width = 8 if 0 < value.element_size < 4 else size.size
        count, capacity = (value.number(self._memory, size.offset + width * word, width) for word in range(2))
        if count > capacity:
            raise BadData(f"a vector of {count} elements with room for {capacity}")
        return self._elements(value, self._number(value, SmallVector.BeginX), count)

    def _elements(self, value: CppObject, first: int, count: int) -> TypeSummary:
        """The ``count`` elements of the list ``value``, the first one at the address ``first``. Raises BadData or
        MemoryFault if elements cannot be there."""
        size, kind = value.element_size, value.element
        if count > LONGEST:
            raise BadData(f"a list of {count} elements")
        if count and size:
            self._memory.read(first + size * (min(count, ELEMENT_LIMIT) - 1), size)
        children = []
        for index in range(min(count, ELEMENT_LIMIT) if size else 0):
            address = first + size * index
            try:
                text = self._values.stored(kind.removesuffix(" const"), address).text
            except GdbextError as error:
                text = f"<{error.what}>"
            children.append(Child(f"[{index}]", text, kind, address))
        return TypeSummary(count_text(count, len(children) if size else count), tuple(children), "array")

    def _pointer(self, value: CppObject) -> TypeSummary:
        """A c10::intrusive_ptr: the tensor that it owns, or the object with its reference counts."""
        address = value.number(self._memory, 0, 8)
        if not address:
            return TypeSummary("nullptr")
        target = self.of(CppObject(value.element, address)) if value.element in TENSOR_CLASSES else None
        if target:
            return target
        strong, weak = strong_references(self._space, address), weak_references(self._space, address)
        if not 0 < strong < 1 << 31:
            raise BadData(f"there is no object at {address:#x}: it has {strong} references")
        pointee = self.of(CppObject(value.element, address))
        child = Child("*", pointee.text if pointee else f"{address:#x}", value.element, address)
        return TypeSummary(f"{address:#x}, {counted(strong, 'reference')}, {weak} weak", (child,))
