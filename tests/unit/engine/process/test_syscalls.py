"""The system call that a thread sits in, from its registers alone."""

from __future__ import annotations

import pytest

from gdbext.engine.process import code_reader
from gdbext.engine.process.memory import Memory
from support.fakes.fake_target import FakeTarget
from support.programs.wait_processes import CODE, PC, RESTART, pages


def call_of(**registers):
    memory = Memory(FakeTarget({CODE: pages(bytes(0xFE) + b"\x0f\x05")}))
    return code_reader.blocked({"rip": PC, "rax": RESTART, "orig_rax": 202, "rdi": 5, **registers}, memory)


def test_a_blocked_call_and_its_arguments():
    found = call_of()
    assert found is not None
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
    assert code_reader.blocked({}, Memory(FakeTarget({}))) is None


def test_a_restarted_call_is_named_by_the_code_before_it():
    code = bytes(0xF0) + b"\xb8\xe6\x00\x00\x00" + bytes(9) + b"\x0f\x05" + bytes(16)
    memory = Memory(FakeTarget({CODE: pages(code)}))
    found = code_reader.blocked({"rip": PC, "rax": RESTART, "orig_rax": 219}, memory)
    assert found is not None
    assert found.name == "clock_nanosleep"


@pytest.mark.parametrize(("passed", "name"), [(202, "futex"), (1, "restart_syscall")])
def test_a_restarted_call_of_syscall_is_named_by_what_its_caller_passes(passed, name):
    """The function of libc that makes any call: it has no number of its own."""
    function = bytes.fromhex("4889f84889f74889d64889ca4d89c24d89c84c8b4c2408") + b"\x0f\x05"
    caller = bytes(48) + b"\xbf" + passed.to_bytes(4, "little") + b"\x31\xc0\xe8" + bytes(4)
    code = caller.ljust(0x100 - len(function), b"\x90") + function
    stack = (CODE + len(caller)).to_bytes(8, "little")
    memory = Memory(FakeTarget({CODE: pages(code), 0x7000_0000: pages(stack)}))
    found = code_reader.blocked({"rip": CODE + 0x100, "rax": RESTART, "orig_rax": 219, "rsp": 0x7000_0000}, memory)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("result", [RESTART, 202, 219])
def test_a_call_that_the_kernel_will_make_again(result):
    """The thread has had no turn since it was let go."""
    found = call_of(rip=PC - 2, rax=result)
    assert found is not None
    assert (found.name, found.arguments[0]) == ("futex", 5)
