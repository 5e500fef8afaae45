"""Everything about one tensor: its fields, what it wraps, and what its elements are."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from gdbext.errors import BadData, GdbextError
from gdbext.torch.symbols import UNDEFINED_TENSOR
from gdbext.torch.tensors.contents import Contents, Geometry, NothingToRead, Progress, fits, no_progress
from gdbext.torch.tensors.element_type import element_type
from gdbext.torch.tensors.python_tensor import PythonTensors
from gdbext.torch.tensors.quantizers import QuantizerReader
from gdbext.torch.tensors.tensor_fields import TensorFields
from gdbext.torch.tensors.tensor_kinds import TensorKind, kind_of
from gdbext.torch.tensors.vtables import ClassNames
from gdbext.torch.values.dtype import python_name

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.statistics import Statistics
    from gdbext.model.tensor_parts import Quantization, StorageReport
    from gdbext.torch.state.tensor import TensorFacts



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
        return PythonTensors(runtime, self.is_tensor, self.fields.python_object, self.fields.device_at)

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

    # --- one tensor ------------------------------------------------------------------------------

    def short(self, address: int) -> str:
        """``f32[4, 4] CPU``; the reason where it cannot be read."""
        try:
            return self._facts.read(address).short
        except GdbextError as error:
            return f"unknown ({error.what})"

    def facts(self, address: int) -> TensorFacts:
        """Raises BadData (no tensor, or a freed one), MemoryFault."""
        return self._facts.read_alive(address)

    def contents(self, facts: TensorFacts) -> Contents:
        """The elements of a tensor that has them in memory. Raises BadData saying why there is nothing to read."""
        geometry = self._geometry(facts)
        keys = set(self._session.dispatch_keys.decode(facts.key_set))
        quantization = self.quantization(facts) if geometry.element.is_quantized else None
        if quantization is not None:
            _check_channels(geometry, quantization)
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
        facts = self.facts(address)
        if facts.dtype.startswith("q"):
            raise BadData(f"what should be scales at {address:#x} is a tensor of {facts.dtype}")
        contents = self.contents(facts)
        if contents.geometry.numel > 1 << 20:
            raise BadData(f"{contents.geometry.numel} channels")
        return contents.values()

    def statistics(self, address: int, limit: int = 0) -> Statistics | None:
        """Of a tensor that has elements to read, None for any other; a sample where there are more than ``limit``."""
        try:
            return self.contents(self.facts(address)).statistics(limit)
        except GdbextError:
            return None

    def values(self, address: int, limit: int) -> Any:
        """Of a tensor that has elements to read, and at most ``limit`` of them; None for any other."""
        try:
            return self.contents(self.facts(address)).values_if_few(limit)
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


def _check_channels(geometry: Geometry, how: Quantization) -> None:
    """Raises BadData where there are not as many scales and zero points as channels."""
    if how.axis is None:
        return
    channels = geometry.sizes[how.axis] if how.axis < len(geometry.sizes) else -1
    if not channels == len(how.scale) == len(how.zero_point):
        raise _torn(f"{len(how.scale)} scales along dimension {how.axis} do not fit sizes {list(geometry.sizes)}")


def _torn(what: str) -> BadData:
    return BadData(what, why="it was read while the program changed it, or it was overwritten")
