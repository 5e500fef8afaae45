"""Call frame information of the running libc, whole and damaged, and every operation of an expression."""

from __future__ import annotations

import random

import pytest

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.formats.cfi_program import evaluate, row_at
from gdbext.engine.formats.eh_frame import EntryReader, Fde, ScannedTable, SearchTable
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.unwind.unwind_row import compile_row
from gdbext.errors import BadData
from support.fuzzing.byte_damage import scatter
from support.installed.machine import own_libc

LIBC = own_libc()
X86 = by_name("x86_64")


def search_table(image: ElfImage) -> SearchTable:
    return SearchTable(image.read, image.eh_frame_hdr.vaddr)


def test_search_and_scan_find_the_same() -> None:
    image = ElfImage.open(LIBC)
    table = search_table(image)
    section = image.sections[".eh_frame"]
    scanned = ScannedTable(EntryReader(image.read), section.address, section.size)
    generator = random.Random(1)
    text = image.sections[".text"]
    hits = 0
    for _ in range(3000):
        vaddr = text.address + generator.randrange(text.size)
        found = table.find(vaddr)
        assert found == scanned.find(vaddr)
        hits += found is not None
    assert hits > 2000
    assert table.find(0) is None
    assert table.find(1 << 40) is None


@pytest.mark.parametrize("seed", range(30))
def test_damage_is_refused(seed: int) -> None:
    """Whatever the bytes are, there is an answer or BadData."""
    generator = random.Random(seed)
    image = ElfImage.open(LIBC)
    start = image.eh_frame_hdr.vaddr
    section = image.sections[".eh_frame"]
    blob = bytearray(image.read(start, section.address + section.size - start))
    scatter(blob, 0, len(blob), len(blob) // generator.choice((3, 30, 300)), generator)
    if seed % 2:
        blob[:12] = image.read(start, 12)  # a sound header, damage behind it

    def read(vaddr: int, size: int) -> bytes:
        at = vaddr - start
        return bytes(blob[at : at + size]) if at >= 0 and at + size <= len(blob) else b""

    try:
        table = SearchTable(read, start)
    except BadData:
        return
    for _ in range(200):
        vaddr = generator.randrange(1 << 21)
        try:
            fde = table.find(vaddr)
            if fde is not None:
                compile_row(X86, row_at(fde, vaddr))
        except BadData:
            continue


def test_random_programs_are_refused_or_run() -> None:
    generator = random.Random(11)
    fde = search_table(ElfImage.open(LIBC)).find(ElfImage.open(LIBC).sections[".text"].address + 0x1000)
    for _ in range(3000):
        program = Fde(0, 1000, fde.cie, generator.randbytes(generator.randrange(40)))
        try:
            compile_row(X86, row_at(program, 999))
        except BadData:
            continue


OPERATIONS = """
    33:3 0a3412:1234 0bffff:-1 08ff:ff 09ff:-1 10e58e26:98765 119bf159:-98765 7708:1008 920778:ff8 35311c:4
    31351c:-4 351f:-5 3520:-6 351f19:5 3d331b:4 3d351d:3 35331e:f 3d3a1a:8 35321a:0 353a21:f 353a27:f 353322:8
    352305:a 313424:10 4f3225:7 311f3126:-1 353529:1 35332a:1 33332b:0 35332c:0 33352d:1 33352e:1 351222:a
    353313:5 35331422:8 3533311502:5 3533161c:-2 313233171c:-1 3528030031963f34:4 302803003596:5 2f01009637:7
    770606:ab00 77069401:0
"""
"""CODE:VALUE, both of them hexadecimal."""


@pytest.mark.parametrize("operation", OPERATIONS.split())
def test_expression_operations(operation: str) -> None:
    def read(address: int, size: int) -> int:
        return (0xAB00 if address == 0x1006 else 0) & (1 << 8 * size) - 1

    code, value = operation.split(":")
    found = evaluate(bytes.fromhex(code), lambda number: {7: 0x1000}[number], read)
    assert found == int(value, 16) & (1 << 64) - 1


@pytest.mark.parametrize("code", ["22", "", "2ffdff", "08", "ff", "31301b", "940977", "2f0a00", "9a", "1c31", "1505"])
def test_malformed_expressions(code: str) -> None:
    with pytest.raises(BadData):
        evaluate(bytes.fromhex(code), lambda _: 0, lambda *_: 0)
