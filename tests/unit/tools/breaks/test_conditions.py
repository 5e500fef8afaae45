"""Conditions of breakpoints: what they mean, and how gdb reads them."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from gdbext.engine.layouts import store
from gdbext.errors import UsageError
from gdbext.live.breakpoint_setter import (
    ALWAYS,
    AllOf,
    AnyOf,
    Bits,
    Choice,
    Equals,
    Pointee,
    Register,
    both,
    condition_text,
    holds,
    value_of,
    value_text,
)
from gdbext.tools.breaks.break_plan import BreakRequest, check_keys, key_condition
from gdbext.torch.values.key_names import KeyNames

_LAYOUTS = sorted(Path(store.DATA).glob("torch-*.json"))
A, B = Register("a"), Register("b")


@pytest.fixture(scope="module")
def keys() -> KeyNames:
    return KeyNames(store.load(_LAYOUTS[-1]))


class Thread:
    """Registers and memory, made up."""

    tid = 1

    def __init__(self, words: dict[int, int] | None = None, **registers: int) -> None:
        self._registers = registers
        self._words = words or {}

    def register(self, name: str) -> int:
        return self._registers[name]

    def word(self, address: int) -> int:
        return self._words[address]


def in_c(text: str, **names: int) -> int:
    """The value of gdb's expression, evaluated by Python's rules, which are C's for what is used here.

    ``names`` are the registers; ``a_points_to`` is the word that the register a points to.
    """
    text = re.sub(r"\*\(unsigned long\*\)\$(\w+)", r"\1_points_to", text)
    text = text.replace("(unsigned long)", "").replace("$", "")
    text = re.sub(r"\(([^()]*) \? ([^()]*) : ([^()]*)\)", r"(\2 if \1 else \3)", text)
    return int(eval(text.replace("&&", "and").replace("||", "or"), names))


def test_key_conditions_hold_exactly_for_their_key(keys: KeyNames) -> None:
    generator = random.Random(7)
    names = [slot.name for slot in keys.slots[1:]]
    for _ in range(300):
        bits = keys.bits_of(generator.choice(names)) | keys.bits_of(generator.choice(names))
        highest = keys.highest_key(bits)
        thread = Thread(a=bits)
        for name in {highest, *generator.sample(names, 10)}:
            condition = key_condition(keys, A, name)
            assert holds(condition, thread) == (name == highest), (name, hex(bits), condition)
            assert bool(in_c(condition_text(condition), a=bits)) == (name == highest), condition_text(condition)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (ALWAYS, ""),
        (Equals(Pointee(A), 16), "*(unsigned long*)$a == 0x10"),
        (Equals(Bits(A, shift=33), 1), "((unsigned long)$a >> 33) == 1"),
        (Equals(Bits(A, 0xFF, 3), 1), "(((unsigned long)$a & 0xff) >> 3) == 1"),
        (
            both(AnyOf((Equals(A, 16), Equals(B, 16))), Equals(Bits(Choice(Equals(A, 16), B, A), 4), 4)),
            "($a == 0x10 || $b == 0x10) && ((unsigned long)($a == 0x10 ? $b : $a) & 0x4) == 4",
        ),
    ],
)
def test_as_gdb_reads_it(condition: AllOf | AnyOf | Equals, text: str) -> None:
    assert condition_text(condition) == text


def test_what_gdb_reads_means_the_same() -> None:
    """Any condition that can be built from two registers and a word, for many values."""
    generator = random.Random(3)

    def value(depth: int) -> Register | Pointee | Bits | Choice:
        kind = generator.randrange(4 if depth else 2)
        if kind == 0:
            return generator.choice((A, B))
        if kind == 1:
            return Pointee(generator.choice((A, B)))
        if kind == 2:
            return Bits(value(0), generator.choice((0xFF, 6, (1 << 64) - 1)), generator.randrange(4))
        return Choice(Equals(value(0), 2), value(0), value(0))

    def condition(depth: int) -> AllOf | AnyOf | Equals:
        if not depth or generator.random() < 0.4:
            return Equals(value(1), generator.randrange(4))
        parts = tuple(condition(depth - 1) for _ in range(generator.randrange(1, 4)))
        return AllOf(parts) if generator.random() < 0.5 else AnyOf(parts)

    outcomes = set()
    words = {0: 1, 1: 2, 2: 3, 3: 0}
    for _ in range(3000):
        built = condition(2)
        a, b = generator.randrange(4), generator.randrange(4)
        found = holds(built, Thread(words, a=a, b=b))
        outcomes.add(found)
        text = condition_text(built)
        assert bool(in_c(text, a=a, b=b, a_points_to=words[a], b_points_to=words[b])) == found, text
    assert outcomes == {True, False}


def test_a_choice_takes_one_side_only() -> None:
    choice = Choice(Equals(A, 1), B, Pointee(A))
    assert value_of(choice, Thread(a=1, b=5)) == 5  # there is no word at 1
    assert value_text(choice) == "($a == 1 ? $b : *(unsigned long*)$a)"


def test_conjunctions_are_flat() -> None:
    one, two, three = (Equals(A, number) for number in (1, 2, 3))
    assert both(ALWAYS, one) == one
    assert both(both(one, two), three) == AllOf((one, two, three))
    assert holds(ALWAYS, Thread())


def test_keys_are_checked(keys: KeyNames) -> None:
    check_keys(keys, BreakRequest("call", ["mm"], key="CPU", has="Meta"))
    with pytest.raises(UsageError, match="Autogard"):
        check_keys(keys, BreakRequest("call", ["mm"], key="Autogard"))
    with pytest.raises(UsageError, match="no keyset"):
        check_keys(keys, BreakRequest("return", ["mm"], key="CPU"))
