"""What the decoder says of single instructions, and that garbage only ends it."""

from __future__ import annotations

import random

import pytest

from gdbext.engine.arch.instruction import Instruction, MemoryOperand
from gdbext.engine.arch.x86_64.decode import instructions
from gdbext.engine.arch.x86_64.patterns import follows_call, return_address_offset


def one(code: str, address: int = 0x1000) -> Instruction:
    found = list(instructions(bytes.fromhex(code), address))
    assert len(found) == 1
    assert found[0].length == len(bytes.fromhex(code))
    return found[0]


FORMS = {
    "4889df": ("mov", "rdi", "rbx", None, None),
    "488b7c2408": ("mov", "rdi", None, MemoryOperand("rsp", None, 1, 8), None),
    "4c896c2410": ("mov", None, "r13", MemoryOperand("rsp", None, 1, 16), None),
    "488d7dc0": ("lea", "rdi", None, MemoryOperand("rbp", None, 1, -64), None),
    "498b3c94": ("mov", "rdi", None, MemoryOperand("r12", "rdx", 4, 0), None),
    "bf05000000": ("mov", "rdi", None, None, 5),
    "48c7c7ffffffff": ("mov", "rdi", None, None, -1),
    "31ff": ("zero", "rdi", None, None, 0),
    "4531c0": ("zero", "r8", None, None, 0),
    "4883ec18": ("add", "rsp", None, None, -24),
    "4881c400010000": ("add", "rsp", None, None, 256),
    "4154": ("push", None, "r12", None, None),
    "415f": ("pop", "r15", None, None, None),
    "6a01": ("push", None, None, None, 1),
    "c9": ("leave", "rbp", None, None, None),
    "c3": ("ret", None, None, None, None),
    "0f0b": ("trap", None, None, None, None),
    "64488b3c2500000000": ("other", "rdi", None, None, None),  # relative to fs: not an address that we know
    "6631ff": ("other", "rdi", None, None, 0),  # 16 bits only
    "66bf0500": ("other", "rdi", None, None, 5),
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


def test_a_transaction_may_go_on_elsewhere() -> None:
    begin = one("c7f800000100")  # xbegin
    assert (begin.kind, begin.target, begin.writes) == ("jcc", 0x1000 + 6 + 0x10000, {"rax"})
    assert one("c6f801").kind == "other"  # xabort
    assert list(instructions(bytes.fromhex("c7f000000000"), 0)) == []  # undefined


@pytest.mark.parametrize(
    "code", ["e800000000", "ffd0", "41ffd4", "ff5018", "ff9000010000", "ff1500000000", "41ff542408", "ff14c500000000"]
)
def test_a_return_address_follows_a_call(code: str) -> None:
    assert follows_call(b"\x90" * 4 + bytes.fromhex(code))
    assert one(code).kind == "call"


@pytest.mark.parametrize("code", ["90909090909090", "ffe0ffe0", "", "e8", "ff", "4889c34889c3"])
def test_a_return_address_follows_nothing_else(code: str) -> None:
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
