"""Instructions, arguments and registers of x86-64, and what is asked of every architecture."""

from __future__ import annotations

import random

import pytest

from gdbext.engine.arch import Passing, Slot, architectures
from gdbext.engine.arch.instruction import Instruction, MemoryOperand
from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.arch.x86_64.conventions import place_arguments
from gdbext.engine.arch.x86_64.decode import instructions
from gdbext.engine.arch.x86_64.patterns import follows_call, return_address_offset
from gdbext.errors import ForeignArchitecture, TargetError


def one(code: str, address: int = 0x1000) -> Instruction:
    found = list(instructions(bytes.fromhex(code), address))
    assert len(found) == 1
    assert found[0].length == len(bytes.fromhex(code))
    return found[0]


FORMS = {
    "4889df": ("mov", "rdi", "rbx", None, None),
    "488b7c2408": ("mov", "rdi", "", MemoryOperand("rsp", "", 1, 8), None),
    "4c896c2410": ("mov", "", "r13", MemoryOperand("rsp", "", 1, 16), None),
    "488d7dc0": ("lea", "rdi", "", MemoryOperand("rbp", "", 1, -64), None),
    "498b3c94": ("mov", "rdi", "", MemoryOperand("r12", "rdx", 4, 0), None),
    "bf05000000": ("mov", "rdi", "", None, 5),
    "48c7c7ffffffff": ("mov", "rdi", "", None, -1),
    "31ff": ("zero", "rdi", "", None, 0),
    "4531c0": ("zero", "r8", "", None, 0),
    "4883ec18": ("add", "rsp", "", None, -24),
    "4881c400010000": ("add", "rsp", "", None, 256),
    "4154": ("push", "", "r12", None, None),
    "415f": ("pop", "r15", "", None, None),
    "6a01": ("push", "", "", None, 1),
    "c9": ("leave", "rbp", "", None, None),
    "c3": ("ret", "", "", None, None),
    "0f0b": ("trap", "", "", None, None),
    "64488b3c2500000000": ("other", "rdi", "", None, None),  # relative to fs: not an address that we know
    "6631ff": ("other", "rdi", "", None, 0),  # 16 bits only
    "66bf0500": ("other", "rdi", "", None, 5),
}


@pytest.mark.parametrize("code", FORMS)
def test_forms(code: str) -> None:
    found = one(code)
    assert (found.kind, found.destination, found.source, found.memory, found.immediate) == FORMS[code]


def test_effects_that_no_operand_shows() -> None:
    assert one("4994").writes == {"rax", "r12"}  # xchg %rax,%r12
    assert one("c9").writes == {"rsp", "rbp"}
    assert one("0f05").writes == {"rax", "rcx", "r11"}
    assert one("c4e2fbf6f7").writes >= {"rsi", "rax"}  # mulx %rdi,%rax,%rsi writes both
    assert one("660f3a63c11a").writes == {"rcx"}  # pcmpistri
    assert one("c4e37961c10c").writes == {"rcx"}  # vpcmpestri
    assert one("f348ab").stored > 0  # rep stos
    assert one("0f0111").stored > 0  # sgdt
    begin = one("c7f800000100")  # xbegin
    assert (begin.kind, begin.target, begin.writes) == ("jcc", 0x1000 + 6 + 0x10000, {"rax"})
    assert one("c6f801").kind == "other"  # xabort
    assert list(instructions(bytes.fromhex("c7f000000000"), 0)) == []  # undefined


def test_a_return_address_follows_a_call() -> None:
    for code in ("e800000000", "ffd0", "41ffd4", "ff5018", "ff9000010000", "ff1500000000", "ff14c500000000"):
        assert follows_call(b"\x90" * 4 + bytes.fromhex(code))
        assert one(code).kind == "call"
    for code in ("90909090909090", "ffe0ffe0", "", "e8", "ff", "4889c34889c3"):
        assert not follows_call(bytes.fromhex(code))


def test_return_address_at_the_edges_of_a_function() -> None:
    assert return_address_offset(bytes.fromhex("554889e590909090"), b"") == 0
    assert return_address_offset(bytes.fromhex("f30f1efa554889e5"), b"") == 0
    assert return_address_offset(bytes.fromhex("4889e590909090"), b"\x90\x55") == 8
    assert return_address_offset(b"\xc3", b"\x5d") == 0
    assert return_address_offset(bytes.fromhex("6801000000e900000000"), b"") == 0
    assert return_address_offset(bytes.fromhex("e900000000"), bytes.fromhex("6801000000")) == 8
    assert return_address_offset(bytes.fromhex("ff2500000000"), b"\x90" * 8) == 0
    assert return_address_offset(bytes.fromhex("ff2500000000"), bytes.fromhex("ff3500000000")) == 16
    assert return_address_offset(bytes.fromhex("4889c3"), b"\x90" * 8) is None


def test_garbage_ends_the_decoding() -> None:
    generator = random.Random(7)
    for _ in range(2000):
        code = generator.randbytes(64)
        found = list(instructions(code, 0))
        assert sum(one.length for one in found) <= len(code)
        assert all(0 < one.length <= 40 for one in found)


def test_a_trap_is_the_instruction_before_the_program_counter() -> None:
    def read(address: int, _size: int) -> bytes:
        return {0x40000E: b"\0", 0x40000F: b"\xcc"}.get(address, b"")

    assert ARCHITECTURE.stopped_at_trap({"rip": 0x400010}, read)
    assert not ARCHITECTURE.stopped_at_trap({"rip": 0x40000F}, read)
    assert not ARCHITECTURE.stopped_at_trap({"rip": 0x300000}, read)


def test_accesses_to_a_table_by_gcc_and_by_clang() -> None:
    """lea 0xf8(%r15,%rax,8),%rbx; add $0xaf8,%r12; add $0xaf8,%rax: each behind a shr $16; the last one without."""
    shift, nops = b"\x48\xc1\xea\x10", b"\x90" * 8
    lea = b"\x49\x8d\x9c\xc7\xf8\x00\x00\x00"
    add, add_rax = b"\x49\x81\xc4\xf8\x0a\x00\x00", b"\x48\x05\xf8\x0a\x00\x00"
    code = shift + lea + add + add_rax + nops * 40 + add
    assert list(ARCHITECTURE.table_accesses(code, 0xF8, 16, 64)) == [4]
    assert list(ARCHITECTURE.table_accesses(code, 0xAF8, 16, 64)) == [12, 19]


WORD, TWO, FLOAT = Passing.WORD, Passing.TWO_WORDS, Passing.FLOAT
MIXED, MEMORY = Passing.FLOAT_AND_WORD, Passing.MEMORY
FLOATS = tuple(Slot(float_register=number) for number in range(8))


def registers(*numbers: int) -> tuple[Slot, ...]:
    return tuple(Slot(number) for number in numbers)


def stack(*offsets: int) -> tuple[Slot, ...]:
    return tuple(Slot(offset=offset) for offset in offsets)


@pytest.mark.parametrize(
    ("passed", "places"),
    [
        ([WORD] * 8, [*(registers(n) for n in range(6)), stack(0), stack(8)]),
        # the seventh argument still gets the register that the structure did not fit into
        ([WORD] * 5 + [TWO, WORD], [*(registers(n) for n in range(5)), stack(0, 8), registers(5)]),
        ([WORD, FLOAT, WORD], [registers(0), FLOATS[:1], registers(1)]),
        ([FLOAT] * 9, [*(FLOATS[n : n + 1] for n in range(8)), stack(0)]),
        ([MIXED, WORD], [(*FLOATS[:1], Slot(0)), registers(1)]),
        ([Passing.WORD_AND_FLOAT, WORD], [(Slot(0), *FLOATS[:1]), registers(1)]),
        ([WORD, MEMORY, WORD], [registers(0), stack(0, 8, 16), registers(1)]),
    ],
)
def test_where_arguments_are(passed: list[Passing], places: list[tuple[Slot, ...]]) -> None:
    assert place_arguments(passed) == places


def test_what_no_one_has_written_yet_and_registers_that_are_cut_short() -> None:
    kind, names = next(iter(ARCHITECTURE.register_sets.items()))
    assert ARCHITECTURE.unpack_registers(kind, bytes(8 * len(names))) == dict.fromkeys(names, 0)
    with pytest.raises(ForeignArchitecture, match="243") as raised:
        architectures.by_machine(243)
    assert "x86-64" in raised.value.why
    with pytest.raises(ForeignArchitecture, match="riscv64"):
        architectures.by_name("riscv64")
    assert architectures.by_gdb_name("powerpc:common64") is None
    with pytest.raises(TargetError, match="bytes instead of"):
        ARCHITECTURE.unpack_registers(kind, bytes(8 * len(names) - 1))
