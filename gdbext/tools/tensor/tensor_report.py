"""Reads tensors by the address of a TensorImpl or of a Python object: fields, elements, wrapped tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from gdbext.cpython.objects.py_ref import PyRef, integer, text, type_name
from gdbext.errors import BadData, GdbextError
from gdbext.tools.tensor.contents import Contents, Geometry, NothingToRead, Progress
from gdbext.tools.tensor.elements import element_type, span_of
from gdbext.tools.tensor.statistics import import_numpy
from gdbext.tools.tensor.tensor_fields import TensorFields, TensorKind, kind_of
from gdbext.torch.assumed_symbols import UNDEFINED_TENSOR
from gdbext.torch.values.cpp_objects import ClassNames
from gdbext.torch.values.value_text import Quantization, Statistics, StorageReport, python_name

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.torch.state.tensor import TensorFacts


class TensorReporter:
    """Describes the tensors of one session. ``address`` is that of a TensorImpl."""

    def __init__(self, session: Session, progress: Progress = lambda _: None) -> None:
        """Prepare the readers; ``progress`` is told how far a long reading has got. Raises NotTorch, LayoutError."""
        self._session = session
        self.memory = session.memory
        self.layout = session.layout
        self._progress = progress
        self._classes = ClassNames(session.memory, session.symbolizer)
        self._facts = session.tensors
        self.fields = TensorFields(session.memory, session.layout, self._classes)
        sizes = session.layout.dispatch("scalar_types")
        self._element_sizes = {python_name(name): int(size) for name, size in sizes}

    def is_tensor(self, address: int) -> bool:
        """True if there is a TensorImpl at ``address``."""
        with suppress(GdbextError):
            self._facts.key_set(address)
            return True
        return False

    def grad(self, address: int) -> int:
        """The TensorImpl of ``tensor.grad``; 0 if that is None, which is stored as a null pointer or as the undefined
        tensor (c10/core/UndefinedTensorImpl.h)."""
        grad = self.fields.grad(address)
        return 0 if not grad or self._facts.read(grad).implementation == UNDEFINED_TENSOR else grad

    def short(self, address: int) -> str:
        """``f32[4, 4] cpu``; the reason if it cannot be read."""
        try:
            return self._facts.read(address).short
        except GdbextError as error:
            return f"unknown ({error.what})"

    def facts(self, address: int) -> TensorFacts:
        """The tensor's main fields. Raises BadData (no tensor, a freed one), MemoryFault."""
        return self._facts.read_alive(address)

    def quantization(self, address: int) -> Quantization:
        """The quantizer of a quantized tensor. Raises BadData, MemoryFault, LayoutError."""
        return self.fields.quantizer(address, self._plain_values)

    def contents(self, facts: TensorFacts) -> Contents:
        """The elements of a tensor. Raises NothingToRead if there are none in memory, BadData, MemoryFault."""
        geometry = self._geometry(facts)
        keys = set(self._session.dispatch_keys.decode(facts.key_set))
        quantization = self.quantization(facts.address) if geometry.element.is_quantized else None
        if quantization:
            check_channels(geometry, quantization)

        def numpy() -> Any:  # not within a debugger, whose Python may load a numpy that is built for another one
            return import_numpy() if self._session.target.debugger == "none" else None

        return Contents(
            self._read, geometry, quantization, "Conjugate" in keys, "Negative" in keys, numpy, self._progress
        )

    def _plain_values(self, address: int) -> Any:
        """The values of a quantizer's tensor of scales or zero points. Raises BadData: such a tensor is not quantized
        itself (a damaged one could refer to itself) and has at most 1 << 20 elements."""
        facts = self.facts(address)
        if facts.dtype.startswith("q"):
            raise BadData(f"expected scales at {address:#x}, but found a tensor of {facts.dtype}")
        contents = self.contents(facts)
        if contents.geometry.numel > 1 << 20:
            raise BadData(f"{contents.geometry.numel} channels")
        return contents.values()

    def _read(self, address: int, size: int) -> bytes:
        """Read memory, large pieces past the cache. Raises MemoryFault."""
        if size < 1 << 16:
            return self.memory.read(address, size)
        return self._session.target.memory.read(address, size)

    def kind(self, facts: TensorFacts) -> TensorKind:
        """How the tensor is stored, and whether it has elements to read."""
        return kind_of(facts.implementation, self._session.dispatch_keys.decode(facts.key_set), facts.device)

    def _geometry(self, facts: TensorFacts) -> Geometry:
        """The layout of the elements. Raises NothingToRead, BadData for inconsistent metadata, MemoryFault."""
        kind = self.kind(facts)
        if kind.unreadable:
            raise NothingToRead(kind.unreadable)
        element = element_type(facts.dtype, self._element_sizes.get(facts.dtype, 0))
        if not element:
            raise NothingToRead(f"the storage format of {facts.dtype} is unknown")
        storage = self.fields.storage(facts.address)
        if kind.is_buffer and storage:
            return Geometry(storage.data, (storage.size // element.size,), (1,), element)
        if facts.sizes is None or facts.strides is None:
            raise NothingToRead("its sizes are symbolic, or a method of its class computes them")
        tensor = self.fields.tensor(facts.address)
        offset = tensor.storage_offset_
        start = (storage.data if storage else 0) + offset * element.size // (element.packed // element.numbers)
        geometry = Geometry(start, facts.sizes, facts.strides, element)
        check_shape(geometry, tensor.numel_, offset)
        if geometry.numel:
            check_storage(geometry, storage, offset)
        return geometry

    def statistics(self, address: int, limit: int = 0) -> Statistics | None:
        """Statistics of a tensor, of a sample if it has more than ``limit`` elements; None without readable ones."""
        with suppress(GdbextError):
            return self.contents(self.facts(address)).statistics(limit)
        return None

    def values(self, address: int, limit: int) -> Any:
        """Values of a tensor that has at most ``limit`` elements to read; None for any other."""
        with suppress(GdbextError):
            return self.contents(self.facts(address)).values_if_few(limit)
        return None

    def tensor_of(self, value: PyRef) -> int | None:
        """The TensorImpl behind a Python object; None if it is no tensor. Raises MemoryFault, BadData.

        THPVariable (torch/csrc/autograd/python_variable.h) holds an ``at::Tensor``, in older versions a ``MaybeOwned``
        of one, near the object's header: the word that is the address of a TensorImpl that points back to the object.
        """
        for word in value.read(lambda python, _: python.memory.words(value.body, 6)):
            with suppress(GdbextError):
                is_candidate = word and not word & 7 and self.fields.python_object(word) == value.address
                if is_candidate and self.is_tensor(word):  # the cheap test first: most words are no tensor
                    return word
        return None

    def tensor_or_none(self, value: PyRef) -> int | None:
        """The TensorImpl behind a Python object; None if it is no tensor, or cannot be read."""
        with suppress(GdbextError):
            return self.tensor_of(value)
        return None

    def wrapped(self, value: PyRef) -> Iterator[tuple[str, int]]:
        """(attribute, TensorImpl) of the first 16 tensors among a tensor's own attributes, which a Python subclass
        wraps. Raises MemoryFault, BadData."""
        own = value.variables(200)
        tensors = ((name, self.tensor_or_none(attribute)) for name, attribute in own.items())
        yield from islice(((name, tensor) for name, tensor in tensors if tensor is not None), 16)
        own.checked()

    def placements(self, value: PyRef) -> str | None:
        """The layout of a DTensor over its mesh (torch/distributed/tensor/_dtensor_spec.py), ``Shard(0), Replicate``;
        None for another tensor. Raises MemoryFault, BadData."""
        placements = value["_spec"]["placements"]
        if placements.is_absent:
            return None
        texts = []
        for placement in placements.elements().checked():
            dimension = placement["dim"]
            arguments = "" if dimension.is_absent else f"({self.brief(dimension)})"
            texts.append(placement.read(type_name).rpartition(".")[2] + arguments)
        return ", ".join(texts)

    def brief(self, value: PyRef) -> str:
        """A str, int or device as Python shows it, anything else by its class. Raises MemoryFault, BadData."""
        for read in (text, integer):
            with suppress(BadData):
                return repr(value.read(read))
        kind = value.read(type_name)
        if kind == "torch.device":  # a c10::Device right behind the object's header (torch/csrc/Device.h)
            return self.fields.device_at(value.body)
        return kind


_WHY = "it was read while the program changed it, or it was overwritten"


def check_shape(geometry: Geometry, numel: int, offset: int) -> None:
    """Raises BadData for negative sizes, strides or offset (in elements), or sizes that are not those of ``numel``
    elements, the number that the tensor stores."""
    sizes, strides = list(geometry.sizes), list(geometry.strides)
    if min((*sizes, *strides, offset, 0)) < 0:
        raise BadData(f"sizes {sizes}, strides {strides}, offset {offset} are impossible", why=_WHY)
    if geometry.numel != numel:
        raise BadData(f"sizes {sizes} do not give {numel} elements", why=_WHY)


def check_storage(geometry: Geometry, storage: StorageReport | None, offset: int) -> None:
    """Raises BadData for elements that lie outside of the storage, NothingToRead if it has no memory. ``offset``: the
    tensor's storage offset in elements, for the message."""
    if not storage or not storage.data:
        raise NothingToRead("its storage has no memory")
    element = geometry.element
    per_byte = element.packed // element.numbers
    if per_byte > 1:
        is_inside = geometry.numel <= storage.size * per_byte
    else:
        end = geometry.address + span_of(geometry.dimensions) * element.size
        is_inside = not geometry.numel or (storage.data <= geometry.address and end <= storage.data + storage.size)
    if not is_inside:
        shape = f"sizes {list(geometry.sizes)}, strides {list(geometry.strides)} and offset {offset}"
        raise BadData(f"{shape} do not fit the storage of {storage.size} bytes", why=_WHY)


def check_channels(geometry: Geometry, quantization: Quantization) -> None:
    """Raises BadData if there are not as many scales and zero points as channels."""
    axis, scales, sizes = quantization.axis, len(quantization.scale), geometry.sizes
    if axis is None or (axis < len(sizes) and {sizes[axis], len(quantization.zero_point)} == {scales}):
        return
    raise BadData(f"{scales} scales along dimension {axis} do not fit sizes {list(sizes)}", why=_WHY)


def tensor_statistics(session: Session) -> Callable[[int], Statistics | None]:
    """The statistics of all elements of the tensor at an address. Raises NotTorch, LayoutError."""
    return TensorReporter(session).statistics
