"""Everything about one tensor: its fields, what it wraps, and what its elements are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from gdbext.errors import BadData, GdbextError, LayoutError
from gdbext.model.dispatch.dispatch_frame import DispatchKeySet
from gdbext.model.sections.tensor_section import (
    GradFunction,
    Part,
    Quantization,
    Statistics,
    StorageReport,
    TensorSection,
)
from gdbext.torch.state.tensor import TensorFacts
from gdbext.torch.symbols import UNDEFINED_TENSOR
from gdbext.torch.tensors.contents import VALUES_LIMIT, Contents, Geometry, NothingToRead, Progress, fits, no_progress
from gdbext.torch.tensors.element_type import element_type
from gdbext.torch.tensors.python_tensor import PythonTensors
from gdbext.torch.tensors.quantizers import QuantizerReader
from gdbext.torch.tensors.tensor_fields import TensorFields
from gdbext.torch.tensors.tensor_kinds import TensorKind, kind_of
from gdbext.torch.tensors.vtables import ClassNames
from gdbext.torch.values.dtype import python_name

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

Result = TypeVar("Result")
_TELLING_ATTRIBUTES = ("fake_device", "device_mesh", "placements", "_spec")
"""What subclasses of Tensor say of themselves: FakeTensor, DTensor."""


class TensorReporter:
    """Describes the tensors of one session."""

    def __init__(self, session: Session, progress: Progress = no_progress) -> None:
        """Raises NotTorch, LayoutError."""
        self._session = session
        self.memory = session.memory
        self.layout = session.layout
        self._progress = progress
        self._classes = ClassNames(session.memory, session.symbolizer)
        self._facts = session.tensors
        self.fields = TensorFields(session.memory, session.layout, self._classes)
        sizes = session.layout.dispatch("scalar_types")
        self._element_sizes = {python_name(name): int(size) for name, size in sizes}
        self._quantizers = QuantizerReader(session.memory, session.layout, self._classes, self._plain_values)

    # --- Python ----------------------------------------------------------------------------------

    @cached_property
    def python(self) -> PythonTensors | None:
        """Tensors as Python objects; None without Python."""
        runtime = self._session.python
        if runtime is None:
            return None
        return PythonTensors(runtime, self.is_tensor, self.fields.python_object)

    def is_tensor(self, address: int) -> bool:
        """There is a TensorImpl."""
        try:
            self._facts.key_set(address)
        except GdbextError:
            return False
        return True

    def is_undefined(self, address: int) -> bool:
        """It is the one tensor that stands for none (c10/core/UndefinedTensorImpl.h)."""
        return self._facts.read(address).implementation == UNDEFINED_TENSOR

    def _check_alive(self, address: int) -> None:
        """Raises BadData for a tensor that was freed and not overwritten yet."""
        try:
            count = self.fields.references(address)
        except LayoutError:
            return
        if not 0 < count < 1 << 31:
            raise BadData(
                f"the tensor at {address:#x} was freed: it has {count} references",
                why="its memory was not used again yet, so that its fields can still be read; they mean nothing",
            )

    # --- the report ------------------------------------------------------------------------------

    def report(self, address: int, label: str) -> TensorSection:
        """The tensor at ``address`` with its statistics. Raises BadData (no tensor, a freed one), MemoryFault."""
        return TensorDescription(self, self._session, address, label).section()

    def short(self, address: int) -> str:
        """``f32[4, 4] CPU``; the reason where it cannot be read."""
        try:
            return self._facts.read(address).short
        except GdbextError as error:
            return f"unknown ({error.what})"

    def facts(self, address: int) -> TensorFacts:
        """Raises BadData (no tensor, or a freed one), MemoryFault."""
        found = self._facts.read(address)
        if found.implementation != UNDEFINED_TENSOR:  # a static object, which counts no references
            self._check_alive(address)
        return found

    def contents(self, facts: TensorFacts) -> Contents:
        """The elements of a tensor that has them in memory. Raises BadData saying why there is nothing to read."""
        geometry = self._geometry(facts)
        keys = set(self._session.dispatch_keys.decode(facts.key_set))
        quantization = self.quantization(facts) if geometry.element.is_quantized else None
        return Contents(
            self._read, geometry, quantization, "Conjugate" in keys, "Negative" in keys, self._numpy, self._progress
        )

    def _read(self, address: int, size: int) -> bytes:
        if size < 1 << 16:
            return self.memory.read(address, size)
        return self._session.target.read(address, size)

    def _numpy(self) -> Any:
        """numpy, where the Python that runs us is not a debugger's and has it."""
        if self._session.target.debugger != "none":
            return None
        from gdbext.torch.tensors.numpy_statistics import import_numpy

        return import_numpy()

    def kind(self, facts: TensorFacts) -> TensorKind:
        """Where the elements are."""
        return kind_of(facts.implementation, self._session.dispatch_keys.decode(facts.key_set), facts.device)

    def _geometry(self, facts: TensorFacts) -> Geometry:
        kind = self.kind(facts)
        if kind.unreadable:
            raise NothingToRead(kind.unreadable)
        element = element_type(facts.dtype, self._element_sizes.get(facts.dtype, 0))
        if element is None:
            raise NothingToRead(f"how elements of {facts.dtype} are stored is not known")
        storage = self.fields.storage(facts.address)
        if kind.is_buffer and storage is not None:
            return Geometry(storage.data, (storage.size // element.size,), (1,), element)
        if facts.sizes is None or facts.strides is None:
            raise NothingToRead("its sizes are symbolic, or a method of its class computes them")
        offset = self.fields.storage_offset(facts.address)
        per_byte = element.packed // element.numbers
        start = (storage.data if storage is not None else 0) + offset * element.size // per_byte
        geometry = Geometry(start, facts.sizes, facts.strides, element)
        self._check(geometry, self.fields.numel(facts.address), offset)
        if geometry.numel:
            _check_storage(geometry, storage, offset)
        return geometry

    @staticmethod
    def _check(geometry: Geometry, numel: int, offset: int) -> None:
        """Raises BadData for metadata that does not hold together."""
        if min((*geometry.sizes, *geometry.strides, offset, 0)) < 0:
            raise _torn(f"sizes {list(geometry.sizes)}, strides {list(geometry.strides)}, offset {offset} cannot be")
        if geometry.numel != numel:
            raise _torn(f"sizes {list(geometry.sizes)} are not those of {numel} elements")

    def quantization(self, facts: TensorFacts) -> Quantization:
        """Raises BadData, MemoryFault, LayoutError."""
        return self._quantizers.read(facts.address)

    def _plain_values(self, address: int) -> Any:
        contents = self.contents(self.facts(address))
        if contents.geometry.numel > 1 << 20:
            raise BadData(f"{contents.geometry.numel} channels")
        return contents.values()

    def statistics(self, address: int) -> Statistics | None:
        """Of a tensor that has elements to read; None for any other."""
        try:
            return self.contents(self.facts(address)).statistics()
        except GdbextError:
            return None


def _check_storage(geometry: Geometry, storage: StorageReport | None, offset: int) -> None:
    """Raises BadData for elements that lie outside of the storage, NothingToRead where it has no memory."""
    if storage is None or not storage.data:
        raise NothingToRead("its storage has no memory")
    per_byte = geometry.element.packed // geometry.element.numbers
    inside = geometry.numel <= storage.size * per_byte if per_byte > 1 else fits(
        geometry, storage.data, storage.data + storage.size
    )
    if not inside:
        raise _torn(
            f"sizes {list(geometry.sizes)}, strides {list(geometry.strides)} and offset {offset} do not fit the "
            f"storage of {storage.size} bytes"
        )


def _torn(what: str) -> BadData:
    return BadData(what, why="it was read while the program changed it, or it was overwritten")


class TensorDescription:
    """One tensor, field by field: what cannot be read costs that field and is one of the problems."""

    def __init__(self, reporter: TensorReporter, session: Session, address: int, label: str) -> None:
        self._reporter = reporter
        self._fields = reporter.fields
        self._keys = session.dispatch_keys
        self._address = address
        self._label = label
        self._problems: list[str] = []
        self._notes: list[str] = []
        self._facts = reporter.facts(address)
        self._names = self._keys.decode(self._facts.key_set)
        self._kind = reporter.kind(self._facts)

    def section(self) -> TensorSection:
        """All of it."""
        facts, fields, address, field = self._facts, self._fields, self._address, self._field
        undefined = facts.implementation == UNDEFINED_TENSOR
        found = TensorSection(
            label=self._label,
            address=address,
            implementation=facts.implementation,
            python_type=field("Python object", self._python_type),
            sizes=self._shape(facts.sizes, "sizes_"),
            strides=self._shape(facts.strides, "strides_"),
            storage_offset=field("storage offset", lambda: fields.storage_offset(address)),
            dtype=facts.dtype,
            device=facts.device,
            layout=self._kind.layout or field("layout", self._kept_layout) or "unknown",
            keyset=DispatchKeySet(facts.key_set, self._names),
            numel=field("number of elements", self._numel),
            requires_grad=field("requires_grad", lambda: fields.requires_grad(address)),
            is_leaf=field("grad_fn", lambda: not fields.grad_node(address)),
            is_view=field("view", lambda: fields.is_view(address)),
            grad_fn=field("grad_fn", self._grad_fn),
            grad=field("grad", self._grad),
            version=field("version", lambda: fields.version(address)),
            names=None,
            contiguity=field("contiguity", lambda: fields.contiguity(address)) or (),
            conjugate="Conjugate" in self._names,
            negative="Negative" in self._names,
            storage=field("storage", lambda: fields.storage(address)),
            quantization=field("quantiser", self._quantization),
            wraps=(*self._wraps(), *self._python_wraps()),
            parts=tuple(self._parts()),
            notes=(),
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

    def _shape(self, stored: tuple[int, ...] | None, which: str) -> tuple[int | None, ...] | None:
        if stored is not None:
            return stored
        return self._field(which.rstrip("_"), lambda: self._fields.symbolic(self._address, which))

    def _numel(self) -> int | None:
        return self._fields.numel(self._address) if self._facts.sizes is not None else None

    def _kept_layout(self) -> str:
        """``SparseCsr`` is torch.sparse_csr."""
        layout = self._reporter.layout
        number = self._reporter.memory.u8(self._address + layout.struct(self._facts.implementation).offset("layout_"))
        names = {value: name for name, value in layout.enum("c10::Layout").items()}
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
        if found.name == "PyNode" and self._reporter.python is not None:
            return replace(found, name=self._reporter.python.type_name(self._fields.node_object(node)))
        return found

    def _grad(self) -> str | None:
        grad = self._fields.grad(self._address)
        if not grad or self._reporter.is_undefined(grad):
            return None
        return self._reporter.short(grad)

    def _python_type(self) -> str | None:
        found = self._fields.python_object(self._address)
        if not found or self._reporter.python is None:
            return None
        return self._reporter.python.type_name(found)

    # --- wrappers and parts ----------------------------------------------------------------------

    def _wraps(self) -> Iterator[Part]:
        """What a C++ wrapper or a Python subclass holds."""
        for member in self._kind.wrapped:
            address = self._field("wrapped tensor", lambda m=member: self._held(m))  # type: ignore[misc]
            if address:
                yield self._part(member.rstrip("_"), address)
        fake = self._field("fake device", lambda: self._fields.fake_device(self._address))
        if fake:
            self._notes.append(f"it stands for a tensor on {fake}")

    def _held(self, member: str) -> int:
        return self._fields.held(self._address, self._facts.implementation, member)

    def _python_wraps(self) -> Iterator[Part]:
        python, found = self._reporter.python, 0
        try:
            found = self._fields.python_object(self._address)
            if not found or python is None or python.type_name(found) in ("Tensor", "Parameter"):
                return
            for name, address in python.wrapped(found):
                yield self._part(name, address)
            for name in _TELLING_ATTRIBUTES:
                text = python.attribute_text(found, name)
                if text is not None:
                    self._notes.append(f"{name} is {text}")
        except GdbextError as error:
            self._problems.append(f"Python attributes: {error.what}")

    def _parts(self) -> Iterator[Part]:
        """The tensors that a sparse or nested one is made of, with their statistics."""
        for member in self._kind.parts:
            address = self._field(member.rstrip("_"), lambda m=member: self._held(m))  # type: ignore[misc]
            if address:
                yield self._part(member.rstrip("_"), address, True)

    def _part(self, name: str, address: int, statistics: bool = False) -> Part:
        sizes = None
        try:
            sizes = self._reporter.facts(address).sizes
        except GdbextError as error:
            self._problems.append(f"{name}: {error.what}")
        found = self._reporter.statistics(address) if statistics else None
        return Part(name, address, self._reporter.short(address), sizes, found)

    # --- elements --------------------------------------------------------------------------------

    def _with_elements(self, section: TensorSection) -> TensorSection:
        try:
            contents = self._reporter.contents(self._facts)
            statistics = contents.statistics()
            low, high = statistics.minimum, statistics.maximum
            histogram = None
            if low is not None and high is not None and contents.geometry.element.kind != "bool":
                histogram = contents.histogram(low, high)
            values = contents.values() if contents.geometry.numel <= VALUES_LIMIT else None
        except NothingToRead as reason:
            self._notes.append(f"nothing to read: {reason.what}")
            return section
        except GdbextError as error:
            self._problems.append(f"elements: {error.what}")
            return section
        return replace(section, statistics=statistics, histogram=histogram, values=values)
