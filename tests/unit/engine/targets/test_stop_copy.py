"""Two stops of a process that hangs show the same, and those of one that runs do not."""

from __future__ import annotations

import pytest

from gdbext.engine.arch.architectures import by_machine
from gdbext.engine.targets.base_target import TargetThread
from gdbext.engine.targets.live.stop_copy import CopiedThread, PageCopy, StopCopy
from gdbext.engine.targets.system.linux import PAGE_SIZE

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
    ids=("same", "restart", "turned-back", "elsewhere", "argument", "register", "runs", "ended", "began", "stack"),
)
def test_is_as_at_a_later_stop(later: StopCopy, same: bool) -> None:
    assert stop(WAITING, WAITING).is_as(later, X86_64, code) is same


def test_of_a_thread_that_was_read_as_it_slept_the_registers_that_are_known_are_compared() -> None:
    asleep = stop({name: value for name, value in WAITING.items() if name not in X86_64.callee_saved}, WAITING)
    assert not asleep.is_as(stop(WAITING, WAITING), X86_64, code)
    asleep.threads[0].lacks_registers = True
    assert asleep.is_as(stop(WAITING, WAITING), X86_64, code)
    assert not asleep.is_as(stop({**WAITING, "rsp": WAITING["rsp"] - 8}, WAITING), X86_64, code)
    assert not asleep.is_as(stop({**WAITING, "rdi": 0x9100}, WAITING), X86_64, code)
