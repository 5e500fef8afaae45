"""C++ exceptions, made as the Itanium ABI and libstdc++ lay them out."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import cast

from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.torch.values.cpp_objects import SINGLE_BASE, CxxException, read_exception
from support.fakes.fake_target import FakeTarget

BLOCK, SINGLE, PLAIN = 0x10000, 0x20000, 0x30000
"""What is made; the tables of virtual functions of type_infos with one base, and with none."""
OBJECT = BLOCK + 0x400
DERIVED, BASE, NAMES, TEXT = BLOCK + 0x100, BLOCK + 0x200, BLOCK + 0x800, BLOCK + 0xC00


class Tables:
    """Names the two tables of virtual functions, 16 bytes before the address that objects have."""

    def names_at(self, address: int) -> Sequence[str]:
        return {SINGLE - 16: (SINGLE_BASE,), PLAIN - 16: ("_ZTVN10__cxxabiv117__class_type_infoE",)}.get(address, ())


def thrown(names: Sequence[str], contents: bytes) -> CxxException:
    """The exception of a class (the first name) and its bases, whose members have these bytes."""
    block = bytearray(0x1000)
    at, place = DERIVED, NAMES
    for index, name in enumerate(names):
        last = index == len(names) - 1
        struct.pack_into("<3Q", block, at - BLOCK, PLAIN if last else SINGLE, place, 0 if last else at + 0x40)
        block[place - BLOCK : place - BLOCK + len(name)] = name.encode()
        at, place = at + 0x40, place + len(name) + 1
    struct.pack_into("<Q", block, OBJECT - 112 - BLOCK, DERIVED)
    block[OBJECT + 8 - BLOCK : OBJECT + 8 - BLOCK + len(contents)] = contents
    block[TEXT - BLOCK : TEXT - BLOCK + 24] = b"a text outside of itself"
    return read_exception(Memory(FakeTarget({BLOCK: bytes(block)})), cast(Symbolizer, Tables()), OBJECT)


def test_a_c10_error_and_what_derives_from_it() -> None:
    short = struct.pack("<QQ", OBJECT + 24, 5) + b"hello".ljust(16, b"\0")
    assert thrown(["N3c105ErrorE"], short) == CxxException("c10::Error", "hello")
    long = struct.pack("<QQ", TEXT, 24)
    assert thrown(["N3c1010IndexErrorE", "N3c105ErrorE"], long) == ("c10::IndexError", "a text outside of itself")


def test_other_classes() -> None:
    found = thrown(["12MyOwn_failed", "St13runtime_error", "St9exception"], struct.pack("<Q", TEXT))
    assert found.message == "a text outside of itself"
    assert thrown(["St9bad_alloc", "St9exception"], b"") == ("std::bad_alloc", ""), "it has a name only"


def test_a_text_that_cannot_be_read_costs_the_text() -> None:
    assert thrown(["St11logic_error"], struct.pack("<Q", 0xDEAD0000)) == ("std::logic_error", "")
    assert thrown(["N3c105ErrorE"], struct.pack("<QQ", 0xDEAD0000, 1 << 40)) == ("c10::Error", "")
