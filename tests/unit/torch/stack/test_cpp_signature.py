"""Parameters of demangled names, and how each is passed."""

from __future__ import annotations

import pytest

from gdbext.engine.arch import Passing
from gdbext.torch.stack.roles import parameters
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
    ("kind", "passing"),
    [
        ("at::Tensor const&", Passing.WORD),
        ("c10::SymInt", Passing.WORD),
        ("c10::ArrayRef<long>", Passing.TWO_WORDS),
        ("std::optional<long>", Passing.TWO_WORDS),
        ("std::optional<double>", Passing.FLOAT_AND_WORD),
        ("std::optional<c10::ScalarType>", Passing.WORD),
        ("c10::OptionalArrayRef<long>", Passing.MEMORY),
        ("std::optional<c10::ArrayRef<double> >", Passing.MEMORY),
        ("std::optional<c10::SymInt>", Passing.WORD),
        ("std::basic_string_view<char, std::char_traits<char> >", Passing.TWO_WORDS),
        ("double", Passing.FLOAT),
        ("std::optional<std::basic_string_view<char, std::char_traits<char> > >", Passing.MEMORY),
        ("std::array<bool, 3ul>", Passing.WORD),
        ("mine::Thing", None),
    ],
)
def test_how_they_are_passed(kind: str, passing: Passing | None) -> None:
    assert passing_of(kind) is passing
