"""Everything about one tensor: its fields, what it wraps, and what its elements are.

From a Python object to the TensorImpl that it stands for, and back to what a subclass wraps.

THPVariable (torch/csrc/autograd/python_variable.h) holds an ``at::Tensor``, in older versions a ``MaybeOwned`` of one,
right behind the object's header. Where exactly is not measured: a word counts if it is the address of a TensorImpl that
points back to this very object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from gdbext.cpython.objects.py_ref import PyRef, integer, text, type_name
from gdbext.errors import BadData, GdbextError
from gdbext.tools.tensor.contents import Contents, Geometry, NothingToRead, Progress, fits, no_progress
from gdbext.tools.tensor.elements import element_type
from gdbext.tools.tensor.numpy_statistics import import_numpy
from gdbext.tools.tensor.tensor_fields import QuantizerReader, TensorFields, TensorKind, kind_of
from gdbext.torch.assumed_symbols import UNDEFINED_TENSOR
from gdbext.torch.values.cpp_objects import ClassNames
from gdbext.torch.values.value_text import python_name

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.torch.state.tensor import TensorFacts
    from gdbext.torch.values.value_text import Quantization, Statistics, StorageReport


class TensorReporter:
    """Describes the tensors of one session."""

    def __init__(self, session: Session, progress: Progress = no_progress) -> None:
        """Prepare the readers. Raises NotTorch, LayoutError."""
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
    def python(self) -> PythonTensors:
        """Tensors as Python objects."""
        return PythonTensors(self.is_tensor, self.fields.python_object, self.fields.device_at)

    def is_tensor(self, address: int) -> bool:
        """True if there is a TensorImpl."""
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
        """``f32[4, 4] cpu``; the reason where it cannot be read."""
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
        if quantization:
            _check_channels(geometry, quantization)
        return Contents(
            self._read, geometry, quantization, "Conjugate" in keys, "Negative" in keys, self._numpy, self._progress
        )

    def _read(self, address: int, size: int) -> bytes:
        if size < 1 << 16:
            return self.memory.read(address, size)
        return self._session.target.memory.read(address, size)

    def _numpy(self) -> Any:
        """numpy, where the Python that runs us is not a debugger's and has it."""
        if self._session.target.debugger != "none":
            return None
        return import_numpy()

    def kind(self, facts: TensorFacts) -> TensorKind:
        """The kind of place where the elements are."""
        return kind_of(facts.implementation, self._session.dispatch_keys.decode(facts.key_set), facts.device)

    def _geometry(self, facts: TensorFacts) -> Geometry:
        kind = self.kind(facts)
        if kind.unreadable:
            raise NothingToRead(kind.unreadable)
        element = element_type(facts.dtype, self._element_sizes.get(facts.dtype, 0))
        if not element:
            raise NothingToRead(f"how elements of {facts.dtype} are stored is not known")
        storage = self.fields.storage(facts.address)
        if kind.is_buffer and storage:
            return Geometry(storage.data, (storage.size // element.size,), (1,), element)
        if facts.sizes is None or facts.strides is None:
            raise NothingToRead("its sizes are symbolic, or a method of its class computes them")
        offset = self.fields.storage_offset(facts.address)
        per_byte = element.packed // element.numbers
        start = (storage.data if storage else 0) + offset * element.size // per_byte
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
        """Read the quantiser. Raises BadData, MemoryFault, LayoutError."""
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
        """Statistics of a tensor that has elements to read, None for any other; a sample where there are more than
        ``limit``."""
        try:
            return self.contents(self.facts(address)).statistics(limit)
        except GdbextError:
            return None

    def values(self, address: int, limit: int) -> Any:
        """Values of a tensor that has elements to read, and at most ``limit`` of them; None for any other."""
        try:
            return self.contents(self.facts(address)).values_if_few(limit)
        except GdbextError:
            return None


def _check_storage(geometry: Geometry, storage: StorageReport | None, offset: int) -> None:
    """Raises BadData for elements that lie outside of the storage, NothingToRead where it has no memory."""
    if not storage or not storage.data:
        raise NothingToRead("its storage has no memory")
    per_byte = geometry.element.packed // geometry.element.numbers
    inside = (
        geometry.numel <= storage.size * per_byte
        if per_byte > 1
        else fits(geometry, storage.data, storage.data + storage.size)
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


def tensor_statistics(session: Session) -> Callable[[int], Statistics | None]:
    """The statistics of all elements of the tensor at an address. Raises NotTorch, LayoutError."""
    return TensorReporter(session).statistics


_WORDS = 6
"""Words behind the object's header among which the tensor is."""
_WRAPPED_LIMIT = 16
_ATTRIBUTE_LIMIT = 200

_DEVICE = "torch.device"
"""THPDevice holds a c10::Device right behind the object's header (torch/csrc/Device.h)."""

IsTensor = Callable[[int], bool]
"""There is a TensorImpl at the address."""
DeviceText = Callable[[int], str]
"""The c10::Device at an address as text."""
ObjectOf = Callable[[int], int]
"""The PyObject* that a TensorImpl has, 0 for none."""


class PythonTensors:
    """Reads the tensors behind Python objects."""

    def __init__(self, is_tensor: IsTensor, object_of: ObjectOf, device_text: DeviceText) -> None:
        self._is_tensor = is_tensor
        self._object_of = object_of
        self._device_text = device_text

    def tensor_of(self, value: PyRef) -> int | None:
        """The TensorImpl behind a Python object; None where it is no tensor. Raises MemoryFault, BadData."""
        for word in value.read(lambda python, _: python.memory.words(value.body, _WORDS)):
            if word and not word & 7 and self._belongs(word, value.address):
                return word
        return None

    def tensor_or_none(self, value: PyRef) -> int | None:
        """The same, and None where it cannot be read."""
        try:
            return self.tensor_of(value)
        except GdbextError:
            return None

    def _belongs(self, word: int, address: int) -> bool:
        try:
            return self._object_of(word) == address and self._is_tensor(word)  # cheap first: most words are no tensor
        except GdbextError:
            return False

    def wrapped(self, value: PyRef) -> Iterator[tuple[str, int]]:
        """(attribute, TensorImpl) of each tensor among a tensor's own attributes. Raises MemoryFault, BadData."""
        own = value.variables(_ATTRIBUTE_LIMIT)
        tensors = ((name, self.tensor_or_none(each)) for name, each in own.items())
        yield from islice(((name, tensor) for name, tensor in tensors if tensor is not None), _WRAPPED_LIMIT)
        own.checked()

    def attribute_text(self, value: PyRef, name: str) -> str | None:
        """A simple attribute of a tensor object for people: a str, an int, a device, or the class of what it is; None
        for none. Raises MemoryFault, BadData."""
        found = value[name]
        return None if found.is_absent else self.brief(found)

    def placements(self, value: PyRef) -> str | None:
        """The layout of a DTensor over its mesh (torch/distributed/tensor/_dtensor_spec.py); None for another one.
        Raises MemoryFault, BadData."""
        found = value["_spec"]["placements"]
        return None if found.is_absent else ", ".join(map(self._placement, found.elements().checked()))

    def _placement(self, value: PyRef) -> str:
        name, dimension = value.read(type_name).rpartition(".")[2], value["dim"]
        return name if dimension.is_absent else f"{name}({self.brief(dimension)})"

    def brief(self, value: PyRef) -> str:
        """A str, int or device as Python shows it, anything else by its class. Raises MemoryFault, BadData."""
        for read in (text, integer):
            try:
                return repr(value.read(read))
            except BadData:
                continue
        kind = value.read(type_name)
        if kind == _DEVICE:
            return self._device_text(value.body)
        return kind
