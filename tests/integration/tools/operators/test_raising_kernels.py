"""Kernels that raise or only warn: dispatch-lookup and dispatch-op say so, as the program saw it."""

from __future__ import annotations

import pytest

from support.programs.harness import Inferior, Start

pytestmark = pytest.mark.torch


def text(target: Inferior, *words: str) -> str:
    return target.dispatch(*words, json=False, debugger="none").stdout


def test_lookup_says_what_each_kernel_does(inferior: Start) -> None:
    target = inferior("raising-kernels")
    assert set(target.truth["outcomes"].values()) == {"raises", "warns", "computes"}
    for words, outcome in target.truth["outcomes"].items():
        shown = text(target, "dispatch-lookup", *words.split())
        if outcome == "raises":
            assert "raises" in shown, (words, shown)
        elif outcome == "warns":
            assert "no autograd kernel: the result has no gradient" in shown, (words, shown)
        else:
            assert "raises" not in shown, (words, shown)


def test_where_kernels_exist(inferior: Start) -> None:
    target = inferior("raising-kernels")
    shown = text(target, "dispatch-lookup", "raising::no_fake", "SparseCPU")
    assert "kernels exist for CPU (" in shown
    assert "raising_kernels.py:" in shown
    assert "operators have a kernel for SparseCPU (" in shown
    shown = text(target, "dispatch-lookup", "aten::int_repr", "CPU")
    assert "kernels exist for QuantizedCPU (" in shown
    assert "only: quantize the input" in shown


def test_op_shows_the_only_registration_and_what_it_lacks(inferior: Start) -> None:
    target = inferior("raising-kernels")
    assert target.truth["no_tensor"] == "raises"
    shown = text(target, "dispatch-op", "raising::no_tensor")
    assert "the operator needs a kernel for CompositeExplicitAutograd or BackendSelect" in shown
    assert "no fake kernel (meta): PyTorch raises NotImplementedError here" in shown
    shown = text(target, "dispatch-op", "aten::int_repr")
    assert "    QuantizedCPU: " in shown
    assert "no autograd formula: backward() through the result raises an error" in shown
