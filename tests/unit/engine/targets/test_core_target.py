"""CoreTarget on cores made for the purpose, and on everything that is no good core."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gdbext.diagnosis.report import Report, TargetReport, render_text
from gdbext.diagnosis.session import Session
from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.terminal import IN_A_DEBUGGER, CommandLine
from gdbext.errors import BadCore, ForeignArchitecture, MemoryFault
from gdbext.tools import running
from support.fakes.core_maker import REGISTERS, Core, Load, R, W, X, auxv, files, note, prpsinfo, prstatus, siginfo
from support.fakes.elf_maker import make_elf

BASE = 0x7F0000000000
PAGE = 4096


def open_core(folder: Path, core: Core | bytes, **options: Any) -> CoreTarget:
    path = folder / "core"
    path.write_bytes(core if isinstance(core, bytes) else core.build())
    return CoreTarget(str(path), **options)


def test_threads_are_sorted_and_the_first_one_is_selected(tmp_path: Path) -> None:
    first = prstatus(30, rax=(1 << 64) - 514)
    target = open_core(tmp_path, Core(notes=first + prpsinfo(10) + prstatus(20) + prstatus(10)))
    assert (target.pid, [thread.tid for thread in target.memory.threads()]) == (10, [10, 20, 30])
    selected = target.memory.selected_thread()
    assert selected.tid == 30
    expected = {name: index + 1 for index, name in enumerate(REGISTERS)}
    assert selected.registers() == {**expected, "rax": (1 << 64) - 514}


@pytest.mark.parametrize(("pid", "tids"), [(-5, [20]), (0, [20]), (20, [20, -2063589174])])
def test_an_id_that_no_process_has_is_not_used(tmp_path: Path, pid: int, tids: list[int]) -> None:
    target = open_core(tmp_path, Core(notes=prpsinfo(pid) + b"".join(map(prstatus, tids))))
    assert (target.pid, [thread.tid for thread in target.memory.threads()]) == (20, [20])
    assert any(
        f"it is {min(pid, *tids)}" in each or f"its id is {min(tids)}" in each for each in target.origin.damage()
    )


def test_vector_registers_have_their_places(tmp_path: Path) -> None:
    numbers = b"".join(struct.pack("<2d", number + 0.5, 0) for number in range(16))
    floats = note(2, bytes(160) + numbers + bytes(96))  # struct user_fpregs_struct
    target = open_core(tmp_path, Core(notes=prstatus(1) + floats + prstatus(2)))
    first, second = target.memory.threads()
    found = {name: struct.unpack("<d", word.to_bytes(8, "little"))[0] for name, word in first.float_registers().items()}
    assert found == {f"xmm{number}": number + 0.5 for number in range(16)}
    assert second.float_registers() == {}


def test_a_kernels_core_has_the_signal_in_its_first_thread_only(tmp_path: Path) -> None:
    # the kernel writes pr_cursig into every thread
    notes = prstatus(2, 11) + prpsinfo(1) + siginfo(11, 1, 0xDEAD) + prstatus(1, 11)
    target = open_core(tmp_path, Core(notes=notes))
    by_tid = {thread.tid: thread.signal for thread in target.memory.threads()}
    signal = by_tid[2]
    assert (signal.number, signal.name, signal.code, signal.address) == (11, "SIGSEGV", 1, 0xDEAD)
    assert by_tid[1] is None
    of_another = open_core(tmp_path, Core(notes=prstatus(1, 11) + siginfo(19, 0, 5))).threads()[0].signal
    assert (of_another.number, of_another.code, of_another.address) == (11, None, None)


@pytest.mark.parametrize(
    ("number", "code", "by_gcore", "name", "address"),
    [
        (11, 1, False, "SIGSEGV", 0x123),
        (11, 128, False, "SIGSEGV", None),  # SI_KERNEL: a general protection fault, whose address nobody knows
        (11, 0, False, "SIGSEGV", None),  # SI_USER: kill -SEGV
        (6, -6, False, "SIGABRT", None),
        (5, 128, False, "SIGTRAP", None),
        (3, 0, False, "SIGQUIT", None),
        (11, 1, True, "SIGSEGV", 0x123),
        (7, 2, True, "SIGBUS", 0x123),
        (5, 1, True, None, None),  # a breakpoint
        (19, 0, True, None, None),  # gcore stopped it
        (2, 0, True, None, None),
        (0, 0, True, None, None),
    ],
)
def test_signals(tmp_path: Path, number: int, code: int, by_gcore: bool, name: str | None, address: int | None) -> None:
    notes = prstatus(1, number) + siginfo(number, code, 0x123)
    signal = open_core(tmp_path, Core(notes=notes, by_gcore=by_gcore)).threads()[0].signal
    assert (signal.name if signal else None) == name
    assert (signal.address if signal else None) == address


def test_reads_cross_segments_and_end_at_holes(tmp_path: Path) -> None:
    first, second = bytes(range(256)) * 16, b"\xaa" * PAGE
    loads = [Load(BASE, first), Load(BASE + PAGE, second), Load(BASE + 3 * PAGE, second, size=3 * PAGE)]
    target = open_core(tmp_path, Core(loads))
    assert target.memory.read(BASE + 10, 20) == first[10:30]
    assert target.memory.read(BASE, 2 * PAGE) == first + second
    assert target.memory.read(BASE + PAGE - 1, 2) == b"\xff\xaa"
    assert target.memory.read(BASE + PAGE, 0) == b""
    assert target.memory.read(BASE + 3 * PAGE, PAGE) == second
    holes = [(BASE - 1, 2), (BASE + 2 * PAGE, 1), (BASE + 2 * PAGE - 1, 2), (BASE, 4 * PAGE), (0, 1)]
    not_dumped = [(BASE + 4 * PAGE, 1), (BASE + 3 * PAGE, PAGE + 1)]
    for address, size in holes + not_dumped:
        with pytest.raises(MemoryFault) as fault:
            target.memory.read(address, size)
        assert fault.value.address == address
        assert fault.value.size == size
    for address in (-1, -PAGE, 1 << 64, (1 << 64) - 1):
        for size in (1, -1, 1 << 40):
            with pytest.raises(MemoryFault):
                target.memory.read(address, size)


def library(folder: Path, build_id: bytes, fill: bytes, name: str = "lib.so") -> bytes:
    data = make_elf(build_id=build_id, text=fill * PAGE)
    (folder / name).write_bytes(data)
    return data


def core_with_library(folder: Path, data: bytes, path: str | None = None, with_first_page: bool = True) -> Core:
    """As gcore writes it: the first page is there, the code is not."""
    path = path or str(folder / "lib.so")
    loads = [Load(BASE, data[:PAGE], flags=R)] if with_first_page else []
    mapped = files((BASE, BASE + PAGE, 0, path), (BASE + PAGE, BASE + 2 * PAGE, PAGE, path))
    return Core([*loads, Load(BASE + 2 * PAGE, b"\2" * PAGE)], prstatus(1) + mapped)


@pytest.mark.parametrize("build_id", [b"\x12" * 20, b""])
def test_code_comes_from_the_file(tmp_path: Path, build_id: bytes) -> None:
    data = library(tmp_path, build_id, b"\xc3")
    target = open_core(tmp_path, core_with_library(tmp_path, data))
    assert target.memory.read(BASE + PAGE, 16) == data[PAGE : PAGE + 16] == b"\xc3" * 16
    assert target.memory.read(BASE, 3 * PAGE) == data[: 2 * PAGE] + b"\2" * PAGE


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("another build", "is another file.*" + "13" * 20),
        ("another first page", "first page"),
        ("no first page", "nothing proves"),
        ("deleted", None),
        ("gone", None),
        ("empty", None),
        ("short", None),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, case: str, said: str | None) -> None:
    file = tmp_path / "lib.so"
    data = library(tmp_path, b"" if case == "another first page" else b"\x12" * 20, b"\xc3")
    if case == "another build":
        library(tmp_path, b"\x13" * 20, b"\xcc")
    elif case == "another first page":
        file.write_bytes(data[: PAGE - 1] + bytes([data[PAGE - 1] ^ 1]) + data[PAGE:])
    elif case == "gone":
        file.unlink()
    elif case in ("empty", "short"):
        file.write_bytes(data[: 0 if case == "empty" else PAGE])
    path = f"{file} (deleted)" if case == "deleted" else str(file)
    core = core_with_library(tmp_path, data, path, with_first_page=case != "no first page")
    with pytest.raises(MemoryFault, match=said):
        open_core(tmp_path, core).read(BASE + PAGE, 16)


def test_the_sysroot_is_where_files_are(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "opt").mkdir(parents=True)
    data = library(root / "opt", b"\x12" * 20, b"\xc3")
    target = open_core(tmp_path, core_with_library(tmp_path, data, "/opt/lib.so"), sysroot=str(root) + "/")
    assert target.origin.local_path("/opt/lib.so") == str(root / "opt" / "lib.so")
    assert target.origin.local_path("[vdso]") == "[vdso]"
    assert target.memory.read(BASE + PAGE, 4) == b"\xc3" * 4
    with pytest.raises(MemoryFault):
        open_core(tmp_path, core_with_library(tmp_path, data, "/opt/lib.so")).read(BASE + PAGE, 4)


def test_sources_are_those_of_a_proven_interpreter(tmp_path: Path) -> None:
    """A stranger's core shows no file of ours but the Python library that it ran, which we have, too."""
    prefix = tmp_path / "python"
    for folder in ("bin", "lib/python3.11/site-packages/torch", "lib/python3.12"):
        (prefix / folder).mkdir(parents=True)
    inside = [prefix / "lib/python3.11/abc.py", prefix / "lib/python3.11/site-packages/torch/nn.py"]
    outside = [tmp_path / "mine.py", prefix / "lib/secret.py", prefix / "lib/python3.11/key.txt"]
    for path in (*inside, *outside):
        path.write_text("x = 1\n")
    climbing = f"{prefix}/lib/python3.11/../../../mine.py"
    data = library(prefix / "bin", b"\x12" * 20, b"\xc3", "python3.11")

    def shown(core: Core, **options: Any) -> set[str]:
        target = open_core(tmp_path, core, **options)
        found = set()
        for path in (*map(str, inside), *map(str, outside), climbing):
            with suppress(OSError):
                found.add(path if target.origin.foreign.source(path, 1 << 20)[0] == b"x = 1\n" else "")
        return found

    program = core_with_library(tmp_path, data, str(prefix / "bin" / "python3.11"))
    assert shown(program) == set(map(str, inside))
    assert shown(program, sysroot="/") == {climbing, *map(str, (*inside, *outside))}
    other = library(tmp_path, b"\x13" * 20, b"\xc3", "other")
    assert shown(core_with_library(tmp_path, other, str(prefix / "bin" / "python3.11"))) == set()
    assert shown(core_with_library(tmp_path, data, str(prefix / "bin" / "python3.11"), with_first_page=False)) == set()


def test_the_packages_of_an_environment_belong_to_it(tmp_path: Path) -> None:
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "one.py").write_text("x = 1\n")
    data = library(packages, b"\x12" * 20, b"\xc3", "ext.so")
    target = open_core(tmp_path, core_with_library(tmp_path, data, str(packages / "ext.so")))
    assert target.origin.foreign.source(str(packages / "one.py"), 100)[0] == b"x = 1\n"


def test_maps_are_merged(tmp_path: Path) -> None:
    data = library(tmp_path, b"\x12" * 20, b"\xc3")
    path = str(tmp_path / "lib.so")
    core = core_with_library(tmp_path, data)
    core.loads += [Load(BASE + 9 * PAGE, bytes(PAGE), flags=R | W), Load(BASE + 11 * PAGE, bytes(PAGE), flags=R | X)]
    core.notes += auxv(n25=BASE + 9 * PAGE + 5, n33=BASE + 11 * PAGE, n9=BASE + PAGE + 8)
    target = open_core(tmp_path, core)
    assert list(target.memory.maps()) == [
        MemoryMapping(BASE, BASE + PAGE, 0, path, "r--p"),
        MemoryMapping(BASE + PAGE, BASE + 2 * PAGE, PAGE, path, "r-xp"),  # from the program headers in the first page
        MemoryMapping(BASE + 2 * PAGE, BASE + 3 * PAGE, 0, "", "rw-p"),
        MemoryMapping(BASE + 9 * PAGE, BASE + 10 * PAGE, 0, "[stack]", "rw-p"),
        MemoryMapping(BASE + 11 * PAGE, BASE + 12 * PAGE, 0, "[vdso]", "r-xp"),
    ]
    assert target.executable() == path


def test_one_segment_over_several_files_and_beyond_them(tmp_path: Path) -> None:
    mapped = files((BASE + PAGE, BASE + 2 * PAGE, 0, "/a"), (BASE + 3 * PAGE, BASE + 5 * PAGE, PAGE, "/b (deleted)"))
    target = open_core(tmp_path, Core([Load(BASE, bytes(4 * PAGE))], prstatus(1) + mapped))
    assert [
        (m.start - BASE, m.end - BASE, m.path, m.permissions, m.deleted, m.offset) for m in target.memory.maps()
    ] == [
        (0, PAGE, "", "rw-p", False, 0),
        (PAGE, 2 * PAGE, "/a", "rw-p", False, 0),
        (2 * PAGE, 3 * PAGE, "", "rw-p", False, 0),
        (3 * PAGE, 4 * PAGE, "/b", "rw-p", True, PAGE),
        (4 * PAGE, 5 * PAGE, "/b", "", True, 2 * PAGE),
    ]


def test_what_gcore_calls_readable_may_be_a_guard_page(tmp_path: Path) -> None:
    loads = [Load(BASE, bytes(PAGE), flags=R), Load(BASE + PAGE, bytes(PAGE), flags=R | W)]
    assert [m.permissions for m in open_core(tmp_path, Core(loads, by_gcore=True)).maps()] == ["", "rw-p"]
    assert [m.permissions for m in open_core(tmp_path, Core(loads)).maps()] == ["r--p", "rw-p"]


def test_the_environment_is_found_on_the_stack(tmp_path: Path) -> None:
    vector = auxv(n25=BASE + 8, n6=PAGE)
    raw = struct.pack("<6Q", 25, BASE + 8, 6, PAGE, 0, 0)
    strings = b"prog\0A=1\0B=x=y\0A=2\0"
    at = BASE + 512
    pointers = struct.pack("<8Q", 1, at, 0, at + 5, at + 9, at + 15, 0xBAD, 0)
    stack = (bytes(64) + pointers + raw).ljust(512, b"\0") + strings
    target = open_core(tmp_path, Core([Load(BASE, stack.ljust(PAGE, b"\0"))], prstatus(1) + vector))
    assert target.origin.environ() == {"A": "1", "B": "x=y"}
    assert open_core(tmp_path, Core([Load(BASE, bytes(PAGE))], prstatus(1) + vector)).environ() == {}


@pytest.mark.extended
def test_more_segments_than_a_header_can_count(tmp_path: Path) -> None:
    loads = [Load(BASE + 2 * PAGE * index, struct.pack("<I", index)) for index in range(70_000)]
    target = open_core(tmp_path, Core(loads))
    assert len(target.memory.maps()) == 70_000
    for index in (0, 65_534, 65_535, 69_999):
        assert target.memory.read(BASE + 2 * PAGE * index, 4) == struct.pack("<I", index)
    assert target.memory.threads()[0].signal is None


GOOD = Core([Load(BASE, b"\1" * PAGE), Load(BASE + PAGE, b"\2" * PAGE)]).build()
HEADERS_END = 64 + 3 * 56


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", BadCore, "is empty"),
        (b"\x7fELF", BadCore, "truncated"),
        (GOOD[:30], BadCore, "truncated"),
        (GOOD[: HEADERS_END - 1], BadCore, "program headers"),
        (GOOD[:HEADERS_END], BadCore, "contains no threads"),
        (b"hello world, this is text", BadCore, "not an ELF file"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), BadCore, "zstd"),
        (b"\x1f\x8b" + bytes(100), BadCore, "gzip"),
        (b"\x04\x22\x4d\x18" + bytes(100), BadCore, "lz4"),
        (b"\xfd7zXZ\0" + bytes(100), BadCore, "xz"),
        (make_elf(), BadCore, "not a core dump"),
        (Core(kind=2).build(), BadCore, "not a core dump: it is a program"),
        (Core(machine=183).build(), ForeignArchitecture, "64-bit aarch64"),
        (Core(machine=3, elf_class=1).build(), ForeignArchitecture, "32-bit x86"),
        (Core(machine=62, elf_class=1).build(), ForeignArchitecture, "32-bit x86-64"),
        (Core(notes=prpsinfo(1)).build(), BadCore, "contains no threads"),
        (Core(notes=b"").build(), BadCore, "contains no threads"),
        (GOOD[:56] + struct.pack("<H", 0xFFFF) + GOOD[58:], BadCore, "program headers"),
    ],
)
def test_bad_files(tmp_path: Path, data: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        open_core(tmp_path, data)
    assert type(raised.value) is error
    assert words != "zstd" or f"zstd -d -k {tmp_path}/core" in raised.value.help  # type: ignore[attr-defined]
    assert raised.value.help  # type: ignore[attr-defined]


def test_a_core_that_lost_its_end(tmp_path: Path) -> None:
    target = open_core(tmp_path, GOOD[: -PAGE - 100])
    assert target.memory.read(BASE, PAGE - 100) == b"\1" * (PAGE - 100)
    assert [warning for warning in target.origin.damage() if "truncated" in warning and f"{PAGE + 100:,}" in warning]
    for address in (BASE + PAGE - 100, BASE + PAGE):
        with pytest.raises(MemoryFault, match="truncated"):
            target.memory.read(address, 8)
    by_gcore = Core([Load(BASE, bytes(10 * PAGE))], by_gcore=True).build()
    with pytest.raises(BadCore) as raised:
        open_core(tmp_path, by_gcore[: 5 * PAGE])
    assert "gcore writes them last" in raised.value.why


def test_every_report_says_that_the_core_is_cut_off(tmp_path: Path) -> None:
    session = Session(open_core(tmp_path, GOOD[: -PAGE - 100]))
    for command in ("dispatch-diagnose", "dispatch-bt", "all-threads", "dispatch-info"):
        outcome = running.execute(command, [], lambda: session)
        assert f"{tmp_path}/core is truncated: {PAGE + 100:,} bytes" in outcome.output, command
        assert "gcore PID" in outcome.output
        (error,) = json.loads(running.execute(command, ["--json"], lambda: session).output)["errors"]
        assert error["where"] == "core"  # what else cannot be read may be in the missing part


def test_places_that_are_no_files(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path, "folder"),
        (tmp_path / "nowhere", "there is no file .*nowhere"),
        ("/dev/null", "regular"),
    ):
        with pytest.raises(BadCore, match=said):
            CoreTarget(str(path))


@pytest.mark.parametrize("at", range(0, HEADERS_END + 600, 7))
def test_damage_is_an_error_or_harmless(tmp_path: Path, at: int) -> None:
    """Garbage anywhere in the headers and notes gives a typed error or a target whose methods work."""
    damaged = GOOD[:at] + b"\xff" * 9 + GOOD[at + 9 :]
    try:
        target = open_core(tmp_path, damaged)
    except (BadCore, ForeignArchitecture):
        return
    for thread in target.memory.threads():
        assert len(thread.registers()) == len(REGISTERS)
    assert isinstance(target.memory.maps(), list)
    assert isinstance(target.origin.environ(), dict)
    for mapping in target.memory.maps()[:4]:
        try:
            assert len(target.memory.read(mapping.start, 8)) == 8
        except MemoryFault:
            continue


def test_sources_are_shown_by_what_is_suggested() -> None:
    """Whole command lines; inside a debugger what is typed there."""
    for debugger, called, words in (
        ("none", CommandLine("gdbext", "-c core.5"), "with: gdbext -c core.5 --sysroot / dispatch-bt\n"),
        ("gdb", CommandLine("gdbext", "-c core.5"), "with: gdbext -c core.5 --sysroot / dispatch-bt\n"),
        ("gdb", IN_A_DEBUGGER, "with: set sysroot /   and then: dispatch-bt\n"),
        ("lldb", IN_A_DEBUGGER, "with: platform select host --sysroot /   and then: dispatch-bt\n"),
    ):
        report = Report("dispatch-bt", TargetReport("core", 1, debugger, withheld_sources=1), called=called)
        assert words in render_text(report)


def test_what_is_withheld(tmp_path: Path) -> None:
    core = Core([Load(BASE, bytes(PAGE))], prstatus(1))
    for sysroot, path, withheld in (("", "/x/train.py", True), ("", "<string>", False), ("/", "/x/train.py", False)):
        assert open_core(tmp_path, core, sysroot=sysroot).foreign.is_unproven_source(path) is withheld
