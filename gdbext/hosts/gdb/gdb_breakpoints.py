"""dispatch-break's breakpoints in gdb: ordinary ones, in ``info breakpoints``, with conditions that gdb evaluates.

They are set by address, so that gdb's own symbols are not needed.

Catchpoints for kernel probes, which stop a thread by a signal (thread_stopper.py). gdb is told of it by
``catch signal``, whose condition is a function of ours: it looks what the thread was stopped for, and says whether gdb
is to stop. Where it is not, gdb lets all run on and tells nobody, as after a breakpoint's stop(). gdb has no internal
catchpoints: each takes a number of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gdb

from gdbext.engine.targets.system.linux import signal_name
from gdbext.errors import MemoryFault, TargetError
from gdbext.hosts.debugger.base_debugger import condition_text
from gdbext.hosts.gdb.gdb_target import execute

if TYPE_CHECKING:
    from gdbext.hosts.resume.breakpoint_setter import Condition, Reached

_WORD = (1 << 64) - 1


class SelectedThread:
    """gdb's selected thread: the one that a breakpoint stopped."""

    @property
    def tid(self) -> int:
        """Id that the kernel gave the thread."""
        return int(gdb.selected_thread().ptid[1])

    def register(self, name: str) -> int:
        """A register of its innermost frame, unsigned. Raises TargetError."""
        try:
            return int(gdb.parse_and_eval(f"${name}")) & _WORD
        except gdb.error as error:
            raise TargetError(f"gdb cannot read the register {name}: {error}") from error

    def word(self, address: int) -> int:
        """The 8 bytes at an address. Raises MemoryFault."""
        try:
            return int.from_bytes(gdb.selected_inferior().read_memory(address, 8), "little")
        except (gdb.error, OverflowError) as error:
            raise MemoryFault(address, 8) from error


class GdbBreakpoint(gdb.Breakpoint):  # type: ignore[misc]
    """A breakpoint that the user sees."""

    def is_alive(self) -> bool:
        """The user has not deleted it."""
        return bool(self.is_valid())

    def switch_off(self) -> None:
        """It may be the one that gdb is asking right now."""
        if self.is_valid():
            self.enabled = False

    def delete_later(self) -> None:
        """It may be the one that gdb is asking right now."""
        if self.is_valid():
            self.switch_off()
            gdb.post_event(lambda: self.delete() if self.is_valid() else None)


class GdbStop(GdbBreakpoint):
    """One that stops. It has no stop() of its own: gdb allows no condition beside that."""

    def __init__(self, address: int, condition: str, reached: Reached) -> None:
        super().__init__(f"*{address:#x}")
        self.reached = reached
        if condition:
            self.condition = condition


class GdbCall(GdbBreakpoint):
    """One that calls a function and goes on."""

    def __init__(self, address: int, reached: Reached) -> None:
        super().__init__(f"*{address:#x}")
        self._reached = reached

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        self._reached(SelectedThread())
        return False


class GdbPending(GdbBreakpoint):
    """One at a function that may not be there yet."""

    def __init__(self, symbol: str, reached: Callable[[], bool]) -> None:
        super().__init__(symbol)
        self._reached = reached

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        return self._reached()


class GdbPlaceholder(GdbBreakpoint):
    """One that only stands in the list."""

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        return False


class GdbTrap(gdb.Breakpoint):  # type: ignore[misc]
    """An internal breakpoint that calls a function and goes on."""

    def __init__(self, address: int, reached: Reached) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self._reached = reached

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        self._reached(SelectedThread())
        return False

    def enable(self, wanted: bool) -> None:
        """Switch it on or off."""
        self.enabled = wanted

    def delete(self) -> None:
        """Delete the breakpoint."""
        if self.is_valid():
            super().delete()


class GdbBreakpointSetter:
    """Sets breakpoints in gdb's selected inferior."""

    note_on_calls = (
        "gdb takes no condition (condition N ...) for breakpoints of --continue: use --key or --has; or leave "
        "--continue out, and give the breakpoint the condition and, with commands N: continue"
    )
    """gdb allows one stop condition, and ``stop()`` is one (gdb manual, Python: Breakpoints)."""

    def __init__(self) -> None:
        gdb.events.stop.connect(_stopped)

    def set_stop(self, address: int, condition: Condition, reached: Reached) -> GdbStop:
        """One that stops where the condition holds. Raises TargetError, as all others do."""
        with _refusals():
            return GdbStop(address, condition_text(condition), reached)

    def set_call(self, address: int, reached: Reached) -> GdbCall:
        """One that calls ``reached`` and goes on; gdb takes no condition for it."""
        with _refusals():
            return GdbCall(address, reached)

    def set_pending(self, symbol: str, reached: Callable[[], bool]) -> GdbPending:
        """One at a function of a library that gdb may not have seen yet."""
        with _refusals():
            return GdbPending(symbol, reached)

    def set_placeholder(self, address: int) -> GdbPlaceholder:
        """Set a breakpoint that does nothing, for the user to see."""
        with _refusals():
            return GdbPlaceholder(f"*{address:#x}")

    def set_trap(self, address: int, reached: Reached) -> GdbTrap:
        """Set a breakpoint that the user does not see."""
        with _refusals():
            return GdbTrap(address, reached)

    def text_of(self, condition: Condition) -> str:
        """The condition as gdb's expression."""
        return condition_text(condition)

    def call_soon(self, action: Callable[[], None]) -> None:
        """Call a function from gdb's event loop."""
        gdb.post_event(action)

    def on_exit(self, action: Callable[[], None]) -> None:
        """Not when gdb follows a forked child, whose addresses are the same, and lets the parent go."""

        def exited(event: Any) -> None:
            if not any(other.pid for other in gdb.inferiors() if other.num != event.inferior.num):
                action()

        gdb.events.exited.connect(exited)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except gdb.error as error:
        raise TargetError(f"gdb cannot set the breakpoint: {error}") from error


def _stopped(event: Any) -> None:
    for each in getattr(event, "breakpoints", ()):
        if isinstance(each, GdbStop):
            each.reached(SelectedThread())


_NAME = "_gdbext_stop"


def _never() -> bool:
    return False


class HitFunction(gdb.Function):  # type: ignore[misc]
    """Used by gdbext where kernel probes stop the program (--engine probes)."""

    reached: Callable[[], bool] = staticmethod(_never)

    def invoke(self) -> int:
        """Called by gdb where a thread has stopped by our signal."""
        return int(self.reached())


def _function() -> HitFunction:
    """The one function, for gdb never forgets any: kept in gdb's own module, also while our commands are loaded
    anew."""
    found: HitFunction | None = vars(gdb).get(_NAME)
    if found is None:
        found = vars(gdb)[_NAME] = HitFunction(_NAME)
    return found


@contextmanager
def catching(signal: int, reached: Callable[[], bool]) -> Iterator[None]:
    """gdb calls ``reached`` when a thread has stopped by that signal, and stops where that is true. Raises
    TargetError."""
    function = _function()
    function.reached = reached
    execute(f"catch signal {signal_name(signal)}")
    number = int(gdb.convenience_variable("bpnum"))
    try:
        execute(f"condition {number} ${_NAME}()")
        yield
    finally:
        function.reached = _never
        execute(f"delete {number}")
