"""ELF headers and notes: what a sound file says, and typed errors on everything else."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.elf_header import MappedElf, Note, notes, permission_text
from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.formats.symbol_index import SymbolIndex
from gdbext.errors import SymbolFileError
from support.fakes.elf_maker import Entry, make_elf
from support.installed.machine import own_libc

SMALL = make_elf([Entry("f", 0x1000), Entry("g", 0x1010)], [Entry("f", 0x1000)], b"\x12\x34\x56\x78" * 5)


REAL = [sys.executable, own_libc()]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a 64-bit"),
        (b"\x7fELF", "not a 64-bit"),
        (b"#!/bin/sh\n" * 20, "not a 64-bit"),
        (b"\x7fELF\x01\x01" + SMALL[6:], "not a 64-bit"),
        (b"\x7fELF\x02\x02" + SMALL[6:], "not a 64-bit"),
        (SMALL[:64], "outside the file"),
        (make_elf([], machine=183), "another machine"),
    ],
)
def test_foreign_files_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(SymbolFileError, match=reason):
        ElfImage(data, "x", machine=62)


def test_paths_that_are_no_elf_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("hello" * 100)
    for name, said in (*((name, name) for name in ("missing", "folder", "empty", "pipe", "text")), ("a\0b", "cannot")):
        with pytest.raises(SymbolFileError, match=said):
            ElfImage.open(f"{tmp_path}/{name}")


def _use_everything(data: bytes) -> None:
    """Everything one can ask of a damaged file gives an answer or a SymbolFileError."""
    try:
        image = ElfImage(data, "damaged")
        _ = (image.build_id, image.sections, image.dynamic, image.span, image.tls, image.eh_frame_hdr)
        image.read(0x1000, 64)
        index = SymbolIndex(image, SymbolCache(Path("/proc/nonexistent")))
        for vaddr in (0, 0x1000, 0x1008, 0x1FF8, 0x3000, 1 << 63):
            index.at(vaddr)
            index.containing(vaddr)
        index.lookup("f")
        index.exported("f")
        list(index.matching(b"f"))
    except SymbolFileError:
        pass


@pytest.mark.parametrize("path", REAL, ids=os.path.basename)
def test_truncated_real_files_raise_only_typed_errors(path: str) -> None:
    data = Path(path).read_bytes()[: 1 << 21]
    for length in (64, 100, 600, 4096, len(data) // 3, len(data) // 2, len(data) - 1):
        _use_everything(data[:length])


def test_a_file_without_sections_keeps_its_segments() -> None:
    image = ElfImage(make_elf([Entry("f", 0x1000)], [], b"\1" * 20, with_sections=False), "x")
    assert image.sections == {}
    assert image.build_id == "01" * 20
    with pytest.raises(SymbolFileError, match="no symbol table"):
        SymbolIndex(image)


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
    for mapped in (MappedElf(lambda *_: b""), MappedElf(lambda _, size: bytes(size)), MappedElf(read_file, machine=3)):
        assert (mapped.segments, mapped.header, mapped.build_id) == ((), b"", None)


def test_notes_end_at_the_first_that_is_cut_short() -> None:
    one = struct.pack("<III", 4, 3, 7) + b"GNU\0" + b"abc\0"
    data = b"....." + one + one
    first, second = notes(data, 5, len(data))
    assert (first, data[first.offset : first.offset + first.size]) == (Note(b"GNU", 7, 21, 3), b"abc")
    assert second.offset == first.offset + len(one)
    assert len(list(notes(data, 5, len(data) - 2))) == 1
