"""The process that heals what a killed debugger leaves: foreign instructions in the code of files, and nothing else."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext.engine.arch import architectures
from gdbext.engine.targets.live.debugger_guard import DebuggerGuard, Healer, RobustMutex
from gdbext.tools.probes.bpf import bpf_program
from gdbext.tools.probes.bpf.bpf_kernel import Bpf, ProbePlace
from support.installed.probing import PROBES

INT3 = b"\xcc"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "code"


@pytest.fixture
def code(file: Path) -> Iterator[tuple[int, bytes]]:
    """The address of two pages of a file, mapped as code is, and what the file has there."""
    file.write_bytes(b"\x90" * mmap.PAGESIZE + b"\x90\xcc" * (mmap.PAGESIZE // 2))
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    with file.open("rb") as opened:
        flags = mmap.PROT_READ | mmap.PROT_EXEC
        address = libc.mmap(None, 2 * mmap.PAGESIZE, flags, mmap.MAP_PRIVATE, opened.fileno(), 0)
    yield address, file.read_bytes()
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(2 * mmap.PAGESIZE))


@pytest.fixture
def memory() -> Iterator[tuple[int, int]]:
    descriptors = os.open("/proc/self/mem", os.O_RDWR), os.open("/proc/self/pagemap", os.O_RDONLY)
    yield descriptors
    for each in descriptors:
        os.close(each)


def test_only_what_came_later_is_put_back(code: tuple[int, bytes], memory: tuple[int, int]) -> None:
    """Not what stood there before, not other bytes, and not where the file has that instruction itself."""
    (address, original), (file, _) = code, memory
    healer = Healer(INT3, os.getpid(), *memory)
    os.pwrite(file, INT3, address + 1)
    healer.note()
    for place, byte in ((5, INT3), (mmap.PAGESIZE + 2, INT3), (7, b"\x91")):
        os.pwrite(file, byte, address + place)
    found = {place - address for place, _ in healer.traps() if 0 <= place - address < len(original)}
    assert found == {1, 5, mmap.PAGESIZE + 2}
    healer.heal()
    meant = bytearray(original)
    meant[1], meant[7] = 0xCC, 0x91
    assert ctypes.string_at(address, len(original)) == bytes(meant)


@PROBES
def test_probes_for_all_processes_are_left_alone(code: tuple[int, bytes], memory: tuple[int, int], file: Path) -> None:
    """Those of another tool: the kernel would go on to believe that they are there."""
    architecture = architectures.own()
    assert architecture is not None
    kernel = Bpf.of(architecture)
    program = kernel.program(bpf_program.end())
    link = kernel.attach(program, str(file), [ProbePlace(5, 1), ProbePlace(mmap.PAGESIZE + 2, 2)], 0)
    try:
        (address, original), (ours, _) = code, memory
        os.pwrite(ours, INT3, address + 1)
        Healer(INT3, os.getpid(), *memory).heal()
        meant = bytearray(original)
        meant[5] = meant[mmap.PAGESIZE + 2] = INT3[0]
        assert ctypes.string_at(address, len(original)) == bytes(meant)
    finally:
        os.close(link)
        os.close(program)


def test_places_that_were_seen_are_put_back(code: tuple[int, bytes], memory: tuple[int, int]) -> None:
    (address, original), (file, _) = code, memory
    healer = Healer(INT3, os.getpid(), *memory)
    healer.note()
    os.pwrite(file, INT3, address)
    healer.look()
    healer.heal()
    healer.heal()
    assert ctypes.string_at(address, len(original)) == original


def test_a_lock_is_had_as_soon_as_its_owner_dies() -> None:
    mutex = RobustMutex()
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        mutex.lock()
        os.write(told, b"x")
        signal.pause()
    assert select.select([ready], [], [], 60)[0]
    os.kill(child, signal.SIGKILL)
    assert mutex.lock()
    os.waitpid(child, 0)
    for each in (ready, told):
        os.close(each)


def test_a_guard_ends_with_its_work() -> None:
    """It has none of our descriptors, and goes when it is let go, or when nobody traces the process."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            guard = DebuggerGuard(process.pid)
            end = time.monotonic() + 60
            while guard.is_there and time.monotonic() < end:
                time.sleep(0.05)
            assert not guard.is_there, "nobody traces it"
            guard.close()
            guard.close()
        finally:
            process.kill()
