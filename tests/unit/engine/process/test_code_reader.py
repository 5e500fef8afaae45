"""What code tells: the system call that a thread is in, what a function returns and loads, the slots it calls by."""

from __future__ import annotations

import struct

import pytest

from gdbext.engine.arch import ThreadsOrGlobal
from gdbext.engine.arch.architectures import by_machine
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.process import code_reader
from gdbext.engine.process.code_reader import imported_slots, member_loads, returned_address
from gdbext.engine.process.memory import Memory
from support.fakes.elf_maker import Entry, make_elf
from support.fakes.fake_target import FakeTarget
from support.programs.wait_processes import CODE, PC, RESTART, pages


def call_of(**registers):
    memory = Memory(FakeTarget({CODE: pages(bytes(0xFE) + b"\x0f\x05")}))
    return code_reader.blocked_syscall({"rip": PC, "rax": RESTART, "orig_rax": 202, "rdi": 5, **registers}, memory)


@pytest.mark.parametrize("registers", [{}, *({"rip": PC - 2, "rax": result} for result in (RESTART, 202, 219))])
def test_a_blocked_call_and_its_arguments(registers):
    """Also one that the kernel will make again: the thread has had no turn since it was let go."""
    found = call_of(**registers)
    assert (found.name, found.arguments[0]) == ("futex", 5)


@pytest.mark.parametrize(
    "registers",
    [
        {"orig_rax": (1 << 64) - 1},
        {"rax": 0},
        {"rip": PC + 1},
        {"orig_rax": -256 & (1 << 64) - 1},
        # the number in rax alone is no call
        {"rax": 202},
        {"rax": 7, "rip": PC - 2},
        {"rax": 202, "rip": PC - 3},
    ],
)
def test_a_thread_in_user_code_is_in_no_call(registers):
    assert call_of(**registers) is None
    assert code_reader.blocked_syscall({}, Memory(FakeTarget({}))) is None


def test_a_restarted_call_is_named_by_the_code_before_it():
    code = bytes(0xF0) + b"\xb8\xe6\x00\x00\x00" + bytes(9) + b"\x0f\x05" + bytes(16)
    memory = Memory(FakeTarget({CODE: pages(code)}))
    assert code_reader.blocked_syscall({"rip": PC, "rax": RESTART, "orig_rax": 219}, memory).name == "clock_nanosleep"


@pytest.mark.parametrize(("passed", "name"), [(202, "futex"), (1, "restart_syscall")])
def test_a_restarted_call_of_syscall_is_named_by_what_its_caller_passes(passed, name):
    """The function of libc that makes any call: it has no number of its own."""
    function = bytes.fromhex("4889f84889f74889d64889ca4d89c24d89c84c8b4c2408") + b"\x0f\x05"
    caller = bytes(48) + b"\xbf" + passed.to_bytes(4, "little") + b"\x31\xc0\xe8" + bytes(4)
    code = caller.ljust(0x100 - len(function), b"\x90") + function
    stack = (CODE + len(caller)).to_bytes(8, "little")
    memory = Memory(FakeTarget({CODE: pages(code), 0x7000_0000: pages(stack)}))
    found = code_reader.blocked_syscall(
        {"rip": CODE + 0x100, "rax": RESTART, "orig_rax": 219, "rsp": 0x7000_0000}, memory
    )
    assert found.name == name


X86_64 = by_machine(62)
START = 0x1BC2AB0
GCC = bytes.fromhex(  # c10::Dispatcher::realSingleton of the wheel of 2.13.0, up to the call of the constructor
    "5553488d1d47fdd4124883ec080fb60534fdd41284c074104883c4084889d85b5dc366"
    "0f1f440000488d2d19fdd412488d1d1afdd4124889efe8429b3fff85c074d64889dfe8b6fd3fff"
)
INVERTED = bytes.fromhex(  # cmpb $0, guard(%rip); jne +6; call; ret; lea variable(%rip), %rax; ret
    "803d00100000007506e800000000c3488d0500200000c3"
)


@pytest.mark.parametrize(
    ("code", "address"),
    [
        (GCC, 0x14912800),
        (INVERTED, START + 15 + 7 + 0x2000),
        (bytes.fromhex("e800000000c3"), 0),
        (bytes.fromhex("488d05001000004831c0c3"), 0),
        (bytes.fromhex("840074f7"), 0),
        (b"", 0),
        (bytes.fromhex("84c07408488d0500100000c3488d0500200000c3"), 0),
    ],
)
def test_what_is_returned_without_a_call(code: bytes, address: int) -> None:
    assert returned_address(X86_64, code, START) == address


JUMPS, OTHERS = 0x9000, 0xA000
RELATIVE, GLOBAL, JUMP_SLOT = 8, 6, 7


class Linked(ElfImage):
    """With two tables of relocations."""

    def __init__(self, jumps: list[tuple[int, int, int]], others: list[tuple[int, int, int]], relative: int) -> None:
        names = [Entry("wanted", 0x1000), Entry("wanted_not", 0x1010), Entry("other", 0, section=0)]
        super().__init__(make_elf(exported=names), "linked.so")
        self._tables = {JUMPS: _rela(jumps), OTHERS: _rela(others)}
        self._relative = relative

    @property
    def dynamic(self) -> dict[int, int]:
        sizes = {2: len(self._tables[JUMPS]), 8: len(self._tables[OTHERS])}
        return {23: JUMPS, 7: OTHERS, 0x6FFFFFF9: self._relative, **sizes}

    def read(self, vaddr: int, size: int) -> bytes:
        for start, table in self._tables.items():
            if start <= vaddr and vaddr + size <= start + len(table):
                return table[vaddr - start : vaddr - start + size]
        return super().read(vaddr, size)


def _rela(entries: list[tuple[int, int, int]]) -> bytes:
    return b"".join(struct.pack("<QQq", slot, number << 32 | kind, 0) for slot, number, kind in entries)


def test_slots_that_import_a_name() -> None:
    image = Linked([(0x3000, 1, JUMP_SLOT), (0x3008, 2, JUMP_SLOT)], [(0x3010, 0, RELATIVE), (0x3018, 1, GLOBAL)], 1)
    for names in (["wanted"], ["wanted", "other"]):
        assert imported_slots(image, names) == {0x3000, 0x3018}
    assert imported_slots(image, ["want"]) == set()
    assert imported_slots(Linked([(0x3000, 3, JUMP_SLOT)], [], 0), ["other"]) == {0x3000}, "it is not defined there"
    assert imported_slots(Linked([], [(0x3010, 0, RELATIVE)], 5), ["wanted"]) == set()


OLD = "488b0579b3210064488b5050488d05adb62100488d8a900000004885d2480f45c1488b00c3"
"""omp_get_max_threads of the libgomp in the wheel of 2.6.0, at 0x9c40."""
NEW = "f30f1efa488b052dab220064488b50504885d2488d8290000000488d15afab2200480f44c2488b00c3"
"""The same in that of 2.13.0, at 0xc490."""


@pytest.mark.parametrize(
    ("code", "address", "found"),
    [
        (OLD, 0x9C40, ThreadsOrGlobal(0x224FC0, 0x50, 0x90, 0x225300)),
        (NEW, 0xC490, ThreadsOrGlobal(0x236FC8, 0x50, 0x90, 0x237060)),
        (NEW[:-2] + "90", 0xC490, None),  # it goes on
        (NEW.replace("480f44c2", "48ffc290"), 0xC490, None),  # it counts
        (NEW.replace("488b00c3", "488b4008c3"), 0xC490, None),  # another word than the first
        (NEW.replace("64488b5050", "65488b5050"), 0xC490, None),  # another segment
        (OLD.replace("488d8a90000000", "488d8b90000000"), 0x9C40, None),  # of another object
        ("488b4750c3", 0, None),
        ("", 0, None),
    ],
)
def test_threads_or_global(code: str, address: int, found: ThreadsOrGlobal | None) -> None:
    assert X86_64.threads_or_global(bytes.fromhex(code), address) == found


GETTERS = {
    # NativeCachingAllocator::getDeviceStats of the wheels of 2.6.0 and of 2.15.0, which keeps ``this`` in r12
    "41544989fc55534883ec20488bbe38580000488b8640580000885424074829f848c1f803": [0x5838, 0x5840],
    "415541544989f40fbef2554889fd4c89e75389d3480fbedb4883ec08e80b2efeff498b842438580000": [0x5838],
    "4889f04889c6488b4608c3": [8],
    "be00000000488b4608c3": [],  # the register has another value
    "c3488b4608": [],
}


@pytest.mark.parametrize(("code", "offsets"), GETTERS.items())
def test_members_that_a_function_loads(code: str, offsets: list[int]) -> None:
    assert list(member_loads(X86_64, X86_64.decode(bytes.fromhex(code), 0x1000), 1)) == offsets
