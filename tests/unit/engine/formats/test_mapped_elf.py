"""ELF headers and notes, wherever they are read from."""

from __future__ import annotations

import struct

import pytest

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.elf_header import Identity, MappedElf, Note, identify, notes, permission_text
from support.fakes.elf_maker import make_elf

FILE = make_elf([], build_id=bytes.fromhex("c0ffee"))


def read_file(offset: int, size: int) -> bytes | None:
    piece = FILE[offset : offset + size]
    return piece if len(piece) == size else None


def test_a_mapping_tells_what_the_file_does() -> None:
    image, mapped = ElfImage(FILE, "x"), MappedElf(read_file)
    assert mapped.segments == image.segments
    assert mapped.build_id == image.build_id == "c0ffee"
    assert mapped.header == FILE[:64]
    assert mapped.permissions_at(0, 0x1000) == permission_text(image.loads[0].flags)
    assert mapped.permissions_at(1 << 40, 0x1000) == ""


def test_what_is_no_mapped_file() -> None:
    for mapped in (MappedElf(lambda *_: None), MappedElf(lambda _, size: bytes(size)), MappedElf(read_file, machine=3)):
        assert (mapped.segments, mapped.header, mapped.build_id) == ((), b"", None)


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (FILE[:20], Identity(64, True, 3, 62)),
        (b"\x7fELF\x01\x01" + bytes(10) + b"\4\0\3\0", Identity(32, True, 4, 3)),
        (b"\x7fELF\x02\x02" + bytes(10) + b"\0\4\0\x16", Identity(64, False, 4, 22)),
        (FILE[:19], None),
        (b"MZ" + bytes(30), None),
    ],
)
def test_what_a_file_begins_with(start: bytes, found: Identity | None) -> None:
    assert identify(start) == found


def test_notes_end_at_the_first_that_is_cut_short() -> None:
    one = struct.pack("<III", 4, 3, 7) + b"GNU\0" + b"abc\0"
    data = b"....." + one + one
    first, second = notes(data, 5, len(data))
    assert (first, data[first.offset : first.offset + first.size]) == (Note(b"GNU", 7, 21, 3), b"abc")
    assert second.offset == first.offset + len(one)
    assert len(list(notes(data, 5, len(data) - 2))) == 1
