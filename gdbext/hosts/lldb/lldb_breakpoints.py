"""dispatch-break's breakpoints in LLDB: ordinary ones, in ``breakpoint list``, with callbacks of ours.

They are set by address, so that LLDB's own symbols are not needed. Conditions are evaluated here: LLDB would compile
them with its expression parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lldb

from gdbext.errors import MemoryFault, ProbesRefused, TargetError
from gdbext.hosts.lldb.lldb_run_control import HookBreakpoint, register_of
from gdbext.hosts.lldb.lldb_target import is_there, read_memory
from gdbext.hosts.lldb.selection import Callback, attach_callback, drop_callback
from gdbext.live.breakpoint_setter import condition_text, holds

if TYPE_CHECKING:
    from gdbext.hosts.lldb.selection import Selection
    from gdbext.live.breakpoint_setter import BreakpointSetter, Condition, Reached

_START = ("__libc_start_main", "libc.so.6")
"""A function that each run of a program calls once, before any library of torch is used."""


class StoppedAt:
    """The thread that a breakpoint stopped."""

    def __init__(self, frame: lldb.SBFrame) -> None:
        self._frame = frame
        self.is_lost = False
        """LLDB gave no register: it is about to let the process go (LLDB 22), which is to stand still for that."""

    @property
    def tid(self) -> int:
        """Id that the kernel gave the thread."""
        return int(self._frame.GetThread().GetThreadID())

    def register(self, name: str) -> int:
        """A register of its innermost frame, unsigned. Raises TargetError."""
        try:
            return register_of(self._frame, name)
        except TargetError:
            self.is_lost = True
            raise

    def word(self, address: int) -> int:
        """The 8 bytes at an address. Raises MemoryFault."""
        data = read_memory(self._frame.GetThread().GetProcess(), address, 8)
        if not data:
            raise MemoryFault(address, 8)
        return int.from_bytes(data, "little")


class Deletions:
    """Deletes breakpoints when LLDB is not calling us, and not in the second run of a program in one LLDB: LLDB 19
    crashes when it is resumed where some are deleted then. Until the program has ended they are off instead."""

    def __init__(self, is_safe: Callable[[], bool]) -> None:
        self._is_safe = is_safe
        self._calls = 0
        self._waiting: list[tuple[lldb.SBTarget, int, str]] = []

    @contextmanager
    def called(self) -> Iterator[None]:
        """Handle a call that LLDB makes."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def add(self, target: lldb.SBTarget, number: int, callback: str = "") -> None:
        """Delete one, now or later, and forget what it calls then."""
        self._waiting.append((target, number, callback))
        self.flush()

    def flush(self) -> None:
        """Delete what waits for that, if it may be."""
        if self._waiting and not self._calls and self._is_safe():
            waiting, self._waiting = self._waiting, []
            for target, number, callback in waiting:
                target.BreakpointDelete(number)
                if callback:
                    drop_callback(callback)


class LldbBreakpoint:
    """A breakpoint that the user sees."""

    def __init__(
        self, target: lldb.SBTarget, found: lldb.SBBreakpoint, callback: Callback, deletions: Deletions
    ) -> None:
        if not found.IsValid():
            raise TargetError("lldb cannot set the breakpoint")
        self._target = target
        self._breakpoint = found
        self._deletions = deletions
        self._is_deleted = False
        self.number = int(found.GetID())
        self._callback = callback
        self._called = attach_callback(found, self._hit)

    def _hit(self, frame: lldb.SBFrame) -> bool:
        if self._is_deleted:
            return False
        with self._deletions.called():
            return self._callback(frame)

    def is_alive(self) -> bool:
        """The user has not deleted it."""
        self._deletions.flush()
        return not self._is_deleted and bool(self._target.FindBreakpointByID(self.number).IsValid())

    def switch_off(self) -> None:
        """It may be the one that LLDB is asking right now."""
        if self.is_alive():
            self._breakpoint.SetEnabled(False)

    def enable(self, wanted: bool) -> None:
        """Switch it on or off."""
        if self.is_alive():
            self._breakpoint.SetEnabled(wanted)

    def delete(self) -> None:
        """Take it away; in a callback it is off at once, and goes with the next command."""
        if self.is_alive():
            self.switch_off()
            self._is_deleted = True
            self._deletions.add(self._target, self.number, self._called)

    def delete_later(self) -> None:
        """It may be the one that LLDB is asking right now."""
        self.delete()


class LldbTrap:
    """An address at which a function is called, and nobody stops."""

    def __init__(self, owner: LldbBreakpointSetter, address: int, reached: Reached) -> None:
        self.address = address
        self._owner = owner
        self._reached = reached
        self._is_on = False

    def hit(self, frame: lldb.SBFrame) -> bool:
        """Called by LLDB at each hit."""
        return self._owner.handle(frame, self._reached)

    def enable(self, wanted: bool) -> None:
        """Switch it on or off. Raises TargetError."""
        if wanted != self._is_on:
            self._is_on = wanted
            (self._owner.add_trap if wanted else self._owner.drop_trap)(self)

    def delete(self) -> None:
        """Switch it off for good; idempotent."""
        self.enable(False)


class LldbBreakpointSetter:
    """Sets breakpoints in LLDB's target."""

    def notes(self, go_on: bool) -> tuple[str, ...]:
        """Nothing: breakpoints of both kinds take conditions, and LLDB lets all threads run."""
        del go_on
        return ()

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._on_exit: list[Callable[[], None]] = []
        self._run: int | None = None
        self._start: LldbBreakpoint | None = None
        self._traps: HookBreakpoint | None = None
        self._runs = 1
        self._deletions = Deletions(lambda: self._runs == 1 or not is_there(self._selection.process()))

    def set_stop(self, address: int, condition: Condition, reached: Reached) -> LldbBreakpoint:
        """One that stops where the condition holds. Raises TargetError, as all others do."""

        def hit(frame: lldb.SBFrame) -> bool:
            thread = StoppedAt(frame)
            if not _holds(condition, thread):
                return False
            reached(thread)
            return True

        return self._at(address, hit)

    def set_call(self, address: int, reached: Reached) -> LldbBreakpoint:
        """One that calls ``reached`` and goes on."""

        def hit(frame: lldb.SBFrame) -> bool:
            thread = StoppedAt(frame)
            reached(thread)
            return thread.is_lost

        return self._at(address, hit)

    def set_pending(self, function: str, symbol: str, reached: Callable[[], bool]) -> LldbBreakpoint:  # noqa: ARG002
        """One at a function of a library that LLDB may not have seen yet."""
        self._watch_runs()
        return self._named((function,), lambda _: reached())

    def set_placeholder(self, address: int) -> LldbBreakpoint:
        """Set a breakpoint that does nothing, for the user to see."""
        return self._at(address, lambda _: False)

    def set_trap(self, address: int, reached: Reached) -> LldbTrap:
        """LLDB has no internal breakpoints for scripts: the user sees one for all of them."""
        self._watch_runs()
        trap = LldbTrap(self, address, reached)
        trap.enable(True)
        return trap

    def handle(self, frame: lldb.SBFrame, reached: Reached) -> bool:
        """Call a trap's function, and go on."""
        thread = StoppedAt(frame)
        with self._deletions.called():
            reached(thread)
        return thread.is_lost

    def add_trap(self, trap: LldbTrap) -> None:
        """Call the trap at its address. Raises TargetError."""
        if not self._traps or not self._traps.is_used:
            self._traps = HookBreakpoint(self._selection.target())
        self._traps.add(trap.address, trap)

    def drop_trap(self, trap: LldbTrap) -> None:
        """Call the trap no more; with the last one the breakpoint goes."""
        if self._traps:
            self._traps.drop(trap.address, trap)
            if not self._traps.is_used:
                self._traps.delete(self._deletions.add)
                self._traps = None

    def text_of(self, condition: Condition) -> str:
        """The condition as an expression."""
        return condition_text(condition)

    def call_soon(self, action: Callable[[], None]) -> None:
        """Call the function at once, which LLDB does not mind."""
        action()

    def by_probes(self) -> BreakpointSetter:
        """Refuse: there are none for stops. Raises ProbesRefused."""
        raise ProbesRefused(
            "dispatch-break has none in LLDB",
            why="LLDB asks nobody whether a signal is to stop",
            help="use gdb, or --engine breakpoints",
        )

    def on_exit(self, action: Callable[[], None]) -> None:
        """LLDB tells nobody that a process has ended; it is noticed when the next one starts."""
        self._on_exit.append(action)

    def _at(self, address: int, callback: Callback) -> LldbBreakpoint:
        self._watch_runs()
        target = self._selection.target()
        return LldbBreakpoint(target, target.BreakpointCreateByAddress(address), callback, self._deletions)

    def _named(self, name: Sequence[str], callback: Callback) -> LldbBreakpoint:
        """``name``: of the function, and of its module where only one is meant."""
        target = self._selection.target()
        return LldbBreakpoint(target, target.BreakpointCreateByName(*name), callback, self._deletions)

    def _watch_runs(self) -> None:
        """Addresses and conditions are for one run of the program, while LLDB's breakpoints outlive it."""
        process = self._selection.process()
        if process.IsValid():
            self._run = process.GetUniqueID()
        if not self._start or not self._start.is_alive():
            self._start = self._named(_START, self._started)

    def _started(self, frame: lldb.SBFrame) -> bool:
        run = frame.GetThread().GetProcess().GetUniqueID()
        if self._run is not None and run != self._run:
            self._run = run
            self._runs += 1
            for action in self._on_exit:
                action()
        return False


def _holds(condition: Condition, thread: StoppedAt) -> bool:
    """True if the condition holds; what cannot be read stops the process, so that the user sees it."""
    try:
        return holds(condition, thread)
    except (TargetError, MemoryFault):
        return True
