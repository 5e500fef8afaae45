"""Summaries of C++ objects of PyTorch, from memory alone. Objects that nobody initialised are said to be none.

Layouts: c10/util/ArrayRef.h, SmallVector.h, intrusive_ptr.h, ATen/core/Dict.h, List.h, dispatch/Dispatcher.h, 2.13.0.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Callable

from gdbext.engine.layouts.declarations import Space
from gdbext.errors import BadData, GdbextError
from gdbext.tools.tensor.cpp_object import (
    ELEMENT_LIMIT,
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
    from gdbext.engine.layouts.declarations import Member

    Summarize = Callable[[CppObject], TypeSummary]

_LONGEST = 1 << 32
_VALUES_LIMIT = 16
_SMALL_ELEMENT = 4
"""c10/util/SmallVector.h: vectors of elements that are smaller count them in 64 bits, all others in 32."""


class TypeSummaries:
    """Summarises the objects of one session's process."""

    def __init__(self, session: Session) -> None:
        """Prepare the readers. Raises NotTorch, LayoutError."""
        self._session = session
        self._memory = session.memory
        self._layout = session.layout
        self._space = Space(session.memory, session.layout)
        self._values = CppValues(session.memory, session.layout, self._tensor_text)
        self._by_name: dict[str, Summarize] = {
            "c10::DispatchKeySet": self._keyset,
            "c10::DispatchKey": self._key,
            "c10::OperatorName": self._operator_name,
            "c10::OperatorHandle": self._operator_handle,
            "c10::TypedOperatorHandle": self._operator_handle,
            "c10::KernelFunction": self._kernel,
            "c10::FunctionSchema": self._schema,
            "at::Tensor": self._tensor,
            "at::TensorBase": self._tensor,
            **dict.fromkeys(TENSOR_CLASSES, self._tensor_implementation),
            "c10::Storage": self._storage,
            "c10::StorageImpl": self._storage_implementation,
            "c10::Scalar": self._scalar,
            "c10::IValue": self._ivalue,
            "c10::Device": self._device,
            "c10::ScalarType": self._scalar_type,
            "caffe2::TypeMeta": self._type_meta,
            "c10::SymInt": self._symint,
            "c10::ArrayRef": self._array,
            "c10::SmallVector": self._small_vector,
            "c10::SmallVectorImpl": self._small_vector,
            "c10::intrusive_ptr": self._pointer,
            "c10::Dict": self._dict,
            "c10::List": self._list,
        }

    def of(self, found: CppObject) -> TypeSummary | None:
        """The object's summary, with the reason where it is none; None for a type that is not summarised."""
        known = summarized_type(found.type)
        if not known:
            return None
        try:
            return self._by_name[known.name](found)
        except GdbextError as error:
            return TypeSummary(f"<{error.what}>")

    # --- the dispatcher --------------------------------------------------------------------------

    def _keyset(self, found: CppObject) -> TypeSummary:
        return TypeSummary(self._keyset_text(found.number(self._memory, 0, 8)))

    def _keyset_text(self, bits: int) -> str:
        keys = self._session.dispatch_keys
        stray = keys.stray(bits)
        if stray:
            raise BadData(f"{bits:#x} is not a DispatchKeySet")
        names = keys.decode(bits)
        return f"DispatchKeySet({', '.join(names)})" if names or not bits else f"DispatchKeySet({bits:#x})"

    def _key(self, found: CppObject) -> TypeSummary:
        names = self._session.dispatch_keys.key_names
        value = found.number(self._memory, 0, 2)
        if value >= len(names):
            raise BadData(f"there is no DispatchKey {value}")
        return TypeSummary(names[value])

    def _operator_name(self, found: CppObject) -> TypeSummary:
        strings = self._session.dispatcher.strings
        name = strings.read(found.place(), 4096)
        overload = strings.read(found.place() + strings.size, 4096)
        return TypeSummary(f"{name}.{overload}" if overload else name)

    def _operator_handle(self, found: CppObject) -> TypeSummary:
        address = self._number(found, OperatorHandle.operatorDef_)
        operator = self._session.dispatcher.by_def(address)
        if not operator:
            raise BadData(f"there is no operator at {address:#x}")
        schema = operator.schema
        children = (Child("schema", schema.text),) if schema else ()
        return TypeSummary(operator.qualified, children)

    def _kernel(self, found: CppObject) -> TypeSummary:
        reader = self._session.dispatcher.kernels
        kernel = reader.parse(found.bytes(self._memory, reader.size), 0)
        name = reader.name(kernel)
        if name.kind == "unknown":
            raise BadData(f"no function of a library is at {kernel.boxed:#x}")
        members = (
            ("functor", kernel.functor),
            ("boxed", kernel.boxed),
            ("unboxed", kernel.unboxed),
            ("sym_unboxed", kernel.sym_unboxed),
        )
        children = tuple(Child(title, f"{address:#x}") for title, address in members if address)
        return TypeSummary(name.function or "no kernel", children)

    def _schema(self, found: CppObject) -> TypeSummary:
        return TypeSummary(self._session.dispatcher.schemas.read(found.place()).text)

    # --- tensors ---------------------------------------------------------------------------------

    @cached_property
    def _reporter(self) -> TensorReporter:
        return TensorReporter(self._session)

    def _tensor_text(self, address: int) -> str:
        """Raises BadData where there is no tensor, MemoryFault."""
        return self._session.tensors.read_alive(address).short

    def _tensor(self, found: CppObject) -> TypeSummary:
        address = found.number(self._memory, 0, 8)
        if not address:
            raise BadData("there is no tensor: it was moved from, or is not initialised")
        return self._tensor_at(address)

    def _tensor_implementation(self, found: CppObject) -> TypeSummary:
        return self._tensor_at(found.place())

    def _tensor_at(self, address: int) -> TypeSummary:
        facts = self._session.tensors.read_alive(address)
        text = facts.short
        children: list[Child] = []
        if facts.implementation != UNDEFINED_TENSOR:
            if self._requires_grad(address):
                text += " requires_grad"
            children = [Child("keys", self._keyset_text(facts.key_set))]
            if facts.strides is not None:
                children.append(Child("strides", f"[{', '.join(map(str, facts.strides))}]"))
            values = self._few_values(address)
            if values is not None:
                children.append(Child("values", values))
        return TypeSummary(text, tuple(children))

    def _requires_grad(self, address: int) -> bool:
        try:
            return self._reporter.fields.requires_grad(address)
        except GdbextError:
            return False

    def _few_values(self, address: int) -> str | None:
        """The elements, where they are few and can be read."""
        try:
            contents = self._reporter.contents(self._reporter.facts(address))
            values = contents.values_if_few(_VALUES_LIMIT)
            return None if values is None else nested_text(values)
        except GdbextError:
            return None

    def _storage(self, found: CppObject) -> TypeSummary:
        address = found.number(self._memory, 0, 8)
        return self._storage_at(address) if address else TypeSummary("no storage")

    def _storage_implementation(self, found: CppObject) -> TypeSummary:
        return self._storage_at(found.place())

    def _storage_at(self, address: int) -> TypeSummary:
        storage = self._reporter.fields.storage_at(address)
        if not storage.shared_by:
            raise BadData(f"there is no storage at {address:#x}")
        where = f" at {storage.data:#x}" if storage.data else ", no memory"
        return TypeSummary(f"{storage.size} bytes on {storage.device}{where}, {_references(storage.shared_by)}")

    # --- values ----------------------------------------------------------------------------------

    def _scalar(self, found: CppObject) -> TypeSummary:
        return TypeSummary(self._values.stored("c10::Scalar", found.place()).text)

    def _device(self, found: CppObject) -> TypeSummary:
        return TypeSummary(self._values.device(found.number(self._memory, 0, 2)))

    def _scalar_type(self, found: CppObject) -> TypeSummary:
        return TypeSummary(self._values.dtype(found.number(self._memory, 0, 1)))

    def _type_meta(self, found: CppObject) -> TypeSummary:
        return TypeSummary(self._values.dtype(found.number(self._memory, 0, 2)))

    def _symint(self, found: CppObject) -> TypeSummary:
        word = found.number(self._memory, 0, 8)
        return TypeSummary(self._values.symint(word - (1 << 64) if word >> 63 else word).text)

    def _number(self, found: CppObject, member: Member[int]) -> int:
        return found.number(self._memory, member.offset(self._space), 8)

    # --- lists -----------------------------------------------------------------------------------

    def _array(self, found: CppObject) -> TypeSummary:
        first = self._number(found, ArrayRef.Data)
        return self._elements(found, first, self._number(found, ArrayRef.Length))

    def _small_vector(self, found: CppObject) -> TypeSummary:
        size = SmallVector.Size.field(self._layout)
        width = 8 if 0 < found.element_size < _SMALL_ELEMENT else size.size
        at, first = size.offset, self._number(found, SmallVector.BeginX)
        count, capacity = (found.number(self._memory, at + width * each, width) for each in range(2))
        if count > capacity:
            raise BadData(f"a vector of {count} elements with room for {capacity}")
        return self._elements(found, first, count)

    def _elements(self, found: CppObject, first: int, count: int) -> TypeSummary:
        """Raises BadData, MemoryFault for elements that cannot be there."""
        size = found.element_size
        if count > _LONGEST:
            raise BadData(f"a list of {count} elements")
        if count and size:
            self._memory.read(first + size * (min(count, ELEMENT_LIMIT) - 1), size)
        shown = min(count, ELEMENT_LIMIT) if size else 0
        children = tuple(self._element(each, found.element, first + size * each) for each in range(shown))
        return TypeSummary(count_text(count, shown if size else count), children, "array")

    def _element(self, number: int, kind: str, address: int) -> Child:
        try:
            text = self._values.stored(kind.removesuffix(" const"), address).text
        except GdbextError as error:
            text = f"<{error.what}>"
        return Child(f"[{number}]", text, kind, address)

    def _pointer(self, found: CppObject) -> TypeSummary:
        address = found.number(self._memory, 0, 8)
        if not address:
            return TypeSummary("nullptr")
        target = self.of(CppObject(found.element, address)) if found.element in TENSOR_CLASSES else None
        if target:
            return target
        strong, weak = strong_references(self._space, address), weak_references(self._space, address)
        if not 0 < strong < 1 << 31:
            raise BadData(f"there is no object at {address:#x}: it has {strong} references")
        pointee = self.of(CppObject(found.element, address))
        child = Child("*", pointee.text if pointee else f"{address:#x}", found.element, address)
        return TypeSummary(f"{address:#x}, {_references(strong)}, {weak} weak", (child,))

    # --- boxed values ----------------------------------------------------------------------------

    @cached_property
    def _boxed(self) -> BoxedValues:
        return BoxedValues(self._memory, self._layout, self._values)

    def _ivalue(self, found: CppObject) -> TypeSummary:
        return self._boxed.of_value(found.place())

    def _list(self, found: CppObject) -> TypeSummary:
        return self._boxed.of_list(found.number(self._memory, 0, 8))

    def _dict(self, found: CppObject) -> TypeSummary:
        return self._boxed.of_dict(found.number(self._memory, 0, 8))


def _references(count: int) -> str:
    return "1 reference" if count == 1 else f"{count} references"
