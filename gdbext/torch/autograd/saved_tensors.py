"""The tensors that a node has saved for its backward: what they are, and whether they were changed since.

Source: torch/csrc/autograd/saved_variable.{h,cpp}, 2.13.0. ``SavedVariable::unpack`` compares the version that it kept
with the tensor's counter, which a detached copy shares with the tensor that it was made of; where they differ, backward
will raise "one of the variables needed for gradient computation has been modified by an inplace operation".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gdbext.errors import BadData, GdbextError
from gdbext.model.sections.autograd_section import SavedTensor
from gdbext.process.struct_view import StructView
from gdbext.torch.autograd.nodes import NodeReader
from gdbext.torch.state.tensor import TensorReader
from gdbext.torch.symbols import UNDEFINED_TENSOR
from gdbext.torch.tensors.tensor_fields import TensorFields
from gdbext.torch.values.containers import vector_span

_SAVED = "torch::autograd::SavedVariable"
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

    def of(self, node: int) -> tuple[SavedTensor, ...]:
        """What the node has saved. Raises BadData, MemoryFault, LayoutError."""
        return tuple(self._all(node, self._members.get(self._nodes.name(node), {})))

    def _all(self, node: int, members: Mapping[str, int]) -> Iterator[SavedTensor]:
        for member, offset in members.items():
            name = member.removesuffix(_LIST).rstrip("_")
            if not member.endswith(_LIST):
                yield self._saved(name, node + offset)
                continue
            first, count = vector_span(self._nodes.memory, node + offset, self._shape.size)
            for index in range(min(count, _LIST_LIMIT)):
                yield self._saved(f"{name}[{index}]", first + index * self._shape.size)

    def _saved(self, name: str, address: int) -> SavedTensor:
        view = StructView(self._nodes.memory, address, self._shape)
        if view.u8("was_default_constructed_") > 1 or view.u8("saved_original_") > 1:
            raise BadData(f"there is no SavedVariable at {address:#x}")
        if view.pointer("hooks_"):
            return SavedTensor(name, "packed by saved-tensor hooks", None, None)
        if view.u8("was_default_constructed_"):
            return SavedTensor(name, "none", None, None)
        tensor = self._tensors.read(view.pointer("data_"))
        if tensor.implementation == UNDEFINED_TENSOR:
            return SavedTensor(name, "released", None, None)
        return SavedTensor(name, tensor.short, view.u32("saved_version_"), self._version(tensor.address))

    def _version(self, tensor: int) -> int | None:
        try:
            return self._fields.version(tensor)
        except GdbextError:
            return None
