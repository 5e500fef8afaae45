"""One suite for every target: gdb, each LLDB and no debugger, live and core (by gcore and by the kernel).

All say the same of one program: memory and its faults, registers, threads, maps, signals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.targets.live.proc_target import ProcTarget
from support.installed import lldbs
from support.programs import plain_program
from support.programs.harness import ROOT, run
from support.truth import look_at_target

pytestmark = [pytest.mark.gdb, pytest.mark.compiler]

SOURCES = ("live", "core", "kernel")
DEBUGGERS = [pytest.param("gdb", id="gdb"), *lldbs.parameters(), pytest.param("none", id="none")]
WAYS = [
    pytest.param((each.values[0], source), marks=each.marks, id=f"{each.id}-{source}")
    for each in DEBUGGERS
    for source in SOURCES
]
THREADS = 3
PATTERN = bytes((i * 7 + i // 256) & 0xFF for i in range(3 * 4096))
FAULTS = (0, 8, 0xDEAD0000, (1 << 64) - 8, 1 << 64, (1 << 64) - 4, -8, 0x8000000000000000)
"""Addresses of which no program has a word: also noncanonical, negative and beyond the end."""
TEXT = b"read-only data that no core contains\0"


class Seen(NamedTuple):
    """What one way of looking gave, beside what the program wrote of itself."""

    debugger: str
    source: str
    truth: dict[str, Any]
    answer: dict[str, Any]
    program: str

    @property
    def live(self) -> bool:
        return self.source == "live"

    def read(self, name: str) -> bytes:
        assert "bytes" in self.answer["reads"][name], self.answer["reads"][name]
        return bytes.fromhex(self.answer["reads"][name]["bytes"])

    def mapping_of(self, address: int) -> dict[str, Any]:
        found = [each for each in self.answer["maps"] if each["start"] <= address < each["end"]]
        assert len(found) == 1, f"{address:#x} is in {found}"
        return found[0]


def _reads(truth: dict[str, Any]) -> dict[str, tuple[int, int]]:
    pattern = truth["pattern"]
    return {
        "pattern": (pattern, len(PATTERN)),
        "across": (pattern + 4090, 12),
        "one": (pattern + 1, 1),
        "none": (pattern, 0),
        "text": (truth["text"], len(TEXT)),
        "code": (truth["code"], 16),
        **{f"fault {address:#x}": (address, 8) for address in FAULTS},
    }


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_program.build(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def plain(program: Path) -> Iterator[plain_program.Plain]:
    with plain_program.running(program, str(THREADS)) as one:
        yield one


@pytest.fixture(scope="module")
def gcore(plain: plain_program.Plain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_program.take_gcore(plain.pid, tmp_path_factory.mktemp("gcore") / "plain.core")


@pytest.fixture(scope="module")
def crashed(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return plain_program.kernel_core(program, tmp_path_factory.mktemp("crash"))


@pytest.fixture(scope="module", params=WAYS)
def seen(request: pytest.FixtureRequest, plain: plain_program.Plain, program: Path, tmp_path_factory: Any) -> Seen:
    name, source = request.param
    truth, core = plain.truth, None
    if source == "core":
        core = request.getfixturevalue("gcore")
    elif source == "kernel":
        core, truth = request.getfixturevalue("crashed")
    paths = [str(program), "[vdso]", "relative"]
    if name != "none":
        answer = _inside(name, tmp_path_factory.mktemp(name), core, plain.pid, _reads(truth), paths)
    else:
        with closing(CoreTarget(str(core)) if core else ProcTarget(plain.pid)) as target:
            answer = look_at_target.answers(target, _reads(truth), paths)
        target.close()  # idempotent
    assert plain.is_untouched()
    return Seen(name.partition("-")[0], source, truth, answer, str(program))


def _inside(name: str, folder: Path, core: Path | None, pid: int, reads: Any, paths: list[str]) -> dict[str, Any]:
    request, answer = folder / "request", folder / "answer"
    request.write_text(json.dumps({"reads": reads, "paths": paths}))
    setup = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]"
    debugger = name.partition("-")[0]
    answers = "from support.truth import look_at_target; "
    call = f"{answers}look_at_target.inside({debugger!r}, {str(request)!r}, {str(answer)!r})"
    what = ["-c", str(core)] if core else ["-p", str(pid)]
    if debugger == "gdb":
        quiet = ["-iex", "set debuginfod enabled off"]
        done = run(["gdb", "-nx", "-batch", *quiet, *what, "-ex", f"python {setup}", "-ex", f"python {call}"])
    else:
        start = [lldbs.executable(name), "--no-lldbinit", "-b"]
        done = run([*start, *what, "-o", f"script {setup}", "-o", f"script {call}", "-o", "detach"])
    assert answer.exists(), done
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def test_it_names_itself(seen: Seen) -> None:
    said = [seen.answer[name] for name in ("kind", "is_core", "debugger", "pid", "architecture")]
    kind = "live" if seen.live else "core"
    assert said == [kind, not seen.live, seen.debugger, seen.truth["pid"], "x86_64"]


def test_threads(seen: Seen) -> None:
    """In the debugger's order. The kernel tells names to those that look at a process, states to those that do so
    before they stop it."""
    threads = seen.answer["threads"]
    assert sorted(thread["tid"] for thread in threads) == sorted(thread["tid"] for thread in seen.truth["threads"])
    if seen.debugger != "none":
        assert [thread["number"] for thread in threads] == list(range(1, THREADS + 2))
    else:
        assert [thread["number"] for thread in threads] == [None] * (THREADS + 1)
        assert [thread["tid"] for thread in threads] == sorted(thread["tid"] for thread in threads)
    names = {thread["tid"]: thread["name"] for thread in threads}
    for index, thread in enumerate(seen.truth["threads"]):
        assert names[thread["tid"]] == (f"worker ({index})" if seen.live else None)
    state = "S" if seen.live and seen.debugger == "none" else None
    assert {thread["kernel_state"] for thread in threads} == {state}


def test_the_crashed_thread_has_the_signal(seen: Seen) -> None:
    """And is selected; in all other cases it is the main one, and no thread has a signal."""
    crashed = seen.truth["threads"][THREADS]["tid"] if seen.source == "kernel" else None
    assert seen.answer["selected"] == (crashed or seen.truth["threads"][0]["tid"])
    signals = {thread["tid"]: thread["signal"] for thread in seen.answer["threads"] if thread["signal"] is not None}
    segv = {"number": 11, "name": "SIGSEGV", "code": 1, "address": 0xDEAD0000}
    assert signals == ({crashed: segv} if crashed else {})


def test_registers(seen: Seen) -> None:
    by_tid = {thread["tid"]: thread["registers"] for thread in seen.answer["threads"]}
    for index, thread in enumerate(seen.truth["threads"]):
        registers = by_tid[thread["tid"]]
        assert set(by_name("x86_64").general_registers) <= set(registers)
        assert all(0 <= value < 1 << 64 for value in registers.values())
        assert registers["fs_base"] == thread["tls"]
        assert abs(thread["stack"] - registers["rsp"]) < 65536
        if seen.source == "kernel" and index == THREADS:
            continue  # the one that crashed instead
        magic = seen.truth["magic"] + 16 * index
        kept = [registers[name] for name in ("rbx", "r12", "r13", "r14", "r15")]
        assert kept == [magic + offset for offset in range(5)]
        assert registers["orig_rax"] == 34
        assert seen.truth["code"] <= registers["rip"] < seen.truth["code"] + 64


def test_memory_is_exact(seen: Seen) -> None:
    """Also where the core leaves it to files."""
    assert seen.read("pattern") == PATTERN
    assert seen.read("across") == PATTERN[4090:4102]
    assert seen.read("one") == PATTERN[1:2]
    assert seen.read("none") == b""
    assert seen.read("text") == TEXT
    assert seen.read("code") == bytes.fromhex(seen.truth["code_bytes"])


def test_what_is_not_there_is_a_fault(seen: Seen) -> None:
    errors = {name: read.get("error") for name, read in seen.answer["reads"].items() if name.startswith("fault")}
    assert errors == dict.fromkeys(errors, "MemoryFault")
    assert len(errors) == len(FAULTS)


def test_maps(seen: Seen) -> None:
    maps = seen.answer["maps"]
    assert all(one["start"] < one["end"] for one in maps)
    assert all(one["end"] <= other["start"] for one, other in zip(maps, maps[1:]))
    code = seen.mapping_of(seen.truth["code"])
    assert (code["path"], code["permissions"], code["deleted"]) == (seen.program, "r-xp", False)
    text = seen.mapping_of(seen.truth["text"])
    assert (text["path"], text["permissions"]) == (seen.program, "r--p")
    assert text["offset"] - code["offset"] == text["start"] - code["start"]
    assert seen.mapping_of(seen.truth["pattern"])["permissions"] == "rw-p"
    stack = seen.mapping_of(seen.truth["threads"][0]["stack"])
    assert (stack["path"], stack["permissions"]) == ("[stack]", "rw-p")
    assert seen.mapping_of(seen.answer["auxv"]["33"])["path"] == "[vdso]"
    assert seen.mapping_of(seen.truth["threads"][1]["stack"])["path"] == ""


def test_auxv_and_environment(seen: Seen) -> None:
    assert (seen.answer["auxv"]["9"], seen.answer["auxv"]["6"]) == (seen.truth["entry"], 4096)
    assert seen.answer["environ"][plain_program.MARK] == "its value"


def test_local_paths_can_be_opened(seen: Seen) -> None:
    paths = seen.answer["paths"]
    assert Path(paths[seen.program]).read_bytes()[:4] == b"\x7fELF"
    assert (paths["[vdso]"], paths["relative"]) == ("[vdso]", "relative")
