"""Nodes of autograd's graph: names, numbers, edges.

Sources: torch/csrc/autograd/function.h and node.h, edge.h, python_function.h, functions/accumulate_grad.h,
anomaly_mode.h, 2.13.0. A field that the layout lacks is unknown, and so is one that cannot be read.
"""

from __future__ import annotations

from gdbext.engine.layouts.layout import Layout
from gdbext.engine.process.memory import Memory
from gdbext.engine.record import Record
from gdbext.errors import BadData
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_objects import ClassNames

NODE = "torch::autograd::Node"
_EDGE = "torch::autograd::Edge"
_GENERATED = "torch::autograd::generated::"
PYTHON_NODE = "torch::autograd::PyNode"
ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"
_CLASSES = {PYTHON_NODE, ACCUMULATE_GRAD, "torch::autograd::CopySlices"}
_FAMILIES = (_GENERATED, "torch::autograd::CppNode<")
_EDGE_LIMIT = 10_000
"""Edges of one node: a node that stacks tensors has one for each of them."""


class Edge(Record):
    """``node`` is 0 where no gradient is passed on."""

    node: int
    input_nr: int


def node_object(memory: Memory, layout: Layout, address: int) -> int:
    """The PyObject* of a PyNode: in the slot that all nodes have for it since 2.13, before that its first own member.

    Raises LayoutError, MemoryFault.
    """
    node = layout.struct(NODE)
    slot = node.fields.get("pyobj_slot_")
    if slot is None:
        return memory.u64(address + node.size)
    return memory.u64(address + slot.offset + layout.struct("c10::impl::PyObjectSlot").offset("pyobj_")) & ~7


class NodeReader:
    """Reads the nodes of one torch."""

    def __init__(self, memory: Memory, layout: Layout, classes: ClassNames) -> None:
        """Prepare the reader. Raises LayoutError."""
        self.memory = memory
        self.layout = layout
        self._classes = classes
        self._node = layout.struct(NODE)
        self._edge = layout.struct(_EDGE)

    def class_of(self, address: int) -> str:
        """The node's C++ class. Raises BadData where there is no node, MemoryFault."""
        names = [name for name in self._classes.of(address) if not name.startswith("std::")]
        if not names:
            raise BadData(f"there is no autograd node at {address:#x}")
        return names[0]

    def is_node(self, address: int) -> bool:
        """An object of one of the classes of which most nodes are. Raises MemoryFault."""
        return any(name in _CLASSES or name.startswith(_FAMILIES) for name in self._classes.of(address))

    def name(self, address: int) -> str:
        """The name as ``grad_fn.name()`` has it, but for nodes that Python defines, which their class names. Raises as
        class_of."""
        name = self.class_of(address)
        return name[len(_GENERATED) :] if name.startswith(_GENERATED) else name

    def sequence_nr(self, address: int) -> int:
        """The number that it got when it was made; AccumulateGrad has the highest there is. Raises LayoutError."""
        return self._u64(address, "sequence_nr_")

    def topological_nr(self, address: int) -> int:
        """The length of the longest path to a leaf."""
        return self._u64(address, "topological_nr_")

    def thread_id(self, address: int) -> int:
        """The thread that made it, by RecordFunction's own count of threads."""
        return self._u64(address, "thread_id_")

    def anomaly_metadata(self, address: int) -> int:
        """Address of its AnomalyMetadata; 0 without one."""
        return self._u64(address, "anomaly_metadata_")

    def member(self, address: int, name: str) -> int:
        """Address of a member. Raises LayoutError."""
        return address + self._node.offset(name)

    def variable(self, address: int) -> int:
        """The TensorImpl of an AccumulateGrad, its first member behind those of Node."""
        return self.memory.u64(address + self._node.size)

    def python_object(self, address: int) -> int:
        """The object of a PyNode, a node that Python code defines."""
        return node_object(self.memory, self.layout, address)

    def edges(self, address: int, limit: int = _EDGE_LIMIT) -> tuple[Edge, ...]:
        """``next_functions``. Raises BadData for a vector that makes no sense, MemoryFault, LayoutError."""
        first, count = vector_span(self.memory, self.member(address, "next_edges_"), self._edge.size, limit)
        function, number = self._edge.offset("function"), self._edge.offset("input_nr")
        places = (first + index * self._edge.size for index in range(count))
        return tuple(Edge(self.memory.u64(at + function), self.memory.u32(at + number)) for at in places)

    def _u64(self, address: int, name: str) -> int:
        return self.memory.u64(address + self._node.offset(name))
