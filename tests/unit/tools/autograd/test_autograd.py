"""Nodes of autograd's graph in made-up memory, their operators, saved tensors, and which nodes run on a stack."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.diagnosis.report.thread_report import BackwardNode
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.errors import BadData, LayoutError
from gdbext.tools.autograd.autograd import reachable
from gdbext.tools.autograd.autograd_report import nodes_on_stack, outer_node
from gdbext.tools.autograd.autograd_section import HookKind, NodeHook, SavedTensor
from gdbext.tools.autograd.node_reporter import ForwardOperators, HookReader, SavedTensorReader
from gdbext.torch.stack.roles import engine_calls
from gdbext.torch.state.tensor import NodeReader, node_object
from support.fakes.fake_target import FakeTarget

GENERATED = "torch::autograd::VariableType::f"


def of(node: str, *operators: tuple[str, str, str], error: Exception | None = None) -> str | None:
    """``operators``: each with overload and the name of its kernel for AutogradCPU; ``error``: they cannot be read."""

    def read() -> list[Any]:
        if error is not None:
            raise error
        words = [
            {"name": name, "overload": overload, "kernel": {5: kernel}.get} for name, overload, kernel in operators
        ]
        return [SimpleNamespace(**each) for each in words]

    kernels = SimpleNamespace(name=lambda kernel: SimpleNamespace(function=kernel or "", aliases=("alias",)))
    keys = SimpleNamespace(index_of_key={"AutogradCPU": 5}.__getitem__)
    registry: Any = SimpleNamespace(operators=read, kernels=kernels, keys=keys)
    return ForwardOperators(registry).operator_of(node)


@pytest.mark.parametrize(
    ("node", "operator"),
    [
        ("AddmmBackward0", "aten::addmm"),
        ("SoftmaxBackward0", "aten::_softmax"),
        ("ReluBackward0", "aten::relu"),
        ("ViewBackward0_copy", "aten::view_copy"),
        ("SumBackwardAutogradNestedTensor1", "aten::sum"),
        ("ForeachAddBackward1Scalar", "aten::_foreach_add"),
        ("GeluBackwardBackward0", "aten::gelu_backward"),
        ("MaxPool2DWithIndicesBackward0", "aten::max_pool2d_with_indices"),
        ("SlowConv2DBackward0", "aten::_slow_conv2d_forward"),
        *((node, None) for node in ("ReluBackward0_copy", "OutBackward0", "CompositeBackward0", "TwiceBackward")),
        ("torch::autograd::AccumulateGrad", None),
    ],
)
def test_the_operator_of_a_node(node: str, operator: str | None) -> None:
    names = ["addmm", "_softmax", "convolution", "_convolution", "relu", "relu_", "view", "view_copy", "sum"]
    names += ["gelu_backward", "gelu", "max_pool2d_with_indices", "_slow_conv2d_forward", "_foreach_add"]
    found = of(
        node,
        *[(f"aten::{name}", "", GENERATED) for name in names],
        ("aten::softmax", "int", "at::softmax"),
        ("aten::softmax", "int_out", GENERATED),
        ("aten::out", "out", GENERATED),
        ("aten::composite", "", "at::composite"),
        ("mine::addmm", "", GENERATED),
    )
    assert found == operator


def test_two_that_may_be_meant_are_none_as_are_those_that_cannot_be_read() -> None:
    assert of("AbBackward0", ("aten::ab", "", GENERATED), ("aten::aB", "", GENERATED)) is None
    assert of("AddmmBackward0", ("aten::addmm", "", GENERATED), error=BadData("gone")) is None


EVALUATE = "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEE"


class Stack:
    """Functions innermost first: (mangled, demangled)."""

    def __init__(self, *functions: tuple[str, str]) -> None:
        self._functions = functions

    def __len__(self) -> int:
        return len(self._functions)

    def function(self, level: int) -> Any:
        mangled, demangled = self._functions[level]
        return SimpleNamespace(name=mangled, demangled=(demangled,)) if mangled else None


def apply(name: str) -> tuple[str, str]:
    return "_Zapply", f"torch::autograd::{name}::apply(std::vector<at::Tensor>&&)"


NESTED = (("_ZN5torch8autograd6Engine11thread_mainEv", ""), apply("PyNode"), (EVALUATE, ""), (EVALUATE, ""))
REENTRANT: Any = Stack(("", ""), apply("generated::MmBackward0"), (EVALUATE, ""), *NESTED)
INNER, OUTER = 0x1000, 0x2000
"""Where the frames of ``Engine::thread_main`` begin."""


def reported(inner: list[int], outer: list[int], name: str = "TwiceBackward", node: str = "PyNode") -> Any:
    """What is reported of the node that the outer call runs, by the words in both frames and the name of all nodes."""
    stack: Any = Stack(apply("PyNode"), (EVALUATE, ""), ("_main", ""), apply(node), (EVALUATE, ""), ("_main", ""))
    empty = SimpleNamespace(sp=0, cfa=0)
    frames = [empty, empty, SimpleNamespace(sp=INNER, cfa=INNER + 8 * len(inner))]
    stack.frames = [*frames, empty, empty, SimpleNamespace(sp=OUTER, cfa=OUTER + 8 * len(outer))]
    words = {INNER: inner, OUTER: outer}
    nodes = SimpleNamespace(memory=SimpleNamespace(words=lambda at, _: words[at]), is_node=lambda at: at >= 0x100)
    reporter: Any = SimpleNamespace(nodes=nodes, reference=lambda _: SimpleNamespace(name=name))
    found = outer_node(reporter, stack, 1, 4)
    return found.name if found is not None else None


def test_the_node_that_both_frames_have_is_the_outer_one() -> None:
    first, second, third = 0x100, 0x200, 0x300
    assert reported([7, first, second], [second, 8, third]) == "TwiceBackward"
    assert reported([first, second], [first, second]) is None
    assert reported([first], [third]) is None
    assert reported([first], [first], "MmBackward0", "generated::MmBackward0") == "MmBackward0"
    assert reported([first], [first], "AddBackward0", "generated::MmBackward0") is None, "the stack has another method"


class UnknownRelease:
    memory = symbolizer = None

    def __getattr__(self, name: str) -> Any:
        raise LayoutError(f"there is no {name} for this release")


def test_names_alone_where_the_engine_s_state_cannot_be_read() -> None:
    session: Any = UnknownRelease()
    assert engine_calls(REENTRANT) == [2, 5, 6]
    found = nodes_on_stack(session, session, REENTRANT, [2, 5, 6])
    assert found == (BackwardNode(2, "MmBackward0", None), BackwardNode(5, "PyNode", None))


NODE, TENSOR, UNDEFINED = 0x10000, 0x7000, 0x8000
FIELDS = (("data_", 0, 8), ("saved_version_", 8, 4), ("was_default_constructed_", 16, 1), ("saved_original_", 17, 1))
SHAPE = StructLayout("SavedVariable", 48, {each[0]: FieldLayout(*each) for each in (*FIELDS, ("hooks_", 24, 8))})


def saved(data: int = 0, version: int = 0, default: int = 0, original: int = 1, hooks: int = 0) -> bytes:
    return struct.pack("<QIIBB6xQ16x", data, version, 0, default, original, hooks)


def reader(raw: bytes, name: str = "self_", kind: str = "MmBackward0") -> SavedTensorReader:
    memory = Memory(FakeTarget({NODE: raw.ljust(4096, b"\0")}))
    layout: Any = SimpleNamespace(struct=lambda _: SHAPE)
    space = Space(memory, layout)
    names: dict[str, Any] = {"name": lambda _: kind, "python_object": lambda node: node + 8}

    def tensor(address: int) -> Any:
        implementation = "c10::UndefinedTensorImpl" if address == UNDEFINED else "c10::TensorImpl"
        return SimpleNamespace(address=address, short="f32[2] cpu", implementation=implementation)

    nodes: Any = SimpleNamespace(memory=memory, layout=layout, space=space, **names)
    tensors: Any = SimpleNamespace(read=tensor, version=lambda _: 3)
    members = {"MmBackward0": {name: 0}, "THPFunction": {"saved_variables[]": 56}}
    return SavedTensorReader(nodes, members, tensors, tensors)


@pytest.mark.parametrize(
    ("raw", "expected", "stale"),
    [
        (saved(TENSOR, 3), SavedTensor("self", "f32[2] cpu", 3, 3), False),
        (saved(TENSOR, 1), SavedTensor("self", "f32[2] cpu", 1, 3), True),
        (saved(UNDEFINED, 1), SavedTensor("self", "released", None, None), False),
        (saved(default=1), SavedTensor("self", "none", None, None), False),
        (saved(hooks=0x99), SavedTensor("self", "packed by saved-tensor hooks", None, None), False),
    ],
)
def test_what_a_node_has_saved(raw: bytes, expected: SavedTensor, stale: bool) -> None:
    assert reader(raw).saved_tensors(NODE) == (expected,)
    assert expected.is_stale is stale
    assert reader(raw).stale(NODE) == ((expected,) if stale else ())
    with pytest.raises(BadData):
        reader(saved(TENSOR, default=7)).saved_tensors(NODE)


def test_a_list_and_what_a_torch_autograd_function_saves_in_its_python_object() -> None:
    begin = NODE + 64
    raw = struct.pack("<QQQ", begin, begin + 96, begin + 96).ljust(64, b"\0") + saved(TENSOR, 3) + saved(TENSOR, 2)
    listed = reader(raw, "tensors_[]").saved_tensors(NODE) or ()
    assert [(each.name, each.is_stale) for each in listed] == [("tensors[0]", False), ("tensors[1]", True)]
    begin = NODE + 128
    raw = bytes(64) + struct.pack("<QQQ", begin, begin + 48, begin + 48).ljust(64, b"\0") + saved(TENSOR, 2)
    expected = SavedTensor("saved_tensors[0]", "f32[2] cpu", 2, 3)
    found = reader(raw, kind="torch::autograd::PyNode")
    assert found.saved_tensors(NODE) == found.stale(NODE) == (expected,)


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

    def hook(self, name: str) -> int:
        address = self.put(0, 0)
        self.classes[address] = (name,)
        return address

    def vector(self, address: int, member: str, *words: int) -> None:
        begin = self.put(*words)
        end = begin + 8 * len(words)
        self.put(begin, end, end, at=address + OFFSETS[member])

    def connect(self, node: int, *following: int) -> None:
        self.vector(node, "next_edges_", *[word for after in following for word in (after, 0)])

    def nodes(self) -> NodeReader:
        return NodeReader(Memory(FakeTarget({HEAP: bytes(self.bytes)})), self, self)  # type: ignore[arg-type]

    def hooks(self) -> HookReader:
        return HookReader(self.nodes(), self, lambda address: PyRef(None, address))  # type: ignore[arg-type]


@pytest.fixture
def process() -> Process:
    return Process()


def test_names_numbers_and_edges(process: Process) -> None:
    generated = process.node(sequence_nr=7)
    leaf = process.node("torch::autograd::AccumulateGrad", (1 << 64) - 1)
    nodes = process.nodes()
    found = [(nodes.name(each), nodes.node(each).sequence_nr_) for each in (generated, leaf)]
    assert found == [("MmBackward0", 7), ("torch::autograd::AccumulateGrad", (1 << 64) - 1)]
    with pytest.raises(BadData, match="there is no autograd node"):
        nodes.name(generated + 8)
    with pytest.raises(LayoutError):
        nodes.node(generated).anomaly_metadata_  # noqa: B018
    first, second = process.node(), process.node()
    process.vector(first, "next_edges_", second, 3, 0, 0)
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
    edges, truncated = reachable(process.nodes(), top)
    assert list(edges) == [top, left, right, leaf, UNREADABLE]
    assert edges[UNREADABLE] == ()
    assert not truncated
    edges, truncated = reachable(process.nodes(), top, limit=3)
    assert (list(edges), truncated) == ([top, left, right], True)


def test_hooks_without_python_are_named_by_their_class_in_the_order_of_their_calls(process: Process) -> None:
    node = process.node()
    for number, member in enumerate(("post_hooks_", "pre_hooks_", "tensor_pre_hooks_")):
        process.vector(node, member, process.hook(f"Hook{number}"))
    entry = process.put(0, 0, process.hook("Retains"))
    table = node + OFFSETS["retains_grad_hooks_"]
    process.put(entry, at=table + 16)
    process.put(1, at=table + 24)
    names = {HookKind.TENSOR: "Hook2", HookKind.NODE_BEFORE: "Hook1"}
    names |= {HookKind.RETAINS_GRAD: "Retains", HookKind.NODE_AFTER: "Hook0"}
    assert [found.hook for found in process.hooks().node_hooks(node)] == [NodeHook(*each) for each in names.items()]


def test_the_hooks_of_a_leaf_are_those_of_its_tensor_too(process: Process) -> None:
    leaf, tensor = process.node("torch::autograd::AccumulateGrad"), process.put(*[0] * 16)
    process.add("torch::autograd::AutogradMeta", 128, {"hooks_": 0, "post_acc_grad_hooks_": 24})
    begin = process.put(process.hook("OfTensor"))
    process.put(begin, begin + 8, begin + 8, process.hook("Accumulated"), at=tensor)
    process.vector(leaf, "pre_hooks_", process.hook("OfNode"))
    found = [(found.hook.kind, found.hook.function) for found in process.hooks().leaf_hooks(leaf, tensor)]
    names = {HookKind.TENSOR: "OfTensor", HookKind.NODE_BEFORE: "OfNode", HookKind.ACCUMULATED: "Accumulated"}
    assert found == [*names.items()]


def test_where_the_object_of_a_node_of_python_is(process: Process) -> None:
    node = process.node()
    process.put(0x1234 << 3 | 1, at=node + 64)
    process.put(0x777, at=node + NODE_SIZE)
    assert node_object(process.nodes().space, node) == 0x777
    process.add("torch::autograd::Node", NODE_SIZE, {"pyobj_slot_": 56})
    process.add("c10::impl::PyObjectSlot", 8, {"pyobj_": 8})
    assert node_object(process.nodes().space, node) == 0x1234 << 3
