"""Nodes of autograd's graph in made-up memory: numbers, edges, hooks, the graph, and what is not believed."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.errors import BadData, LayoutError
from gdbext.tools.autograd.autograd_graph import reachable
from gdbext.tools.autograd.autograd_section import HookKind, NodeHook
from gdbext.tools.autograd.hooks import HookReader
from gdbext.torch.state.tensor import NodeReader, node_object
from support.fakes.fake_target import FakeTarget

HEAP, SIZE = 0x10000, 0x40000
MEMBERS = ("sequence_nr_", "topological_nr_", "next_edges_", "pre_hooks_", "tensor_pre_hooks_")
MEMBERS += ("retains_grad_hooks_", "post_hooks_")
OFFSETS = {name: 16 + 64 * index for index, name in enumerate(MEMBERS)}
NODE_SIZE = 512
UNREADABLE = 0x99999000


class Process:
    """Memory with nodes, as the layout that it gives describes them; classes by the address of their vtable."""

    def __init__(self) -> None:
        self.bytes = bytearray(SIZE)
        self.end = 0
        self.structs: dict[str, StructLayout] = {}
        self.add("torch::autograd::Node", NODE_SIZE, OFFSETS)
        self.add("torch::autograd::Edge", 16, {"function": 0, "input_nr": 8})
        self.add("std::unordered_map", 56, {"_M_h._M_element_count": 24, "_M_h._M_before_begin": 16})
        self.classes: dict[int, tuple[str, ...]] = {}

    def add(self, name: str, size: int, offsets: dict[str, int]) -> None:
        fields = {member: FieldLayout(member, offset, 8) for member, offset in offsets.items()}
        self.structs[name] = StructLayout(name, size, fields)

    def struct(self, name: str) -> StructLayout:
        if name not in self.structs:
            raise LayoutError(f"no {name}")
        return self.structs[name]

    def of(self, address: int) -> tuple[str, ...]:
        """As ClassNames."""
        return self.classes.get(address, ())

    def put(self, *words: int, at: int | None = None) -> int:
        place = self.end if at is None else at - HEAP
        struct.pack_into(f"<{len(words)}Q", self.bytes, place, *words)
        self.end = max(self.end, place + 8 * len(words))
        return HEAP + place

    def node(self, name: str = "torch::autograd::generated::MmBackward0", sequence_nr: int = 0) -> int:
        address = HEAP + self.end
        self.end += NODE_SIZE
        self.classes[address] = (name,)
        self.put(sequence_nr, at=address + OFFSETS["sequence_nr_"])
        return address

    def vector(self, address: int, member: str, words: Iterable[int]) -> None:
        found = tuple(words)
        begin = self.put(*found)
        end = begin + 8 * len(found)
        self.put(begin, end, end, at=address + OFFSETS[member])

    def connect(self, node: int, *following: int) -> None:
        self.vector(node, "next_edges_", [word for after in following for word in (after, 0)])

    def nodes(self) -> NodeReader:
        return NodeReader(Memory(FakeTarget({HEAP: bytes(self.bytes)})), self, self)  # type: ignore[arg-type]

    def hooks(self) -> HookReader:
        return HookReader(self.nodes(), self, None)  # type: ignore[arg-type]


@pytest.fixture
def process() -> Process:
    return Process()


def test_names_and_numbers(process: Process) -> None:
    generated = process.node(sequence_nr=7)
    leaf = process.node("torch::autograd::AccumulateGrad", (1 << 64) - 1)
    nodes = process.nodes()
    assert (nodes.name(generated), nodes.sequence_nr(generated)) == ("MmBackward0", 7)
    assert (nodes.name(leaf), nodes.sequence_nr(leaf)) == ("torch::autograd::AccumulateGrad", (1 << 64) - 1)
    with pytest.raises(BadData, match="there is no autograd node"):
        nodes.name(generated + 8)
    with pytest.raises(LayoutError):
        nodes.anomaly_metadata(generated)


def test_edges(process: Process) -> None:
    first, second = process.node(), process.node()
    process.vector(first, "next_edges_", (second, 3, 0, 0))
    assert process.nodes().edges(first) == ((second, 3), (0, 0))
    assert process.nodes().edges(second) == ()
    process.put(1, 0, 0, at=first + OFFSETS["next_edges_"])
    with pytest.raises(BadData):
        process.nodes().edges(first)


def test_the_graph_has_each_node_once_and_ends_somewhere(process: Process) -> None:
    top, left, right, leaf = (process.node() for _ in range(4))
    process.connect(top, left, right)
    process.connect(left, leaf)
    process.connect(right, leaf, 0, top)
    process.connect(leaf, UNREADABLE)
    found = reachable(process.nodes(), top)
    assert list(found.edges) == [top, left, right, leaf, UNREADABLE]
    assert found.edges[UNREADABLE] is None
    assert not found.truncated
    cut = reachable(process.nodes(), top, limit=3)
    assert (list(cut.edges), cut.truncated) == ([top, left, right], True)


def test_hooks_without_python_are_named_by_their_class_in_the_order_of_their_calls(process: Process) -> None:
    node = process.node()
    for number, member in enumerate(("post_hooks_", "pre_hooks_", "tensor_pre_hooks_")):
        hook = process.put(0, 0)
        process.classes[hook] = (f"torch::Hook{number}",)
        process.vector(node, member, [hook])
    retaining = process.put(0, 0)
    process.classes[retaining] = ("torch::Retains",)
    entry = process.put(0, 0, retaining)
    table = node + OFFSETS["retains_grad_hooks_"]
    process.put(entry, at=table + 16)
    process.put(1, at=table + 24)
    assert [found.hook for found in process.hooks().of_node(node)] == [
        NodeHook(HookKind.TENSOR, "torch::Hook2"),
        NodeHook(HookKind.NODE_BEFORE, "torch::Hook1"),
        NodeHook(HookKind.RETAINS_GRAD, "torch::Retains"),
        NodeHook(HookKind.NODE_AFTER, "torch::Hook0"),
    ]


def test_the_hooks_of_a_leaf_are_those_of_its_tensor_too(process: Process) -> None:
    leaf, tensor = process.node("torch::autograd::AccumulateGrad"), process.put(*[0] * 16)
    members = {"hooks_": 0, "post_acc_grad_hooks_": 24}
    process.add("torch::autograd::AutogradMeta", 128, members)
    hooks = {name: process.put(0, 0) for name in ("torch::OfTensor", "torch::OfNode", "torch::Accumulated")}
    process.classes.update({address: (name,) for name, address in hooks.items()})
    begin = process.put(hooks["torch::OfTensor"])
    process.put(begin, begin + 8, begin + 8, hooks["torch::Accumulated"], at=tensor)
    process.vector(leaf, "pre_hooks_", [hooks["torch::OfNode"]])
    assert [(found.hook.kind, found.hook.function) for found in process.hooks().of_leaf(leaf, tensor)] == [
        (HookKind.TENSOR, "torch::OfTensor"),
        (HookKind.NODE_BEFORE, "torch::OfNode"),
        (HookKind.ACCUMULATED, "torch::Accumulated"),
    ]


def test_a_claim_of_many_hooks_is_not_believed(process: Process) -> None:
    node = process.node()
    begin = HEAP
    process.put(begin, begin + 8 * 5000, begin + 8 * 5000, at=node + OFFSETS["pre_hooks_"])
    with pytest.raises(BadData):
        list(process.hooks().of_node(node))


def test_where_the_object_of_a_node_of_python_is(process: Process) -> None:
    node = process.node()
    process.put(0x1234 << 3 | 1, at=node + 64)
    process.put(0x777, at=node + NODE_SIZE)
    memory = Memory(FakeTarget({HEAP: bytes(process.bytes)}))
    space = Space(memory, process)  # type: ignore[arg-type]
    assert node_object(space, node) == 0x777
    process.add("torch::autograd::Node", NODE_SIZE, {"pyobj_slot_": 56})
    process.add("c10::impl::PyObjectSlot", 8, {"pyobj_": 8})
    assert node_object(Space(memory, process), node) == 0x1234 << 3  # type: ignore[arg-type]
