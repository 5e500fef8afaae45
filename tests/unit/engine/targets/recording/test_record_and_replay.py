"""What was read through a recording target is read again from its recording, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.process.memory import Memory, memory_of
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.base_target import MemoryMapping, Signal, TargetThread
from gdbext.engine.targets.recording import recorder, recording_reader
from gdbext.engine.targets.recording.recorder import RecordingTarget
from gdbext.engine.targets.recording.recording import Recording, SparseBytes
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.engine.targets.system.procfs import ProcFs
from gdbext.errors import BadData, BadRecording, MemoryFault, SymbolFileError, TargetError
from support.fakes.elf_maker import DATA_START, Entry, make_elf
from support.fakes.fake_target import FakeTarget

PAGE = 4096
STACK = 0x7FFE00000000
RANDOM = STACK + 2 * PAGE - 1000
BASE = 0x7F0000000000


class FakeThread(TargetThread):
    """A thread with made-up registers, or with an error in their place."""

    number = 2
    name = "worker \udcff"
    signal = Signal(11, "SIGSEGV", -6, 0x10)
    kernel_state = "S"

    def __init__(self, tid: int, registers: Mapping[str, int] | None) -> None:
        self.tid = tid
        self._registers = registers

    def registers(self) -> Mapping[str, int]:
        if self._registers is None:
            raise TargetError("thread 8 could not be stopped", help="wait")
        return self._registers

    def float_registers(self) -> Mapping[str, int]:
        return {"xmm0": 0x3FD0000000000000}


class Process(FakeTarget):
    """A target with threads, an environment and one file."""

    def __init__(self, file: Path) -> None:
        data = file.read_bytes()
        self.stack = bytes(range(256)) * 32
        maps = [
            MemoryMapping(BASE, BASE + 0x3000, 0, str(file), "r-xp"),
            MemoryMapping(BASE + DATA_START, BASE + 0x4000, 0, str(file), "rw-p"),
            MemoryMapping(STACK, STACK + 2 * PAGE, 0, "[stack]", "rw-p"),
        ]
        regions = {
            BASE: data[:0x2800].ljust(0x3000, b"\0"),
            BASE + DATA_START: data[:64].ljust(0x1000, b"\0"),
            STACK: self.stack,
        }
        super().__init__(regions, maps, {25: RANDOM, 9: BASE + 0x1000})
        registers = {name: number for number, name in enumerate(self.architecture.general_registers)}
        self._all = [FakeThread(7, registers), FakeThread(8, None)]
        environ = {"PATH": "/secret/place", "OMP_NUM_THREADS": "4", "TORCH_TOKEN": "hunter2"}
        self.origin.environ = lambda: environ  # type: ignore[method-assign]

    def threads(self) -> Sequence[TargetThread]:
        return self._all

    def selected_thread(self) -> TargetThread | None:
        return self._all[1]


@pytest.fixture
def process(tmp_path: Path) -> Process:
    file = tmp_path / "libmade.so"
    names = [Entry(f"f{number}", 0x1000 + 16 * number) for number in range(200)]
    file.write_bytes(make_elf(names, names[:50], b"\1" * 20))
    return Process(file)


def recorded(target: RecordingTarget) -> Recording:
    return target.recording("dispatch-info --why")


def replayed(target: RecordingTarget) -> ReplayTarget:
    return ReplayTarget(recording_reader.decode(recorder.encode(recorded(target))))


def use(target: Any) -> list[Any]:
    """Read a bit of everything."""
    memory = memory_of(target)
    modules = ModuleTable(target, memory)
    symbols = Symbolizer(modules, target.origin.files.symbols)
    found: list[Any] = [memory.read(STACK + 100, 20), memory.try_read(STACK + 2 * PAGE, 8)]
    found += [(module.status, module.problem, module.build_id, module.base) for module in modules.modules]
    functions = [symbols.function(BASE + 0x1000 + offset) for offset in (0, 17, 3199, 3200)]
    found += [function and function.names for function in functions]
    found += [symbols.address_of("f3"), symbols.address_of("f150", "libmade.so"), symbols.address_of("nothing")]
    found.append(ProcFs(target.pid, target.origin.files, target.architecture.syscall_names).descriptor(1))
    return found


def test_a_replay_gives_what_was_read(process: Process) -> None:
    target = RecordingTarget(process)
    found = use(target)
    assert found == use(process)
    assert ("f0",) in found
    replay = replayed(target)
    Path(process.memory.maps()[0].path).unlink()  # the replay opens nothing
    assert use(replay) == found
    assert replay.origin.missing_from_recording() == ""


def test_only_what_was_read_is_kept(process: Process) -> None:
    """In blocks of 128 bytes, however it was read; a string ends where it ends, and not with its page."""
    target = RecordingTarget(process)
    memory = memory_of(target)
    assert memory.read(STACK + 100, 20) == process.stack[100:120]
    assert memory.u64(STACK + 1024) == int.from_bytes(process.stack[:8], "little")
    assert memory.u8(STACK + 2047) == 255
    assert memory.cstring(STACK + 3000) == process.stack[3000 : process.stack.index(b"\0", 3000)]
    target.memory.read(STACK + 5000, 3)
    kept = [(start - STACK, len(piece)) for start, piece in recorded(target).memory]
    assert kept == [(0, 128), (1024, 128), (1920, 128), (2944, 256), (5000, 3)]
    for start, piece in recorded(target).memory:
        assert piece == process.stack[start - STACK :][: len(piece)]


def test_a_page_that_is_read_again_is_kept_as_it_was_then(process: Process) -> None:
    """The process ran on between two looks: what the second one saw is what the recording has."""
    target = RecordingTarget(process)
    memory = memory_of(target)
    first = memory.u64(STACK + 64)
    process.regions[STACK] = changed = bytes(reversed(process.stack))
    assert memory.u64(STACK + 64) == first, "as long as nobody says that it ran"
    memory.forget()
    assert memory.read(STACK + 64, 8) == changed[64:72]
    assert memory_of(replayed(target)).read(STACK + 64, 8) == changed[64:72]


def test_a_read_that_ends_in_a_fault_ends_there_in_the_replay(process: Process) -> None:
    heap = 0x5000_0000
    process.regions[heap] = b"x" * PAGE
    target = RecordingTarget(process)

    def faults(memory: Memory) -> list[int]:
        with pytest.raises(MemoryFault) as read:
            memory.read(heap + PAGE - 16, 32)
        with pytest.raises(MemoryFault) as string:
            memory.cstring(heap + PAGE - 100, 200)
        with pytest.raises(BadData):
            memory.cstring(heap + 100, 50)
        return [read.value.address, string.value.address]

    assert faults(memory_of(target)) == [heap + PAGE] * 2
    replay = replayed(target)
    assert faults(memory_of(replay)) == [heap + PAGE] * 2
    assert replay.origin.missing_from_recording() == ""


def test_a_recording_of_whole_pages_is_read_as_before(process: Process) -> None:
    """Format 1, which users have."""
    memory = SparseBytes([STACK], [process.stack])
    data = bytearray(recorder.encode(recorded(RecordingTarget(process))._replace(memory=memory)))
    data[8:10] = (1).to_bytes(2, "little")
    memory = memory_of(ReplayTarget(recording_reader.decode(bytes(data))))
    assert memory.read(STACK + 4000, 200) == process.stack[4000:4200]
    assert memory.words(STACK, 3) == memory_of(process).words(STACK, 3)


def test_what_was_not_read_is_missing_and_said_to_be(process: Process) -> None:
    target = RecordingTarget(process)
    memory_of(target).read(STACK, 8)
    replay = replayed(target)
    memory = memory_of(replay)
    with pytest.raises(MemoryFault):
        memory.read(STACK + PAGE, 8)
    assert replay.origin.missing_from_recording() == "pages of memory (1)"
    (module,) = ModuleTable(replay, memory).modules
    assert module.image is None
    assert module.problem == "its file is not in the recording"
    assert ProcFs(replay.pid, replay.origin.files, replay.architecture.syscall_names).children() == {}
    assert (
        replay.origin.missing_from_recording() == "facts of the system (1), files of modules (1), pages of memory (2)"
    )


def test_threads(process: Process) -> None:
    replay = replayed(RecordingTarget(process))
    first, second = replay.memory.threads()
    assert (first.tid, first.number, first.name, first.kernel_state) == (7, 2, "worker \udcff", "S")
    assert first.signal == Signal(11, "SIGSEGV", -6, 0x10)
    assert first.registers() == process.memory.threads()[0].registers()
    assert first.float_registers() == {"xmm0": 0x3FD0000000000000}
    assert second.float_registers() == {}
    with pytest.raises(TargetError, match="could not be stopped") as caught:
        second.registers()
    assert caught.value.help == "wait"
    assert replay.memory.selected_thread() is second
    assert (replay.memory.maps(), replay.memory.auxv()) == (tuple(process.memory.maps()), process.memory.auxv())
    assert (replay.origin.kind, replay.debugger, replay.pid) == ("live", "none", process.pid)
    assert replay.origin.recorded.command == "dispatch-info --why"


def test_the_environment_is_filtered_and_its_strings_are_blanked(process: Process) -> None:
    target = RecordingTarget(process)
    assert memory_of(target).read(STACK, 2 * PAGE) == process.stack, "whoever looks now sees everything"
    recording = recorded(target)
    assert recording.environ == {"OMP_NUM_THREADS": "4", "TORCH_TOKEN": "(hidden)"}
    kept = recording.memory.read(STACK, 2 * PAGE)
    strings = RANDOM + 16 - STACK
    assert kept[:strings] == process.stack[:strings]
    assert kept[strings:] == bytes(2 * PAGE - strings)
    data = json.dumps(recorder.document_and_blocks(recording)[0]) + kept.decode("latin-1")
    assert "hunter2" not in data
    assert "/secret/place" not in data


def searches(image: ElfImage) -> list[int | None]:
    found = [image.find(b"GNU\0", 0, 0x1000), image.find(b"no such thing", 0, 0x1000)]
    return [*found, image.find(b"\1", 0x210, 0x300, 8), image.data.find(b"ELF", 0, 16)]


def test_searches_are_kept_with_what_they_found(process: Process) -> None:
    target = RecordingTarget(process)
    (module,) = ModuleTable(target, memory_of(target)).modules
    expected = [0x20C, None, 0x210, 1]
    assert searches(module.image) == expected
    replay = replayed(target)
    (again,) = ModuleTable(replay, memory_of(replay)).modules
    assert searches(again.image) == expected
    assert replay.origin.missing_from_recording() == ""
    assert again.image.find(b"GNU\0", 1, 0x1000) is None
    with pytest.raises(SymbolFileError):
        again.image.data.find(b"ELF", 0, 17)
    assert replay.origin.missing_from_recording() == "searches in libmade.so (2)"


def test_memory_beyond_the_limit_is_left_out(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdbext.engine.targets.recording.recorder.MAX_MEMORY", PAGE)
    target = RecordingTarget(process)
    memory_of(target).read(STACK, 2 * PAGE)
    assert len(recorded(target).memory) == PAGE
    assert not target.is_complete


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("target",), None),
        (("target", "kind"), "gdb"),
        (("target", "debugger"), "gdbgdb"),
        (("target", "pid"), -1),
        (("target", "pid"), True),
        (("threads", 0, "tid"), "7"),
        (("threads", 0, "registers", "pc"), 1 << 64),
        (("threads", 0, "float_registers", "xmm0"), -1),
        (("threads", 0, "signal", "address"), -1),
        (("maps", 0), [0] * 8),
        (("maps", 0, 3), 5),
        (("auxv",), {"x": 1}),
        (("environ",), {"A": 1}),
        (("facts",), {"text /proc/1/stat": {"deep": []}}),
        (("facts",), {"clock 1": float("nan")}),
        (("kept",), {"torch layout": None}),
        (("modules", 0, "file"), 99),
        (("modules", 0, "status"), "stolen"),
        (("files", 0, "size"), -5),
        (("files", 0, "contents"), 99),
        (("files", 0, "found"), [["zz", 0, 1, 1, 0]]),
        (("files", 0, "found"), [["00", 0, 1, 1, "a"]]),
        (("files", 0, "offsets"), [["00", 0, 1, None]]),
        (("files", 0, "arrays"), {"names": [{"count": 1, "width": 5, "contents": 0}] * 2}),
        (("files", 0, "arrays"), {"addresses": [{"count": n, "width": 4, "contents": 0} for n in (9, 3)]}),
        (("files", 0, "arrays"), {"names": [{"count": 0, "width": 4, "contents": 0}] * 2}),
        (("memory",), None),
        (("unreadable",), [-4096]),
    ],
)
def test_a_document_that_is_not_what_it_must_be(process: Process, path: tuple[Any, ...], value: Any) -> None:
    target = RecordingTarget(process)
    use(target)
    document, blocks = recorder.document_and_blocks(recorded(target))
    place: Any = json.loads(json.dumps(document))
    changed = place
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(BadRecording):
        recording_reader.recording_from(changed, blocks)


def test_a_secret_of_the_process_is_nowhere_in_the_recording(process: Process) -> None:
    """Python has copies of the arguments and of the environment on its heap, beside what is read."""
    heap = 0x5000_0000
    secret, word = "s3cret-t0ken", "correct horse"
    process.origin.environ = lambda: {"MY_PASSWD": secret, "OMP_NUM_THREADS": "4"}  # type: ignore[method-assign]
    argument = f"train.py\0--db-pass\0{word}\0".encode()
    at = RANDOM + 16 - STACK
    process.stack = process.stack[:at] + argument + process.stack[at + len(argument) :]
    process.regions.update({STACK: process.stack, heap: f"{secret}|{word}|train.py".encode().ljust(PAGE, b"\0")})
    target = RecordingTarget(process)
    target.memory.read(heap, PAGE)
    target.origin.files.facts["text /proc/9/cmdline"] = (
        "python\0-m\0x\0--token=abc\0train.py\0--local-rank=3\0hunter2\0"
    )
    target.origin.files.texts["origin"] = f"python train.py --db-pass {word}\nhost"
    target.origin.files.facts["line 1 of x.py"] = [f"login({secret!r})"]
    recording = recorded(target)
    data = json.dumps(recorder.document_and_blocks(recording)[0]).encode() + b"".join(recording.memory.pieces)
    for each in (secret, word, "abc", "hunter2"):
        assert each.encode() not in data, each
    assert recording.memory.read(heap, 12) == b"*" * 12
    command = recording.facts["text /proc/9/cmdline"]
    assert command == "python\0-m\0(hidden)\0(hidden)\0train.py\0--local-rank=3\0(hidden)\0"
