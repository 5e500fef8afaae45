"""One tensor, field by field, as dispatch-tensor reports it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from gdbext.cpython.objects.py_ref import type_name
from gdbext.engine.layouts.declarations import Inner, Member
from gdbext.errors import BadData, GdbextError
from gdbext.tools.tensor.contents import VALUES_LIMIT, NothingToRead
from gdbext.tools.tensor.tensor_fields import WRAPPER
from gdbext.tools.tensor.tensor_section import TensorSection
from gdbext.torch.assumed_symbols import UNDEFINED_TENSOR
from gdbext.torch.stack import DispatchKeySet
from gdbext.torch.structures import SparseRowTensor, SymbolicShapeMeta
from gdbext.torch.values.value_structures import SmallVector
from gdbext.torch.values.value_text import GradFunction, Part, Quantization

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.tools.tensor.tensor_report import TensorReporter

Result = TypeVar("Result")
_TELLING_ATTRIBUTES = ("fake_device", "_fake_device", "device_mesh")
"""Attributes by which subclasses of Tensor tell of themselves: FakeTensor, DTensor."""
_UNINITIALIZED = ("UninitializedParameter", "UninitializedBuffer")
"""Classes of what lazy modules have before their first forward pass (torch/nn/parameter.py)."""
PART_VALUES_LIMIT = 16
"""Elements of a part that are shown."""
_COLUMN_LAYOUTS = ("sparse_csc", "sparse_bsc")
_BY_COLUMN: dict[Member[int], str] = {
    SparseRowTensor.crow_indices_: "ccol_indices",
    SparseRowTensor.col_indices_: "row_indices",
}
"""Names that Python has for the members of an at::SparseCsrTensorImpl that is compressed by columns."""


def describe(session: Session, reporter: TensorReporter, address: int, label: str) -> TensorSection:
    """The tensor at ``address`` with its statistics. Raises BadData (no tensor, a freed one), MemoryFault."""
    return TensorDescription(reporter, session, address, label).section()


class TensorDescription:
    """One tensor, field by field: what cannot be read costs that field and is one of the problems."""

    def __init__(self, reporter: TensorReporter, session: Session, address: int, label: str) -> None:
        self._reporter = reporter
        self._fields = reporter.fields
        self._session = session
        self._keys = session.dispatch_keys
        self._address = address
        self._label = label
        self._problems: list[str] = []
        self._notes: list[str] = []
        self._facts = reporter.facts(address)
        self._names = self._keys.decode(self._facts.key_set)
        self._kind = reporter.kind(self._facts)

    def section(self) -> TensorSection:
        """The section with everything that is known."""
        facts, fields, address, field = self._facts, self._fields, self._address, self._field
        undefined = facts.implementation == UNDEFINED_TENSOR
        sizes = self._shape(facts.sizes, SymbolicShapeMeta.sizes_)
        is_symbolic = facts.sizes is None and sizes is not None
        found = TensorSection(
            address=address,
            implementation=facts.implementation,
            python_type=field("Python object", self._python_type),
            sizes=sizes,
            strides=self._shape(facts.strides, SymbolicShapeMeta.strides_),
            storage_offset=None if is_symbolic else field("storage offset", lambda: fields.storage_offset(address)),
            dtype=facts.dtype,
            device=facts.device,
            layout=self._layout(),
            keyset=DispatchKeySet(facts.key_set, self._names),
            numel=field("number of elements", self._numel),
            requires_grad=field("requires_grad", lambda: fields.requires_grad(address)),
            is_leaf=field("grad_fn", lambda: not fields.grad_node(address)),
            is_view=field("view", lambda: fields.is_view(address)),
            grad_fn=field("grad_fn", self._grad_fn),
            grad=field("grad", self._grad),
            version=field("version", lambda: fields.version(address)),
            names=field("names", self._dimension_names),
            contiguity=self._contiguity(),
            conjugate="Conjugate" in self._names,
            negative="Negative" in self._names,
            storage=field("storage", lambda: fields.storage(address)),
            quantization=field("quantiser", self._quantization),
            wraps=(*self._wraps(), *self._python_wraps()),
            parts=tuple(self._parts()),
            notes=(),
            name_=self._label,
        )
        if not undefined:
            found = self._with_elements(found)
        return replace(found, notes=tuple(self._notes), problems=tuple(dict.fromkeys(self._problems)))

    def _field(self, what: str, read: Callable[[], Result]) -> Result | None:
        try:
            return read()
        except GdbextError as error:
            self._problems.append(f"{what}: {error.what}")
            return None

    def _shape(self, stored: tuple[int, ...] | None, which: Inner[SmallVector]) -> tuple[int | None, ...] | None:
        if stored is not None:
            return stored
        return self._field(_name_of(which), lambda: self._fields.symbolic(self._address, which))

    def _contiguity(self) -> tuple[str, ...]:
        """() where a method or a symbolic shape decides: the flags in the tensor are not kept then."""
        if self._facts.strides is None:
            return ()
        return self._field("contiguity", lambda: self._fields.contiguity(self._address)) or ()

    def _numel(self) -> int | None:
        return self._fields.numel(self._address) if self._facts.sizes is not None else None

    def _dimension_names(self) -> tuple[str | None, ...] | None:
        found = self._fields.dimension_names(self._address)
        if found is None:
            return None
        read = self._session.dispatcher.schemas.symbol_text
        return tuple(None if symbol is None else read(symbol) for symbol in found)

    def _layout(self) -> str:
        return self._kind.layout or self._field("layout", self._kept_layout) or "unknown"

    def _kept_layout(self) -> str:
        """The layout that the C++ class keeps: ``SparseCsr`` is torch.sparse_csr."""
        number = self._fields.held(self._address, SparseRowTensor.layout_)
        names = {value: name for name, value in self._reporter.layout.enum("c10::Layout").items()}
        if number not in names:
            raise BadData(f"there is no layout {number}")
        return names[number].replace("Sparse", "sparse_").lower()

    def _quantization(self) -> Quantization | None:
        return self._reporter.quantization(self._facts) if self._facts.dtype.startswith(("q",)) else None

    # --- autograd, Python ------------------------------------------------------------------------

    def _grad_fn(self) -> GradFunction | None:
        node = self._fields.grad_node(self._address)
        if not node:
            return None
        found = self._fields.node(node)
        name = self._session.python_object(self._fields.node_object(node)).type if found.name == "PyNode" else ""
        return found._replace(name=name) if name else found

    def _grad(self) -> str | None:
        grad = self._fields.grad(self._address)
        if not grad or self._reporter.is_undefined(grad):
            return None
        return self._reporter.short(grad)

    def _python_type(self) -> str | None:
        found = self._session.python_object(self._fields.python_object(self._address))
        return found.read(type_name) if found and found.python else None

    # --- wrappers and parts ----------------------------------------------------------------------

    def _wraps(self) -> Iterator[Part]:
        """The tensor that a C++ wrapper or a Python subclass holds."""
        for member in self._kind.wrapped:
            address = self._field("wrapped tensor", lambda m=member: self._held(m))  # type: ignore[misc]
            if address:
                yield self._part(_name_of(member), address)
        fake = self._field("fake device", lambda: self._fields.fake_device(self._address))
        if fake:
            self._notes.append(f"it stands for a tensor on {fake}")

    def _held(self, member: Member[int]) -> int:
        return self._fields.held(self._address, member)

    def _python_wraps(self) -> Iterator[Part]:
        python = self._reporter.python
        try:
            found = self._session.python_object(self._fields.python_object(self._address))
            if not found.python or not found or found.read(type_name) in ("Tensor", "Parameter"):
                return
            if found.type in _UNINITIALIZED:
                self._notes.append("nothing to read: a lazy module gives it its sizes in the first forward pass")
            for name, address in python.wrapped(found):
                yield self._part(name, address)
            for name in _TELLING_ATTRIBUTES:
                text = python.attribute_text(found, name)
                if text is not None:
                    self._notes.append(f"{name.lstrip('_')} is {text}")
            placements = python.placements(found)
            if placements is not None:
                self._notes.append(f"placements: {placements}")
        except GdbextError as error:
            self._problems.append(f"Python attributes: {error.what}")

    def _parts(self) -> Iterator[Part]:
        """The tensors that a sparse or nested one is made of, with their statistics."""
        names = _BY_COLUMN if self._kind.parts and self._layout() in _COLUMN_LAYOUTS else {}
        for member in self._kind.parts:
            address = self._field(_name_of(member), lambda m=member: self._held(m))  # type: ignore[misc]
            if address:
                yield self._part(names.get(member, _name_of(member)), address, True)

    def _part(self, name: str, address: int, statistics: bool = False) -> Part:
        sizes = None
        try:
            sizes = self._reporter.facts(address).sizes
        except GdbextError as error:
            self._problems.append(f"{name}: {error.what}")
        found = self._reporter.statistics(address) if statistics else None
        values = self._reporter.values(address, PART_VALUES_LIMIT) if found else None
        return Part(name, address, self._reporter.short(address), sizes, found, values)

    # --- elements --------------------------------------------------------------------------------

    def _with_elements(self, section: TensorSection) -> TensorSection:
        try:
            contents = self._reporter.contents(self._facts)
            statistics = contents.statistics()
            histogram = None
            if statistics.finite and contents.geometry.element.kind != "bool":
                histogram = contents.histogram(*statistics.finite)
            values = contents.values_if_few(VALUES_LIMIT)
        except NothingToRead as reason:
            what = reason.what if not section.storage or section.storage.data or not section.wraps else WRAPPER
            self._notes.append(f"nothing to read: {what}")
            return section
        except GdbextError as error:
            self._problems.append(f"elements: {error.what}")
            return section
        return replace(section, statistics=statistics, histogram=histogram, values=values)


def _name_of(member: Member[Any]) -> str:
    return member.path.rstrip("_")
