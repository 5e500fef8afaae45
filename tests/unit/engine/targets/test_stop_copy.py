"""Memory and registers copied at a stop, what may differ at a later one, and the haste in between."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
from pathlib import Path

import pytest

from gdbext.engine.arch.architectures import by_machine
from gdbext.engine.targets.base_target import TargetThread
from gdbext.engine.targets.live import stop_copy
from gdbext.engine.targets.live.stop_copy import CopiedThread, PageCopy, PreparedMemory, StopCopy
from gdbext.engine.targets.live.thread_motion import RUNNING, SleepPlace, same_but_for_rseq
from gdbext.engine.targets.system.linux import PAGE_SIZE, parse_maps
from gdbext.errors import MemoryFault

X86_64 = by_machine(62)
STACK = b"s" * PAGE_SIZE
WAITING = {"rip": 0x1030, "rsp": 0x7000, "rbx": 1, "rdi": 0x9000, "orig_rax": 202, "rax": -512 & (1 << 64) - 1}


class Stopped(TargetThread):
    number = signal = name = kernel_state = None

    def __init__(self, tid: int, registers: dict[str, int]) -> None:
        self.tid = tid
        self._registers = registers

    def registers(self) -> dict[str, int]:
        return self._registers


def stop(*threads: dict[str, int], stack: bytes = STACK) -> StopCopy:
    copied = [CopiedThread(7, Stopped(tid, registers)) for tid, registers in enumerate(threads, 7)]
    return StopCopy(7, copied, PageCopy([(0x7000, stack)]), 7)


TURNED_BACK = {**WAITING, "rip": WAITING["rip"] - 2, "rax": 202}
"""The kernel is about to make the call again: the thread has had no turn since it was let go."""
CALLS = {WAITING["rip"] - 2, WAITING["rip"] + 0x10}
"""Where the instruction of a system call stands."""


def code(address: int, size: int) -> bytes:
    """A system call before the program counter, and another one a little further on."""
    found = bytearray(size)
    for call in CALLS:
        if address <= call <= address + size - 2:
            found[call - address : call - address + 2] = b"\x0f\x05"
    return bytes(found)


@pytest.mark.parametrize(
    ("later", "same"),
    [
        (stop(WAITING, WAITING), True),
        (stop(WAITING, {**WAITING, "rax": -516 & (1 << 64) - 1}), True),
        (stop(WAITING, TURNED_BACK), True),
        (stop(WAITING, {**WAITING, "rip": WAITING["rip"] + 0x12}), False),
        (stop(WAITING, {**WAITING, "rdi": 0x9100}), False),
        (stop(WAITING, {**WAITING, "rbx": 2}), False),
        (stop(WAITING, {**WAITING, "orig_rax": -1 & (1 << 64) - 1}), False),
        (stop(WAITING), False),
        (stop(WAITING, WAITING, WAITING), False),
        (stop(WAITING, WAITING, stack=b"t" * PAGE_SIZE), False),
    ],
)
def test_is_as_at_a_later_stop(later: StopCopy, same: bool) -> None:
    assert stop(WAITING, WAITING).is_same_as(later, X86_64, code) is same


def test_of_a_thread_that_was_read_as_it_slept_the_registers_that_are_known_are_compared() -> None:
    asleep = stop({name: value for name, value in WAITING.items() if name not in X86_64.callee_saved}, WAITING)
    assert not asleep.is_same_as(stop(WAITING, WAITING), X86_64, code)
    asleep.threads[0].lacks_registers = True
    assert asleep.is_same_as(stop(WAITING, WAITING), X86_64, code)
    assert not asleep.is_same_as(stop({**WAITING, "rsp": WAITING["rsp"] - 8}, WAITING), X86_64, code)
    assert not asleep.is_same_as(stop({**WAITING, "rdi": 0x9100}, WAITING), X86_64, code)


START = 0x7000 * PAGE_SIZE
DATA = bytes(range(256)) * (2 * PAGE_SIZE // 256)


@pytest.fixture
def copy() -> PageCopy:
    return PageCopy([(START, DATA), (START + 3 * PAGE_SIZE, b"\xee" * PAGE_SIZE)])


def test_what_was_copied_whole_is_read_from_the_copy(copy: PageCopy) -> None:
    for start, end in ((0, 16), (PAGE_SIZE - 8, PAGE_SIZE + 8), (0, 2 * PAGE_SIZE)):
        assert copy.read(START + start, end - start) == DATA[start:end]
    for offset, size in ((-8, 16), (2 * PAGE_SIZE - 8, 16), (0, 4 * PAGE_SIZE), (2 * PAGE_SIZE, 8)):
        assert copy.read(START + offset, size) == b""


def test_the_copy_covers_what_is_read_later(copy: PageCopy) -> None:
    later = b"\x11" * PAGE_SIZE
    assert copy.overlay_on(START - PAGE_SIZE, later * 5) == later + DATA + later + b"\xee" * PAGE_SIZE
    assert copy.overlay_on(START + 2 * PAGE_SIZE - 4, b"12345678") == DATA[2 * PAGE_SIZE - 4 : 2 * PAGE_SIZE] + b"5678"
    assert copy.overlay_on(START + 3 * PAGE_SIZE - 4, b"12345678") == b"1234" + b"\xee" * 4
    assert copy.overlay_on(START - 100, b"12345678") == b"12345678"


def test_ranges_of_pages() -> None:
    found = [(start // PAGE_SIZE, end // PAGE_SIZE) for start, end in stop_copy.merge_pages([1, 2, 3, 7, 9, 10], 100)]
    assert found == [(1, 4), (7, 8), (9, 11)]
    assert list(stop_copy.merge_pages([1, 2, 3, 7], 2)) == [(PAGE_SIZE, 3 * PAGE_SIZE)]
    assert list(stop_copy.merge_pages([], 2)) == []
    low, high = 5 * PAGE_SIZE + 100, 8 * PAGE_SIZE + 10
    inside = [(low, 6 * PAGE_SIZE), (6 * PAGE_SIZE, 7 * PAGE_SIZE), (8 * PAGE_SIZE, high)]
    assert list(stop_copy.parts_in_pages(low, high - low, {5, 6, 8, 9})) == inside


def test_a_later_copy_with_more_pages_may_have_the_same_contents(copy: PageCopy) -> None:
    assert PageCopy([(START, DATA)]).is_part_of(copy)
    assert not copy.is_part_of(PageCopy([(START, DATA)])), "one page is missing"
    assert not PageCopy([(START, DATA[1:] + b"x")]).is_part_of(copy)


TEXT = bytes(range(256)) * 32


def test_prepared_memory_has_the_bytes_of_the_process() -> None:
    own = os.open("/proc/self/mem", os.O_RDONLY)
    source = ctypes.create_string_buffer(TEXT, len(TEXT))
    for prepared in (0, 100, 8191, 8192, 20000):
        memory = PreparedMemory(prepared)
        pieces = [memory.read(own, os.getpid(), ctypes.addressof(source) + at, 4096) for at in (0, 4096, 1000)]
        assert list(map(bytes, pieces)) == [TEXT[:4096], TEXT[4096:], TEXT[1000:5096]], "no piece lies over another"
    memory = PreparedMemory(4096)
    with pytest.raises(MemoryFault):
        memory.read(own, os.getpid(), 1 << 62, 4096)
    (end,) = (each.end for each in parse_maps(Path("/proc/self/maps").read_text()) if each.path == "[stack]")
    with pytest.raises(MemoryFault, match="only 16 bytes"):
        memory.read(own, os.getpid(), end - 16, 64)
    assert bytes(memory.read(own, os.getpid(), ctypes.addressof(source), 4096)) == TEXT[:4096], "they took nothing"
    os.close(own)


def place() -> tuple[int, int, int, bool]:
    """Policy, its priority, niceness, and whether garbage is collected."""
    priority = os.sched_getparam(0).sched_priority
    return os.sched_getscheduler(0), priority, os.getpriority(os.PRIO_PROCESS, 0), gc.isenabled()


def test_all_is_put_back_after_an_error() -> None:
    before = place()
    with pytest.raises(KeyError, match="False"), stop_copy.real_time_priority():
        raise KeyError(gc.isenabled())
    assert place() == before


def test_where_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []

    def refuse(*words: int) -> None:
        wanted.append(words[-1])
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "setpriority", refuse)
    before = place()
    with stop_copy.real_time_priority():
        assert not gc.isenabled()
    assert wanted[1:] == [-20, before[2]]
    assert place() == before


PROCESSORS = os.sysconf("SC_NPROCESSORS_CONF")
LAST = PROCESSORS - 1


def memory(cpu_start: int = 0, cpu: int = 0, critical: int = 0, flags: int = 0, node: int = 0, lane: int = 0) -> bytes:
    """A struct rseq, 32 bytes after the beginning."""
    return b"s" * 32 + struct.pack("<2IQ4I", cpu_start, cpu, critical, flags, node, lane, 0) + b"t" * 32


def test_what_the_kernel_changes_on_another_processor_and_what_the_thread_itself_does() -> None:
    for same in (memory(), memory(lane=LAST), memory(LAST, LAST, node=LAST, lane=LAST)):
        assert same_but_for_rseq(memory(), same)
        assert same_but_for_rseq(memory()[8:], same[8:], 0x1008)
    moved = memory(LAST, LAST)
    others = [memory(PROCESSORS, PROCESSORS), memory(1, 0), memory(critical=0x7000), memory(flags=1), memory()[:-1]]
    for other in (*others, b"r" + moved[1:], moved[:-1] + b"u"):
        assert not same_but_for_rseq(memory(), other)
    assert not LAST or not same_but_for_rseq(memory(), moved, 0x1010), "it stands at a multiple of 32"


ASLEEP = SleepPlace("202 0x7f0c 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd10 0x7f21b0", "100 20 3")


@pytest.mark.parametrize(
    ("earlier", "later", "moved"),
    [
        (ASLEEP, ASLEEP, False),
        (ASLEEP, ASLEEP._replace(ran="160 20 4"), True),  # it woke up and is back
        (ASLEEP, ASLEEP._replace(call=ASLEEP.call.replace("0x7ffd10", "0x7ffd00")), True),
        (ASLEEP, ASLEEP._replace(call=RUNNING), True),
        (SleepPlace(RUNNING, "1 2 3"), SleepPlace(RUNNING, "1 2 3"), True),
        (SleepPlace("", ""), SleepPlace("", ""), True),  # not known
    ],
)
def test_whether_it_moved(earlier: SleepPlace, later: SleepPlace, moved: bool) -> None:
    assert later.has_moved(earlier) is moved
    assert (ASLEEP.stack_pointer, SleepPlace(RUNNING, "").stack_pointer) == (0x7FFD10, None)
