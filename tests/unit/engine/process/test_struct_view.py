"""Structures read by field name, from memory made of bytes."""

from __future__ import annotations

import struct

import pytest

from gdbext.engine.process.memory import Field, Memory, Struct, StructView
from gdbext.errors import LayoutError, MemoryFault
from support.fakes.unwind_fakes import FakeTarget

BASE = 0x10000
INNER = Struct("Inner", 8, {"low": Field("low", 0, 4, "int"), "high": Field("high", 4, 4, "unsigned")})
OUTER = Struct(
    "Outer",
    40,
    {
        "flag": Field("flag", 0, 1, "bool"),
        "short": Field("short", 2, 2, "short"),
        "inner": Field("inner", 8, 8, "Inner"),
        "link": Field("link", 16, 8, "Outer*"),
        "name": Field("name", 24, 16, "std::string_view"),
        "unsized": Field("unsized", 8, 0, "?"),
        "far": Field("far", 0x100000, 8, "long"),
    },
)


@pytest.fixture
def view() -> StructView:
    target = FakeTarget()
    data = struct.pack("<BxHxxxxiIQQQ", 1, 0xFFFE, -5, 0xFFFFFFFB, BASE, 77, 88)
    target.add(BASE, data, "rw-p")
    return StructView(Memory(target), BASE, OUTER)


def test_numbers(view: StructView) -> None:
    assert (view.u8("flag"), view.u16("short")) == (1, 0xFFFE)
    inner = view.view("inner", INNER)
    assert (inner.i32("low"), inner.u32("high"), inner.u32("low")) == (-5, 0xFFFFFFFB, 0xFFFFFFFB)
    assert view.pointer("link") == view.u64("link") == BASE
    assert view.i64("inner") == struct.unpack("<q", struct.pack("<iI", -5, 0xFFFFFFFB))[0]


def test_places(view: StructView) -> None:
    assert view.address("name") == BASE + 24
    assert view.u64("name") == 77  # of a larger member, its first word
    assert view.raw("name") == struct.pack("<QQ", 77, 88)
    assert view.target("link", OUTER).u8("flag") == 1


def test_what_the_layout_does_not_say_is_refused(view: StructView) -> None:
    with pytest.raises(LayoutError, match="Outer has no field nothing"):
        view.u64("nothing")
    with pytest.raises(LayoutError, match="4 bytes"):
        view.view("inner", INNER).u64("low")
    with pytest.raises(LayoutError, match="how large"):
        view.raw("unsized")
    assert view.u32("unsized") == 0xFFFFFFFB


def test_a_fault_costs_one_field(view: StructView) -> None:
    with pytest.raises(MemoryFault):
        view.u64("far")
    assert view.u8("flag") == 1
