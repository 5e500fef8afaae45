"""The interface of a debugger for dispatch-break: breakpoints by address, with conditions that are data.

``holds`` evaluates a condition, and ``condition_text`` writes it in the C that gdb and LLDB both read, with registers
as variables that begin with $. All values are unsigned 64-bit words. Registers have the architecture's names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import chain
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
    """``then`` if the condition holds, else ``otherwise``."""

    condition: Condition
    then: Value
    otherwise: Value


@dataclass(frozen=True)
class Equals:
    """The value is ``number``."""

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


@dataclass(frozen=True)
class PythonCondition:
    """A condition that the function ``ask`` evaluates. Two are equal if their ``about``, any key, is equal."""

    about: Hashable
    ask: Callable[[StoppedThread], bool] = field(compare=False)


if TYPE_CHECKING:
    Value = Union[Register, Pointee, Bits, Choice]
    Condition = Union[Equals, AllOf, AnyOf, PythonCondition]

ALWAYS = AllOf()


def conjunction(first: Condition, second: Condition) -> Condition:
    """Both conditions, as one flat AllOf if either is one."""
    pairs = (condition.conditions if isinstance(condition, AllOf) else (condition,) for condition in (first, second))
    parts = tuple(chain.from_iterable(pairs))
    return parts[0] if len(parts) == 1 else AllOf(parts)


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
    """True if the condition holds in a stopped thread. Raises TargetError, MemoryFault."""
    if isinstance(condition, Equals):
        return value_of(condition.value, thread) == condition.number
    if isinstance(condition, PythonCondition):
        return condition.ask(thread)
    parts = (holds(part, thread) for part in condition.conditions)
    return all(parts) if isinstance(condition, AllOf) else any(parts)


def condition_text(condition: Condition) -> str:
    """The condition in C, as debuggers read it; "" for one that always holds, and for one that Python decides."""
    if isinstance(condition, Equals):
        number = condition.number
        return f"{value_text(condition.value)} == {number if number < 10 else hex(number)}"
    if isinstance(condition, PythonCondition):
        return ""
    texts = ((part, condition_text(part)) for part in condition.conditions)
    operator = " && " if isinstance(condition, AllOf) else " || "
    return operator.join(text if isinstance(part, Equals) else f"({text})" for part, text in texts)


def value_text(value: Value) -> str:
    """The value as an operand of ``==``. gdb's registers are signed: what is shifted is made unsigned."""
    if isinstance(value, Register):
        return f"${value.name}"
    if isinstance(value, Pointee):
        return f"*(unsigned long*){value_text(value.pointer)}"
    if isinstance(value, Choice):
        return f"({condition_text(value.condition)} ? {value_text(value.then)} : {value_text(value.otherwise)})"
    text = f"(unsigned long){value_text(value.value)}"
    if value.mask != WORD:
        text = f"{text} & {value.mask:#x}"
    if not value.shift:
        return f"({text})"
    return f"({text} >> {value.shift})" if value.mask == WORD else f"(({text}) >> {value.shift})"


if TYPE_CHECKING:
    Reached = Callable[[StoppedThread], None]
    """Called at each hit, with the thread that the debugger has selected."""


class Breakpoint(Protocol):
    """A breakpoint that the user sees in the debugger's list, and may delete there."""

    @property
    def number(self) -> int:
        """Its number in the debugger's list."""

    def is_alive(self) -> bool:
        """The user has not deleted it."""

    def delete(self) -> None:
        """Delete it; not while the debugger is calling us for it."""

    def switch_off(self) -> None:
        """Disable it, and leave it in the list; allowed while the debugger is calling us for it."""

    def delete_later(self) -> None:
        """Disable it, and delete it as soon as the debugger allows."""


class Trap(Protocol):
    """A breakpoint that the user does not see, and that never stops the process."""

    def enable(self, wanted: bool) -> None:
        """Switch it on or off; allowed while the debugger is calling us for it."""

    def delete(self) -> None:
        """Delete the breakpoint; a second call does nothing."""


class BreakpointSetter(Protocol):
    """One debugger's way to set breakpoints. All ``set_…`` raise TargetError where the debugger refuses."""

    def notes(self, go_on: bool) -> tuple[str, ...]:
        """Notes for the user to read before the process is resumed; ``go_on``: those on breakpoints by ``set_call``."""

    def set_stop(self, address: int, condition: Condition, reached: Reached) -> Breakpoint:
        """Stop if the condition holds; ``reached`` is called when the process has stopped, for a PythonCondition at the
        hit itself."""

    def set_call(self, address: int, reached: Reached) -> Breakpoint:
        """Call ``reached`` at each hit, and resume."""

    def set_pending(self, function: str, symbol: str, reached: Callable[[], bool]) -> Breakpoint:
        """A breakpoint at a function of a library that need not be loaded yet; the process stops if ``reached`` returns
        True. ``symbol`` is its mangled name."""

    def set_placeholder(self, address: int) -> Breakpoint:
        """A breakpoint that does nothing but show in the user's list."""

    def set_trap(self, address: int, reached: Reached) -> Trap:
        """An invisible breakpoint that calls ``reached`` at each hit, and resumes."""

    def text_of(self, condition: Condition) -> str:
        """The condition in the debugger's language, "" if it always holds."""

    def call_soon(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the debugger has finished with what it is calling us for."""

    def on_exit(self, action: Callable[[], None]) -> None:
        """Call ``action`` whenever the process has ended and no other one runs."""

    def by_probes(self) -> BreakpointSetter:
        """A setter by kernel probes, with which killing the debugger does no harm. Raises UsageError (this debugger has
        none), ProbesRefused."""
