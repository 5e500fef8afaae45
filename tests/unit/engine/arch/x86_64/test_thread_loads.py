"""Functions that load from an object of the running thread or from a global one; members that a function loads."""

from __future__ import annotations

import pytest

from gdbext.engine.arch import ThreadsOrGlobal
from gdbext.engine.arch.architectures import by_name
from gdbext.engine.process.code_reader import member_loads

X86_64 = by_name("x86_64")
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
