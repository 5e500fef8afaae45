"""What dispatch-break needs of a debugger: breakpoints by address, and to be called when they are hit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gdbext.live.breakpoints.conditions import Condition, StoppedThread

    Reached = Callable[[StoppedThread], None]
    """Called at each hit, with the thread that the debugger has selected."""


class Breakpoint(Protocol):
    """A breakpoint that the user sees in the debugger's list, and may delete there."""

    @property
    def number(self) -> int:
        """The debugger's number of it."""

    def is_alive(self) -> bool:
        """The user has not deleted it."""

    def delete(self) -> None:
        """Take it away; not while the debugger is calling us for it."""

    def switch_off(self) -> None:
        """Not hit any more, and still in the list; allowed in its own call."""

    def delete_later(self) -> None:
        """Switch it off, and take it away as soon as the debugger allows."""


class Trap(Protocol):
    """A breakpoint that the user does not see, and that never stops the process."""

    def enable(self, wanted: bool) -> None:
        """Switch it on or off; allowed in its own call."""

    def delete(self) -> None:
        """Take it away; idempotent."""


class BreakpointSetter(Protocol):
    """One debugger's way to set them. All ``set_…`` raise TargetError where the debugger refuses."""

    note_on_calls: str
    """What the user must know of the breakpoints of ``set_call``, "" for nothing."""

    def set_stop(self, address: int, condition: Condition, reached: Reached) -> Breakpoint:
        """One that stops where the condition holds; ``reached`` is called once the process stands still."""

    def set_call(self, address: int, reached: Reached) -> Breakpoint:
        """One that calls ``reached`` at each hit, and goes on."""

    def set_pending(self, symbol: str, reached: Callable[[], bool]) -> Breakpoint:
        """One at a function of a library that need not be loaded yet; the process stops where ``reached`` says so."""

    def set_placeholder(self, address: int) -> Breakpoint:
        """One that does nothing but stand in the user's list."""

    def set_trap(self, address: int, reached: Reached) -> Trap:
        """An invisible one that calls ``reached`` at each hit, and goes on."""

    def text_of(self, condition: Condition) -> str:
        """The condition in the debugger's language, "" where it always holds."""

    def call_soon(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the debugger has finished with what it is calling us for."""

    def on_exit(self, action: Callable[[], None]) -> None:
        """Call ``action`` whenever the process has ended and no other one runs."""
