"""The unwinder where gdb is no oracle: damage, missing files, missing CFI, limits."""

from __future__ import annotations

import random
import re
from functools import cache

import pytest

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.formats.cfi_program import OFFSET, SAME, evaluate
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_index import SymbolIndex
from gdbext.engine.unwind.emulation_unwind import EmulationUnwinder
from gdbext.engine.unwind.emulation_unwind import SymbolicValue as Value
from support.fakes.unwind_fakes import STACK, STACK_SIZE, FakeStack, FakeTarget, unwinder, walk
from support.installed.machine import own_libc

LIBC = own_libc()
BASE = 0x7F00_0000_0000
CODE = 0x7E00_0000_0000
TOP = STACK + 0x8000

SAVED = {"rbx": 11, "rbp": 12, "r12": 13, "r13": 14, "r14": 15, "r15": 16}


@cache
def vaddr_of(name: str) -> int:
    return SymbolIndex(ElfImage.open(LIBC)).lookup(name)[0].vaddr


def process(code: bytes | None, words: dict[int, tuple[int, ...]], permissions: str = "r-xp") -> FakeTarget:
    """It has the code at CODE, or libc without any, and words on its stack, by how far from TOP they are."""
    target, stack = FakeTarget(), FakeStack()
    if code is None:
        target.add_elf(LIBC, BASE)
    else:
        target.add(CODE, code, permissions)
    for at, values in words.items():
        stack.put(TOP + at, *values)
    stack.add_to(target)
    return target


def cfa_rule_at_entry(name: str) -> dict[str, int]:
    """Registers at the first instruction of one of libc's functions."""
    return {"rip": BASE + vaddr_of(name), "rsp": TOP, **SAVED}


def test_a_module_whose_file_is_gone_is_unwound_from_memory() -> None:
    target = process(None, {0: (BASE + vaddr_of("getenv") + 40,)})
    expected, reason = walk(target, cfa_rule_at_entry("qsort"))
    target.gone.add(LIBC)
    frames, stopped = walk(target, cfa_rule_at_entry("qsort"))
    assert frames[0].module.image is None
    found, wanted = ([(frame.pc, frame.cfa, frame.registers) for frame in each] for each in (frames, expected))
    assert (found, stopped) == (wanted, reason)


def test_without_file_and_without_memory_there_is_no_cfi() -> None:
    target = FakeTarget((LIBC,))
    target.add_elf(LIBC, BASE)
    first = target.regions[0]
    text = [region for region in target.regions if "x" in region.mapping.permissions]
    target.regions = [first._replace(data=b"", mapping=first.mapping), *(r._replace(data=b"") for r in text)]
    FakeStack().add_to(target)
    frames, stopped = walk(target, {"rip": BASE + vaddr_of("qsort"), "rsp": TOP, "rbp": 0})
    assert [frame.cfa for frame in frames] == [0]
    assert "no CFI at" in stopped


@pytest.mark.parametrize("pc", [0, 0x1234, STACK + 16])
def test_a_call_to_nowhere(pc: int) -> None:
    """Null, unmapped, or data: the call has just pushed the return address."""
    code = ElfImage.open(LIBC)
    caller = next(a for a in range(vaddr_of("getenv"), vaddr_of("getenv") + 200) if code.read(a, 1) == b"\xe8") + 5
    frames, _ = walk(process(None, {0: (BASE + caller,)}), {**cfa_rule_at_entry("qsort"), "rip": pc})
    assert frames[0].pc == pc
    assert (frames[1].pc, frames[1].how) == (BASE + caller, "return-address")
    assert {name: frames[1].registers[name] for name in SAVED} == SAVED


def test_why_the_walk_ends() -> None:
    without_stack = FakeTarget()
    without_stack.add_elf(LIBC, BASE)
    for target, reason in (
        (without_stack, "stack memory at 0x[0-9a-f]+ cannot be read"),
        (process(None, {}), "^end of stack$"),
        (process(None, {0: (STACK + 64,)}), "not in executable memory"),
    ):
        frames, stopped = walk(target, cfa_rule_at_entry("qsort"))
        assert len(frames) == 1
        assert re.search(reason, stopped)


def test_limit() -> None:
    # "called" from the byte before: the function before it has CFI, too
    one = unwinder(process(None, {0: (BASE + vaddr_of("qsort") + 1,) * 100}))
    assert len(list(one.frames(cfa_rule_at_entry("qsort"), 7))) == 7
    assert one.stopped == "truncated at 7 frames"


FRAME_POINTER_CODE = bytes.fromhex("554889e5 ffe0 9090 9090 ffd0 9090")  # jmp *%rax: cannot be followed to a return
"""push %rbp; mov %rsp,%rbp; jmp *%rax; … call *%rax at 10, return address 12."""


def test_frame_pointer_in_code_without_cfi() -> None:
    target = process(FRAME_POINTER_CODE, {0x40: (TOP + 0x80, CODE + 12), 0x80: (0, 0)}, "rwxp")
    frames, stopped = walk(target, {"rip": CODE + 4, "rsp": TOP, "rbp": TOP + 0x40, "rbx": 5})
    assert [(frame.pc, frame.how) for frame in frames] == [(CODE + 4, "registers"), (CODE + 12, "frame-pointer")]
    assert frames[1].registers == {"rip": CODE + 12, "rsp": TOP + 0x50, "rbp": TOP + 0x80}  # rbx is not known
    assert "no CFI" in stopped


@pytest.mark.parametrize(
    ("rbp", "return_address"),
    [
        (TOP + 0x41, CODE + 12),  # not aligned
        (TOP - 0x40, CODE + 12),  # below the stack pointer
        (STACK + STACK_SIZE + 64, CODE + 12),  # beyond the stack
        (TOP + 0x40, CODE + 8),  # no call before
        (TOP + 0x40, STACK),  # not code
    ],
)
def test_implausible_frame_pointer(rbp: int, return_address: int) -> None:
    target = process(FRAME_POINTER_CODE, dict.fromkeys((0x40, -0x40), (TOP + 0x80, return_address)), "rwxp")
    frames, stopped = walk(target, {"rip": CODE + 4, "rsp": TOP, "rbp": rbp})
    assert len(frames) == 1
    assert "no CFI" in stopped


@pytest.mark.parametrize(("offset", "place"), [(0, 0), (1, 8)])
def test_prologue_in_code_without_cfi(offset: int, place: int) -> None:
    target = process(FRAME_POINTER_CODE, {place: (CODE + 12,)}, "rwxp")
    frames, _ = walk(target, {"rip": CODE + offset, "rsp": TOP, "rbp": 1, "rbx": 2})
    assert (frames[1].pc, frames[1].how, frames[1].sp) == (CODE + 12, "return-address", TOP + place + 8)
    assert frames[1].registers["rbp"] == 1


def test_code_without_cfi_and_without_frame_pointer_is_followed() -> None:
    """sub $24,%rsp; call *%rax; mov 8(%rsp),%rbx; add $24,%rsp; pop %r12; ret"""
    code = bytes.fromhex("4883ec18 ffd0 488b5c2408 4883c418 415c c3 9090 ffd0 90")
    target = process(code, {0: (0, 77, 0, 88, CODE + len(code) - 1)})
    frames, _ = walk(target, {"rip": CODE + 4, "rsp": TOP, "rbp": 5, "rbx": 1, "r12": 2, "r13": 3})
    assert (frames[1].pc, frames[1].how, frames[1].sp) == (CODE + len(code) - 1, "code", TOP + 40)
    assert [frames[1].registers[name] for name in ("rbx", "r12", "r13", "rbp")] == [77, 88, 3, 5]


def test_signal_trampoline_without_cfi() -> None:
    """mov $15,%rax; syscall, as in a C library that has no unwind information for it."""
    code = bytes.fromhex("48c7c00f0000000f05")
    order = "r8 r9 r10 r11 r12 r13 r14 r15 rdi rsi rbp rbx rdx rax rcx"
    saved = {name: 100 + number for number, name in enumerate(order.split())}
    target = process(code, {40: (*saved.values(), TOP + 0x400, 0x1234)})
    for pc in (CODE, CODE + 7):
        frames, _ = walk(target, {"rip": pc, "rsp": TOP, "rbp": 0})
        assert (frames[0].is_signal, frames[0].lookup_pc) == (True, pc)
        assert (frames[1].how, frames[1].lookup_pc, frames[1].pc) == ("signal", 0x1234, 0x1234)
        assert frames[1].registers == {**saved, "rsp": TOP + 0x400, "rip": 0x1234}
    frames, stopped = walk(process(code, {40 + 120: (TOP, CODE)}), {"rip": CODE, "rsp": TOP})
    assert len(frames) == 2
    assert "cycle" in stopped


def test_a_register_that_is_needed_and_not_known() -> None:
    """leave; ret: where rbp is not known, there is no caller."""
    target = process(bytes.fromhex("c9c3") + FRAME_POINTER_CODE, {0x40: (0, CODE + 2 + 12)})
    frames, _ = walk(target, {"rip": CODE, "rsp": TOP, "rbp": TOP + 0x40})
    assert (frames[1].pc, frames[1].how) == (CODE + 14, "code")
    frames, stopped = walk(target, {"rip": CODE, "rsp": TOP})
    assert len(frames) == 1
    assert "no CFI" in stopped


@pytest.mark.parametrize("seed", range(12))
def test_garbage_never_raises(seed: int) -> None:
    generator = random.Random(seed)
    interesting = [BASE + vaddr_of(name) + generator.randrange(200) for name in ("qsort", "getenv", "printf")]

    def word() -> int:
        near = STACK + generator.randrange(STACK_SIZE), BASE + generator.randrange(1 << 21)
        return generator.choice((generator.getrandbits(64), 0, generator.choice(interesting), *near))

    target = process(None, {at: (word(),) for at in range(-0x4000, STACK + STACK_SIZE - TOP, 8)})
    target.add(CODE, generator.randbytes(4096), "rwxp")
    for pc in (generator.choice(interesting), CODE + generator.randrange(4096), generator.getrandbits(64)):
        names = ("rax", "rcx", "rdx", "rsi", "rdi", "rbp", "rbx", *(f"r{n}" for n in range(8, 16)))
        registers = {name: generator.choice((generator.getrandbits(64), TOP + 64)) for name in names}
        frames, stopped = walk(target, {**registers, "rip": pc, "rsp": TOP - generator.randrange(0x1000)})
        assert 1 <= len(frames) <= 1000
        assert stopped
        assert all(later.sp > earlier.sp for earlier, later in zip(frames, frames[1:]) if not earlier.is_signal)


X86 = by_name("x86_64")
SP = 0x7FFF_0000_0000


def flow_of(code: str, start: int = 0x1000) -> EmulationUnwinder:
    data = bytes.fromhex(code)

    class Bytes:
        def read_after(self, address: int, size: int) -> bytes:
            at = address - start
            return data[at : at + size] if at >= 0 else b""

    return EmulationUnwinder(X86, Bytes(), lambda _: False)  # type: ignore[arg-type]


KNOWN = {"rsp": SP, "rbp": SP + 0x100, "rbx": 1, "r12": 2, "r13": 3, "r14": 4, "r15": 5}


def test_stack_that_was_rounded_down_is_taken_from_where_it_was_kept() -> None:
    """mov 0x40(%rsp),%rsp; pop %rbx; ret"""
    (row,) = flow_of("488b6424405bc3").rows(0x1000, KNOWN)
    memory = {SP + 0x40: SP + 0x500}
    assert evaluate(row.cfa_code, lambda n: {7: SP}[n], lambda a, _: memory[a]) == SP + 0x510
    assert row.rules[3].kind == OFFSET
    assert row.rules[3].number == -16


def test_what_the_path_pushed_is_not_looked_for_in_memory() -> None:
    """push %rbx; mov %rax,%rbx; pop %rbx; ret"""
    (row,) = flow_of("534889c35bc3").rows(0x1000, KNOWN)
    assert (row.cfa_register, row.cfa_offset) == (7, 8)
    assert row.rules[3].kind == SAME


@pytest.mark.parametrize(
    ("code", "offsets"),
    [
        ("ebfe", []),  # 1: jmp 1b
        ("48ffc875fbc3", [8]),  # 1: dec %rax; jne 1b; ret
        ("5075fdc3", []),  # 1: push %rax; jne 1b; ret: the height of the stack depends on the way
        ("", []),
        ("06", []),
        ("ffe0", []),
        ("0f0b", []),
        ("4889c4c3", []),  # mov %rax,%rsp; ret
    ],
)
def test_where_the_caller_s_frame_is(code: str, offsets: list[int]) -> None:
    assert [row.cfa_offset for row in flow_of(code).rows(0x1000, KNOWN)] == offsets


def test_value_as_expression() -> None:
    for added in (0, 8, -8, 63, 64, -65, 100_000, -100_000):
        value = Value(b"\x77\x00", added)
        assert evaluate(value.code(), lambda _: SP, lambda *_: 0) == SP + added
