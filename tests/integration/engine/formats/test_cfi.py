"""Call frame information against pyelftools on real libraries, and every operation on assembled code."""

from __future__ import annotations

import random
import subprocess

import pytest

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.formats.cfi_program import (
    EXPRESSION,
    OFFSET,
    REGISTER,
    SAME,
    UNDEFINED,
    VAL_EXPRESSION,
    VAL_OFFSET,
    CfiRow,
    Rule,
    row_at,
)
from gdbext.engine.formats.eh_frame import SearchTable
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.unwind.unwind_row import InterpretedRow, compile_row
from support.installed.machine import own_libc, system_library, torch_library

pytestmark = pytest.mark.compiler


def search_table(image: ElfImage) -> SearchTable:
    assert image.eh_frame_hdr is not None
    return SearchTable(image.read, image.eh_frame_hdr.vaddr)


def oracle_row(line: dict[object, object]) -> tuple[object, dict[int, tuple[int, object]]]:
    """(CFA, rules) of one line of pyelftools' table in our terms."""
    kinds = {
        "UNDEFINED": UNDEFINED,
        "SAME_VALUE": SAME,
        "OFFSET": OFFSET,
        "VAL_OFFSET": VAL_OFFSET,
        "REGISTER": REGISTER,
        "EXPRESSION": EXPRESSION,
        "VAL_EXPRESSION": VAL_EXPRESSION,
    }
    cfa = line["cfa"]
    place = bytes(cfa.expr) if cfa.expr is not None else (cfa.reg, cfa.offset)  # type: ignore[attr-defined]
    rules = {}
    for register, rule in line.items():
        if isinstance(register, int):
            argument = bytes(rule.arg) if isinstance(rule.arg, list) else rule.arg  # type: ignore[attr-defined]
            rules[register] = kinds[rule.type], argument  # type: ignore[attr-defined]
    return place, rules


def our_row(row: CfiRow) -> tuple[object, dict[int, tuple[int, object]]]:
    place = row.cfa_code if row.cfa_code is not None else (row.cfa_register, row.cfa_offset)
    expressions = (EXPRESSION, VAL_EXPRESSION)
    return place, {
        number: (
            rule.kind,
            rule.code if rule.kind in expressions else None if rule.kind in (UNDEFINED, SAME) else rule.number,
        )
        for number, rule in row.rules.items()
    }


@pytest.mark.parametrize("name", ["libc", "libstdc++.so.6", pytest.param("libc10.so", marks=pytest.mark.torch)])
def test_rows_equal_pyelftools(name: str) -> None:
    from elftools.dwarf.callframe import FDE
    from elftools.elf.elffile import ELFFile

    path = {"libc": own_libc, "libc10.so": lambda: torch_library(name)}.get(name, lambda: system_library(name))()
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
    (3, (10, 0, None), {**BOTH, 12: Rule(UNDEFINED), 13: Rule(SAME), 14: Rule(REGISTER, 1), 15: Rule(VAL_OFFSET, -24)}),
    (4, (6, 16, None), BASIC),
    (
        5,
        (-1, 0, b"\x76\x78\x06"),
        {**BASIC, 6: Rule(EXPRESSION, 0, b"\x76\x00"), 3: Rule(VAL_EXPRESSION, 0, b"\x77\x08")},
    ),
    (
        6,
        (7, 32, None),
        {
            **BASIC,
            6: Rule(EXPRESSION, 0, b"\x76\x00"),
            3: Rule(VAL_EXPRESSION, 0, b"\x77\x08"),
            12: Rule(OFFSET, -16),
            13: Rule(OFFSET, -24),
            14: Rule(OFFSET, 16),
            15: Rule(VAL_OFFSET, -8),
        },
    ),
]


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
    assert isinstance(compile_row(by_name("x86_64"), row_at(fde, start)), InterpretedRow)
    other = search_table(assembled).find(symbol(assembled, "f"))
    assert other is not None
    assert not other.cie.is_signal
