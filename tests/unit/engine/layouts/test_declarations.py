"""Declared structures, read by attribute from memory made of bytes; those of PyTorch and CPython in the layouts."""

from __future__ import annotations

import re
import struct
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gdbext.cpython.abi import python_structures
from gdbext.cpython.abi.python_layout import layout_for
from gdbext.cpython.abi.versions import SUPPORTED
from gdbext.engine.layouts import Layout, store
from gdbext.engine.layouts.declarations import (
    F32,
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    BitField,
    Flag,
    Inner,
    Link,
    Member,
    Place,
    Space,
    Struct,
    declared_in,
    required_in,
)
from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.errors import LayoutError, MemoryFault
from gdbext.torch import structures as torch_structures
from gdbext.torch.distributed import group_structures
from gdbext.torch.measure import group_wants, header_wants
from gdbext.torch.state import setting_structures
from gdbext.torch.values import value_structures
from support.fakes.unwind_fakes import FakeTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

BASE = 0x10000
TORCH_LAYOUT = "torch-2.13.0+cpu-cxx11.json"


class Low(Struct, of="Inner"):
    low = I32()
    high = U32()
    wide = U64("low")


class Whole(Struct, of="Outer"):
    flag = U8()
    truth = Flag("flag")
    short = U16()
    inner = Inner(lambda: Low)
    number = I64("inner")
    link = Link(lambda: Whole)
    name = Place()
    first_word = U64("name")
    real = F64()
    small = F32()
    bits = BitField()
    nothing = U64()
    far = U64()


def fields(**members: tuple[int, ...]) -> dict[str, FieldLayout]:
    return {name: FieldLayout(name, offset, size, "", *bits) for name, (offset, size, *bits) in members.items()}


SHAPES = {
    "Inner": StructLayout("Inner", 8, fields(low=(0, 4), high=(4, 4))),
    "Outer": StructLayout(
        "Outer",
        64,
        fields(
            flag=(0, 1),
            short=(2, 2),
            inner=(8, 8),
            link=(16, 8),
            name=(24, 16),
            real=(40, 8),
            small=(48, 4),
            bits=(53, 1, 427, 2),
            unsized=(8, 0),
            far=(0x100000, 8),
        ),
    ),
}


class Shapes:
    """As much of a Layout as structures use."""

    def struct(self, name: str) -> StructLayout:
        return SHAPES[name]


@pytest.fixture
def whole() -> Whole:
    target = FakeTarget()
    data = struct.pack("<BxHxxxxiIQQQdfxB", 1, 0xFFFE, -5, 0xFFFFFFFB, BASE, 77, 88, 0.5, 0.25, 0b00010000)
    target.add(BASE, data.ljust(64, b"\0") + struct.pack("<iI", 1, 2) * 2, "rw-p")
    return Whole(Space(Memory(target), Shapes()), BASE)


def test_numbers(whole: Whole) -> None:
    assert (whole.flag, whole.truth, whole.short) == (1, True, 0xFFFE)
    assert (whole.inner.low, whole.inner.high) == (-5, 0xFFFFFFFB)
    assert whole.number == struct.unpack("<q", struct.pack("<iI", -5, 0xFFFFFFFB))[0]
    assert (whole.real, whole.small) == (0.5, 0.25)


def test_structures_in_it_and_behind_it(whole: Whole) -> None:
    assert whole.link.address == BASE
    assert whole.link.inner.low == -5
    assert [each.high for each in Low.array(whole.space, BASE + 64, 2)] == [2, 2]


def test_places(whole: Whole) -> None:
    assert whole.name == whole.place(Whole.name) == BASE + 24
    assert whole.first_word == 77, "of a larger member, its first word"
    assert whole.bytes_of(Whole.name) == struct.pack("<QQ", 77, 88)
    assert whole.value(Whole.short) == 0xFFFE
    assert Whole.name.offset(whole.space) == 24


def test_bits_of_a_member_and_of_an_object_s_bytes(whole: Whole) -> None:
    raw = whole.space.memory.read(BASE, 64)
    assert whole.bits == Whole.bits.of(whole.space.layout, raw) == 0b10


def test_what_the_layout_does_not_say_is_refused(whole: Whole) -> None:
    assert not whole.has(Whole.nothing)
    with pytest.raises(LayoutError, match="Outer has no field nothing"):
        _ = whole.nothing
    with pytest.raises(LayoutError, match="4 bytes"):
        _ = whole.inner.wide


def test_a_fault_costs_one_member(whole: Whole) -> None:
    with pytest.raises(MemoryFault):
        _ = whole.far
    assert whole.flag == 1


# --- the declarations of PyTorch ----------------------------------------------------------------------


DECLARING = (torch_structures, value_structures, group_structures, setting_structures)


def declared() -> Iterator[type[Struct]]:
    for module in DECLARING:
        yield from declared_in(module)


@cache
def layouts() -> list[Layout]:
    """Of a build of each release."""
    folder = Path(store.DATA)
    return [store.shipped(path) for path in sorted(folder.glob("torch-*-cxx11.json"))]


@pytest.mark.parametrize("structure", [*declared()], ids=lambda each: each.__name__)
def test_each_declared_member_is_measured(structure: type[Struct]) -> None:
    """Some release has it, as large as it is read, or larger."""
    known = [layout for layout in layouts() if layout.has_struct(structure.OF)]
    asked = (header_wants.torch_wants(), header_wants.settings_wants(), group_wants.wants(), group_wants.nccl_wants())
    assert known or any(structure.OF in each.structs for each in asked), (
        "CUDA's own are not in a wheel for the CPU; what has a member is measured, too"
    )
    for member in structure.members() if known else ():
        having = [layout for layout in known if member.is_in(layout)]
        assert having, member
        for layout in having:
            member.checked(layout)


def python_structures_declared() -> Iterator[type[Struct]]:
    yield from declared_in(python_structures)


@pytest.mark.parametrize("structure", [*python_structures_declared()], ids=lambda each: each.__name__)
def test_each_member_of_cpython_is_in_some_version(structure: type[Struct]) -> None:
    """As large as it is read, or larger."""
    known = [layout_for(abi) for abi in SUPPORTED]
    for member in structure.members():
        having = [layout for layout in known if member.is_in(layout)]
        assert having, member
        for layout in having:
            member.checked(layout)


REQUIRED = [*required_in(*DECLARING), *required_in(python_structures)]


@pytest.mark.parametrize("member", REQUIRED, ids=repr)
def test_a_layout_without_a_required_member_is_refused(member: Member[Any]) -> None:
    """Whoever declares it decides: no other place lists what is required."""
    path = f"{store.DATA}/cpython-3.12.json" if member.owner.startswith("Py") else f"{store.DATA}/{TORCH_LAYOUT}"
    document = {**store.read_layout(path, whole=True)}
    whole = document["structs"][member.owner]
    fields = {name: at for name, at in whole["fields"].items() if name != member.path}
    assert Layout(document).require([member])
    document["structs"] = {**document["structs"], member.owner: {**whole, "fields": fields}}
    with pytest.raises(LayoutError, match=re.escape(member.path)):
        Layout(document).require([member])
