"""Conditions of breakpoints as data: debuggers render them in their own language, and ``holds`` evaluates them.

Everything is an unsigned 64-bit word. Registers are named as the architecture names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Union

WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Register:
    """The value of a register."""

    name: str


@dataclass(frozen=True)
class Pointee:
    """The word in memory that a register points to."""

    pointer: Register


@dataclass(frozen=True)
class Bits:
    """The bits of ``mask``, shifted right by ``shift``."""

    value: Value
    mask: int = WORD
    shift: int = 0


@dataclass(frozen=True)
class Choice:
    """``then`` where the condition holds, else ``otherwise``."""

    condition: Condition
    then: Value
    otherwise: Value


@dataclass(frozen=True)
class Equals:
    """The value is this number."""

    value: Value
    number: int


@dataclass(frozen=True)
class AllOf:
    """Each of the conditions holds; with none, always."""

    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class AnyOf:
    """One of the conditions holds."""

    conditions: tuple[Condition, ...]


if TYPE_CHECKING:
    Value = Union[Register, Pointee, Bits, Choice]
    Condition = Union[Equals, AllOf, AnyOf]

ALWAYS = AllOf()


def both(first: Condition, second: Condition) -> Condition:
    """Both conditions, without nesting what is a conjunction already."""
    parts = [part for each in (first, second) for part in (each.conditions if isinstance(each, AllOf) else (each,))]
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


class StoppedThread(Protocol):
    """The thread that a breakpoint stopped. All may raise TargetError."""

    @property
    def tid(self) -> int:
        """The kernel's thread id."""

    def register(self, name: str) -> int:
        """A register of its innermost frame, unsigned."""

    def word(self, address: int) -> int:
        """The 8 bytes at an address, little-endian. Raises MemoryFault."""


def value_of(value: Value, thread: StoppedThread) -> int:
    """The value in a stopped thread. Raises TargetError, MemoryFault."""
    if isinstance(value, Register):
        return thread.register(value.name)
    if isinstance(value, Pointee):
        return thread.word(thread.register(value.pointer.name))
    if isinstance(value, Bits):
        return (value_of(value.value, thread) & value.mask) >> value.shift
    return value_of(value.then if holds(value.condition, thread) else value.otherwise, thread)


def holds(condition: Condition, thread: StoppedThread) -> bool:
    """Whether it holds in a stopped thread. Raises TargetError, MemoryFault."""
    if isinstance(condition, Equals):
        return value_of(condition.value, thread) == condition.number
    found = (holds(each, thread) for each in condition.conditions)
    return all(found) if isinstance(condition, AllOf) else any(found)
