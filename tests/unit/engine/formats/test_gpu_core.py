"""Cores of a GPU, made as cudacoredump.h of NVIDIA describes them: none of a real device was at hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from gdbext.engine.formats.gpu_core import read_gpu_core
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.errors import BadCore

LOUSER = 0x80000000
DEVICES, SMS, GRIDS, LANES, MODULES, IMAGE = (LOUSER + each for each in (9, 11, 12, 15, 16, 7))
ENTRY, HANDLE = 0x7F0000001000, 0xABC0
Section = tuple[int, bytes, int, int, int]
"""Type, contents, link, info, bytes of a row."""


def elf(sections: Sequence[Section], machine: int = 190, kind: int = 4) -> bytes:
    """An ELF file of 64 bits with these sections, the first of them number 1, and a table of strings last; what is of
    the program, type 1, is .debug_line."""
    body, headers = b"", [bytes(64)]
    for type_, contents, link, info, row in (*sections, (3, b"\0.debug_line\0", 0, 0, 0)):
        start = 64 + len(body)
        headers.append(struct.pack("<IIQQQQIIQQ", type_ == 1, type_, 0, 0, start, len(contents), link, info, 1, row))
        body += contents
    ident = b"\x7fELF\x02\x01\x01\x33" + bytes(8)
    count = len(headers)
    start = struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, count, count - 1)
    return ident + start + body + b"".join(headers)


def cubin(name: bytes = b"_Z5spinsIiEvPT_") -> bytes:
    """A relocated module with one kernel."""
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 2, 0, 1, ENTRY, 0x80)
    return elf([(2, symbols, 2, 0, 24), (3, b"\0" + name + b"\0", 0, 0, 0)], kind=2)


def lane(exception: int, pc: int = 16) -> bytes:
    return struct.pack("<QQ8I", ENTRY + pc, pc, 0, 0, 0, 0, exception, 1, 0, 0)


def grid(entry: int = ENTRY, more: int = 0) -> bytes:
    """A row, ``more`` bytes longer than in the first driver that wrote such cores."""
    return struct.pack("<7Q12I", 1, 2, 3, entry, HANDLE, 0, 0, 0, 0, 1, 32, 4, 2, 1, 32, 1, 1, 0, 77) + bytes(more)


def core(lanes: bytes = lane(12) * 3 + lane(0), grids: bytes = grid(), row: int = 104, sm: int = 0) -> bytes:
    texts = b"\0NVIDIA H100\0sm_90\0"
    device = struct.pack("<QQQ", 1, 0, 13) + bytes(48)
    return elf(
        [
            (DEVICES, device, 0, 0, len(device)),
            (GRIDS, grids, 1, 0, row),
            (MODULES, struct.pack("<Q", HANDLE), 1, 0, 8),
            (IMAGE, cubin(), 3, 0, 0),
            (LANES, lanes, 1, 0, 48),
            (SMS, struct.pack("<IIIIQ", 0, 0, sm, 0, 0), 1, 0, 24),
            (3, texts, 0, 0, 0),
        ]
    )


def test_a_core_of_a_gpu_is_refused_with_what_it_says_and_the_next_step(tmp_path: Path) -> None:
    found = read_gpu_core(core(), "gpu.core")
    assert (found.devices, found.exceptions) == (("NVIDIA H100 sm_90",), (("an assertion", 3),))
    (only,) = found.grids
    assert (only.kernel, only.entry) == ("void spins<int>(int*)", ENTRY)
    assert (only.blocks, only.threads) == ((4, 2, 1), (32, 1, 1))
    file = tmp_path / "gpu.core"
    file.write_bytes(core())
    with pytest.raises(BadCore) as refused:
        CoreTarget(str(file))
    said = refused.value.what
    assert said.startswith(f"{file} is a core of a GPU (NVIDIA H100 sm_90), with void spins<int>(int*) (grid")
    assert "an assertion (3 times)" in said
    assert all(words in refused.value.help for words in ("cuda-gdb", "gcore"))
    for cut in (8, 63, 64, 200, 900):
        file.write_bytes(core()[:cut])
        with pytest.raises(BadCore):
            CoreTarget(str(file))


def test_rows_of_newer_drivers_are_longer() -> None:
    found = read_gpu_core(core(grids=grid(more=32) + grid(0x10, more=32), row=136), "gpu.core")
    assert [each.kernel for each in found.grids] == ["void spins<int>(int*)", ""]
    assert "a kernel at 0x10 (grid 4×2×1 of 32×1×1)" in found.text


def test_exceptions_of_processors_count_where_no_thread_has_one() -> None:
    assert read_gpu_core(core(lanes=lane(0), sm=14), "gpu.core").exceptions == (("an illegal address", 1),)
    assert read_gpu_core(core(lanes=lane(5), sm=14), "gpu.core").exceptions == (("an address out of range", 1),)
    assert read_gpu_core(core(lanes=lane(99)), "gpu.core").exceptions == (("exception 99", 1),)
    assert read_gpu_core(core(lanes=b""), "gpu.core").exceptions == ()


def test_numbers_that_lead_nowhere_cost_what_they_name() -> None:
    torn = core(grids=grid()).replace(struct.pack("<Q", HANDLE), struct.pack("<Q", HANDLE + 1), 1)
    assert [each.kernel for each in read_gpu_core(torn, "gpu.core").grids] == [""]
    with pytest.raises(BadCore, match="section headers"):
        read_gpu_core(core()[:60] + b"\xff\xff" + core()[62:], "gpu.core")
    assert read_gpu_core(core(row=0), "gpu.core").grids == ()


def line_table(version: int = 2) -> bytes:
    """spin.cu:40 from ENTRY on, :43 from 16 bytes behind it on, common.h:7 from 32 on, to 48."""
    header = bytes([1] * (2 if version > 3 else 1)) + struct.pack("<BbBB", 1, -5, 14, 13)
    header += bytes([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1]) + b"/src\0\0spin.cu\0\1\0\0common.h\0\1\0\0\0"
    code = b"\0\x09\x02" + struct.pack("<Q", ENTRY) + b"\x03\x27\x01"  # the address, 39 lines more, a row
    code += b"\x02\x10\x03\x03\x01"  # 16 bytes and three lines on
    code += b"\x09" + struct.pack("<H", 16) + b"\x04\x02\x03\x5c\x01"  # the other file, 36 lines less
    code += b"\x02\x10\x00\x01\x01"  # the end of the sequence
    unit = struct.pack("<HI", version, len(header)) + header + code
    return struct.pack("<I", len(unit)) + unit


def with_lines(table: bytes, pcs: Sequence[int]) -> bytes:
    """A core whose module has that table; one thread at each of these places behind the kernel's entry."""
    image = elf([(1, table, 0, 0, 0)], kind=2)
    return elf([(IMAGE, image, 2, 0, 0), (LANES, b"".join(lane(0, pc) for pc in pcs), 1, 0, 48)])


@pytest.mark.parametrize("version", [2, 4])
def test_the_lines_at_which_threads_stand(version: int) -> None:
    found = read_gpu_core(with_lines(line_table(version), [0, 16, 24, 31, 32, 48, 4096]), "gpu.core")
    assert found.lines == (("spin.cu:43", 3), ("spin.cu:40", 1), ("common.h:7", 1))
    assert found.text.endswith("; its threads are at spin.cu:43 (3), spin.cu:40 (1), common.h:7 (1)")


def test_a_kernel_without_lines_and_a_torn_table() -> None:
    assert read_gpu_core(core(), "gpu.core").lines == ()
    table = line_table()
    for at in range(len(table)):
        for torn in (table[:at], table[:at] + bytes([table[at] ^ 0xFF]) + table[at + 1 :]):
            read_gpu_core(with_lines(torn, [0]), "gpu.core")  # whatever it gives, it ends
    assert read_gpu_core(with_lines(table[:-4], [0]), "gpu.core").lines == (), "a torn one gives none"
    assert read_gpu_core(with_lines(line_table(5), [0]), "gpu.core").lines == (), "a version that is not known"
