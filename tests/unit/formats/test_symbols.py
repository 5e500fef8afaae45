"""The symbol index: equal to nm on real files, all aliases, sizes, caches that are damaged or fought over."""

from __future__ import annotations

import importlib.util
import lzma
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from elf_maker import DATA, DATA_START, INIT, INIT_START, TLS, Entry, make_elf
from fake_target import OwnProcess

from gdbext.formats import symbol_cache, symbol_index
from gdbext.formats.elf import ElfImage
from gdbext.formats.symbol_cache import SymbolCache
from gdbext.process.memory import Memory
from gdbext.process.modules import ModuleTable
from gdbext.process.symbols import Function, Symbol, SymbolIndex, Symbolizer, without_clone_suffix

LOCAL, GLOBAL, WEAK = 0, 1, 2
NOTYPE, OBJECT, FUNC, SECTION, FILE, STT_TLS, IFUNC = 0, 1, 2, 3, 4, 6, 10
NO_CACHE = SymbolCache(Path("/nonexistent/gdbext"))


def index_of(data: bytes, cache: SymbolCache = NO_CACHE) -> SymbolIndex:
    return SymbolIndex(ElfImage(data, "x.so", "size-time"), cache)


def names(symbols: list[Symbol]) -> list[str]:
    return [symbol.name for symbol in symbols]


# --- made files --------------------------------------------------------------------------------------------------


def test_all_aliases_are_kept_and_objects_are_found() -> None:
    index = index_of(
        make_elf(
            [
                Entry("local_alias", 0x1000, 32, binding=LOCAL),
                Entry("folded", 0x1000, 32),
                Entry("weak_alias", 0x1000, 32, binding=WEAK),
                Entry("folded", 0x1000, 32),
                Entry("table", DATA_START, 8, OBJECT, section=DATA),
            ]
        )
    )
    assert names(index.at(0x1000)) == ["local_alias", "folded", "weak_alias"]
    assert names(index.containing(0x101F)) == ["local_alias", "folded", "weak_alias"]
    assert index.containing(0x1020) == []
    assert index.at(0x1001) == []
    assert index.at(DATA_START) == [Symbol("table", DATA_START, 8, OBJECT, GLOBAL)]
    assert names(index.containing(DATA_START + 7)) == ["table"]
    assert index.containing(DATA_START + 8) == []


def test_entries_that_define_nothing_are_left_out() -> None:
    index = index_of(
        make_elf(
            [
                Entry("undefined", 0x1000, 16, section=0),
                Entry("absolute", 0x1000, 16, NOTYPE, section=0xFFF1),
                Entry("source.c", 0x1000, 16, FILE, LOCAL),
                Entry(".text", 0x1000, 16, SECTION, LOCAL),
                Entry("real", 0x1000, 16),
            ]
        )
    )
    assert names(index.at(0x1000)) == names(index.containing(0x1004)) == ["real"]
    assert index.lookup("undefined") == index.lookup("source.c") == []


def test_thread_local_symbols_have_a_name_but_no_address() -> None:
    index = index_of(make_elf([Entry("state", 0x10, 8, STT_TLS, section=TLS), Entry("f", 0x1000)]))
    assert index.at(0x10) == index.containing(0x12) == []
    assert index.lookup("state") == [Symbol("state", 0x10, 8, STT_TLS, GLOBAL)]


def test_inner_symbol_wins_and_outer_reaches_behind_it() -> None:
    index = index_of(make_elf([Entry("outer", 0x1000, 0x100), Entry("inner", 0x1020, 0x10)]))
    assert names(index.containing(0x101F)) == ["outer"]
    assert names(index.containing(0x1020)) == ["inner"]
    assert names(index.containing(0x1030)) == ["outer"]
    assert index.containing(0x1100) == []


def test_labels_inside_a_function_do_not_end_it() -> None:
    labels = [Entry(f"label_{at:x}", at, 0, NOTYPE, LOCAL) for at in range(0x1010, 0x1100, 4)]
    index = index_of(make_elf([Entry("function", 0x1000, 0x200), *labels]))
    assert names(index.containing(0x1050)) == ["function"]
    assert names(index.at(0x1050)) == ["label_1050"]


def test_a_symbol_without_size_reaches_to_the_next() -> None:
    index = index_of(make_elf([Entry("assembler", 0x1000, 0, NOTYPE, LOCAL), Entry("next", 0x1040)]))
    assert index.containing(0x103F) == [Symbol("assembler", 0x1000, 0x40, NOTYPE, LOCAL)]
    assert names(index.containing(0x1040)) == ["next"]


def test_a_symbol_without_size_ends_with_its_section() -> None:
    index = index_of(make_elf([Entry("last", 0x1F00, 0), Entry("_init", INIT_START, 0, section=INIT)]))
    assert names(index.containing(INIT_START - 1)) == ["last"]
    assert names(index.containing(INIT_START + 15)) == ["_init"]
    assert index.containing(INIT_START + 16) == []


def test_data_labels_reach_nowhere() -> None:
    index = index_of(make_elf([Entry("_edata", DATA_START, 0, NOTYPE, section=DATA)]))
    assert names(index.at(DATA_START)) == ["_edata"]
    assert index.containing(DATA_START + 1) == []


def test_where_only_exported_names_are_known_nothing_is_extended() -> None:
    index = index_of(make_elf(None, [Entry("assembler", 0x1000, 0), Entry("next", 0x1100)]))
    assert not index.complete
    assert names(index.containing(0x1000)) == ["assembler"]
    assert index.containing(0x1001) == []


def test_partly_stripped_symtab_is_united_with_dynsym() -> None:
    exported = [Entry(f"e{number}", 0x1000 + 16 * number) for number in range(20)]
    index = index_of(make_elf([Entry("kept", 0x1800, binding=LOCAL)], exported))
    assert names(index.at(0x1010)) == ["e1"]
    assert names(index.at(0x1800)) == ["kept"]
    assert names(index.lookup("e3")) == ["e3"]


def test_indirect_functions_are_functions() -> None:
    index = index_of(make_elf([Entry("memcpy", 0x1000, 32, IFUNC)]))
    assert index.containing(0x1001)[0].is_function


def test_versions_are_no_part_of_a_name() -> None:
    index = index_of(make_elf([Entry("pow@@GLIBC_2.29", 0x1000)]))
    assert names(index.at(0x1000)) == ["pow"]


def test_addresses_above_four_gigabytes() -> None:
    index = index_of(make_elf([Entry("far", 0x7FFF00001000, 16), Entry("near", 0x1000)]))
    assert names(index.at(0x7FFF00001000)) == ["far"]
    assert names(index.containing(0x1001)) == ["near"]


def test_matching_wants_all_needles() -> None:
    index = index_of(make_elf([Entry("at_mm_call", 0x1000), Entry("at_mm_redispatch", 0x1010), Entry("c", 0x1020)]))
    assert [symbol.name for symbol in index.matching(b"mm", b"call")] == ["at_mm_call"]
    assert [symbol.name for symbol in index.matching(b"mm")] == ["at_mm_call", "at_mm_redispatch"]
    assert [symbol.name for symbol in index.matching(b"zz")] == []


def test_names_that_overlap_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from gdbext.errors import SymbolFileError

    data = bytearray(make_elf([Entry("x" * 3000, 0x1000) for _ in range(2000)]))
    image = ElfImage(bytes(data), "x")
    section = image.sections[".symtab"]
    for number in range(2001):
        struct.pack_into("<I", data, section.offset + 24 * number, 1)
    strings = image.sections[".strtab"]
    data[strings.offset : strings.offset + strings.size] = b"x" * strings.size
    monkeypatch.setattr(symbol_cache, "_EFFORT", 1)
    with pytest.raises(SymbolFileError, match="overlap"):
        index_of(bytes(data)).lookup("x")


# --- real files --------------------------------------------------------------------------------------------------


def torch_library(name: str) -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no torch here")
    return str(Path(spec.submodule_search_locations[0]) / "lib" / name)


def own_library(name: str) -> str:
    return next(mapping.path for mapping in OwnProcess().maps() if mapping.path.rsplit("/", 1)[-1].startswith(name))


def nm(path: str, *options: str) -> tuple[dict[int, set[str]], dict[str, set[int]], set[str]]:
    """Names by address and addresses by name as binutils see them (thread-local ones by name only)."""
    if shutil.which("nm") is None:
        pytest.skip("no binutils here")
    output = subprocess.run(
        ["nm", "--defined-only", "--format=sysv", *options, path], capture_output=True, text=True, check=True
    ).stdout
    by_address, by_name, thread_local = defaultdict(set), defaultdict(set), set()
    for line in output.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 7 or not fields[1] or fields[3] in ("SECTION", "FILE") or fields[6] == "*ABS*":
            continue
        name = fields[0].partition("@")[0]
        by_name[name].add(int(fields[1], 16))
        if fields[3] == "TLS":
            thread_local.add(name)
        else:
            by_address[int(fields[1], 16)].add(name)
    return by_address, by_name, thread_local


@pytest.mark.parametrize(
    ("library", "options"),
    [
        ("libtorch_cpu.so", ()),
        ("libtorch_python.so", ()),
        ("libc10.so", ()),
        ("libc.so", ("-D",)),
        ("/usr/bin/python3", ("-D",)),
        ("libpython", ()),
    ],
)
def test_index_equals_nm(library: str, options: tuple[str, ...], tmp_path: Path) -> None:
    if library.startswith("libtorch") or library == "libc10.so":
        path = torch_library(library)
    elif library.startswith("/"):
        path = os.path.realpath(library)
    else:
        try:
            path = own_library(library)
        except StopIteration:
            pytest.skip(f"{library} is not part of this process")
    by_address, by_name, thread_local = nm(path, *options)
    assert by_address, "the oracle read nothing"
    index = SymbolIndex(ElfImage.open(path), SymbolCache(tmp_path))
    generator = random.Random(library)
    for address in generator.sample(sorted(by_address), min(8000, len(by_address))):
        if address:
            assert {symbol.name for symbol in index.at(address)} == by_address[address]
    for name in generator.sample(sorted(by_name), min(8000, len(by_name))):
        assert {symbol.vaddr for symbol in index.lookup(name)} == by_name[name]
        assert all((symbol.type == STT_TLS) == (name in thread_local) for symbol in index.lookup(name))


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
    path = own_library("libc.so")
    index = SymbolIndex(ElfImage.open(path), NO_CACHE)
    _, by_name, _ = nm(path, "-D")
    for name in by_name:
        symbol = index.exported(name)
        assert symbol is not None, name
        assert symbol.vaddr in by_name[name]
    assert index.exported("no_such_function") is None
    assert index.exported("") is None


def compile_library(folder: Path, source: str, *options: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
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


# --- the cache ---------------------------------------------------------------------------------------------------


def many(count: int = 6000) -> bytes:
    symbols = [Entry(f"function_{number}", 0x1000 + number, 1) for number in range(count)]
    return make_elf(symbols, build_id=b"\7" * 20)


def check_many(index: SymbolIndex) -> None:
    for number in (0, 1, 17, 5999):
        assert names(index.at(0x1000 + number)) == [f"function_{number}"]
        assert [symbol.vaddr for symbol in index.lookup(f"function_{number}")] == [0x1000 + number]
    assert index.lookup("function_6000") == []
    assert index.at(0x1000 + 6000) == []


def test_cache_files_are_private_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "deep" / "gdbext"
    data = many()
    check_many(index_of(data, SymbolCache(folder)))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert [file.name.rsplit(".")[-1] for file in files] == ["addresses", "names"]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)

    def never(_: object) -> None:
        raise AssertionError("built although it is cached")

    monkeypatch.setattr(symbol_index, "build_addresses", never)
    monkeypatch.setattr(symbol_index, "build_names", never)
    check_many(index_of(data, SymbolCache(folder)))


def test_damaged_cache_files_are_rebuilt(tmp_path: Path) -> None:
    data = many()
    check_many(index_of(data, SymbolCache(tmp_path)))
    good = {file: file.read_bytes() for file in tmp_path.iterdir()}
    generator = random.Random(3)
    for file, contents in good.items():
        damaged = [contents[:-1], contents[:10], b"", contents + b"\0", bytes(len(contents)), b"x" * len(contents)]
        damaged.append(contents[:40] + bytes(len(contents) - 40))
        for _ in range(8):
            broken = bytearray(contents)
            broken[generator.randrange(36)] ^= 1 << generator.randrange(8)
            damaged.append(bytes(broken))
        for broken_contents in damaged:
            file.write_bytes(broken_contents)
            check_many(index_of(data, SymbolCache(tmp_path)))
            assert file.read_bytes() == contents, "it was not rebuilt"


def test_a_cache_that_lies_cannot_invent_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = many()
    check_many(index_of(data, SymbolCache(tmp_path)))
    monkeypatch.setattr(symbol_cache, "_sample", lambda *_: 0)  # as if no checksum noticed
    check_many(index_of(data, SymbolCache(tmp_path)))
    generator = random.Random(4)
    for file in tmp_path.iterdir():
        contents = bytearray(file.read_bytes())
        for position in range(36, len(contents)):
            contents[position] = generator.randrange(256)
        file.write_bytes(contents)
    index = index_of(data, SymbolCache(tmp_path))
    for number in range(0, 6000, 7):
        assert set(names(index.at(0x1000 + number))) <= {f"function_{number}"}
        assert set(names(index.containing(0x1000 + number))) <= {f"function_{number}"}
        assert {symbol.vaddr for symbol in index.lookup(f"function_{number}")} <= {0x1000 + number}


def test_stripped_and_whole_file_share_a_build_id_but_no_cache(tmp_path: Path) -> None:
    exported = [Entry(f"e_{number}", 0x1000 + number, 1) for number in range(5000)]
    stripped = make_elf(None, exported, b"\7" * 20)
    whole = make_elf([Entry("local", 0x1FE0, binding=LOCAL), *exported], exported, b"\7" * 20)
    assert index_of(stripped, SymbolCache(tmp_path)).lookup("local") == []
    assert names(index_of(whole, SymbolCache(tmp_path)).lookup("local")) == ["local"]
    assert len(list(tmp_path.iterdir())) == 2


def test_files_without_build_id_are_told_apart_by_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    cache = SymbolCache(tmp_path / "cache")
    symbols = [Entry(f"aaa_{number}", 0x1000 + number, 1) for number in range(5000)]
    path.write_bytes(make_elf(symbols))
    assert names(SymbolIndex(ElfImage.open(str(path)), cache).lookup("aaa_5")) == ["aaa_5"]
    path.unlink()
    path.write_bytes(make_elf([entry._replace(name="bbb" + entry.name[3:]) for entry in symbols]))
    os.utime(path, ns=(1, 1))
    assert names(SymbolIndex(ElfImage.open(str(path)), cache).lookup("bbb_5")) == ["bbb_5"]
    assert SymbolIndex(ElfImage.open(str(path)), cache).lookup("aaa_5") == []


@pytest.mark.parametrize("kind", ["file", "readonly", "under a file"])
def test_an_unusable_cache_folder_is_no_error(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "gdbext"
    if kind == "file":
        folder.write_text("")
    elif kind == "readonly":
        folder = Path("/proc/gdbext")
    else:
        (tmp_path / "x").write_text("")
        folder = tmp_path / "x" / "gdbext"
    check_many(index_of(many(), SymbolCache(folder)))


def test_a_full_disk_leaves_no_debris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> list[bytes]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(symbol_cache, "_format", full)
    check_many(index_of(many(), SymbolCache(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_concurrent_writers(tmp_path: Path) -> None:
    data = many()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                check_many(index_of(data, SymbolCache(tmp_path)))
                for file in tmp_path.glob("*.names"):
                    file.unlink(missing_ok=True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


# --- the process -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def symbolizer(tmp_path_factory: pytest.TempPathFactory) -> Symbolizer:
    target = OwnProcess()
    return Symbolizer(ModuleTable(target, Memory(target)), SymbolCache(tmp_path_factory.mktemp("cache")))


def test_addresses_and_names_of_this_process(symbolizer: Symbolizer) -> None:
    import ctypes

    for name in ("malloc", "getpid", "qsort"):
        address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
        assert address is not None
        anywhere = symbolizer.address_of(name)
        assert anywhere is not None
        assert name in symbolizer.names_at(anywhere)
        assert symbolizer.address_of(name, "libc.so.6") == address
        assert name in symbolizer.names_at(address)
        function = symbolizer.function(address + 1)
        assert function is not None
        assert function.start == address
        assert name in function.names
        assert function.module.name.startswith("libc")


def test_names_that_are_nowhere_index_nothing(symbolizer: Symbolizer, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    fresh = Symbolizer(symbolizer.modules, NO_CACHE)
    original = SymbolIndex._load

    def load(index: SymbolIndex, kind: str, build: object) -> object:
        built.append(Path(index.image.path).name)
        return original(index, kind, build)  # type: ignore[arg-type]

    monkeypatch.setattr(SymbolIndex, "_load", load)
    for number in range(3):
        assert fresh.address_of(f"no_such_name_{number}") is None
    assert fresh.address_of("getpid") is not None
    assert built == []
    libc = symbolizer.modules.named("libc.so.6")
    assert libc is not None
    fresh.function(libc.base + 0x30000)
    assert built == [libc.name]
    for number in range(3, 6):
        assert fresh.address_of(f"no_such_name_{number}") is None
    assert set(built) == {libc.name}


def test_thread_local_symbols_have_no_absolute_address(symbolizer: Symbolizer) -> None:
    found = symbolizer.symbol_of("errno", "libc.so.6")
    assert found is not None
    assert found[1].type == STT_TLS
    assert symbolizer.address_of("errno", "libc.so.6") is None


def test_places_without_functions(symbolizer: Symbolizer) -> None:
    assert symbolizer.function(0) is None
    assert symbolizer.function(id(symbolizer)) is None
    assert symbolizer.names_at(id(symbolizer)) == ()
    assert symbolizer.address_of("getpid", "libnothing.so") is None
    environ = symbolizer.address_of("environ", "libc.so.6")
    assert environ is not None
    assert symbolizer.function(environ) is None


def test_order_of_names_for_a_general_backtrace() -> None:
    from gdbext.process.symbols import _rank

    symbols = [
        Symbol("label", 0, 1, NOTYPE, GLOBAL),
        Symbol("_ZL5localv", 0, 1, FUNC, LOCAL),
        Symbol("__libc_write", 0, 1, FUNC, GLOBAL),
        Symbol("weak", 0, 1, FUNC, WEAK),
        Symbol("_Z11long_globalv", 0, 1, FUNC, GLOBAL),
        Symbol("write", 0, 1, FUNC, GLOBAL),
    ]
    assert names(sorted(symbols, key=_rank)) == [
        "write", "_Z11long_globalv", "__libc_write", "weak", "_ZL5localv", "label",
    ]  # fmt: skip


def test_demangled_names_of_a_function(symbolizer: Symbolizer) -> None:
    function = Function(0, 1, ("_ZN2at2mmEv", "plain"), symbolizer.modules.modules[0])
    assert function.demangled == ("at::mm()", "plain")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("_Z1fv.isra.0", "_Z1fv"),
        ("_Z1fv.constprop.0.part.1.cold", "_Z1fv"),
        ("_Z1fv.cold", "_Z1fv"),
        ("f._omp_fn.12", "f"),
        ("_Z1fv.llvm.1234567", "_Z1fv"),
        ("_Z1fv", "_Z1fv"),
        ("ret.from_call", "ret.from_call"),
    ],
)
def test_clone_suffixes(name: str, plain: str) -> None:
    assert without_clone_suffix(name) == plain


def test_importing_costs_no_rarely_used_module() -> None:
    code = (
        "import sys; import gdbext.process.symbols; "
        "rare = ('ctypes', 'lzma', 'tempfile', 'hashlib', 'subprocess', 'json', 'elftools'); "
        "print([name for name in rare if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[3]
    output = subprocess.run([sys.executable, "-S", "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
