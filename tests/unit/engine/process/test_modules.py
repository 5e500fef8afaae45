"""Modules: equal to the loader's own list, and never a wrong file."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module, ModuleTable
from gdbext.engine.targets.base_target import MemoryMapping
from support.fakes.elf_maker import DATA_START, Entry, make_elf
from support.fakes.fake_target import FakeTarget, OwnProcess

BASE = 0x7F0000000000
PATH = "/lib/libmade.so"


def table_of(target: FakeTarget) -> ModuleTable:
    return ModuleTable(target, Memory(target))


def loaded(data: bytes, base: int = BASE) -> dict[int, bytes]:
    """What the loader makes of elf_maker's file: headers, code and .dynsym, then data and .bss."""
    text = data[:0x2800].ljust(0x3000, b"\0")
    return {base: text, base + DATA_START: data[:64].ljust(0x1000, b"\0")}


def maps_of(path: str = PATH, base: int = BASE, deleted: bool = False, permissions: bool = True) -> list[MemoryMapping]:
    return [
        MemoryMapping(base, base + 0x3000, 0, path, "r-xp" if permissions else "", deleted),
        MemoryMapping(base + DATA_START, base + 0x4000, 0, path, "rw-p" if permissions else "", deleted),
    ]


def made(build_id: bytes = b"\1" * 20, text: bytes = b"", shift: int = 0) -> bytes:
    return make_elf([Entry("f", 0x1000 + shift)], [Entry("f", 0x1000 + shift)], build_id, text)


# --- this process ------------------------------------------------------------------------------------------------


class DlPhdrInfo(ctypes.Structure):
    """struct dl_phdr_info (<link.h>), as far as needed."""

    _fields_ = (
        ("addr", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("phdr", ctypes.c_void_p),
        ("phnum", ctypes.c_uint16),
    )


def loader_list() -> dict[str, int]:
    """What dl_iterate_phdr says: path to load bias."""
    found: dict[str, int] = {}

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(DlPhdrInfo), ctypes.c_size_t, ctypes.c_void_p)
    def each(info: ctypes._Pointer[DlPhdrInfo], _size: int, _data: int | None) -> int:
        name = info.contents.name.decode()
        found[os.path.realpath(name or "/proc/self/exe")] = info.contents.addr
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(each, None)
    return found


def test_modules_equal_the_loaders_list() -> None:
    wanted = {path: base for path, base in loader_list().items() if not path.endswith("linux-vdso.so.1")}
    table = table_of(OwnProcess())
    found = {os.path.realpath(module.path): module.base for module in table.modules if module.path != "[vdso]"}
    assert found == wanted
    assert len(found) > 5
    for module in table.modules:
        assert module.status == ("memory" if module.path == "[vdso]" else "ok"), module.problem
        assert module.problem == ""
        assert module.image is not None
        assert module.build_id == module.image.build_id
        assert table.find(module.start) is module
        assert table.find(module.end - 1) is module


def test_the_vdso_is_found_by_the_auxiliary_vector_alone() -> None:
    target = OwnProcess()
    target._maps = [mapping for mapping in target.maps() if not mapping.path.startswith("[v")]
    table = table_of(target)
    vdso = table.find(target.auxv()[33] + 0x100)
    assert vdso is not None
    assert vdso.status == "memory"


def test_bss_belongs_to_its_module_and_the_heap_to_none() -> None:
    table = table_of(OwnProcess())
    libc = table.named("libc.so.6")
    assert libc is not None
    assert libc.image is not None
    bss = libc.base + libc.image.span[1] - 8
    assert table.find(bss) is libc
    for mapping in table._maps:
        if mapping.path in ("[heap]", "[stack]"):
            assert table.find(mapping.start) is None
    assert table.find(0) is None
    assert table.find((1 << 64) - 1) is None


# --- made targets ------------------------------------------------------------------------------------------------


def made_table(tmp_path: Path, in_memory: bytes, on_disk: bytes | None, kind: str = "core", **how: bool) -> ModuleTable:
    file = tmp_path / "libmade.so"
    if on_disk is not None:
        file.write_bytes(on_disk)
    regions = loaded(in_memory) if in_memory else {}
    return table_of(FakeTarget(regions, maps_of(**how), kind=kind, paths={PATH: str(file)}))


def only(table: ModuleTable) -> Module:
    assert len(table.modules) == 1
    return table.modules[0]


def test_equal_build_ids(tmp_path: Path) -> None:
    module = only(made_table(tmp_path, made(), made()))
    assert (module.status, module.base, module.build_id) == ("ok", BASE, "01" * 20)
    assert module.vaddr(BASE + 0x1004) == 0x1004


@pytest.mark.parametrize("kind", ["core", "live"])
def test_other_build_id(tmp_path: Path, kind: str) -> None:
    module = only(made_table(tmp_path, made(b"\1" * 20), made(b"\2" * 20), kind))
    assert module.status == "replaced"
    assert module.image is None
    assert "0202" in module.problem
    assert module.build_id == "01" * 20


@pytest.mark.parametrize(
    ("in_memory", "on_disk"),
    [
        (made(b"\1" * 20), made(b"")),
        (made(b""), made(b"\2" * 20)),
        (made(b"", b"\x90" * 0x1000), made(b"", b"\x90" * 0x500 + b"\xcc" * 0xB00)),
        (made(b""), make_elf([Entry("f", 0x1000)] * 4, [Entry("f", 0x1000)])),
    ],
    ids=["id lost", "id gained", "other code", "other size"],
)
def test_without_build_ids_everything_else_is_compared(tmp_path: Path, in_memory: bytes, on_disk: bytes) -> None:
    module = only(made_table(tmp_path, in_memory, on_disk))
    assert module.status == "replaced"
    assert module.image is None


def test_without_build_ids_equal_contents_are_enough(tmp_path: Path) -> None:
    assert only(made_table(tmp_path, made(b"", b"\x90" * 4096), made(b"", b"\x90" * 4096))).status == "ok"


def test_a_core_without_pages_takes_a_file_that_fits(tmp_path: Path) -> None:
    module = only(made_table(tmp_path, b"", made()))
    assert (module.status, module.base) == ("ok", BASE)


def test_a_file_whose_segments_do_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(made())
    maps = [MemoryMapping(BASE, BASE + 0x1000, 0x7000, PATH, "r-xp")]
    module = only(table_of(FakeTarget({}, maps, kind="core", paths={PATH: str(file)})))
    assert module.status == "replaced"
    assert "do not fit" in module.problem


@pytest.mark.parametrize("on_disk", [None, b"", b"no ELF file at all" * 10, made()[:200]])
def test_no_usable_file(tmp_path: Path, on_disk: bytes | None) -> None:
    module = only(made_table(tmp_path, made(), on_disk))
    assert module.status == "missing"
    assert module.image is None
    assert str(tmp_path) in module.problem


def test_mappings_of_data_files_are_no_modules() -> None:
    maps = [MemoryMapping(0x1000, 0x2000, 0, "/usr/lib/locale/locale-archive", "r--p"), *maps_of()]
    assert [module.path for module in table_of(FakeTarget(loaded(made()), maps)).modules] == [PATH]


def test_unknown_permissions_let_the_contents_decide() -> None:
    maps = [MemoryMapping(0x1000, 0x2000, 0, "/data/file", ""), *maps_of(permissions=False)]
    regions = {0x1000: b"text" * 1024, **loaded(made())}
    assert [module.path for module in table_of(FakeTarget(regions, maps)).modules] == [PATH]


def test_two_copies_of_one_library_are_two_modules() -> None:
    second = BASE + 0x100000
    maps = maps_of() + maps_of(base=second)
    table = table_of(FakeTarget({**loaded(made()), **loaded(made(), second)}, maps))
    assert [module.base for module in table.modules] == [BASE, second]
    first, other = table.find(BASE + 0x3800), table.find(second + 0x1000)
    assert first is table.modules[0]
    assert other is table.modules[1]


@pytest.mark.parametrize(
    ("asked", "file"),
    [
        ("libc.so.6", "libc-2.31.so"),
        ("libpthread.so.0", "libpthread-2.28.so"),
        ("libgomp.so.1", "libgomp-a34b3233.so.1"),
        ("libstdc++.so.6", "libstdc++.so.6.0.30"),
        ("libtorch_cpu.so", "libtorch_cpu.so"),
    ],
)
def test_names_with_versions_and_hashes(asked: str, file: str) -> None:
    others = maps_of("/a/libc10.so", BASE + 0x100000) + maps_of("/a/libcurl.so.4", BASE + 0x200000)
    maps = maps_of(f"/a/{file}") + others
    module = table_of(FakeTarget({}, maps)).named(asked)
    assert module is not None
    assert module.name == file
    assert table_of(FakeTarget({}, maps)).named("libcu.so") is None
