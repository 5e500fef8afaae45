"""The tensors that a node has saved for its backward: what they are, and whether they were changed since.

Source: torch/csrc/autograd/saved_variable.{h,cpp}, 2.13.0. ``SavedVariable::unpack`` compares the version that it kept
with the tensor's counter, which a detached copy shares with the tensor that it was made of; where they differ, backward
will raise "one of the variables needed for gradient computation has been modified by an inplace operation".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gdbext.errors import BadData, GdbextError
from gdbext.model.sections.autograd_section import NOTHING_SAVED, SavedTensor
from gdbext.process.struct_view import StructView
from gdbext.torch.autograd.nodes import PYTHON_NODE, NodeReader
from gdbext.torch.state.tensor import TensorReader
from gdbext.torch.symbols import UNDEFINED_TENSOR
from gdbext.torch.tensors.tensor_fields import TensorFields
from gdbext.torch.values.containers import vector_span

_SAVED = "torch::autograd::SavedVariable"
PYTHON_FUNCTION = "THPFunction"
"""The object of a torch.autograd.Function (torch/csrc/autograd/python_function.h)."""
_NAMES = {"saved_variables[]": "saved_tensors"}
_LIST = "[]"
_LIST_LIMIT = 64
Members = Mapping[str, Mapping[str, int]]
"""Class → member → offset; the name of a vector ends in "[]"."""


class SavedTensorReader:
    """Reads them where ``members`` has the node's class."""

    def __init__(self, nodes: NodeReader, members: Members, tensors: TensorReader, fields: TensorFields) -> None:
        """Raises LayoutError."""
        self._nodes = nodes
        self._members = members
        self._tensors = tensors
        self._fields = fields
        self._shape = nodes.layout.struct(_SAVED)

    def of(self, node: int) -> tuple[SavedTensor, ...] | None:
        """What the node has saved, None where that is not known of its class. Raises BadData, MemoryFault,
        LayoutError."""
        members = self._members_of(node)
        return None if members is None else tuple(self._saved(name, at) for name, at in self._places(*members))

    def stale(self, node: int) -> tuple[SavedTensor, ...]:
        """Those that were modified in place since. Raises as ``of``."""
        members = self._members_of(node)
        places = self._places(*members) if members is not None else ()
        return tuple(self._saved(name, at) for name, at in places if self._is_stale(at))

    def _members_of(self, node: int) -> tuple[int, Mapping[str, int]] | None:
        """Where the members are that are saved tensors: the object, and their offsets in it."""
        name = self._nodes.name(node)
        if name == PYTHON_NODE:
            members = self._members.get(PYTHON_FUNCTION)
            return (self._nodes.python_object(node), members) if members is not None else None
        return node, self._members.get(name, {})

    def _places(self, base: int, members: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """Name and address of each."""
        for member, offset in members.items():
            name = _NAMES.get(member, member.removesuffix(_LIST).rstrip("_"))
            if not member.endswith(_LIST):
                yield name, base + offset
                continue
            first, count = vector_span(self._nodes.memory, base + offset, self._shape.size)
            for index in range(min(count, _LIST_LIMIT)):
                yield f"{name}[{index}]", first + index * self._shape.size

    def _is_stale(self, address: int) -> bool:
        view = StructView(self._nodes.memory, address, self._shape)
        tensor = view.pointer("data_")
        if not tensor or view.pointer("hooks_") or view.u8("was_default_constructed_"):
            return False
        kept, now = view.u32("saved_version_"), self._version(tensor)
        return now is not None and now != kept and self._saved("", address).is_stale

    def _saved(self, name: str, address: int) -> SavedTensor:
        view = StructView(self._nodes.memory, address, self._shape)
        if view.u8("was_default_constructed_") > 1 or view.u8("saved_original_") > 1:
            raise BadData(f"there is no SavedVariable at {address:#x}")
        if view.pointer("hooks_"):
            return SavedTensor(name, "packed by saved-tensor hooks", None, None)
        if view.u8("was_default_constructed_"):
            return SavedTensor(name, NOTHING_SAVED, None, None)
        tensor = self._tensors.read(view.pointer("data_"))
        if tensor.implementation == UNDEFINED_TENSOR:
            return SavedTensor(name, "released", None, None)
        return SavedTensor(name, tensor.short, view.u32("saved_version_"), self._version(tensor.address))

    def _version(self, tensor: int) -> int | None:
        try:
            return self._fields.version(tensor)
        except GdbextError:
            return None
