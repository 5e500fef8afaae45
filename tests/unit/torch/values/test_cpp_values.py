"""Arguments of C++ types by the words that pass them, devices of tensors, and exceptions of the Itanium ABI."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import cast

import pytest

from gdbext.engine.arch import Passing
from gdbext.engine.layouts import Layout, store
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.torch.state.tensor import TensorReader
from gdbext.torch.values.containers import has_own_optional
from gdbext.torch.values.cpp_objects import SINGLE_BASE, CxxException, read_exception
from gdbext.torch.values.cpp_values import CppValues, passing_of, used_bytes
from gdbext.torch.values.key_names import KeyNames
from support.fakes.fake_target import FakeTarget

TEXT, ITEMS = 0x100000, 0x101000
VIEWS = ("c10::basic_string_view<char>", "std::basic_string_view<char, std::char_traits<char> >")
MEMORY = Memory(FakeTarget({TEXT: b"mean".ljust(4096, b"\0"), ITEMS: struct.pack("<2Q", 3, 5).ljust(4096, b"\0")}))


@pytest.fixture(params=["1.13.0a0", "2.1.2+cu121", "2.2.2+cu121", "2.6.0+cu124", "2.13.0+cpu", "2.15.0+cu132"])
def layout(request: pytest.FixtureRequest) -> Layout:
    """Of releases before and after a change of these types, the oldest, and the newest."""
    return store.load(f"{store.DATA}/torch-{request.param}-cxx11.json")


def view(layout: Layout) -> list[int]:
    """The words of a string_view of TEXT, as this layout has them."""
    fields = layout.struct("c10::string_view").fields
    first = next(fields[name] for name in ("_M_str", "begin_", "ptr_") if name in fields)
    return [TEXT, 4] if first.offset == 0 else [4, TEXT]


def optional(layout: Layout, inner: str, words: list[int]) -> list[int]:
    """The words of an optional that holds these; the bytes behind its flag are what was there before."""
    shape = layout.struct(f"optional<{inner}>")
    if "init_" in shape.fields:
        return [0xDEAD00 + 1, *words]
    return [*words, 0xDEAD00 + 1]


def test_what_an_argument_is(layout: Layout) -> None:
    values = CppValues(MEMORY, layout, hex)
    view_name = VIEWS["_M_str" in layout.struct("c10::string_view").fields]
    assert values.read(view_name, view(layout)).text == '"mean"'
    held = optional(layout, "c10::string_view", view(layout))
    absent = [word - 1 if word == 0xDEAD01 else word for word in held]
    for words, text in ((held, '"mean"'), (absent, "None")):
        assert values.read(f"std::optional<{view_name} >", words).text == text
    assert values.read("std::optional<long>", optional(layout, "int64_t", [7])).text == "7"
    assert passing_of("std::optional<long>", has_own_optional(layout)) is Passing.TWO_WORDS
    flag_first = "init_" in layout.struct("optional<double>").fields
    number = int.from_bytes(struct.pack("<d", 0.5), "little")
    assert values.read("c10::optional<double>", optional(layout, "double", [number])).text == "0.5"
    passing = Passing.WORD_AND_FLOAT if flag_first else Passing.FLOAT_AND_WORD
    assert passing_of("c10::optional<double>", has_own_optional(layout)) is passing


def test_optional_lists(layout: Layout) -> None:
    """sizeof(c10::OptionalArrayRef) says which kind this torch has."""
    values = CppValues(MEMORY, layout, hex)
    compact = layout.struct("c10::OptionalArrayRef").size == 16
    assert has_own_optional(layout) is compact
    there, empty, absent = ([ITEMS, 2], [0, 0], [0, 1]) if compact else ([ITEMS, 2, 1], [0, 0, 1], [0, 0, 0])
    for kind in ("c10::OptionalArrayRef<long>", "c10::optional<c10::ArrayRef<long> >"):
        assert passing_of(kind, compact) is (Passing.TWO_WORDS if compact else Passing.MEMORY)
        found = [values.read(kind, words).text for words in (there, empty, absent)]
        assert [text.replace(" ", "") for text in found] == ["[3,5]", "[]", "None"]


def test_the_bytes_of_each_word_that_a_value_takes() -> None:
    used = {"std::optional<double>": [8, 1], "std::optional<long>": [8, 1], "std::optional<bool>": [3], "bool": [1]}
    used |= {"c10::optional<double>": [8, 8], "c10::ArrayRef<long>": [8, 8]}  # the former's flag comes first
    for kind, sizes in used.items():
        assert [used_bytes(kind, number) for number in range(len(sizes))] == sizes


def test_the_device_of_a_tensor(layout: Layout) -> None:
    """c10::optional of torch before 2.2 has its flag in front of the device, std::optional behind it."""
    in_front = "init_" in layout.struct("optional<c10::Device>").fields
    page, cuda = bytearray(b"\xee" * 4096), 1
    at = layout.struct("c10::TensorImpl").field("device_opt_").offset
    found = []
    for kind, index, engaged in ((cuda, 3, 1), (0, 0xFF, 1), (cuda, 3, 0)):
        page[at : at + 3] = bytes([engaged, kind, index] if in_front else [kind, index, engaged])
        memory = Memory(FakeTarget({TEXT: bytes(page)}))
        found.append(TensorReader(memory, layout, cast(Symbolizer, None), cast(KeyNames, None))._device(TEXT))
    assert found == ["cuda:3", "cpu", None]


BLOCK, SINGLE, PLAIN = 0x10000, 0x20000, 0x30000
"""What is made; the tables of virtual functions of type_infos with one base, and with none."""
OBJECT = BLOCK + 0x400
DERIVED, BASE, NAMES, OUTSIDE = BLOCK + 0x100, BLOCK + 0x200, BLOCK + 0x800, BLOCK + 0xC00


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
    block[OUTSIDE - BLOCK : OUTSIDE - BLOCK + 24] = b"a text outside of itself"
    return read_exception(Memory(FakeTarget({BLOCK: bytes(block)})), cast(Symbolizer, Tables()), OBJECT)


def test_a_c10_error_and_what_derives_from_it() -> None:
    short = struct.pack("<QQ", OBJECT + 24, 5) + b"hello".ljust(16, b"\0")
    assert thrown(["N3c105ErrorE"], short) == CxxException("c10::Error", "hello")
    long = struct.pack("<QQ", OUTSIDE, 24)
    assert thrown(["N3c1010IndexErrorE", "N3c105ErrorE"], long) == ("c10::IndexError", "a text outside of itself")


def test_other_classes_and_a_text_that_cannot_be_read() -> None:
    found = thrown(["12MyOwn_failed", "St13runtime_error", "St9exception"], struct.pack("<Q", OUTSIDE))
    assert found.message == "a text outside of itself"
    assert thrown(["St9bad_alloc", "St9exception"], b"") == ("std::bad_alloc", ""), "it has a name only"
    assert thrown(["St11logic_error"], struct.pack("<Q", 0xDEAD0000)) == ("std::logic_error", "")
    assert thrown(["N3c105ErrorE"], struct.pack("<QQ", 0xDEAD0000, 1 << 40)) == ("c10::Error", "")
