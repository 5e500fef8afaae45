"""Parts of functions in the dispatcher, by their mangled names."""

from __future__ import annotations

import pytest

from gdbext.torch.stack.roles import operator_method, static_handle


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_ZN2at4_ops2mm4callERKNS_6TensorES4_", ("mm", "call")),
        ("_ZN2at4_ops2mm10redispatchEN3c1014DispatchKeySetE", ("mm", "redispatch")),
        ("_ZN2at4_ops11add__Tensor4callE", ("add__Tensor", "call")),
        ("_ZN2at4_ops2mm6schemaE", ("", "")),
        ("_ZN2at4_opsL23create_mm_typed_handleEv", ("", "")),
    ],
)
def test_operator_method(name: str, expected: tuple[str, str]) -> None:
    assert operator_method(name) == expected


def test_static_handle() -> None:
    assert static_handle("_ZN2at4_ops2mm4callERKNS_6TensorES4_.cold") == "_ZZN2at4_ops2mm4callERKNS_6TensorES4_E2op"
