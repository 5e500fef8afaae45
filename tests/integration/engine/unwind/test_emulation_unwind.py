"""Following code to its return, against the call frame information of functions that have it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.arch.x86_64.decode import instructions
from gdbext.engine.formats.cfi_program import OFFSET, SAME, CfiRow, row_at
from gdbext.engine.formats.eh_frame import SearchTable
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.unwind.emulation_unwind import EmulationUnwinder
from support.installed.machine import own_libc
from support.programs.native_build import torch_folder

X86 = by_name("x86_64")
SP = 0x7FFF_0000_0000
SAVED = (3, 6, 12, 13, 14, 15)
PADDING = (b"\x90", b"\xcc", b"\x66", b"\x0f\x1f")


class FileCode:
    def __init__(self, image: ElfImage) -> None:
        self._image = image

    def after(self, address: int, size: int) -> bytes:
        sizes = (size >> halvings for halvings in range(size.bit_length()))
        return next(filter(None, (self._image.read(address, each) for each in sizes)), b"")


def place(row: CfiRow, number: int, cfa: int) -> object:
    rule = row.rules.get(number)
    if rule is None or rule.kind == SAME:
        return "same"
    return cfa + rule.number if rule.kind == OFFSET else "unknown"


def compare(expected: CfiRow, found: CfiRow, registers: dict[int, int]) -> str:
    if found.cfa_code is not None:
        return "incomparable"
    cfa = registers[expected.cfa_register] + expected.cfa_offset
    if cfa != registers[found.cfa_register] + found.cfa_offset:
        return "wrong"
    for number in SAVED:
        theirs, mine = place(expected, number, cfa), place(found, number, cfa)
        popped = mine == "same" and isinstance(theirs, int) and theirs < SP  # both hold the value then
        if mine not in (theirs, "unknown") and not popped and theirs != "same":
            return f"wrong register {number}"
    return "same"


@pytest.mark.parametrize("name", ["libc", pytest.param("libgomp.so.1", marks=pytest.mark.torch)])
def test_agrees_with_call_frame_information(name: str) -> None:
    image = ElfImage.open(own_libc() if name == "libc" else str(torch_folder() / "lib" / name))
    assert image.eh_frame_hdr is not None
    table = SearchTable(image.read, image.eh_frame_hdr.vaddr)

    def starts(address: int) -> bool:
        fde = table.find(address)
        return fde is not None and fde.start == address

    generator = random.Random(name)
    results: Counter[str] = Counter()
    examples = []
    for _ in range(600):
        fde = table.entries.fde(image.eh_frame_hdr.vaddr + table.entry(generator.randrange(table.count))[1])
        code = image.read(fde.start, fde.end - fde.start) or b""
        decoded = instructions(code, fde.start)
        reached = [one for one in decoded if not code[one.address - fde.start :].startswith(PADDING)]
        if not reached:
            continue
        pc = generator.choice(reached).address
        row = row_at(fde, pc)
        if row.cfa_code is not None or row.is_signal:
            continue
        registers = {number: 0x5000_0000 + number * 0x1000 for number in range(16)}
        registers[7] = SP
        if row.cfa_register == 6:
            registers[6] = SP + generator.randrange(16, 4096, 16)
        names = {"rbp": registers[6], "rsp": SP, "rbx": registers[3], **{f"r{n}": registers[n] for n in range(12, 16)}}
        flow = EmulationUnwinder(X86, FileCode(image), starts)  # type: ignore[arg-type]
        for found in flow.rows(pc, names):
            result = compare(row, found, registers)
            results[result] += 1
            if result.startswith("wrong"):
                examples.append((hex(pc), result, row, found))
    assert results["same"] > 300, results
    wrong = sum(count for what, count in results.items() if what.startswith("wrong"))
    assert wrong <= results["same"] // 100, f"{results} {examples[:4]}"
