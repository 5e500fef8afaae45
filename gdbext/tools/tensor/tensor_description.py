"""Describes one tensor, field by field, for dispatch-tensor."""

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
from gdbext.torch.values.value_text import GradFunction, Part

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.tools.tensor.tensor_report import TensorReporter

Result = TypeVar("Result")
PART_VALUES_LIMIT = 16
"""Elements of a part that are shown."""
_BY_COLUMN: dict[Member[int], str] = {
    SparseRowTensor.crow_indices_: "ccol_indices",
    SparseRowTensor.col_indices_: "row_indices",
}
"""Python's names of the members of an at::SparseCsrTensorImpl that is compressed by columns."""


class _Description:
    """One tensor: a field that cannot be read is None, and one of the problems."""

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
        facts, fields, address, field = self._facts, self._fields, self._address, self._field
        tensor = fields.tensor(address)
        sizes = self._shape(facts.sizes, SymbolicShapeMeta.sizes_)
        is_symbolic = facts.sizes is None and sizes is not None
        # A method or a symbolic shape decides about contiguity if there are no strides: the flags are unused then.
        contiguity = None if facts.strides is None else field("contiguity", lambda: fields.contiguity(address))
        is_quantized = facts.dtype.startswith("q")
        section = TensorSection(
            address=address,
            implementation=facts.implementation,
            python_type=field("Python object", self._python_type),
            sizes=sizes,
            strides=self._shape(facts.strides, SymbolicShapeMeta.strides_),
            storage_offset=None if is_symbolic else field("storage offset", lambda: tensor.storage_offset_),
            dtype=facts.dtype,
            device=facts.device,
            layout=self._layout(),
            keyset=DispatchKeySet(facts.key_set, self._names),
            numel=None if facts.sizes is None else field("number of elements", lambda: tensor.numel_),
            requires_grad=field("requires_grad", lambda: fields.requires_grad(address)),
            is_leaf=field("grad_fn", lambda: not fields.grad_node(address)),
            is_view=field("view", lambda: fields.is_view(address)),
            grad_fn=field("grad_fn", self._grad_fn),
            grad=field("grad", self._grad),
            version=field("version", lambda: fields.version(address)),
            names=field("names", self._dimension_names),
            contiguity=contiguity or (),
            conjugate="Conjugate" in self._names,
            negative="Negative" in self._names,
            storage=field("storage", lambda: fields.storage(address)),
            quantization=field("quantizer", lambda: self._reporter.quantization(facts)) if is_quantized else None,
            wraps=(*self._wraps(), *self._python_wraps()),
            parts=tuple(self._parts()),
            notes=(),
            name_=self._label,
        )
        if facts.implementation != UNDEFINED_TENSOR:
            section = self._with_elements(section)
        return replace(section, notes=tuple(self._notes), problems=tuple(dict.fromkeys(self._problems)))

    def _field(self, what: str, read: Callable[[], Result]) -> Result | None:
        try:
            return read()
        except GdbextError as error:
            self._problems.append(f"{what}: {error.what}")
            return None

    def _shape(self, stored: tuple[int, ...] | None, member: Inner[SmallVector]) -> tuple[int | None, ...] | None:
        if stored is not None:
            return stored
        return self._field(_name_of(member), lambda: self._fields.symbolic(self._address, member))

    def _dimension_names(self) -> tuple[str | None, ...] | None:
        symbols = self._fields.dimension_names(self._address)
        if symbols is None:
            return None
        read = self._session.dispatcher.schemas.symbol_text
        return tuple(None if symbol is None else read(symbol) for symbol in symbols)

    def _layout(self) -> str:
        def stored() -> str:  # in the C++ class: ``SparseCsr`` is torch.sparse_csr
            number = self._fields.tensor_member(self._address, SparseRowTensor.layout_)
            names = {value: name for name, value in self._reporter.layout.enum("c10::Layout").items()}
            if number not in names:
                raise BadData(f"there is no layout {number}")
            return names[number].replace("Sparse", "sparse_").lower()

        return self._kind.layout or self._field("layout", stored) or "unknown"

    # --- autograd, Python ------------------------------------------------------------------------

    def _grad_fn(self) -> GradFunction | None:
        node = self._fields.grad_node(self._address)
        if not node:
            return None
        function = self._fields.node(node)
        name = self._session.python_object(self._fields.node_object(node)).type if function.name == "PyNode" else ""
        return function._replace(name=name) if name else function

    def _grad(self) -> str | None:
        grad = self._fields.grad(self._address)
        if not grad or self._reporter.is_undefined(grad):
            return None
        return self._reporter.short(grad)

    def _python_type(self) -> str | None:
        value = self._session.python_object(self._fields.python_object(self._address))
        return value.read(type_name) if value and value.python else None

    # --- wrappers and parts ----------------------------------------------------------------------

    def _wraps(self) -> Iterator[Part]:
        """The tensors in a C++ wrapper."""
        for member in self._kind.wrapped:
            address = self._member("wrapped tensor", member)
            if address:
                yield self._part(_name_of(member), address)
        fake = self._field("fake device", lambda: self._fields.fake_device(self._address))
        if fake:
            self._notes.append(f"it stands for a tensor on {fake}")

    def _member(self, what: str, member: Member[int]) -> int | None:
        return self._field(what, lambda: self._fields.tensor_member(self._address, member))

    def _python_wraps(self) -> Iterator[Part]:
        """The tensors in a Python subclass; notes what else the subclass says of itself."""
        python = self._reporter.python
        try:
            value = self._session.python_object(self._fields.python_object(self._address))
            if not value.python or not value or value.read(type_name) in ("Tensor", "Parameter"):
                return
            if value.type in ("UninitializedParameter", "UninitializedBuffer"):  # torch/nn/parameter.py
                self._notes.append("nothing to read: a lazy module gives it its sizes in the first forward pass")
            for name, address in python.wrapped(value):
                yield self._part(name, address)
            for name in ("fake_device", "_fake_device", "device_mesh"):  # of FakeTensor and DTensor
                text = python.attribute_text(value, name)
                if text is not None:
                    self._notes.append(f"{name.lstrip('_')} is {text}")
            placements = python.placements(value)
            if placements is not None:
                self._notes.append(f"placements: {placements}")
        except GdbextError as error:
            self._problems.append(f"Python attributes: {error.what}")

    def _parts(self) -> Iterator[Part]:
        """The tensors that a sparse or nested one is made of, with their statistics."""
        is_by_column = self._kind.parts and self._layout() in ("sparse_csc", "sparse_bsc")
        for member in self._kind.parts:
            address = self._member(_name_of(member), member)
            if address:
                name = _BY_COLUMN.get(member) if is_by_column else None
                yield self._part(name or _name_of(member), address, has_statistics=True)

    def _part(self, name: str, address: int, has_statistics: bool = False) -> Part:
        sizes = None
        try:
            sizes = self._reporter.facts(address).sizes
        except GdbextError as error:
            self._problems.append(f"{name}: {error.what}")
        statistics = self._reporter.statistics(address) if has_statistics else None
        values = self._reporter.values(address, PART_VALUES_LIMIT) if statistics else None
        return Part(name, address, self._reporter.short(address), sizes, statistics, values)

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


def describe(session: Session, reporter: TensorReporter, address: int, label: str) -> TensorSection:
    """The tensor at ``address`` with its statistics; ``label``: what the user called it. Raises BadData (no tensor, a
    freed one), MemoryFault."""
    return _Description(reporter, session, address, label).section()
