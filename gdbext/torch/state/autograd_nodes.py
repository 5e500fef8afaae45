"""Nodes of autograd's graph: names, numbers, edges.

Sources: torch/csrc/autograd/function.h and node.h, edge.h, python_function.h, functions/accumulate_grad.h,
anomaly_mode.h, 2.13.0. A field that the layout lacks is unknown, and so is one that cannot be read.
"""

from __future__ import annotations

from gdbext.engine.layouts.declarations import Space
from gdbext.engine.layouts.layout import Layout
from gdbext.engine.process.memory import Memory
from gdbext.engine.record import Record
from gdbext.errors import BadData
from gdbext.torch.structures import Edge, Node
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_objects import ClassNames

_GENERATED = "torch::autograd::generated::"
PYTHON_NODE = "torch::autograd::PyNode"
ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"
_CLASSES = {PYTHON_NODE, ACCUMULATE_GRAD, "torch::autograd::CopySlices"}
_FAMILIES = (_GENERATED, "torch::autograd::CppNode<")
_EDGE_LIMIT = 10_000
"""Edges of one node: a node that stacks tensors has one for each of them."""


class FoundEdge(Record):
    """``node`` is 0 where no gradient is passed on."""

    node: int
    input_nr: int


def node_object(space: Space, address: int) -> int:
    """The PyObject* of a PyNode: in the slot that all nodes have for it since 2.13, before that its first own member.

    Raises LayoutError, MemoryFault.
    """
    node = Node(space, address)
    return node.pyobj_slot_.pyobj_ & ~7 if node.has(Node.pyobj_slot_) else space.memory.u64(address + Node.size(space))


class NodeReader:
    """Reads the nodes of one torch."""

    def __init__(self, memory: Memory, layout: Layout, classes: ClassNames) -> None:
        """Prepare the reader. Raises LayoutError."""
        self.memory = memory
        self.layout = layout
        self.space = Space(memory, layout)
        self._classes = classes
        self._size = Node.size(self.space)

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
        return self.node(address).sequence_nr_

    def topological_nr(self, address: int) -> int:
        """The length of the longest path to a leaf."""
        return self.node(address).topological_nr_

    def thread_id(self, address: int) -> int:
        """The thread that made it, by RecordFunction's own count of threads."""
        return self.node(address).thread_id_

    def anomaly_metadata(self, address: int) -> int:
        """Address of its AnomalyMetadata; 0 without one."""
        return self.node(address).anomaly_metadata_

    def node(self, address: int) -> Node:
        """The members of the node there."""
        return Node(self.space, address)

    def variable(self, address: int) -> int:
        """The TensorImpl of an AccumulateGrad, its first member behind those of Node."""
        return self.memory.u64(address + self._size)

    def python_object(self, address: int) -> int:
        """The object of a PyNode, a node that Python code defines."""
        return node_object(self.space, address)

    def edges(self, address: int, limit: int = _EDGE_LIMIT) -> tuple[FoundEdge, ...]:
        """``next_functions``. Raises BadData for a vector that makes no sense, MemoryFault, LayoutError."""
        first, count = vector_span(self.memory, self.node(address).next_edges_, Edge.size(self.space), limit)
        return tuple(FoundEdge(edge.function, edge.input_nr) for edge in Edge.array(self.space, first, count))
