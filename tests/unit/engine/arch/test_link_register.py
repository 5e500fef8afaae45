"""What is generic works on an architecture whose calls leave the return address in a register."""

from __future__ import annotations

import struct

import pytest

from gdbext.engine.arch.argument_places import Location, argument_source
from gdbext.engine.arch.x86_64.architecture import ARCHITECTURE
from gdbext.engine.formats.cfi_program import OFFSET, CfiRow, Rule
from gdbext.engine.unwind.unwind_row import compile_row
from gdbext.errors import MemoryFault, TargetError
from support.fakes.link_architecture import (
    ADD,
    CALL,
    CALL_BY_POINTER,
    LINK,
    LOAD,
    MOVE,
    OTHER,
    RETURN,
    SIZE,
    STORE,
    LinkArchitecture,
    assemble,
)
from support.fakes.unwind_fakes import STACK, STACK_SIZE, FakeStack, FakeTarget, unwinder

CODE = 0x40_0000
CALLER = CODE + 0x1000
TOP = STACK + STACK_SIZE // 2

FUNCTION = assemble(
    (ADD, "sp", "sp", -2),
    (STORE, "lr", "sp", 1),
    (STORE, "s0", "sp", 0),
    (MOVE, "s0", "a1", 0),
    (CALL, "a0", "a0", 40),
    (LOAD, "lr", "sp", 1),
    (LOAD, "s0", "sp", 0),
    (ADD, "sp", "sp", 2),
    (RETURN, "a0", "a0", 0),
)
AFTER_CALL = CODE + 5 * SIZE


def target(*words: int) -> FakeTarget:
    """A process whose stack has these words from TOP on, and whose caller has just made a call."""
    found = FakeTarget()
    found.architecture = LINK
    found.add(CODE, FUNCTION, "r-xp")
    found.add(CALLER, assemble((CALL_BY_POINTER, "a2", "a0", 0), (RETURN, "a0", "a0", 0)), "r-xp")
    stack = FakeStack()
    stack.put(TOP, *words)
    stack.add_to(found)
    return found


def frames(process: FakeTarget, **registers: int) -> list[tuple[int, int, str]]:
    one = unwinder(process)
    return [(frame.pc, frame.sp, frame.how) for frame in one.frames({"fp": 0, **registers}, 3)]


def test_at_the_entry_of_a_function_the_register_has_the_return_address() -> None:
    found = frames(target(), pc=CODE, sp=TOP, lr=CALLER + SIZE)
    assert found[:2] == [(CODE, TOP, "registers"), (CALLER + SIZE, TOP, "return-address")]


def test_code_without_call_frame_information_is_followed_to_its_return() -> None:
    process = target(77, CALLER + SIZE)
    one = unwinder(process)
    first, second = list(one.frames({"pc": AFTER_CALL, "sp": TOP, "lr": 1, "s0": 5, "s1": 6, "fp": 0}, 2))
    assert (first.cfa, second.pc, second.how) == (TOP + 16, CALLER + SIZE, "code")
    assert {name: second.registers[name] for name in ("s0", "s1", "sp")} == {"s0": 77, "s1": 6, "sp": TOP + 16}


def test_a_word_that_follows_no_call_is_not_returned_to() -> None:
    assert len(frames(target(77, CALLER), pc=AFTER_CALL, sp=TOP, lr=CALLER)) == 1


def read(address: int, size: int) -> bytes:
    if address != TOP:
        raise MemoryFault(address, size)
    return struct.pack("<2Q", 77, CALLER)[:size]


def test_rows_that_save_the_register_and_rows_that_leave_it() -> None:
    saved = CfiRow(7, 16, None, {8: Rule(OFFSET, -8), 4: Rule(OFFSET, -16)}, 8, False)
    cfa, known = compile_row(LINK, saved).caller({"sp": TOP, "pc": CODE, "s0": 1, "s1": 2}, read)
    assert (cfa, known["pc"], known["s0"], known["s1"]) == (TOP + 16, CALLER, 77, 2)
    leaf = CfiRow(7, 0, None, {}, 8, False)
    cfa, known = compile_row(LINK, leaf).caller({"sp": TOP, "pc": CODE, "lr": CALLER, "s0": 1}, read)
    assert (cfa, known) == (TOP, {"sp": TOP, "pc": CALLER, "s0": 1})
    with pytest.raises(KeyError):  # outer frames do not know the register
        compile_row(LINK, leaf).caller({"sp": TOP, "pc": CODE}, read)


def test_where_an_argument_came_from() -> None:
    code = list(
        LINK.decode(
            FUNCTION[: 4 * SIZE]
            + assemble(
                (MOVE, "a0", "s0", 0),
                (LOAD, "a1", "sp", 1),
                (OTHER, "a2", "a0", 0),
                (CALL, "a0", "a0", 1),
            ),
            CODE,
        )
    )
    assert argument_source(LINK, code, "a0") == Location("register", "s0")
    assert argument_source(LINK, code, "a1") == Location("memory", "sp", 8)
    assert argument_source(LINK, code, "a2") is None


def test_conventions_of_calls_are_asked_for() -> None:
    link, pushing = LinkArchitecture(), ARCHITECTURE
    assert pushing.return_slot(0x7000) == 0x6FF8
    assert pushing.return_address(lambda address, size: address.to_bytes(size, "little"), 0x7000) == 0x6FF8
    with pytest.raises(TargetError, match="in no fixed place of the stack on Link"):
        link.return_slot(0x7000)
    assert [each.leading_arguments(hidden) for each in (pushing, link) for hidden in (True, False)] == [1, 0, 0, 0]
    assert pushing.has_operand(b"\x8b\x80\x78\x56\x34\x12\xc3", 0x12345678)
