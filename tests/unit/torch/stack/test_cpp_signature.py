"""Parameters of demangled names, how each is passed, and parts of the dispatcher's functions by mangled names."""

from __future__ import annotations

import pytest

from gdbext.engine.arch import Passing
from gdbext.torch.stack.roles import operator_method, parameters, static_handle
from gdbext.torch.values.cpp_objects import passing_of


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", ["at::Tensor const&", "at::Tensor const&"]),
        (
            "f(std::optional<std::basic_string_view<char, std::char_traits<char> > >, long)",
            ["std::optional<std::basic_string_view<char, std::char_traits<char> > >", "long"],
        ),
        ("g<int (long, char)>::call(std::array<bool, 3ul>)", ["std::array<bool, 3ul>"]),
        ("h()", []),
        ("main", []),
    ],
)
def test_parameters(name: str, kinds: list[str]) -> None:
    assert parameters(name) == kinds


@pytest.mark.parametrize(
    ("kinds", "passing"),
    [
        ("at::Tensor const&|c10::SymInt|std::optional<c10::ScalarType>|std::array<bool, 3ul>", Passing.WORD),
        ("std::optional<c10::SymInt>", Passing.WORD),
        ("c10::ArrayRef<long>|std::optional<long>", Passing.TWO_WORDS),
        ("std::basic_string_view<char, std::char_traits<char> >", Passing.TWO_WORDS),
        ("double", Passing.FLOAT),
        ("std::optional<double>", Passing.FLOAT_AND_WORD),
        ("c10::OptionalArrayRef<long>|std::optional<c10::ArrayRef<double> >", Passing.MEMORY),
        ("std::optional<std::basic_string_view<char, std::char_traits<char> > >", Passing.MEMORY),
        ("mine::Thing", None),
    ],
)
def test_how_they_are_passed(kinds: str, passing: Passing | None) -> None:
    for kind in kinds.split("|"):
        assert passing_of(kind) is passing, kind


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
