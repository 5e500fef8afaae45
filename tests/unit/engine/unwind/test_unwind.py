"""The unwinder where gdb is no oracle: damage, missing files, missing CFI, limits."""

from __future__ import annotations

import random
import re
from functools import cache

import pytest

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.formats.cfi_program import OFFSET, SAME, evaluate
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.process.symbolizer import SymbolIndex
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


def at_entry(name: str, return_address: int) -> tuple[FakeTarget, dict[str, int], FakeStack]:
    """A thread at the first instruction of one of libc's functions, called from ``return_address``."""
    stack = FakeStack()
    stack.put(TOP, return_address)
    target = FakeTarget()
    target.add_elf(LIBC, BASE)
    return target, {"rip": BASE + vaddr_of(name), "rsp": TOP, **SAVED}, stack


def test_a_module_whose_file_is_gone_is_unwound_from_memory() -> None:
    target, registers, stack = at_entry("qsort", BASE + vaddr_of("getenv") + 40)
    stack.add_to(target)
    expected, reason = walk(target, registers)
    target.gone.add(LIBC)
    frames, stopped = walk(target, registers)
    assert frames[0].module is not None
    assert frames[0].module.image is None
    found, wanted = ([(frame.pc, frame.cfa, frame.registers) for frame in each] for each in (frames, expected))
    assert (found, stopped) == (wanted, reason)


def test_without_file_and_without_memory_there_is_no_cfi() -> None:
    target = FakeTarget((LIBC,))
    target.add_elf(LIBC, BASE)
    first = target.regions[0]
    text = [region for region in target.regions if "x" in region.mapping.permissions]
    target.regions = [first._replace(data=b"", mapping=first.mapping), *(r._replace(data=b"") for r in text)]
    stack = FakeStack()
    stack.add_to(target)
    frames, stopped = walk(target, {"rip": BASE + vaddr_of("qsort"), "rsp": TOP, "rbp": 0})
    assert len(frames) == 1
    assert frames[0].cfa == 0
    assert "no CFI at" in stopped


@pytest.mark.parametrize("pc", [0, 0x1234, STACK + 16])
def test_a_call_to_nowhere(pc: int) -> None:
    """Null, unmapped, or data: the call has just pushed the return address."""
    target, registers, stack = at_entry("qsort", 0)
    code = ElfImage.open(LIBC)
    caller = next(a for a in range(vaddr_of("getenv"), vaddr_of("getenv") + 200) if code.read(a, 1) == b"\xe8") + 5
    stack.put(TOP, BASE + caller)
    stack.add_to(target)
    frames, _ = walk(target, {**registers, "rip": pc})
    assert frames[0].pc == pc
    assert (frames[1].pc, frames[1].how) == (BASE + caller, "return-address")
    assert {name: frames[1].registers[name] for name in SAVED} == SAVED


@pytest.mark.parametrize(
    ("has_stack", "return_address", "reason"),
    [
        (False, 0, "stack memory at 0x[0-9a-f]+ cannot be read"),
        (True, 0, "end of stack"),
        (True, STACK + 64, "not in executable memory"),
    ],
)
def test_why_the_walk_ends(has_stack: bool, return_address: int, reason: str) -> None:
    target, registers, stack = at_entry("qsort", return_address)
    if has_stack:
        stack.add_to(target)
    frames, stopped = walk(target, registers)
    assert len(frames) == 1
    assert re.search(reason, stopped)


def test_limit() -> None:
    target, registers, stack = at_entry("qsort", BASE + vaddr_of("qsort"))
    for number in range(100):  # "called" from the byte before: the function before it has CFI, too
        stack.put(TOP + 8 * number, BASE + vaddr_of("qsort") + 1)
    stack.add_to(target)
    one = unwinder(target)
    frames = list(one.frames(registers, 7))
    assert len(frames) == 7
    assert one.stopped == "truncated at 7 frames"


FRAME_POINTER_CODE = bytes.fromhex("554889e5 ffe0 9090 9090 ffd0 9090")  # jmp *%rax: cannot be followed to a return
"""push %rbp; mov %rsp,%rbp; jmp *%rax; … call *%rax at 10, return address 12."""


def jit_target(*, executable: bool = True) -> FakeTarget:
    target = FakeTarget()
    target.add(CODE, FRAME_POINTER_CODE, "rwxp" if executable else "rw-p")
    return target


def test_frame_pointer_in_code_without_cfi() -> None:
    stack = FakeStack()
    stack.put(TOP + 0x40, TOP + 0x80, CODE + 12)
    stack.put(TOP + 0x80, 0, 0)
    target = jit_target()
    stack.add_to(target)
    registers = {"rip": CODE + 4, "rsp": TOP, "rbp": TOP + 0x40, "rbx": 5}
    frames, stopped = walk(target, registers)
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
    stack = FakeStack()
    for at in (TOP + 0x40, TOP - 0x40):
        stack.put(at, TOP + 0x80, return_address)
    target = jit_target()
    stack.add_to(target)
    frames, stopped = walk(target, {"rip": CODE + 4, "rsp": TOP, "rbp": rbp})
    assert len(frames) == 1
    assert "no CFI" in stopped


@pytest.mark.parametrize(("offset", "place"), [(0, 0), (1, 8)])
def test_prologue_in_code_without_cfi(offset: int, place: int) -> None:
    stack = FakeStack()
    stack.put(TOP + place, CODE + 12)
    target = jit_target()
    stack.add_to(target)
    frames, _ = walk(target, {"rip": CODE + offset, "rsp": TOP, "rbp": 1, "rbx": 2})
    assert (frames[1].pc, frames[1].how, frames[1].sp) == (CODE + 12, "return-address", TOP + place + 8)
    assert frames[1].registers["rbp"] == 1


def test_code_without_cfi_and_without_frame_pointer_is_followed() -> None:
    """sub $24,%rsp; call *%rax; mov 8(%rsp),%rbx; add $24,%rsp; pop %r12; ret"""
    code = bytes.fromhex("4883ec18 ffd0 488b5c2408 4883c418 415c c3 9090 ffd0 90")
    stack = FakeStack()
    stack.put(TOP, 0, 77, 0, 88, CODE + len(code) - 1)
    target = FakeTarget()
    target.add(CODE, code, "r-xp")
    stack.add_to(target)
    frames, _ = walk(target, {"rip": CODE + 4, "rsp": TOP, "rbp": 5, "rbx": 1, "r12": 2, "r13": 3})
    assert (frames[1].pc, frames[1].how, frames[1].sp) == (CODE + len(code) - 1, "code", TOP + 40)
    assert [frames[1].registers[name] for name in ("rbx", "r12", "r13", "rbp")] == [77, 88, 3, 5]


def test_signal_trampoline_without_cfi() -> None:
    """mov $15,%rax; syscall, as in a C library that has no unwind information for it."""
    target = FakeTarget()
    target.add(CODE, bytes.fromhex("48c7c00f0000000f05"), "r-xp")
    stack = FakeStack()
    order = "r8 r9 r10 r11 r12 r13 r14 r15 rdi rsi rbp rbx rdx rax rcx"
    saved = {name: 100 + number for number, name in enumerate(order.split())}
    stack.put(TOP + 40, *saved.values(), TOP + 0x400, 0x1234)
    stack.add_to(target)
    for pc in (CODE, CODE + 7):
        frames, _ = walk(target, {"rip": pc, "rsp": TOP, "rbp": 0})
        assert frames[0].is_signal
        assert frames[0].lookup_pc == pc
        assert frames[1].how == "signal"
        assert frames[1].lookup_pc == frames[1].pc == 0x1234
        assert frames[1].registers == {**saved, "rsp": TOP + 0x400, "rip": 0x1234}


def test_signal_frames_in_a_circle() -> None:
    target = FakeTarget()
    target.add(CODE, bytes.fromhex("48c7c00f0000000f05"), "r-xp")
    stack = FakeStack()
    stack.put(TOP + 40 + 120, TOP, CODE)
    stack.add_to(target)
    frames, stopped = walk(target, {"rip": CODE, "rsp": TOP})
    assert len(frames) == 2
    assert "circle" in stopped


def test_a_register_that_is_needed_and_not_known() -> None:
    """leave; ret: where rbp is not known, there is no caller."""
    target = FakeTarget()
    target.add(CODE, bytes.fromhex("c9c3") + FRAME_POINTER_CODE, "r-xp")
    stack = FakeStack()
    stack.put(TOP + 0x40, 0, CODE + 2 + 12)
    stack.add_to(target)
    frames, _ = walk(target, {"rip": CODE, "rsp": TOP, "rbp": TOP + 0x40})
    assert (frames[1].pc, frames[1].how) == (CODE + 14, "code")
    frames, stopped = walk(target, {"rip": CODE, "rsp": TOP})
    assert len(frames) == 1
    assert "no CFI" in stopped


@pytest.mark.parametrize("seed", range(12))
def test_garbage_never_raises(seed: int) -> None:
    generator = random.Random(seed)
    target = FakeTarget()
    target.add_elf(LIBC, BASE)
    stack = FakeStack()
    interesting = [BASE + vaddr_of(name) + generator.randrange(200) for name in ("qsort", "getenv", "printf")]
    for at in range(TOP - 0x4000, STACK + STACK_SIZE, 8):
        word = generator.choice(
            (
                generator.getrandbits(64),
                STACK + generator.randrange(STACK_SIZE),
                0,
                generator.choice(interesting),
                BASE + generator.randrange(1 << 21),
            )
        )
        stack.put(at, word)
    stack.add_to(target)
    target.add(CODE, generator.randbytes(4096), "rwxp")
    pcs = [generator.choice(interesting), CODE + generator.randrange(4096), generator.getrandbits(64)]
    for pc in pcs:
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
        def after(self, address: int, size: int) -> bytes:
            at = address - start
            return data[at : at + size] if at >= 0 else b""

    return EmulationUnwinder(X86, Bytes(), lambda _: False)  # type: ignore[arg-type]


KNOWN = {"rsp": SP, "rbp": SP + 0x100, "rbx": 1, "r12": 2, "r13": 3, "r14": 4, "r15": 5}


def test_stack_that_was_rounded_down_is_taken_from_where_it_was_kept() -> None:
    """mov 0x40(%rsp),%rsp; pop %rbx; ret"""
    (row,) = flow_of("488b6424405bc3").rows(0x1000, KNOWN)
    assert row.cfa_code is not None
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
