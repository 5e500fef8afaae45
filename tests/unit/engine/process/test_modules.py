"""Modules: equal to the loader's own list, and never a wrong file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
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


def test_the_vdso_is_found_by_the_auxiliary_vector_alone() -> None:
    target = OwnProcess()
    target._maps = [mapping for mapping in target.memory.maps() if not mapping.path.startswith("[v")]
    table = table_of(target)
    vdso = table.find(target.memory.auxv()[33] + 0x100)
    assert vdso.status == "memory"


def made_table(tmp_path: Path, in_memory: bytes, on_disk: bytes | None, kind: str = "core", **how: bool) -> ModuleTable:
    file = tmp_path / "libmade.so"
    if on_disk is not None:
        file.write_bytes(on_disk)
    regions = loaded(in_memory) if in_memory else {}
    return table_of(FakeTarget(regions, maps_of(**how), kind=kind, paths={PATH: str(file)}))


def test_equal_build_ids(tmp_path: Path) -> None:
    (module,) = made_table(tmp_path, made(), made()).modules
    assert (module.status, module.base, module.build_id) == ("ok", BASE, "01" * 20)
    assert module.vaddr(BASE + 0x1004) == 0x1004


@pytest.mark.parametrize("kind", ["core", "live"])
def test_other_build_id(tmp_path: Path, kind: str) -> None:
    (module,) = made_table(tmp_path, made(b"\1" * 20), made(b"\2" * 20), kind).modules
    assert (module.status, module.image, module.build_id) == ("replaced", None, "01" * 20)
    assert "0202" in module.problem


@pytest.mark.parametrize(
    ("in_memory", "on_disk", "status"),
    [
        (made(b"\1" * 20), made(b""), "replaced"),
        (made(b""), made(b"\2" * 20), "replaced"),
        (made(b"", b"\x90" * 0x1000), made(b"", b"\x90" * 0x500 + b"\xcc" * 0xB00), "replaced"),
        (made(b""), make_elf([Entry("f", 0x1000)] * 4, [Entry("f", 0x1000)]), "replaced"),
        (made(b"", b"\x90" * 4096), made(b"", b"\x90" * 4096), "ok"),
        (b"", made(), "ok"),  # a core without pages takes a file that fits
        (b"\x7fELF\x02\x01" + b"\xff" * 0x2000, made(), "replaced"),
        (made(), None, "missing"),
        (made(), b"", "missing"),
        (made(), b"no ELF file at all" * 10, "missing"),
        (made(), made()[:200], "missing"),
    ],
)
def test_without_build_ids_contents_count(tmp_path: Path, in_memory: bytes, on_disk: bytes | None, status: str) -> None:
    (module,) = made_table(tmp_path, in_memory, on_disk).modules
    assert (module.status, module.base, module.image is None) == (status, BASE, status != "ok")
    assert status != "missing" or str(tmp_path) in module.problem


def test_a_file_whose_segments_do_not_fit(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(made())
    maps = [MemoryMapping(BASE, BASE + 0x1000, 0x7000, PATH, "r-xp")]
    (module,) = table_of(FakeTarget({}, maps, kind="core", paths={PATH: str(file)})).modules
    assert module.status == "replaced"
    assert "do not fit" in module.problem


@pytest.mark.parametrize("permissions", [True, False])
def test_mappings_of_data_files_are_no_modules(permissions: bool) -> None:
    """Where permissions are unknown the contents decide."""
    data = MemoryMapping(0x1000, 0x2000, 0, "/usr/lib/locale/locale-archive", "r--p" if permissions else "")
    maps = [data, *maps_of(permissions=permissions)]
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


def test_names_with_versions_and_hashes() -> None:
    files = {
        "libc.so.6": "libc-2.31.so",
        "libpthread.so.0": "libpthread-2.28.so",
        "libgomp.so.1": "libgomp-a34b3233.so.1",
        "libstdc++.so.6": "libstdc++.so.6.0.30",
        "libtorch_cpu.so": "libtorch_cpu.so",
    }
    paths = ["/a/libc10.so", "/a/libcurl.so.4", *(f"/a/{file}" for file in files.values())]
    maps = [line for at, path in enumerate(paths) for line in maps_of(path, BASE + at * 0x100000)]
    table = table_of(FakeTarget({}, maps))
    for asked, name in files.items():
        module = table.named(asked)
        assert module.name == name
    assert table.named("libcu.so") is None
