"""Declared structures, read by attribute from memory made of bytes; those of PyTorch and CPython in the layouts."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext.engine.layouts import declarations, store
from gdbext.engine.layouts.declarations import Inner, Link, Space, Struct, declared_in
from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.errors import LayoutError, MemoryFault
from gdbext.torch import structures as torch_structures
from gdbext.torch.distributed import group_structures
from gdbext.torch.measure.wants import wants_of
from gdbext.torch.state import setting_structures
from gdbext.torch.values import value_structures
from support.fakes.unwind_fakes import FakeTarget

BASE = 0x10000


class Low(Struct, of="Inner"):
    low = declarations.I32()
    high = declarations.U32()
    wide = declarations.U64("low")


class Whole(Struct, of="Outer"):
    flag = declarations.U8()
    truth = declarations.Flag("flag")
    short = declarations.U16()
    inner = Inner(lambda: Low)
    number = declarations.I64("inner")
    link = Link(lambda: Whole)
    name = declarations.Place()
    first_word = declarations.U64("name")
    real = declarations.F64()
    small = declarations.F32()
    bits = declarations.BitField()
    nothing = declarations.U64()
    far = declarations.U64()


def fields(**members: tuple[int, ...]) -> dict[str, FieldLayout]:
    return {name: FieldLayout(name, offset, size, "", *bits) for name, (offset, size, *bits) in members.items()}


WHOLE = fields(flag=(0, 1), short=(2, 2), inner=(8, 8), link=(16, 8), name=(24, 16), real=(40, 8), small=(48, 4))
SHAPES = {
    "Inner": StructLayout("Inner", 8, fields(low=(0, 4), high=(4, 4))),
    "Outer": StructLayout("Outer", 64, {**WHOLE, **fields(bits=(53, 1, 427, 2), unsized=(8, 0), far=(0x100000, 8))}),
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


def test_what_is_read(whole: Whole) -> None:
    assert (whole.flag, whole.truth, whole.short, whole.real, whole.small) == (1, True, 0xFFFE, 0.5, 0.25)
    assert (whole.inner.low, whole.inner.high) == (-5, 0xFFFFFFFB)
    assert whole.number == struct.unpack("<q", struct.pack("<iI", -5, 0xFFFFFFFB))[0]
    assert (whole.link.address, whole.link.inner.low) == (BASE, -5)
    assert [each.high for each in Low.array(whole.space, BASE + 64, 2)] == [2, 2]
    assert whole.name == whole.place(Whole.name) == BASE + Whole.name.offset(whole.space) == BASE + 24
    assert whole.first_word == 77, "of a larger member, its first word"
    assert (whole.bytes_of(Whole.name), whole.value(Whole.short)) == (struct.pack("<QQ", 77, 88), 0xFFFE)
    assert whole.bits == Whole.bits.of(whole.space.layout, whole.space.memory.read(BASE, 64)) == 0b10


def test_what_the_layout_does_not_say_is_refused(whole: Whole) -> None:
    assert not whole.has(Whole.nothing)
    with pytest.raises(LayoutError, match="Outer has no field nothing"):
        _ = whole.nothing
    with pytest.raises(LayoutError, match="4 bytes"):
        _ = whole.inner.wide
    with pytest.raises(MemoryFault):
        _ = whole.far


LAYOUTS = [store.shipped(path) for path in sorted(Path(store.DATA).glob("torch-*-cxx11.json"))]
DECLARING = (torch_structures, value_structures, group_structures, setting_structures)


def declared() -> Iterator[type[Struct]]:
    for module in DECLARING:
        yield from declared_in(module)


@pytest.mark.parametrize("structure", [*declared()], ids=lambda each: each.__name__)
def test_each_declared_member_is_measured(structure: type[Struct]) -> None:
    """Some release has it, as large as it is read, or larger."""
    known = [layout for layout in LAYOUTS if layout.has_struct(structure.OF)]
    asked = [wants_of(table) for table in ("torch", "settings", "distributed", "nccl-groups")]
    assert known or any(structure.OF in each.structs for each in asked), (
        "CUDA's own are not in a wheel for the CPU; what has a member is measured, too"
    )
    for member in structure.members() if known else ():
        having = [layout for layout in known if member.is_in(layout)]
        assert having, member
        for layout in having:
            member.checked(layout)
