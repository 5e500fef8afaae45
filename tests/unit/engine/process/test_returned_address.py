"""Which fixed address a function returns, from code that compilers made for ``static T made; return made;``."""

from __future__ import annotations

import pytest

from gdbext.engine.arch.architectures import by_machine
from gdbext.engine.process.code_reader import returned_address

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
        (bytes.fromhex("e800000000c3"), None),
        (bytes.fromhex("488d05001000004831c0c3"), None),
        (bytes.fromhex("840074f7"), None),
        (b"", None),
    ],
    ids=("gcc", "inverted", "after a call only", "overwritten", "a loop", "no code"),
)
def test_what_is_returned_without_a_call(code: bytes, address: int | None) -> None:
    assert returned_address(X86_64, code, START) == address


def test_two_ways_with_different_results_prove_nothing() -> None:
    first, second = bytes.fromhex("488d0500100000c3"), bytes.fromhex("488d0500200000c3")
    assert returned_address(X86_64, bytes.fromhex("84c07408") + first + second, START) is None
