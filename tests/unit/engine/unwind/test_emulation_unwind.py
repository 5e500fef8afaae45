"""Following code to its return, on instructions made for the purpose."""

from __future__ import annotations

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.formats.cfi_program import OFFSET, SAME, evaluate
from gdbext.engine.unwind.emulation_unwind import EmulationUnwinder
from gdbext.engine.unwind.emulation_unwind import SymbolicValue as Value

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


def test_loops_end() -> None:
    """1: jmp 1b, and a loop with a way out: 1: dec %rax; jne 1b; ret"""
    assert flow_of("ebfe").rows(0x1000, KNOWN) == ()
    (row,) = flow_of("48ffc875fbc3").rows(0x1000, KNOWN)
    assert row.cfa_offset == 8


def test_a_stack_height_that_depends_on_the_way_is_refused() -> None:
    """1: push %rax; jne 1b; ret"""
    assert flow_of("5075fdc3").rows(0x1000, KNOWN) == ()


def test_unknown_code_and_computed_jumps_give_nothing() -> None:
    for code in ("", "06", "ffe0", "0f0b", "4889c4c3"):  # the last: mov %rax,%rsp; ret
        assert flow_of(code).rows(0x1000, KNOWN) == ()


def test_value_as_expression() -> None:
    for added in (0, 8, -8, 63, 64, -65, 100_000, -100_000):
        value = Value(b"\x77\x00", added)
        assert evaluate(value.code(), lambda _: SP, lambda *_: 0) == SP + added
