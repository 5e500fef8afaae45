"""The process that heals what a killed debugger leaves: foreign instructions in the code of files, and nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdbext.engine.arch import architectures
from gdbext.engine.targets.budget import MemoryLimit
from gdbext.engine.targets.live import debugger_guard
from gdbext.engine.targets.live.debugger_guard import (
    DebuggerGuards,
    Healer,
    ServerConnection,
    connection_to,
    listed_probes,
)
from gdbext.tools.probes.bpf import bpf_program
from gdbext.tools.probes.bpf.bpf_kernel import Bpf, ProbePlace
from gdbext.tools.probes.bpf.probe_keeper import attach_one_by_one
from support.installed.probing import PROBES
from support.programs.harness import wait_until
from support.programs.work import lines_run

INT3 = b"\xcc"
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "code"


@contextlib.contextmanager
def mapped_as_code(file: Path, size: int) -> Iterator[int]:
    libc, no_reserve = ctypes.CDLL(None), 0x4000
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    with file.open("rb") as opened:
        flags = mmap.PROT_READ | mmap.PROT_EXEC
        address = libc.mmap(None, size, flags, mmap.MAP_PRIVATE | no_reserve, opened.fileno(), 0)
    assert 0 < address < 1 << 47
    yield address
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


@pytest.fixture
def code(file: Path) -> Iterator[tuple[int, bytes]]:
    """The address of two pages of a file, mapped as code is, and what the file has there."""
    file.write_bytes(b"\x90" * mmap.PAGESIZE + b"\x90\xcc" * (mmap.PAGESIZE // 2))
    with mapped_as_code(file, 2 * mmap.PAGESIZE) as address:
        yield address, file.read_bytes()


@pytest.fixture
def memory() -> Iterator[tuple[int, int]]:
    descriptors = os.open("/proc/self/mem", os.O_RDWR), os.open("/proc/self/pagemap", os.O_RDONLY)
    yield descriptors
    for each in descriptors:
        os.close(each)


@pytest.fixture
def wide_code(file: Path) -> Iterator[int]:
    """The address of a file of 8 kB that is mapped as code over 2 TB."""
    file.write_bytes(b"\x90" * 8192)
    with mapped_as_code(file, 2 << 40) as address:
        yield address


def test_a_small_file_that_is_mapped_far_and_wide(wide_code: int, memory: tuple[int, int]) -> None:
    """It is asked for as far as the file goes: healed at once, in little memory."""
    healer = Healer(INT3, os.getpid(), *memory)
    os.pwrite(memory[0], INT3, wide_code + 5)
    with MemoryLimit(64 << 20):
        assert [place - wide_code for place, _ in healer.breakpoints() if wide_code <= place] == [5]
        assert lines_run(healer.heal) < 50_000
    assert ctypes.string_at(wide_code, 8192) == b"\x90" * 8192


def test_only_what_came_later_is_put_back(code: tuple[int, bytes], memory: tuple[int, int]) -> None:
    """Not what stood there before, not other bytes, and not where the file has that instruction itself."""
    (address, original), (file, _) = code, memory
    healer = Healer(INT3, os.getpid(), *memory)
    os.pwrite(file, INT3, address + 1)
    healer.note_existing()
    for place, byte in ((5, INT3), (mmap.PAGESIZE + 2, INT3), (7, b"\x91")):
        os.pwrite(file, byte, address + place)
    found = {place - address for place, _ in healer.breakpoints() if 0 <= place - address < len(original)}
    assert found == {1, 5, mmap.PAGESIZE + 2}
    healer.heal()
    meant = bytearray(original)
    meant[1], meant[7] = 0xCC, 0x91
    assert ctypes.string_at(address, len(original)) == bytes(meant)


@contextlib.contextmanager
def probed(file: Path, offsets: tuple[int, ...], pid: int, open_nonblocking: bool = True) -> Iterator[None]:
    """As long as another tool has probes there."""
    architecture: Any = architectures.own()
    kernel = Bpf.of(architecture)
    places = [ProbePlace(offset, number) for number, offset in enumerate(offsets, 1)]
    program = Bpf(kernel._number, has_many=open_nonblocking).program(bpf_program.assemble("return 0"))
    if open_nonblocking:
        links = [kernel.attach(program, str(file), places, pid)]
    else:
        links = list(attach_one_by_one(kernel, program, str(file), places, pid))
    try:
        yield
    finally:
        for each in (*links, program):
            os.close(each)


def _elsewhere(work: Callable[[], None]) -> None:
    """Do it in another process, as the guard does."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@PROBES
@pytest.mark.parametrize(("open_nonblocking", "is_for_all"), [(True, True), (True, False), (False, False)])
def test_probes_of_other_tools_are_left_alone(
    code: tuple[int, bytes], memory: tuple[int, int], file: Path, open_nonblocking: bool, is_for_all: bool
) -> None:
    """The kernel would go on to believe that they are there, and the tool sees nothing any more."""
    (address, original), (ours, _) = code, memory
    healer = Healer(INT3, os.getpid(), *memory)
    healer.note_existing()
    with probed(file, (5, mmap.PAGESIZE + 2), 0 if is_for_all else os.getpid(), open_nonblocking):
        os.pwrite(ours, INT3, address + 1)
        _elsewhere(healer.heal)
        meant = bytearray(original)
        meant[5] = meant[mmap.PAGESIZE + 2] = INT3[0]
        assert ctypes.string_at(address, len(original)) == bytes(meant)


@PROBES
def test_a_probe_where_a_breakpoint_was(code: tuple[int, bytes], memory: tuple[int, int], file: Path) -> None:
    """The next command of the user begins as soon as his debugger was killed."""
    (address, original), (ours, _) = code, memory
    healer = Healer(INT3, os.getpid(), *memory)
    healer.note_existing()
    os.pwrite(ours, INT3, address + 5)
    healer.find_early()
    healer.heal()
    assert ctypes.string_at(address, len(original)) == original
    healer.forget()
    with probed(file, (5,), os.getpid()):
        _elsewhere(healer.heal)
        assert ctypes.string_at(address + 5, 1) == INT3


def test_probes_of_perf_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tracefs says each in a line (Documentation/trace/uprobetracer.rst); what is no file is passed over."""
    library = tmp_path / "lib:a b.so"
    library.write_bytes(b"")
    events = tmp_path / "uprobe_events"
    lines = f"p:probe_a/one {library}:0x0000000000001a10(0x20) x=%di\nr8:a/two {library}:0x30\np:b/c /none:0x1\n"
    events.write_text(lines)
    monkeypatch.setattr(debugger_guard, "_PROBE_LINES", (str(events), str(tmp_path / "none")))
    status = library.stat()
    ours = {each[2] for each in listed_probes(os.getpid()) if each[:2] == (status.st_dev, status.st_ino)}
    assert ours == {0x1A10, 0x30}


def test_a_guard_ends_with_its_work() -> None:
    """It has none of our descriptors, awaits the debugger, and goes when it is let go."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            guard = DebuggerGuards()
            guard.watch_over(process.pid)
            assert guard.is_alive, "nobody traces the process yet"
            guard.close()
            guard.close()
            assert not guard.is_alive
        finally:
            process.kill()


TRACER = """
import ctypes, os, sys, time
pid = os.fork()
if not pid:
    os.closerange(0, 3)
    time.sleep(600)
from gdbext.engine.targets.live import ptrace
from gdbext.engine.targets.live.debugger_guard import DebuggerGuards, listed_probes
ptrace.seize(pid)
ptrace.interrupt(pid)
os.waitpid(pid, 0)
def collected(_):
    raise ProcessLookupError
if sys.argv[2] == "collected":
    os.pidfd_open = collected
guards = DebuggerGuards()
guards.watch_over(pid)
address = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
original = os.pread(memory, 1, address)
os.pwrite(memory, bytes.fromhex(sys.argv[1]), address)
print(pid, address, original.hex(), flush=True)
if sys.argv[2] in ("killed", "collected"):
    os._exit(0)
if sys.argv[2] == "closed":
    guards.close()
    assert os.pread(memory, 1, address) != original
if sys.argv[2] == "ordinary":
    ptrace.detach(pid)
"""
"""A debugger that leaves a breakpoint in a process of its own, and ends; not killed, it lets the process go before, and
waits for its guard's end (DebuggerGuards.close). "collected": it is killed and waited for before its guard waits. "not
detached": it exits in an ordinary way, but has not let the process go; "closed": nor when it ended its guard."""


@pytest.mark.parametrize("end", ["killed", "collected", "not detached", "closed", "ordinary"])
def test_who_ends_in_its_own_way_is_not_taken_for_killed(end: str) -> None:
    """What it leaves in the code is not touched: it may be the next command's already."""
    words = [sys.executable, "-c", TRACER, INT3.hex(), end]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    pid, address, original = said.split()
    memory = Path(f"/proc/{pid}/mem")

    def now() -> bytes:
        with memory.open("rb", buffering=0) as file:
            file.seek(int(address))
            return file.read(1)

    try:
        if end != "ordinary":
            wait_until(lambda: now() == bytes.fromhex(original), "its guard has healed the code")
        else:
            assert now() == INT3
    finally:
        os.kill(int(pid), signal.SIGKILL)


def test_the_server_of_a_killed_debugger_is_told_to_let_go() -> None:
    """It is asked whether all stand still, the code is healed, and then it is to detach: in this order."""
    others, (ours, theirs) = socket.socketpair(), socket.socketpair()
    child = os.fork()
    if not child:
        for each in (*others, ours):
            each.close()
        theirs.send(b"+")
        asked = theirs.recv(99)
        theirs.send(b"$O48#00$T05thread:1;#00" if asked == b"\x03$?#3f" else b"$E01#00")
        detached = theirs.recv(99)
        theirs.send(b"$OK#9a")
        os._exit((asked, detached) != (b"\x03$?#3f", b"$D#44"))
    theirs.close()
    assert ours.recv(1) == b"+"
    assert connection_to(child) == ours.fileno()
    assert connection_to(os.getppid()) == connection_to(0) == -1
    connection = ServerConnection(ours.detach())
    with connection.stopped():
        assert not os.waitpid(child, os.WNOHANG)[0], "it waits"
    assert os.waitpid(child, 0)[1] == 0
    with ServerConnection(-1).stopped():
        pass
    for each in others:
        each.close()
