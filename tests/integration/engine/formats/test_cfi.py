"""Every operation of call frame information on assembled code; test_emulation_unwind.py has real libraries."""

from __future__ import annotations

import subprocess

import pytest

from gdbext.engine.formats.cfi_program import (
    EXPRESSION,
    OFFSET,
    REGISTER,
    SAME,
    UNDEFINED,
    VAL_EXPRESSION,
    VAL_OFFSET,
    Rule,
    row_at,
)
from gdbext.engine.formats.eh_frame import SearchTable
from gdbext.engine.formats.elf import ElfImage

pytestmark = pytest.mark.compiler
SOURCE = """
.globl f
f: .cfi_startproc
nop; .cfi_def_cfa_offset 16; .cfi_offset 3, -16
nop; .cfi_def_cfa_register 6
nop; .cfi_remember_state; .cfi_def_cfa 10, 0; .cfi_undefined 12; .cfi_same_value 13; .cfi_register 14, 1
.cfi_val_offset 15, -24
nop; .cfi_restore_state; .cfi_restore 3
nop; .cfi_escape 0x0f, 3, 0x76, 0x78, 0x06; .cfi_escape 0x10, 6, 2, 0x76, 0; .cfi_escape 0x16, 3, 2, 0x77, 8
nop; .cfi_escape 0x2e, 16; .cfi_escape 0x12, 7, 0x7c; .cfi_escape 0x11, 12, 2; .cfi_escape 0x05, 13, 3
.cfi_escape 0x2f, 14, 2; .cfi_escape 0x15, 15, 1
nop; .cfi_escape 0x13, 0x78; .cfi_escape 0x06, 13
nop; .skip 300, 0x90; .cfi_def_cfa_offset 8
nop; .skip 70000, 0x90; .cfi_def_cfa_offset 24
nop; .cfi_endproc
.globl s
s: .cfi_startproc; .cfi_signal_frame; .cfi_personality 0x9b, f; .cfi_lsda 0x1b, f
nop; .cfi_endproc
"""
BASIC = {16: Rule(OFFSET, -8)}
SAVED = {**BASIC, 3: Rule(OFFSET, -16)}
SPECIAL = {**SAVED, 12: Rule(UNDEFINED), 13: Rule(SAME), 14: Rule(REGISTER, 1), 15: Rule(VAL_OFFSET, -24)}
COMPUTED = {**BASIC, 6: Rule(EXPRESSION, 0, b"\x76\x00"), 3: Rule(VAL_EXPRESSION, 0, b"\x77\x08")}
SCALED = {**COMPUTED, 12: Rule(OFFSET, -16), 14: Rule(OFFSET, 16), 15: Rule(VAL_OFFSET, -8)}
ROWS = {
    0: ((7, 8, None), BASIC),
    1: ((7, 16, None), SAVED),
    2: ((6, 16, None), SAVED),
    3: ((10, 0, None), SPECIAL),
    4: ((6, 16, None), BASIC),
    5: ((-1, 0, b"\x76\x78\x06"), COMPUTED),
    6: ((7, 32, None), {**SCALED, 13: Rule(OFFSET, -24)}),
    7: ((7, 64, None), SCALED),
    307: ((7, 64, None), SCALED),
    308: ((7, 8, None), SCALED),
    309 + 69_999: ((7, 8, None), SCALED),
    309 + 70_000: ((7, 24, None), SCALED),
}


def test_every_operation(tmp_path_factory: pytest.TempPathFactory) -> None:
    library = tmp_path_factory.mktemp("cfi") / "a.so"
    command = ["gcc", "-nostdlib", "-shared", "-Wl,-Bsymbolic", "-x", "assembler", "-", "-o", library]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    lines = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout.splitlines()
    symbols = {name: int(address, 16) for address, _, name in (line.split() for line in lines)}
    image = ElfImage.open(str(library))
    assert image.eh_frame_hdr is not None
    table = SearchTable(image.read, image.eh_frame_hdr.vaddr)
    for offset, expected in ROWS.items():
        fde = table.find(symbols["f"] + offset)
        assert fde is not None
        assert not fde.cie.is_signal
        row = row_at(fde, symbols["f"] + offset)
        assert ((row.cfa_register, row.cfa_offset, row.cfa_code), row.rules) == expected, offset
    fde = table.find(symbols["s"])
    assert fde is not None
    assert fde.cie.is_signal
    assert row_at(fde, symbols["s"]).is_signal
