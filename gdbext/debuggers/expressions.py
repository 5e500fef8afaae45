"""Conditions of breakpoints as the expressions of gdb and LLDB: C, with registers as variables that begin with $."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.live.breakpoints.conditions import WORD, AllOf, Bits, Choice, Equals, Pointee, Register

if TYPE_CHECKING:
    from gdbext.live.breakpoints.conditions import Condition, Value


def condition_text(condition: Condition) -> str:
    """The condition in C, as debuggers read it; "" where it always holds."""
    if isinstance(condition, Equals):
        return f"{value_text(condition.value)} == {_number(condition.number)}"
    parts = [_operand(each) for each in condition.conditions]
    return (" && " if isinstance(condition, AllOf) else " || ").join(parts)


def _operand(condition: Condition) -> str:
    text = condition_text(condition)
    return text if isinstance(condition, Equals) else f"({text})"


def value_text(value: Value) -> str:
    """The value as an operand of ``==``. gdb's registers are signed: what is shifted is made unsigned."""
    if isinstance(value, Register):
        return f"${value.name}"
    if isinstance(value, Pointee):
        return f"*(unsigned long*){value_text(value.pointer)}"
    if isinstance(value, Choice):
        return f"({condition_text(value.condition)} ? {value_text(value.then)} : {value_text(value.otherwise)})"
    return _bits(value)


def _bits(value: Bits) -> str:
    text = f"(unsigned long){value_text(value.value)}"
    if value.mask != WORD:
        text = f"{text} & {value.mask:#x}"
    if not value.shift:
        return f"({text})"
    return f"({text} >> {value.shift})" if value.mask == WORD else f"(({text}) >> {value.shift})"


def _number(number: int) -> str:
    return str(number) if number < 10 else f"{number:#x}"
