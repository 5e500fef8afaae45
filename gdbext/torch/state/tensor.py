"""Tensors and the nodes of autograd's graph that they come from, as they are in memory.

A tensor's key set, shape, dtype and device are read from its ``c10::TensorImpl`` (c10/core/TensorImpl.h), names,
numbers and edges of nodes by torch/csrc/autograd/function.h and node.h, edge.h, python_function.h,
functions/accumulate_grad.h, anomaly_mode.h, 2.13.0. A field that the layout lacks, or that cannot be read, is unknown.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, LayoutError
from gdbext.torch.assumed_symbols import UNDEFINED_TENSOR
from gdbext.torch.structures import Edge, Node, SizesAndStrides, StorageImpl, TensorImpl
from gdbext.torch.values.containers import optional_shape, vector_span
from gdbext.torch.values.cpp_objects import ClassNames, strong_references
from gdbext.torch.values.key_names import KeyNames
from gdbext.torch.values.value_text import device_text, python_name, short_name

_SIZE_AND_STRIDE = 16
"""Bytes of both, of one dimension."""
_SAMPLES, _SAMPLE = 4, 512
"""Number of places of a tensor at which its numbers are sampled, and how many are sampled there."""


class TensorFacts(NamedTuple):
    """A tensor as its TensorImpl describes it."""

    address: int
    """Address of the TensorImpl."""
    implementation: str
    """Its C++ class, "c10::TensorImpl" for an ordinary one."""
    key_set: int
    """The bits of its DispatchKeySet."""
    sizes: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    """Both are None if they are symbolic, or computed by a method."""
    dtype: str
    """The name as in torch.float32: "float32"."""
    device: str | None
    backend: str
    """The key of the highest backend in the key set: "CPU", "Meta", "SparseCUDA"; "" for none."""

    @property
    def short(self) -> str:
        """``f32[4, 4] cpu``."""
        if self.implementation == UNDEFINED_TENSOR:
            return "undefined"
        shape = "?" if self.sizes is None else ", ".join(map(str, self.sizes))
        return f"{short_name(self.dtype)}[{shape}] {self.place}".rstrip()

    @property
    def place(self) -> str:
        """The device as torch.device prints it; the key of the backend if that says more: ``SparseCPU``."""
        kind, backend = (self.device or "").partition(":")[0], self.backend.lower()
        if kind:
            return self.backend if backend != kind and backend.endswith(kind) else self.device or ""
        return backend if backend in ("cpu", "cuda", "meta") else self.backend


class TensorReader:
    """Reads tensors. Raises LayoutError at construction when the layout lacks a structure."""

    def __init__(self, memory: Memory, layout: Layout, symbolizer: Symbolizer, keys: KeyNames) -> None:
        self._memory = memory
        self._keys = keys
        self._layout = layout
        self._space = Space(memory, layout)
        self._impl = TensorImpl.shape(layout)
        self._inline = SizesAndStrides.inlineStorage_.field(layout).size // _SIZE_AND_STRIDE
        self._dtypes = [python_name(name) for name, _size in layout.dispatch("scalar_types")]
        self._devices = {number: name for name, number in layout.renamed_enum("c10::DeviceType").items()}
        self._device_shape = optional_shape(layout, "c10::Device")
        self._backends = layout.constant("keyset.backend_functionality_keys")
        self._classes = ClassNames(memory, symbolizer)

    def key_set(self, address: int) -> int:
        """The key set of the TensorImpl at ``address``. Raises BadData when it is not a tensor, MemoryFault."""
        self._class_of(address)
        return self._keyset(address)

    def read(self, address: int) -> TensorFacts:
        """The TensorImpl at ``address``. Raises BadData when it is not a tensor, MemoryFault."""
        implementation = self._class_of(address)
        bits = self._keyset(address)
        raw = self._memory.read(address, self._impl.size)
        backend = self._keys.highest_key(bits & self._backends)
        sizes, strides = self._stored_shape(address, raw)
        return TensorFacts(
            address=address,
            implementation=implementation,
            key_set=bits,
            sizes=sizes,
            strides=strides,
            dtype=self.dtype(address),
            device=self._device(address),
            backend="" if backend.endswith("Undefined") else backend,
        )

    def read_alive(self, address: int) -> TensorFacts:
        """Read as ``read`` does. Raises BadData also for a tensor that was freed and not overwritten yet."""
        facts = self.read(address)
        if facts.implementation != UNDEFINED_TENSOR:  # a static object, which counts no references
            with suppress(LayoutError):
                count = strong_references(self._space, address)
                if not 0 < count < 1 << 31:
                    raise BadData(
                        f"the tensor at {address:#x} was freed: it has {count} references",
                        why="its memory was not reused yet, so its fields can still be read; they mean nothing",
                    )
        return facts

    def subnormal_share(self, address: int) -> float:
        """The share (0 to 1) of subnormal numbers in a sample of the elements of the TensorImpl at ``address``; 0 if
        they are not in this process's memory, or not floating-point numbers. Raises BadData, LayoutError, MemoryFault.
        """
        # letter of struct, bytes, bits of the fraction and of the exponent, of types that a CPU computes with (IEEE
        # 754; c10/util/BFloat16.h, whose numbers are computed as float32)
        formats = {"float32": ("I", 4, 23, 8), "float64": ("Q", 8, 52, 11), "bfloat16": ("H", 2, 7, 8)}
        facts = self.read(address)
        form = formats.get(facts.dtype) if facts.backend == "CPU" else None
        tensor = TensorImpl(self._space, address)
        storage = tensor.storage_ if form else 0
        if not form or not storage:
            return 0.0
        letter, size, fraction, exponent = form
        owned = StorageImpl(self._space, storage)
        first = tensor.storage_offset_
        count = min(max(tensor.numel_, 0), owned.size_bytes_ // size - first)
        starts = {count * number // _SAMPLES for number in range(_SAMPLES)} if count > 0 else set()
        subnormal = sampled = 0
        exponent_bits, fraction_bits = ((1 << exponent) - 1) << fraction, (1 << fraction) - 1
        for start in starts:
            length = min(_SAMPLE, count - start)
            raw = self._memory.read(owned.data_ptr_.ptr_ + size * (first + start), size * length)
            numbers = struct.unpack(f"<{length}{letter}", raw)
            subnormal += sum(1 for number in numbers if not number & exponent_bits and number & fraction_bits)
            sampled += length
        return subnormal / sampled if sampled else 0.0

    def _class_of(self, address: int) -> str:
        """The tensor's C++ class by its vtable. Raises BadData, MemoryFault."""
        for name in self._classes.of(address):
            # the classes that derive from TensorImpl in libtorch, template arguments apart
            if name.partition("<")[0].endswith(("TensorImpl", "TensorWrapper")):
                return name
        raise BadData(f"there is no tensor at {address:#x}")

    def _keyset(self, address: int) -> int:
        """The key set of the TensorImpl at ``address``. Raises BadData for unknown bits, MemoryFault."""
        bits = TensorImpl(self._space, address).key_set_
        if self._keys.stray(bits):
            raise BadData(f"the tensor at {address:#x} has a key set with meaningless bits ({bits:#x})")
        return bits

    def _stored_shape(self, address: int, raw: bytes) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """(sizes, strides) of the TensorImpl at ``address``, whose bytes are ``raw``; None for each that a method
        computes or that is symbolic. They are inline for up to five dimensions, else in one block, sizes first."""
        # SizesStridesPolicy: 2 is CustomSizes; 1 is CustomStrides, with stored sizes
        policy = TensorImpl.sizes_strides_policy_.of(self._layout, raw)
        if policy >= 2 or TensorImpl.has_symbolic_sizes_strides_.of(self._layout, raw):
            return None, None
        shape = TensorImpl(self._space, address).sizes_and_strides_
        count = shape.size_
        if count > 64:  # PyTorch's iterators take at most 64
            raise BadData(f"the tensor at {address:#x} claims {count} dimensions")
        limit = self._inline if count <= self._inline else count
        block = shape.inlineStorage_ if count <= self._inline else shape.outOfLineStorage_
        numbers = struct.unpack(f"<{2 * limit}q", self._memory.read(block, _SIZE_AND_STRIDE * limit))
        return numbers[:count], None if policy else numbers[limit : limit + count]

    def dtype(self, address: int) -> str:
        """The dtype ("float32") of the TensorImpl at ``address``: its ``caffe2::TypeMeta`` is an index into a table
        whose first entries are the ScalarTypes (typeid.h). Raises MemoryFault."""
        number = TensorImpl(self._space, address).data_type_
        return self._dtypes[number] if number < len(self._dtypes) else f"type {number}"

    def _device(self, address: int) -> str | None:
        """The device ("cuda:0") of the TensorImpl at ``address``; None if it has none."""
        optional = TensorImpl(self._space, address).device_opt_
        if not self._memory.u8(optional + self._device_shape.engaged):
            return None
        kind, index = self._memory.read(optional + self._device_shape.value, 2)
        return device_text(self._devices, kind, index)


_GENERATED = "torch::autograd::generated::"
PYTHON_NODE = "torch::autograd::PyNode"
ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"


class FoundEdge(NamedTuple):
    """An edge of the graph of backward."""

    node: int
    """Address of the node that gets the gradient; 0 if none does."""
    input_nr: int
    """The index of that node's input."""


def node_object(space: Space, address: int) -> int:
    """The PyObject* of the PyNode at ``address``: in the slot that all nodes have for it since 2.13, before that its
    first own member. Raises LayoutError, MemoryFault."""
    node = Node(space, address)
    return node.pyobj_slot_.pyobj_ & ~7 if node.has(Node.pyobj_slot_) else space.memory.u64(address + Node.size(space))


class NodeReader:
    """Reads the nodes of one torch. Raises LayoutError at construction."""

    def __init__(self, memory: Memory, layout: Layout, classes: ClassNames) -> None:
        self.memory = memory
        self.layout = layout
        self.space = Space(memory, layout)
        self._classes = classes
        self._size = Node.size(self.space)

    def class_of(self, address: int) -> str:
        """The node's C++ class. Raises BadData if there is no node, MemoryFault."""
        names = [name for name in self._classes.of(address) if not name.startswith("std::")]
        if not names:
            raise BadData(f"there is no autograd node at {address:#x}")
        return names[0]

    def is_node(self, address: int) -> bool:
        """True if the object at ``address`` is of one of the classes that most nodes have. Raises MemoryFault."""
        classes = (PYTHON_NODE, ACCUMULATE_GRAD, "torch::autograd::CopySlices")
        families = (_GENERATED, "torch::autograd::CppNode<")
        return any(name in classes or name.startswith(families) for name in self._classes.of(address))

    def name(self, address: int) -> str:
        """The name as ``grad_fn.name()`` has it, but PYTHON_NODE for nodes that Python defines. Raises as class_of."""
        name = self.class_of(address)
        return name[len(_GENERATED) :] if name.startswith(_GENERATED) else name

    def node(self, address: int) -> Node:
        """The node's members: ``sequence_nr_``, ``topological_nr_``, … Reading one raises LayoutError, MemoryFault."""
        return Node(self.space, address)

    def variable(self, address: int) -> int:
        """Address of the TensorImpl of the AccumulateGrad at ``address``: its first member behind those of Node."""
        return self.memory.u64(address + self._size)

    def python_object(self, address: int) -> int:
        """The PyObject* of the PyNode, a node that Python code defines, at ``address``."""
        return node_object(self.space, address)

    def edges(self, address: int, limit: int = 10_000) -> tuple[FoundEdge, ...]:
        """The ``next_functions`` of the node at ``address``; a node that stacks tensors has one for each of them.
        Raises BadData, also for more than ``limit``, MemoryFault, LayoutError."""
        first, count = vector_span(self.memory, self.node(address).next_edges_, Edge.size(self.space), limit)
        return tuple(FoundEdge(edge.function, edge.input_nr) for edge in Edge.array(self.space, first, count))
