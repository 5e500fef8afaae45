"""Thread-local storage as glibc lays it out, built from bytes and from small libraries."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from functools import cache

import pytest

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.glibc.thread_locals import ThreadLocals, ThreadLocalUnknown, ThreadLocalUntouched
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from support.fakes.unwind_fakes import FakeTarget
from support.installed.machine import own_libc
from support.programs.harness import some

LIBC = own_libc()
LIBC_BASE, BASE = 0x7F00_0000_0000, 0x7E00_0000_0000
TCB, DTV, BLOCK = 0x7D00_0000_1000, 0x7D00_0000_2000, 0x7D00_0000_3000

pytestmark = pytest.mark.compiler

HIDDEN = """static __thread int a = 5; __thread int exported;
int *f(void) { return &a; } int *g(void) { return &exported; }"""
EXPORTED = "__thread int pad; __thread int exported = 3; int *g(void) { return &exported; }"
FORMS = {"local-dynamic": (HIDDEN, "-mtls-dialect=gnu"), "initial-exec": (HIDDEN, "-ftls-model=initial-exec")}
FORMS |= {"descriptors": (HIDDEN, "-mtls-dialect=gnu2"), "exported only": (EXPORTED, "-mtls-dialect=gnu")}


Build = Callable[[str], str]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    @cache
    def library(form: str) -> str:
        source, flag = FORMS[form]
        path = tmp_path_factory.mktemp("tls") / "libt.so"
        command = ["gcc", "-O2", "-shared", "-fPIC", flag, "-x", "c", "-", "-o", path]
        subprocess.run(command, input=source, text=True, check=True)
        return str(path)

    return library


def slots(path: str, kind: str) -> dict[int, tuple[str, int]]:
    """Slot to (symbol and addend as readelf prints them, addend), of one type of relocation."""
    text = subprocess.run(["readelf", "-rW", path], capture_output=True, text=True, check=True).stdout
    lines = [words for words in map(str.split, text.splitlines()) if len(words) > 3 and words[2] == kind]
    return {int(words[0], 16): (" ".join(words[3:]), int(words[-1], 16)) for words in lines}


def own(path: str, kind: str) -> dict[int, int]:
    found = {slot: addend for slot, (text, addend) in slots(path, kind).items() if "exported" not in text}
    assert found
    return found


def patched(target: FakeTarget, address: int, *words: int) -> None:
    data = struct.pack(f"<{len(words)}Q", *words)
    (region,) = (each for each in target.regions if 0 <= address - each.start < len(each.data))
    before, behind = region.data[: address - region.start], region.data[address - region.start + len(data) :]
    target.regions[target.regions.index(region)] = region._replace(data=before + data + behind)


def process(path: str, entries: dict[int, int], size: int = 8) -> tuple[FakeTarget, ElfImage]:
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


def with_module_id(path: str, value: int = BLOCK, size: int = 8) -> tuple[FakeTarget, ElfImage]:
    """The library is module 3, whose entry of the dtv has that value."""
    target, image = process(path, {3: value}, size)
    for slot in slots(path, "R_X86_64_DTPMOD64"):
        patched(target, BASE + slot, 3)
    return target, image


def find(target: FakeTarget, offset: int = 0, thread_pointer: int = TCB) -> int:
    memory = Memory(target)
    modules = ModuleTable(target, memory)
    module = some(modules.named("libt.so"))
    return ThreadLocals(memory, modules).address(thread_pointer, module, offset)


def test_module_id_from_a_local_dynamic_slot(build: Build) -> None:
    path = build("local-dynamic")
    target, _ = process(path, {3: BLOCK})
    (slot, *_) = own(path, "R_X86_64_DTPMOD64")
    (other,) = slots(path, "R_X86_64_DTPMOD64").keys() - own(path, "R_X86_64_DTPMOD64").keys()
    patched(target, BASE + slot, 3)
    patched(target, BASE + other, 2)  # interposed: another library's id
    assert find(target, 4) == BLOCK + 4


@pytest.mark.parametrize(("value", "size"), [(-1, 8), (0, 8), (BLOCK, 2)])
def test_untouched(build: Build, value: int, size: int) -> None:
    """There is no block yet, or the vector is older than the module."""
    with pytest.raises(ThreadLocalUntouched, match="never used"):
        find(with_module_id(build("local-dynamic"), value, size)[0])


def test_static_offset_from_an_initial_exec_slot(build: Build) -> None:
    path = build("initial-exec")
    target, _ = process(path, {})
    for slot, addend in own(path, "R_X86_64_TPOFF64").items():
        patched(target, BASE + slot, (addend - 0x80) & (1 << 64) - 1)  # l_tls_offset 0x80
    assert find(target, 4) == TCB - 0x80 + 4


def test_descriptors(build: Build) -> None:
    path = build("descriptors")
    ((slot, addend),) = own(path, "R_X86_64_TLSDESC").items()
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


def test_the_file_is_gone(build: Build) -> None:
    path = build("local-dynamic")
    target, image = with_module_id(path)
    dynamic = some(image.segment(2))
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


@pytest.mark.parametrize(
    ("address", "word"),
    [(TCB, 1), (TCB + 16, 1), (TCB + 8, 0), (TCB + 8, 0x1234), (DTV + 0xF0, 1 << 40), (DTV + 0xF0, 0)],
)
def test_damage_is_refused(build: Build, address: int, word: int) -> None:
    target, _ = with_module_id(build("local-dynamic"))
    patched(target, address, word)
    with pytest.raises(ThreadLocalUnknown):
        find(target)


def test_what_is_not_known(build: Build) -> None:
    """A slot that may mean another library is no evidence; the thread pointer; where glibc is."""
    with pytest.raises(ThreadLocalUnknown, match="nothing in libt"):
        find(with_module_id(build("exported only"))[0])
    target, _ = with_module_id(build("local-dynamic"))
    for thread_pointer, reason in ((0, "thread pointer"), (0xDEAD_0000, "damaged")):
        with pytest.raises(ThreadLocalUnknown, match=reason):
            find(target, 0, thread_pointer)
    target.regions = [region for region in target.regions if region.mapping.path != LIBC]
    with pytest.raises(ThreadLocalUnknown, match="glibc"):
        find(target)
