"""Thread-local storage as glibc lays it out, built from bytes and from small libraries."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.glibc.thread_locals import ThreadLocals, ThreadLocalUnknown, ThreadLocalUntouched
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module, ModuleTable
from support.fakes.unwind_fakes import FakeTarget
from support.installed.machine import own_libc

LIBC = own_libc()
LIBC_BASE, BASE = 0x7F00_0000_0000, 0x7E00_0000_0000
TCB, DTV, BLOCK = 0x7D00_0000_1000, 0x7D00_0000_2000, 0x7D00_0000_3000

pytestmark = pytest.mark.compiler

HIDDEN = """static __thread int a = 5; __thread int exported;
int *f(void) { return &a; } int *g(void) { return &exported; }"""
EXPORTED = "__thread int pad; __thread int exported = 3; int *g(void) { return &exported; }"
FORMS = {
    "local-dynamic": (HIDDEN, ["-mtls-dialect=gnu"], 16),
    "initial-exec": (HIDDEN, ["-ftls-model=initial-exec"], 18),
    "descriptors": (HIDDEN, ["-mtls-dialect=gnu2"], 36),
    "exported only": (EXPORTED, ["-mtls-dialect=gnu"], 16),
}


def library(folder: Path, form: str) -> str:
    source, flags, _ = FORMS[form]
    (folder / "t.c").write_text(source)
    path = folder / "libt.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", *flags, "-o", path, folder / "t.c"], check=True)
    return str(path)


def slots(path: str, kind: str) -> dict[int, tuple[str, int]]:
    """Slot to (symbol and addend as readelf prints them, addend), of one type of relocation."""
    text = subprocess.run(["readelf", "-rW", path], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and words[2] == kind:
            found[int(words[0], 16)] = (" ".join(words[3:]), int(words[-1], 16))
    return found


def patched(target: FakeTarget, address: int, *words: int) -> None:
    data = struct.pack(f"<{len(words)}Q", *words)
    for number, region in enumerate(target.regions):
        at = address - region.start
        if 0 <= at < len(region.data):
            target.regions[number] = region._replace(data=region.data[:at] + data + region.data[at + len(data) :])
            return
    raise AssertionError(hex(address))


def process(path: str, entries: dict[int, int], size: int = 8) -> tuple[FakeTarget, ElfImage]:
    """A thread whose dtv has these entries, in a process with glibc and the library."""
    target = FakeTarget()
    target.add_elf(LIBC, LIBC_BASE)
    image = target.add_elf(path, BASE)
    target.add(TCB, struct.pack("<3Q", TCB, DTV, TCB), "rw-p")
    dtv = bytearray(4096)
    struct.pack_into("<Q", dtv, 0xF0, size)
    struct.pack_into("<Q", dtv, 0x100, 1)
    for number, value in entries.items():
        struct.pack_into("<Q", dtv, 0x100 + 16 * number, value & (1 << 64) - 1)
    target.add(DTV, bytes(dtv), "rw-p")
    patched(target, TCB + 8, DTV + 0x100)
    return target, image


def find(target: FakeTarget, offset: int = 0) -> int:
    memory = Memory(target)
    modules = ModuleTable(target, memory)
    return ThreadLocals(memory, modules).address(TCB, module_of(modules), offset)


def module_of(modules: ModuleTable) -> Module:
    found = modules.named("libt.so")
    assert found is not None
    return found


def test_module_id_from_a_local_dynamic_slot(tmp_path: Path) -> None:
    path = library(tmp_path, "local-dynamic")
    target, _ = process(path, {3: BLOCK})
    own = [slot for slot, (text, _) in slots(path, "R_X86_64_DTPMOD64").items() if "exported" not in text]
    others = [slot for slot, (text, _) in slots(path, "R_X86_64_DTPMOD64").items() if "exported" in text]
    assert own
    assert others
    patched(target, BASE + own[0], 3)
    patched(target, BASE + others[0], 2)  # interposed: another library's id
    assert find(target, 4) == BLOCK + 4


@pytest.mark.parametrize("value", [-1, 0])
def test_untouched(tmp_path: Path, value: int) -> None:
    path = library(tmp_path, "local-dynamic")
    target, _ = process(path, {3: value})
    for slot in slots(path, "R_X86_64_DTPMOD64"):
        patched(target, BASE + slot, 3)
    with pytest.raises(ThreadLocalUntouched, match="never used"):
        find(target)


def test_a_vector_older_than_the_module_means_untouched(tmp_path: Path) -> None:
    path = library(tmp_path, "local-dynamic")
    target, _ = process(path, {3: BLOCK}, size=2)
    for slot in slots(path, "R_X86_64_DTPMOD64"):
        patched(target, BASE + slot, 3)
    with pytest.raises(ThreadLocalUntouched):
        find(target)


def test_static_offset_from_an_initial_exec_slot(tmp_path: Path) -> None:
    path = library(tmp_path, "initial-exec")
    target, _ = process(path, {})
    found = slots(path, "R_X86_64_TPOFF64")
    own = {slot: addend for slot, (text, addend) in found.items() if "exported" not in text}
    assert own
    for slot, addend in own.items():
        patched(target, BASE + slot, (addend - 0x80) & (1 << 64) - 1)  # l_tls_offset 0x80
    assert find(target, 4) == TCB - 0x80 + 4


def test_descriptors(tmp_path: Path) -> None:
    path = library(tmp_path, "descriptors")
    found = {s: a for s, (text, a) in slots(path, "R_X86_64_TLSDESC").items() if "exported" not in text}
    assert found
    ((slot, addend),) = found.items()
    static, _ = process(path, {})
    patched(static, BASE + slot, 0x1000, (addend - 0x100) & (1 << 64) - 1)
    assert find(static, 4) == TCB - 0x100 + 4
    dynamic, _ = process(path, {5: BLOCK})
    dynamic.add(0x5000_0000, struct.pack("<3Q", 5, addend, 1), "rw-p")
    patched(dynamic, BASE + slot, 0x1000, 0x5000_0000)
    assert find(dynamic, 4) == BLOCK + 4
    lazy, _ = process(path, {5: BLOCK})  # not resolved yet
    patched(lazy, BASE + slot, 0x1000, 7)
    with pytest.raises(ThreadLocalUnknown, match="nothing in libt"):
        find(lazy)


def test_a_slot_that_may_mean_another_library_is_no_evidence(tmp_path: Path) -> None:
    path = library(tmp_path, "exported only")
    target, _ = process(path, {3: BLOCK})
    for slot in slots(path, "R_X86_64_DTPMOD64"):
        patched(target, BASE + slot, 3)
    with pytest.raises(ThreadLocalUnknown, match="nothing in libt"):
        find(target)


def test_the_file_is_gone(tmp_path: Path) -> None:
    path = library(tmp_path, "local-dynamic")
    target, image = process(path, {3: BLOCK})
    for slot in slots(path, "R_X86_64_DTPMOD64"):
        patched(target, BASE + slot, 3)
    dynamic = image.segment(2)
    assert dynamic is not None
    at = dynamic.vaddr  # the dynamic linker relocates the addresses in place
    while True:
        tag, value = struct.unpack("<QQ", image.read(at, 16) or b"")
        if tag == 0:
            break
        if tag in (6, 7, 23):
            patched(target, BASE + at + 8, BASE + value)
        at += 16
    target.gone.add(path)
    assert find(target, 4) == BLOCK + 4


def test_no_glibc(tmp_path: Path) -> None:
    path = library(tmp_path, "local-dynamic")
    target, _ = process(path, {3: BLOCK})
    target.regions = [region for region in target.regions if region.mapping.path != LIBC]
    with pytest.raises(ThreadLocalUnknown, match="glibc"):
        find(target)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (TCB, (1,)),
        (TCB + 16, (1,)),
        (TCB + 8, (0,)),
        (TCB + 8, (0x1234,)),
        (DTV + 0xF0, (1 << 40,)),
        (DTV + 0xF0, (0,)),
    ],
)
def test_damage_is_refused(tmp_path: Path, address: int, words: tuple[int, ...]) -> None:
    path = library(tmp_path, "local-dynamic")
    target, _ = process(path, {3: BLOCK})
    for slot in slots(path, "R_X86_64_DTPMOD64"):
        patched(target, BASE + slot, 3)
    patched(target, address, *words)
    with pytest.raises(ThreadLocalUnknown):
        find(target)


def test_a_thread_pointer_that_is_not_known(tmp_path: Path) -> None:
    target, _ = process(library(tmp_path, "local-dynamic"), {3: BLOCK})
    memory = Memory(target)
    modules = ModuleTable(target, memory)
    for slot in slots(str(tmp_path / "libt.so"), "R_X86_64_DTPMOD64"):
        patched(target, BASE + slot, 3)
    with pytest.raises(ThreadLocalUnknown, match="thread pointer"):
        ThreadLocals(memory, modules).address(0, module_of(modules), 0)
    with pytest.raises(ThreadLocalUnknown, match="damaged"):
        ThreadLocals(memory, modules).address(0xDEAD_0000, module_of(modules), 0)
