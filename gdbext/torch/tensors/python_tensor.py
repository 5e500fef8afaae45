"""From a Python object to the TensorImpl that it stands for, and back to what a subclass wraps.

THPVariable (torch/csrc/autograd/python_variable.h) holds an ``at::Tensor``, in older versions a ``MaybeOwned`` of one,
right behind the object's header. Where exactly is not measured: a word counts if it is the address of a TensorImpl that
points back to this very object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gdbext.cpython.objects.slot_attributes import slot_attributes
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import BadData, GdbextError

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
    """Tensors of one Python."""

    def __init__(
        self, runtime: PythonRuntime, is_tensor: IsTensor, object_of: ObjectOf, device_text: DeviceText
    ) -> None:
        self._runtime = runtime
        self._is_tensor = is_tensor
        self._object_of = object_of
        self._device_text = device_text

    def tensor_of(self, address: int) -> int | None:
        """The TensorImpl behind a Python object; None where it is no tensor. Raises MemoryFault, BadData."""
        start = address + self._runtime.layout.size("PyObject")
        for word in self._runtime.memory.words(start, _WORDS):
            if word and not word & 7 and self._belongs(word, address):
                return word
        return None

    def _belongs(self, word: int, address: int) -> bool:
        try:
            return self._object_of(word) == address and self._is_tensor(word)  # cheap first: most words are no tensor
        except GdbextError:
            return False

    def type_name(self, address: int) -> str:
        """The name of an object's class. Raises MemoryFault, BadData."""
        return self._runtime.objects.type_of(address).name

    def wrapped(self, address: int) -> Iterator[tuple[str, int]]:
        """(attribute, TensorImpl) of each tensor among a tensor object's own attributes."""
        count = 0
        for number, (name, value) in enumerate(self._attributes(address)):
            if number >= _ATTRIBUTE_LIMIT or count >= _WRAPPED_LIMIT:
                return
            tensor = self._quietly(value)
            if tensor is not None:
                count += 1
                yield self._runtime.objects.text(name, 64), tensor

    def _quietly(self, value: int) -> int | None:
        try:
            return self.tensor_of(value)
        except GdbextError:
            return None

    def _attributes(self, address: int) -> Iterator[tuple[int, int]]:
        """(name, value) of those in its dict and in the ``__slots__`` of its class."""
        yield from self._runtime.dicts.attributes(address)
        yield from slot_attributes(self._runtime.objects, address)

    def attribute(self, address: int, name: str) -> int | None:
        """An attribute of an object, None where it has none of that name. Raises MemoryFault, BadData."""
        equals = self._runtime.objects.text_equals
        return next((value for key, value in self._attributes(address) if equals(key, name)), None)

    def attribute_text(self, address: int, name: str) -> str | None:
        """A simple attribute of a tensor object for people: a str, an int, a device, or the class of what it is."""
        found = self.attribute(address, name)
        return None if found is None else self.brief(found)

    def placements(self, address: int) -> str | None:
        """How a DTensor is laid out over its mesh (torch/distributed/tensor/_dtensor_spec.py); None for another one."""
        specification = self.attribute(address, "_spec")
        found = self.attribute(specification, "placements") if specification else None
        if not found:
            return None
        return ", ".join(self._placement(each) for each in self._runtime.objects.tuple_items(found))

    def _placement(self, address: int) -> str:
        dimension = self.attribute(address, "dim")
        name = self.type_name(address).rpartition(".")[2]
        return name if dimension is None else f"{name}({self.brief(dimension)})"

    def brief(self, address: int) -> str:
        """A str, int or device as Python shows it, anything else by its class."""
        objects = self._runtime.objects
        for read in (objects.text, objects.integer):
            try:
                return repr(read(address))
            except BadData:
                continue
        kind = objects.type_of(address).name
        if kind == _DEVICE:
            return self._device_text(address + self._runtime.layout.size("PyObject"))
        return kind
