"""Call frame information: against pyelftools on real libraries, and every operation on assembled code."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from gdbext.errors import BadData
from gdbext.formats.cfi_program import (
    EXPRESSION,
    OFFSET,
    REGISTER,
    SAME,
    UNDEFINED,
    VAL_EXPRESSION,
    VAL_OFFSET,
    Row,
    Rule,
    row_at,
)
from gdbext.formats.dwarf_expression import evaluate
from gdbext.formats.eh_frame import EntryReader, Fde, ScannedTable, SearchTable
from gdbext.formats.elf import ElfImage
from gdbext.formats.leb128 import sleb128, uleb128
from gdbext.unwind.unwind_row import CompiledRow, InterpretedRow, compile_row

LIBC = "/lib/x86_64-linux-gnu/libc.so.6"


def search_table(image: ElfImage) -> SearchTable:
    assert image.eh_frame_hdr is not None
    return SearchTable(image.read, image.eh_frame_hdr.vaddr)


def libraries() -> list[str]:
    import torch

    return [LIBC, "/usr/lib/x86_64-linux-gnu/libstdc++.so.6", str(Path(torch.__file__).parent / "lib" / "libc10.so")]


def oracle_row(line: dict[object, object]) -> tuple[object, dict[int, tuple[int, object]]]:
    """(CFA, rules) of one line of pyelftools' table in our terms."""
    kinds = {"UNDEFINED": UNDEFINED, "SAME_VALUE": SAME, "OFFSET": OFFSET, "VAL_OFFSET": VAL_OFFSET,
             "REGISTER": REGISTER, "EXPRESSION": EXPRESSION, "VAL_EXPRESSION": VAL_EXPRESSION}  # fmt: skip
    cfa = line["cfa"]
    place = bytes(cfa.expr) if cfa.expr is not None else (cfa.reg, cfa.offset)  # type: ignore[attr-defined]
    rules = {}
    for register, rule in line.items():
        if isinstance(register, int):
            argument = bytes(rule.arg) if isinstance(rule.arg, list) else rule.arg  # type: ignore[attr-defined]
            rules[register] = kinds[rule.type], argument  # type: ignore[attr-defined]
    return place, rules


def our_row(row: Row) -> tuple[object, dict[int, tuple[int, object]]]:
    place = row.cfa_code if row.cfa_code is not None else (row.cfa_register, row.cfa_offset)
    expressions = (EXPRESSION, VAL_EXPRESSION)
    return place, {
        number: (rule.kind, rule.code if rule.kind in expressions else None if rule.kind in (UNDEFINED, SAME)
                 else rule.number)
        for number, rule in row.rules.items()
    }  # fmt: skip


@pytest.mark.parametrize("number", range(3), ids=["libc", "libstdc++", "libc10"])
def test_rows_equal_pyelftools(number: int) -> None:
    from elftools.dwarf.callframe import FDE
    from elftools.elf.elffile import ELFFile

    path = libraries()[number]
    image = ElfImage.open(path)
    table = search_table(image)
    with open(path, "rb") as stream:
        dwarf = ELFFile(stream).get_dwarf_info(relocate_dwarf_sections=False)
        fdes = [entry for entry in dwarf.EH_CFI_entries() if isinstance(entry, FDE)]
        assert len(fdes) > 1000
        generator = random.Random(path)
        compared = 0
        for entry in generator.sample(fdes, 1000):
            if any(int(instruction.opcode) == 0x2E for instruction in entry.instructions):
                continue  # DW_CFA_GNU_args_size: pyelftools cannot make a table of it
            start, size = entry["initial_location"], entry["address_range"]
            found = table.find(start)
            assert found is not None, hex(start)
            assert (found.start, found.end) == (start, start + size)
            lines = entry.get_decoded().table
            for line, following in zip(lines, [*lines[1:], {"pc": start + size}]):
                if line["pc"] >= following["pc"]:
                    continue
                for vaddr in (line["pc"], following["pc"] - 1):
                    assert our_row(row_at(found, vaddr)) == oracle_row(line), hex(vaddr)
                    compared += 1
    assert compared > 3000


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


SOURCE = r"""
        .text
        .globl f
f:      .cfi_startproc
        nop
        .cfi_def_cfa_offset 16
        .cfi_offset 3, -16
        nop
        .cfi_def_cfa_register 6
        nop
        .cfi_remember_state
        .cfi_def_cfa 10, 0
        .cfi_undefined 12
        .cfi_same_value 13
        .cfi_register 14, 1
        .cfi_val_offset 15, -24
        nop
        .cfi_restore_state
        .cfi_restore 3
        nop
        .cfi_escape 0x0f, 3, 0x76, 0x78, 0x06
        .cfi_escape 0x10, 6, 2, 0x76, 0
        .cfi_escape 0x16, 3, 2, 0x77, 8
        nop
        .cfi_escape 0x2e, 16
        .cfi_escape 0x12, 7, 0x7c
        .cfi_escape 0x11, 12, 2
        .cfi_escape 0x05, 13, 3
        .cfi_escape 0x2f, 14, 2
        .cfi_escape 0x15, 15, 1
        nop
        .cfi_escape 0x13, 0x78
        .cfi_escape 0x06, 13
        nop
        .skip 300, 0x90
        .cfi_def_cfa_offset 8
        nop
        .skip 70000, 0x90
        .cfi_def_cfa_offset 24
        nop
        .cfi_endproc
        .globl s
s:      .cfi_startproc
        .cfi_signal_frame
        .cfi_personality 0x9b, ref
        .cfi_lsda 0x1b, table
        nop
        .cfi_endproc
        .data
ref:    .quad 0
table:  .quad 0
"""


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> ElfImage:
    folder = tmp_path_factory.mktemp("cfi")
    (folder / "a.s").write_text(SOURCE)
    subprocess.run(["gcc", "-nostdlib", "-shared", "-o", folder / "a.so", folder / "a.s"], check=True)
    return ElfImage.open(str(folder / "a.so"))


def symbol(image: ElfImage, name: str) -> int:
    text = subprocess.run(["nm", image.path], capture_output=True, text=True, check=True).stdout
    return next(int(line.split()[0], 16) for line in text.splitlines() if line.endswith(f" {name}"))


BASIC = {16: Rule(OFFSET, -8)}
BOTH = {3: Rule(OFFSET, -16), **BASIC}
WANTED = [
    (0, (7, 8, None), BASIC),
    (1, (7, 16, None), BOTH),
    (2, (6, 16, None), BOTH),
    (3, (10, 0, None), {**BOTH, 12: Rule(UNDEFINED), 13: Rule(SAME), 14: Rule(REGISTER, 1),
                        15: Rule(VAL_OFFSET, -24)}),
    (4, (6, 16, None), BASIC),
    (5, (-1, 0, b"\x76\x78\x06"), {**BASIC, 6: Rule(EXPRESSION, 0, b"\x76\x00"),
                                   3: Rule(VAL_EXPRESSION, 0, b"\x77\x08")}),
    (6, (7, 32, None), {**BASIC, 6: Rule(EXPRESSION, 0, b"\x76\x00"), 3: Rule(VAL_EXPRESSION, 0, b"\x77\x08"),
                        12: Rule(OFFSET, -16), 13: Rule(OFFSET, -24), 14: Rule(OFFSET, 16),
                        15: Rule(VAL_OFFSET, -8)}),
]  # fmt: skip


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: str(wanted[0]))
def test_every_operation(
    assembled: ElfImage, wanted: tuple[int, tuple[int, int, bytes | None], dict[int, Rule]]
) -> None:
    start = symbol(assembled, "f")
    fde = search_table(assembled).find(start + wanted[0])
    assert fde is not None
    row = row_at(fde, start + wanted[0])
    assert (row.cfa_register, row.cfa_offset, row.cfa_code) == wanted[1]
    assert row.rules == wanted[2]


def test_long_advances_and_scaled_offsets(assembled: ElfImage) -> None:
    start = symbol(assembled, "f")
    fde = search_table(assembled).find(start)
    assert fde is not None
    for offset, expected in ((7, 64), (307, 64), (308, 8), (309 + 69_999, 8), (309 + 70_000, 24)):
        row = row_at(fde, start + offset)
        assert (row.cfa_register, row.cfa_offset) == (7, expected), offset
        assert 13 not in row.rules


def test_signal_frame_with_personality_and_lsda(assembled: ElfImage) -> None:
    start = symbol(assembled, "s")
    fde = search_table(assembled).find(start)
    assert fde is not None
    assert fde.cie.is_signal
    assert row_at(fde, start).is_signal
    assert isinstance(compile_row(row_at(fde, start)), InterpretedRow)
    other = search_table(assembled).find(symbol(assembled, "f"))
    assert other is not None
    assert not other.cie.is_signal


def test_steps_give_the_same_whichever_is_chosen() -> None:
    """The fast step is the general one for the rows that it takes."""
    image = ElfImage.open(LIBC)
    table = search_table(image)
    generator = random.Random(5)
    text = image.sections[".text"]
    memory = generator.randbytes(1 << 16)
    start = 0x7FFF_0000_0000

    def read(address: int, size: int) -> bytes:
        at = address - start
        assert 0 <= at <= len(memory) - size
        return memory[at : at + size]

    registers = {"rip": 1, "rsp": start + 0x1000, "rbp": start + 0x8000}
    registers.update(rbx=3, r12=4, r13=5, r14=6, r15=7)
    compared = 0
    for _ in range(1000):
        vaddr = text.address + generator.randrange(text.size)
        fde = table.find(vaddr)
        if fde is None:
            continue
        row = row_at(fde, vaddr)
        step = compile_row(row)
        if isinstance(step, CompiledRow) and row.cfa_offset < 0x4000:
            assert step.caller(dict(registers), read) == InterpretedRow(row).caller(dict(registers), read)
            compared += 1
    assert compared > 500


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_refused(seed: int) -> None:
    """Whatever the bytes are, there is an answer or BadData."""
    generator = random.Random(seed)
    image = ElfImage.open(LIBC)
    assert image.eh_frame_hdr is not None
    start = image.eh_frame_hdr.vaddr
    section = image.sections[".eh_frame"]
    blob = bytearray(image.read(start, section.address + section.size - start) or b"")
    for _ in range(len(blob) // generator.choice((3, 30, 300))):
        blob[generator.randrange(len(blob))] = generator.randrange(256)
    if seed % 2:
        blob[:12] = image.read(start, 12) or b""  # a sound header, damage behind it

    def read(vaddr: int, size: int) -> bytes | None:
        at = vaddr - start
        return bytes(blob[at : at + size]) if at >= 0 and at + size <= len(blob) else None

    try:
        table = SearchTable(read, start)
    except BadData:
        return
    for _ in range(200):
        vaddr = generator.randrange(1 << 21)
        try:
            fde = table.find(vaddr)
            if fde is not None:
                compile_row(row_at(fde, vaddr))
        except BadData:
            continue


def test_random_programs_are_refused_or_run() -> None:
    generator = random.Random(11)
    fde = search_table(ElfImage.open(LIBC)).find(ElfImage.open(LIBC).sections[".text"].address + 0x1000)
    assert fde is not None
    for _ in range(3000):
        program = Fde(0, 1000, fde.cie, generator.randbytes(generator.randrange(40)))
        try:
            compile_row(row_at(program, 999))
        except BadData:
            continue


OPERATIONS = {
    "33": 3,
    "0a3412": 0x1234,
    "0bffff": (1 << 64) - 1,
    "08ff": 255,
    "09ff": (1 << 64) - 1,
    "10e58e26": 624485,
    "119bf159": (1 << 64) - 624485,
    "7708": 0x1008,
    "920778": 0xFF8,
    "35311c": 4,
    "31351c": (1 << 64) - 4,
    "351f": (1 << 64) - 5,
    "3520": (1 << 64) - 6,
    "351f19": 5,
    "3d331b": 4,
    "3d351d": 3,
    "35331e": 15,
    "3d3a1a": 8,
    "35321a": 0,
    "353a21": 15,
    "353a27": 15,
    "353322": 8,
    "352305": 10,
    "313424": 16,
    "4f3225": 7,
    "311f3126": (1 << 64) - 1,
    "353529": 1,
    "35332a": 1,
    "33332b": 0,
    "35332c": 0,
    "33352d": 1,
    "33352e": 1,
    "351222": 10,
    "353313": 5,
    "35331422": 8,
    "3533311502": 5,
    "3533161c": (1 << 64) - 2,
    "313233171c": (1 << 64) - 1,
    "3528030031963f34": 4,
    "302803003596": 5,
    "2f01009637": 7,
    "770606": 0xAB00,
    "77069401": 0x00,
}


@pytest.mark.parametrize("code", OPERATIONS)
def test_expression_operations(code: str) -> None:
    def read(address: int, size: int) -> int:
        return (0xAB00 if address == 0x1006 else 0) & (1 << 8 * size) - 1

    assert evaluate(bytes.fromhex(code), lambda number: {7: 0x1000}[number], read) == OPERATIONS[code]


def test_linkage_stub_expression() -> None:
    """What ld writes for .plt: rsp + 8, and 8 more from the 11th byte of an entry on."""
    code = bytes.fromhex("770880003f1a3b2a332422")
    for pc, expected in ((0x1000, 8), (0x100A, 8), (0x100B, 16), (0x100F, 16)):
        assert evaluate(code, lambda number, pc=pc: {7: 0x5000, 16: pc}[number], lambda *_: 0) == 0x5000 + expected


@pytest.mark.parametrize("code", ["22", "", "2ffdff", "08", "ff", "31301b", "940977", "2f0a00", "9a", "1c31", "1505"])
def test_malformed_expressions(code: str) -> None:
    with pytest.raises(BadData):
        evaluate(bytes.fromhex(code), lambda _: 0, lambda *_: 0)


def test_random_expressions_end() -> None:
    generator = random.Random(3)
    for _ in range(5000):
        try:
            value = evaluate(generator.randbytes(generator.randrange(1, 30)), lambda _: 5, lambda *_: 7)
        except BadData:
            continue
        assert 0 <= value < 1 << 64


@pytest.mark.parametrize(
    ("data", "unsigned", "signed"),
    [("02", 2, 2), ("7f", 127, -1), ("8001", 128, 128), ("807f", 16256, -128), ("e58e26", 624485, 624485),
     ("ffffffffffffffffff01", (1 << 64) - 1, (1 << 64) - 1)],
)  # fmt: skip
def test_leb128(data: str, unsigned: int, signed: int) -> None:
    raw = bytes.fromhex(data)
    assert uleb128(raw, 0) == (unsigned, len(raw))
    assert sleb128(raw, 0) == (signed, len(raw))
    for cut in (raw[:-1], b"\x80" * 11):
        with pytest.raises(BadData):
            uleb128(cut, 0)


@pytest.mark.parametrize(
    "tail",
    [
        b"\x01zR\0\x01\x78",  # no return register
        b"\x01zR\0\x01\x78\x10\x01",  # no encoding
        b"\x01zPR\0\x01\x78\x10\x08",  # no personality
        b"\x03zLR\0\x01\x78\x10\x02\x1b",  # no encoding behind the LSDA's
    ],
)
def test_a_common_entry_that_is_cut_short_is_damage(tail: bytes) -> None:
    body = b"\0\0\0\0" + tail
    data = len(body).to_bytes(4, "little") + body
    reader = EntryReader(lambda vaddr, size: data[vaddr : vaddr + size] if vaddr + size <= len(data) else None)
    with pytest.raises(BadData, match="cut short"):
        reader.cie(0)
