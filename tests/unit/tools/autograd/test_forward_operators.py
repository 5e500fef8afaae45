"""From a node's name to its operator: which of several it is, by the kernels that they have for autograd."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.errors import BadData
from gdbext.tools.autograd.node_reporter import ForwardOperators

GENERATED = "torch::autograd::VariableType::f"


class Registry:
    """A dispatcher: operators with overload and the name of their kernel for AutogradCPU."""

    def __init__(self, *operators: tuple[str, str, str]) -> None:
        self._operators = operators
        self.keys = SimpleNamespace(index_of_key=lambda name: {"AutogradCPU": 5}[name])
        self.kernels = SimpleNamespace(name=lambda kernel: SimpleNamespace(function=kernel, aliases=("alias",)))

    def operators(self) -> list[Any]:
        return [
            SimpleNamespace(name=name, overload=overload, kernel=lambda index, k=kernel: k if index == 5 else "")
            for name, overload, kernel in self._operators
        ]


def of(node: str, *operators: tuple[str, str, str]) -> str | None:
    return ForwardOperators(Registry(*operators)).of(node)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "operator"),
    [
        ("AddmmBackward0", "aten::addmm"),
        ("SoftmaxBackward0", "aten::_softmax"),
        ("ReluBackward0", "aten::relu"),
        ("ReluBackward0_copy", None),
        ("ViewBackward0_copy", "aten::view_copy"),
        ("SumBackwardAutogradNestedTensor1", "aten::sum"),
        ("ForeachAddBackward1Scalar", "aten::_foreach_add"),
        ("GeluBackwardBackward0", "aten::gelu_backward"),
        ("OutBackward0", None),
        ("CompositeBackward0", None),
        ("torch::autograd::AccumulateGrad", None),
        ("TwiceBackward", None),
        ("MaxPool2DWithIndicesBackward0", "aten::max_pool2d_with_indices"),
        ("SlowConv2DBackward0", "aten::_slow_conv2d_forward"),
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

    def unreadable() -> list[Any]:
        raise BadData("gone")

    registry = Registry()
    registry.operators = unreadable  # type: ignore[method-assign]
    assert ForwardOperators(registry).of("AddmmBackward0") is None  # type: ignore[arg-type]
