"""The symbol index against nm on real files, and on libraries that a compiler made for the purpose."""

from __future__ import annotations

import lzma
import os
import random
import struct
import subprocess
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.process.symbolizer import Symbol, SymbolIndex
from support.installed import pythons
from support.installed.machine import own_libc, torch_library

FUNC, STT_TLS, IFUNC = 2, 6, 10
NO_CACHE = SymbolCache(Path("/proc/nonexistent/gdbext"))

pytestmark = pytest.mark.compiler


def index_of(data: bytes, cache: SymbolCache = NO_CACHE) -> SymbolIndex:
    return SymbolIndex(ElfImage(data, "x.so", "size-time"), cache)


def names(symbols: list[Symbol]) -> list[str]:
    return [symbol.name for symbol in symbols]


@cache
def stripped(field: str) -> str:
    """Of kinds and sections there are a few, of symbols half a million."""
    return field.strip()


class Listing(NamedTuple):
    """Symbols as binutils see them: name, address, and whether it is one of thread-local memory. Lists side by side,
    for half a million tuples are as many for the garbage collector."""

    names: list[str]
    addresses: list[int]
    are_local: list[bool]

    def by_address(self, wanted: Collection[int]) -> dict[int, set[str]]:
        """Names of what stands at these addresses."""
        found: dict[int, set[str]] = {address: set() for address in wanted}
        for name, address, is_local in zip(*self):
            if address in found and not is_local:
                found[address].add(name)
        return found

    def by_name(self, wanted: Collection[str]) -> dict[str, set[int]]:
        """Addresses of what has these names."""
        found: dict[str, set[int]] = {name: set() for name in wanted}
        for name, address in zip(self.names, self.addresses):
            if name in found:
                found[name].add(address)
        return found


def nm(path: str, *options: str) -> Listing:
    """What binutils list."""
    command = ["nm", "--defined-only", "--format=sysv", *options, path]
    listing = Listing([], [], [])
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        fields = line.split("|")
        if len(fields) != 7 or not fields[1].strip():
            continue
        kind, section = stripped(fields[3]), stripped(fields[6])
        if kind in ("SECTION", "FILE") or section == "*ABS*":
            continue
        listing.names.append(fields[0].strip().partition("@")[0])
        listing.addresses.append(int(fields[1], 16))
        listing.are_local.append(kind == "TLS")
    return listing


@pytest.mark.parametrize(
    ("library", "options"),
    [
        pytest.param("libtorch_cpu.so", (), marks=pytest.mark.torch),
        pytest.param("libtorch_python.so", (), marks=pytest.mark.torch),
        pytest.param("libc10.so", (), marks=pytest.mark.torch),
        ("libc", ("-D",)),
        ("/usr/bin/python3", ("-D",)),
        pytest.param("python3.10", (), marks=pytest.mark.pythons),
    ],
)
def test_index_equals_nm(library: str, options: tuple[str, ...], tmp_path: Path) -> None:
    if library == "libc":
        path = own_libc()
    elif library.startswith("python"):
        path = os.path.realpath(pythons.need(library[6:]))
    else:
        path = os.path.realpath(library) if library.startswith("/") else torch_library(library)
    listing = nm(path, *options)
    thread_local = {name for name, is_local in zip(listing.names, listing.are_local) if is_local}
    addresses = {address for address, is_local in zip(listing.addresses, listing.are_local) if not is_local}
    assert addresses, "the oracle read nothing"
    index = SymbolIndex(ElfImage.open(path), SymbolCache(tmp_path))
    generator = random.Random(library)
    for address, theirs in listing.by_address(generator.sample(sorted(addresses), min(8000, len(addresses)))).items():
        if address:
            assert {symbol.name for symbol in index.at(address)} == theirs
    names = {*listing.names}
    for name, places in listing.by_name(generator.sample(sorted(names), min(8000, len(names)))).items():
        assert {symbol.vaddr for symbol in index.lookup(name)} == places
        assert all((symbol.type == STT_TLS) == (name in thread_local) for symbol in index.lookup(name))


@pytest.mark.torch
def test_containing_equals_a_linear_search(tmp_path: Path) -> None:
    image = ElfImage.open(torch_library("libc10.so"))
    index = SymbolIndex(image, SymbolCache(tmp_path))
    table = index.tables[0]
    sized = [
        symbol
        for symbol in (table.symbol(number) for number in range(table.count))
        if symbol is not None and symbol.size and symbol.type in (FUNC, IFUNC)
    ]
    generator = random.Random(5)
    for _ in range(1500):
        chosen = generator.choice(sized)
        vaddr = chosen.vaddr + generator.randrange(chosen.size)
        around = [symbol for symbol in sized if symbol.vaddr <= vaddr < symbol.vaddr + symbol.size]
        innermost = max(symbol.vaddr for symbol in around)
        found = index.containing(vaddr)
        assert {symbol.name for symbol in found} == {s.name for s in around if s.vaddr == innermost}


def test_exported_equals_lookup_for_all_exported_names() -> None:
    path = own_libc()
    index = SymbolIndex(ElfImage.open(path), NO_CACHE)
    listing = nm(path, "-D")
    for name, places in listing.by_name(listing.names).items():
        symbol = index.exported(name)
        assert symbol is not None, name
        assert symbol.vaddr in places
    assert index.exported("no_such_function") is None
    assert index.exported("") is None


def compile_library(folder: Path, source: str, *options: str) -> Path:
    path = folder / "lib.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(path), *options]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    return path


def test_the_default_version_is_preferred(tmp_path: Path) -> None:
    script = tmp_path / "versions"
    script.write_text("V1 { global: f; local: *; }; V2 { global: f; } V1;")
    path = compile_library(
        tmp_path,
        '__asm__(".symver f_old, f@V1"); __asm__(".symver f_new, f@@V2");'
        "__attribute__((used)) int f_old(void) { return 1; } __attribute__((used)) int f_new(void) { return 2; }",
        f"-Wl,--version-script={script}",
    )
    index = SymbolIndex(ElfImage.open(str(path)), NO_CACHE)
    wanted = {symbol.vaddr for symbol in index.lookup("f_new")}
    exported = index.exported("f")
    assert exported is not None
    assert {exported.vaddr} == wanted
    subprocess.run(["strip", str(path)], check=True)
    stripped = SymbolIndex(ElfImage.open(str(path)), NO_CACHE)
    assert stripped.exported("f") == exported
    assert len(stripped.lookup("f")) == 2


def test_a_library_without_section_headers(tmp_path: Path) -> None:
    for style in ("gnu", "sysv"):
        source = "int f(void) { return 1; } int g(void) { return 2; }"
        path = compile_library(tmp_path, source, f"-Wl,--hash-style={style}")
        whole = SymbolIndex(ElfImage.open(str(path)), NO_CACHE)
        data = bytearray(path.read_bytes())
        struct.pack_into("<Q", data, 40, 0)  # e_shoff
        struct.pack_into("<HHH", data, 58, 0, 0, 0)
        index = index_of(bytes(data))
        for name in ("f", "g"):
            assert index.lookup(name) == whole.lookup(name)
            assert names(index.containing(whole.lookup(name)[0].vaddr + 1)) == [name]


def test_minidebuginfo(tmp_path: Path) -> None:
    path = compile_library(
        tmp_path,
        "__attribute__((noinline)) static int hidden(int x) { return x * x; } int f(int x) { return hidden(x); }",
    )
    full = SymbolIndex(ElfImage.open(str(path)), NO_CACHE).lookup("hidden")
    debug = tmp_path / "mini"
    subprocess.run(["objcopy", "--only-keep-debug", str(path), str(debug)], check=True)
    packed = tmp_path / "mini.xz"
    packed.write_bytes(lzma.compress(debug.read_bytes()))
    subprocess.run(["strip", str(path)], check=True)
    subprocess.run(["objcopy", "--add-section", f".gnu_debugdata={packed}", str(path)], check=True)
    index = SymbolIndex(ElfImage.open(str(path)), NO_CACHE)
    assert index.complete
    assert index.lookup("hidden") == full
    assert names(index.containing(full[0].vaddr)) == ["hidden"]
    assert names(index.lookup("f")) == ["f"]
    packed.write_bytes(lzma.compress(debug.read_bytes())[:-40])
    subprocess.run(["objcopy", "--update-section", f".gnu_debugdata={packed}", str(path)], check=True)
    assert SymbolIndex(ElfImage.open(str(path)), NO_CACHE).lookup("f")
