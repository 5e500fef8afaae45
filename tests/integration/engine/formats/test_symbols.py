"""The symbol index against nm, and every operation of call frame information, on libraries made for the purpose."""

from __future__ import annotations

import lzma
import struct
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

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
from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.formats.symbol_index import SymbolIndex
from gdbext.engine.formats.symbol_table import Symbol
from support.installed.machine import own_libc
from support.programs.harness import some
from support.programs.native_build import torch_folder

NO_CACHE = SymbolCache(Path("/proc/nonexistent/gdbext"))

pytestmark = pytest.mark.compiler


def names(symbols: list[Symbol]) -> list[str]:
    return [symbol.name for symbol in symbols]


class Listing(NamedTuple):
    by_name: dict[str, set[int]]
    by_address: dict[int, set[str]]


def nm(path: str, *options: str) -> Listing:
    command = ["nm", "--defined-only", "--format=sysv", *options, path]
    listing = Listing(defaultdict(set), defaultdict(set))
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 7 or not fields[1] or fields[3] in ("SECTION", "FILE") or fields[6] == "*ABS*":
            continue
        name, address = fields[0].partition("@")[0], int(fields[1], 16)
        listing.by_name[name].add(address)
        if address and fields[3] != "TLS":
            listing.by_address[address].add(name)
    return listing


@pytest.mark.parametrize("library", ["libc", pytest.param("libc10.so", marks=pytest.mark.torch)])
def test_index_equals_nm(library: str, tmp_path: Path) -> None:
    path, options = (own_libc(), ["-D"]) if library == "libc" else (str(torch_folder() / "lib" / library), [])
    listing = nm(path, *options)
    assert listing.by_address, "the oracle read nothing"
    index = SymbolIndex(ElfImage.open(path), SymbolCache(tmp_path))
    for address, theirs in listing.by_address.items():
        assert {symbol.name for symbol in index.at(address)} == theirs
    for name, places in listing.by_name.items():
        assert {symbol.vaddr for symbol in index.lookup(name)} == places
        if library == "libc":
            exported = index.exported(name)
            assert exported is not None, name
            assert exported.vaddr in places
    assert index.exported("no_such_function") is index.exported("") is None


def compiled(folder: Path, source: str, *options: str) -> Path:
    path = folder / "lib.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", path, *options]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    return path


def index_of(path: Path) -> SymbolIndex:
    return SymbolIndex(ElfImage.open(str(path)), NO_CACHE)


def test_the_default_version_is_preferred(tmp_path: Path) -> None:
    script = tmp_path / "versions"
    script.write_text("V1 { global: f; local: *; }; V2 { global: f; } V1;")
    source = """
    __asm__(".symver f_old, f@V1"); __asm__(".symver f_new, f@@V2");
    __attribute__((used)) int f_old(void) { return 1; } __attribute__((used)) int f_new(void) { return 2; }"""
    path = compiled(tmp_path, source, f"-Wl,--version-script={script}")
    index = index_of(path)
    exported = some(index.exported("f"))
    assert [exported.vaddr] == [symbol.vaddr for symbol in index.lookup("f_new")]
    subprocess.run(["strip", path], check=True)
    assert index_of(path).exported("f") == exported
    assert len(index_of(path).lookup("f")) == 2


def test_a_library_without_section_headers(tmp_path: Path) -> None:
    for style in ("gnu", "sysv"):
        source = "int f(void) { return 1; } int g(void) { return 2; }"
        path = compiled(tmp_path, source, f"-Wl,--hash-style={style}")
        whole = index_of(path)
        data = bytearray(path.read_bytes())
        struct.pack_into("<Q", data, 40, 0)  # e_shoff
        struct.pack_into("<HHH", data, 58, 0, 0, 0)
        index = SymbolIndex(ElfImage(bytes(data), "x.so", "size-time"), NO_CACHE)
        for name in ("f", "g"):
            assert index.lookup(name) == whole.lookup(name)
            assert names(index.containing(whole.lookup(name)[0].vaddr + 1)) == [name]


def test_minidebuginfo(tmp_path: Path) -> None:
    source = "__attribute__((noinline)) static int hidden(int x) { return x * x; } int f(int x) { return hidden(x); }"
    path = compiled(tmp_path, source)
    full = index_of(path).lookup("hidden")
    debug, packed = tmp_path / "mini", tmp_path / "mini.xz"
    subprocess.run(["objcopy", "--only-keep-debug", path, debug], check=True)
    packed.write_bytes(lzma.compress(debug.read_bytes()))
    subprocess.run(["strip", path], check=True)
    subprocess.run(["objcopy", "--add-section", f".gnu_debugdata={packed}", path], check=True)
    index = index_of(path)
    assert index.complete
    assert index.lookup("hidden") == full
    assert names(index.containing(full[0].vaddr)) == ["hidden"]
    assert names(index.lookup("f")) == ["f"]
    packed.write_bytes(packed.read_bytes()[:-40])
    subprocess.run(["objcopy", "--update-section", f".gnu_debugdata={packed}", path], check=True)
    assert index_of(path).lookup("f")


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
        fde = some(table.find(symbols["f"] + offset))
        assert not fde.cie.is_signal
        row = row_at(fde, symbols["f"] + offset)
        assert ((row.cfa_register, row.cfa_offset, row.cfa_code), row.rules) == expected, offset
    fde = some(table.find(symbols["s"]))
    assert fde.cie.is_signal
    assert row_at(fde, symbols["s"]).is_signal
