"""The symbol index: all aliases, sizes, caches that are damaged or fought over, and the symbols of this process."""

from __future__ import annotations

import ctypes
import os
import random
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from gdbext.engine.formats import symbol_cache
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.formats.symbol_index import SymbolIndex
from gdbext.engine.formats.symbol_table import Symbol
from gdbext.engine.process import symbolizer as symbolizer_module
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer, without_clone_suffix
from support.fakes.elf_maker import DATA, DATA_START, INIT, INIT_START, TLS, Entry, make_elf
from support.fakes.fake_target import OwnProcess

LOCAL, GLOBAL, WEAK = 0, 1, 2
NOTYPE, OBJECT, SECTION, FILE, STT_TLS, IFUNC = 0, 1, 3, 4, 6, 10
NO_CACHE = SymbolCache(Path("/proc/nonexistent/gdbext"))


def index_of(data: bytes, cache: SymbolCache = NO_CACHE) -> SymbolIndex:
    return SymbolIndex(ElfImage(data, "x.so", "size-time"), cache)


def kept_in(folder: Path) -> list[Path]:
    """The files of a cache, but for the one that who builds an index locks a byte of."""
    return sorted(file for file in folder.iterdir() if file.name != ".building")


def names(symbols: list[Symbol]) -> list[str]:
    return [symbol.name for symbol in symbols]


def test_which_entries_are_found() -> None:
    index = index_of(
        make_elf(
            [
                Entry("local_alias", 0x1000, 32, binding=LOCAL),
                Entry("folded", 0x1000, 32),
                Entry("weak_alias", 0x1000, 32, binding=WEAK),
                Entry("folded", 0x1000, 32),
                Entry("undefined", 0x1000, 16, section=0),
                Entry("absolute", 0x1000, 16, NOTYPE, section=0xFFF1),
                Entry("source.c", 0x1000, 16, FILE, LOCAL),
                Entry(".text", 0x1000, 16, SECTION, LOCAL),
                Entry("table", DATA_START, 8, OBJECT, section=DATA),
                Entry("state", 0x10, 8, STT_TLS, section=TLS),
            ]
        )
    )
    aliases = ["local_alias", "folded", "weak_alias"]
    assert names(index.at(0x1000)) == names(index.containing(0x1004)) == names(index.containing(0x101F)) == aliases
    assert index.containing(0x1020) == index.at(0x1001) == index.lookup("undefined") == index.lookup("source.c") == []
    assert index.at(DATA_START) == [Symbol("table", DATA_START, 8, OBJECT, GLOBAL)]
    assert (names(index.containing(DATA_START + 7)), index.containing(DATA_START + 8)) == (["table"], [])
    assert index.at(0x10) == index.containing(0x12) == [], "of each thread: it has no address"
    assert index.lookup("state") == [Symbol("state", 0x10, 8, STT_TLS, GLOBAL)]


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (
            [Entry("outer", 0x1000, 0x100), Entry("inner", 0x1020, 0x10)],
            {0x101F: ["outer"], 0x1020: ["inner"], 0x1030: ["outer"], 0x1100: []},
        ),
        (
            [
                Entry("function", 0x1000, 0x200),
                *(Entry("label", at, 0, NOTYPE, LOCAL) for at in range(0x1010, 0x1100, 4)),
            ],
            {0x1050: ["function"]},
        ),
        (
            [Entry("assembler", 0x1000, 0, NOTYPE, LOCAL), Entry("next", 0x1040)],
            {0x103F: ["assembler"], 0x1040: ["next"]},
        ),
        (
            [Entry("last", 0x1F00, 0), Entry("_init", INIT_START, 0, section=INIT)],
            {INIT_START - 1: ["last"], INIT_START + 15: ["_init"], INIT_START + 16: []},
        ),
        ([Entry("_edata", DATA_START, 0, NOTYPE, section=DATA)], {DATA_START: ["_edata"], DATA_START + 1: []}),
        ([Entry("pow@@GLIBC_2.29", 0x1000, 32, IFUNC)], {0x1001: ["pow"]}),
    ],
)
def test_how_far_a_symbol_reaches(entries: list[Entry], found: dict[int, list[str]]) -> None:
    index = index_of(make_elf(entries))
    assert {address: names(index.containing(address) or index.at(address)) for address in found} == found


def test_names_that_are_exported() -> None:
    index = index_of(make_elf(None, [Entry("assembler", 0x1000, 0), Entry("next", 0x1100)]))
    assert not index.complete
    assert (names(index.containing(0x1000)), index.containing(0x1001)) == (["assembler"], []), "nothing is extended"
    exported = [Entry(f"e{number}", 0x1000 + 16 * number) for number in range(20)]
    partly_stripped = index_of(make_elf([Entry("kept", 0x1800, binding=LOCAL)], exported))
    assert names(partly_stripped.at(0x1010) + partly_stripped.at(0x1800)) == ["e1", "kept"]
    assert names(partly_stripped.lookup("e3")) == ["e3"]


def test_matching_wants_all_needles() -> None:
    index = index_of(make_elf([Entry("at_mm_call", 0x1000), Entry("at_mm_redispatch", 0x1010), Entry("c", 0x1020)]))
    assert names(list(index.matching(b"mm", b"call"))) == ["at_mm_call"]
    assert names(list(index.matching(b"mm"))) == ["at_mm_call", "at_mm_redispatch"]
    assert list(index.matching(b"zz")) == []


def many(more: Sequence[Entry] = ()) -> bytes:
    functions = (Entry(f"function_{number}", 0x1000 + number, 1) for number in range(6000))
    return make_elf([*more, *functions], build_id=b"\7" * 20)


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
    files = kept_in(folder)
    assert [file.name.rsplit(".")[-1] for file in files] == ["addresses", "names"]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)

    def never(_: object) -> None:
        raise AssertionError("built although it is cached")

    monkeypatch.setattr(symbol_cache, "build_addresses", never)
    monkeypatch.setattr(symbol_cache, "build_names", never)
    check_many(index_of(data, SymbolCache(folder)))


def test_the_first_names_of_a_large_file_are_searched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index of all names is made for them; what was found is kept for the next process, and so is what was not."""
    monkeypatch.setattr(symbol_cache, "WORTH_SEARCHING", 4096)
    monkeypatch.setattr("gdbext.engine.formats.symbol_table._PIECE", 1000)
    tails = [Entry("lookup", 0x9000, 4, binding=LOCAL), Entry("my_lookup", 0x9100, 4), Entry("lookup", 0x9200, 4)]
    data = many(tails)
    wanted = {
        "lookup": [0x9000, 0x9200],
        "my_lookup": [0x9100],
        "function_5999": [0x1000 + 5999],
        "none": [],
        "ook": [],
    }

    def check_wanted() -> None:
        index = index_of(data, SymbolCache(tmp_path))
        assert {name: [each.vaddr for each in index.lookup(name)] for name in wanted} == wanted

    check_wanted()
    assert {file.name.rsplit(".")[-1].partition("-")[0] for file in kept_in(tmp_path)} == {"named"}
    monkeypatch.setattr(symbol_cache, "build_numbers", lambda *_: pytest.fail("it was searched for again"))
    check_wanted()
    monkeypatch.undo()
    monkeypatch.setattr(symbol_cache, "WORTH_SEARCHING", 4096)
    index = index_of(data, SymbolCache(tmp_path))
    for number in range(0, 6000, 500):
        assert [each.vaddr for each in index.lookup(f"function_{number}")] == [0x1000 + number]
    assert any(file.name.endswith(".names") for file in kept_in(tmp_path)), "many are asked for: they are sorted"


def test_damaged_cache_files_are_rebuilt(tmp_path: Path) -> None:
    data = many()
    check_many(index_of(data, SymbolCache(tmp_path)))
    good = {file: file.read_bytes() for file in kept_in(tmp_path)}
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


NOBODY = 65534


def write_library(path: Path, prefix: str) -> Path:
    """A library of 6,000 symbols, which differs from those of other prefixes in their names and order, not in where
    its tables are."""
    symbols = [Entry(f"{prefix}_at_ops_{number}", 0x1000 + number, 1) for number in range(6000)]
    symbols.insert(len(symbols) if prefix == "real" else 0, Entry("lookup", 0x3000, 1))
    path.write_bytes(make_elf(symbols, build_id=b"\7" * 20))
    return path


def all_kinds(path: Path, cache: SymbolCache, prefix: str) -> list[object]:
    """What each kind of kept array answers for the library at ``path``: addresses, names with the needles, one name
    that is searched for, and one that is looked up among all names."""
    index = SymbolIndex(ElfImage.open(str(path)), cache)
    sorted_names = SymbolCache(cache.folder)
    sorted_names.searches = 0
    return [
        names(index.at(0x1005)),
        names(list(index.matching(b"_at_", b"s_5999"))),
        names(index.lookup("lookup")),
        names(SymbolIndex(ElfImage.open(str(path)), sorted_names).lookup(f"{prefix}_at_ops_5")),
    ]


def test_copies_with_one_build_id_do_not_spoil_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made the file chose its build-id, where its tables are, its path, and its time of modification."""
    monkeypatch.setattr(symbol_cache, "WORTH_SEARCHING", 4096)
    cache = SymbolCache(tmp_path / "cache")
    copies = {prefix: write_library(tmp_path / f"{prefix}.so", prefix) for prefix in ("copy", "real")}
    for path in copies.values():
        os.utime(path, ns=(1, 1))
    for _ in range(2):
        for prefix, path in copies.items():
            name = f"{prefix}_at_ops_5"
            assert all_kinds(path, cache, prefix) == [[name], [f"{name}999"], ["lookup"], [name]]
    kinds = [file.name.rpartition(".")[2].partition("-")[0] for file in kept_in(tmp_path / "cache")]
    assert sorted(kinds) == sorted(["addresses", "names", "named", "with"] * 2), "the second time nothing is built"


@pytest.mark.skipif(os.getuid() != 0, reason="only root looks at the files of others")
@pytest.mark.parametrize(("owner", "mode"), [(NOBODY, 0o644), (0, 0o666), (0, 0o664)])
def test_root_keeps_nothing_of_files_that_others_can_write(tmp_path: Path, owner: int, mode: int) -> None:
    path, cache = write_library(tmp_path / "x.so", "their"), SymbolCache(tmp_path / "cache")
    os.chown(path, owner, NOBODY)
    path.chmod(mode)
    for _ in range(2):
        assert all_kinds(path, cache, "their")[0] == ["their_at_ops_5"]
    assert not Path(cache.folder).exists()
    os.chown(path, 0, 0)
    path.chmod(0o644)
    all_kinds(path, cache, "their")
    assert kept_in(Path(cache.folder))


def test_an_unusable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", Path("/proc/gdbext"), tmp_path / "file" / "gdbext"):
        check_many(index_of(many(), SymbolCache(folder)))

    def full(_: object) -> list[bytes]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(symbol_cache, "_format", full)
    check_many(index_of(many(), SymbolCache(tmp_path / "full")))
    assert kept_in(tmp_path / "full") == []


def test_addresses_and_names_of_this_process(tmp_path: Path) -> None:
    target = OwnProcess()
    symbolizer = Symbolizer(ModuleTable(target, Memory(target)), SymbolCache(tmp_path))
    for name in ("malloc", "getpid", "qsort"):
        address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
        assert symbolizer.address_of(name, "libc.so.6") == address
        for place in (address, symbolizer.address_of(name)):
            assert name in symbolizer.names_at(place)
        function = symbolizer.function(address + 1)
        assert (function.start, function.module.name[:4], name in function.names) == (address, "libc", True)


def test_clone_suffixes() -> None:
    for suffix in (".isra.0", ".constprop.0.part.1.cold", ".cold", "._omp_fn.12", ".llvm.1234567", ""):
        assert without_clone_suffix(f"_Z1fv{suffix}") == "_Z1fv"
    assert without_clone_suffix("ret.from_call") == "ret.from_call"


def test_order_of_names_for_a_general_backtrace() -> None:
    globals_ = [Symbol(name, 0, 1, 2, GLOBAL) for name in ("write", "_Z11long_globalv", "__libc_write")]
    others = [("weak", 2, WEAK), ("_ZL5localv", 2, LOCAL), ("label", NOTYPE, GLOBAL)]
    symbols = [*globals_, *(Symbol(name, 0, 1, kind, binding) for name, kind, binding in others)]
    shuffled = [symbols[at] for at in (3, 0, 5, 2, 4, 1)]
    assert sorted(shuffled, key=symbolizer_module._rank) == symbols
