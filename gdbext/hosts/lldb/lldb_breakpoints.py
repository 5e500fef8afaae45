"""dispatch-break's breakpoints in LLDB: ordinary ones, in ``breakpoint list``, with callbacks of ours.

They are set by address, so that LLDB's own symbols are not needed. Conditions are evaluated here: LLDB would compile
them with its expression parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lldb

from gdbext.errors import MemoryFault, ProbesRefused, TargetError
from gdbext.hosts.lldb.lldb_callbacks import Callback, attach_callback, drop_callback
from gdbext.hosts.lldb.lldb_run_control import HookBreakpoint, register_of
from gdbext.hosts.lldb.lldb_target import is_there, read_memory
from gdbext.live.breakpoint_setter import condition_text, holds

if TYPE_CHECKING:
    from gdbext.hosts.lldb.selection import Selection
    from gdbext.live.breakpoint_setter import BreakpointSetter, Condition, Reached


class StoppedAt:
    """The thread that a breakpoint stopped: a StoppedThread (live/breakpoint_setter.py)."""

    def __init__(self, frame: lldb.SBFrame) -> None:
        self._frame = frame
        self.is_lost = False  # True if LLDB cannot read registers: it is about to detach (LLDB 22), and must stop

    @property
    def tid(self) -> int:
        return int(self._frame.GetThread().GetThreadID())

    def register(self, name: str) -> int:
        try:
            return register_of(self._frame, name)
        except TargetError:
            self.is_lost = True
            raise

    def word(self, address: int) -> int:
        data = read_memory(self._frame.GetThread().GetProcess(), address, 8)
        if not data:
            raise MemoryFault(address, 8)
        return int.from_bytes(data, "little")


class Deletions:
    """Deletes breakpoints when it is safe: not while LLDB calls us, and not while a program runs for the second time in
    one LLDB, which LLDB 19 crashes after. Until then they are disabled."""

    def __init__(self, is_safe: Callable[[], bool]) -> None:
        self._is_safe = is_safe
        self._calls = 0  # calls from LLDB that are in progress
        self._waiting: list[tuple[lldb.SBTarget, int, str]] = []  # target, number of the breakpoint, callback's name

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Delete nothing meanwhile: LLDB is calling us."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def add(self, target: lldb.SBTarget, number: int, callback: str = "") -> None:
        """Delete a breakpoint and its callback, now or later."""
        self._waiting.append((target, number, callback))
        self.flush()

    def flush(self) -> None:
        """Delete the waiting ones, if that is safe now."""
        if self._waiting and not self._calls and self._is_safe():
            waiting, self._waiting = self._waiting, []
            for target, number, callback in waiting:
                target.BreakpointDelete(number)
                if callback:
                    drop_callback(callback)


class LldbBreakpoint:
    """A breakpoint that the user sees."""

    def __init__(
        self, target: lldb.SBTarget, breakpoint: lldb.SBBreakpoint, callback: Callback, deletions: Deletions
    ) -> None:
        if not breakpoint.IsValid():
            raise TargetError("lldb cannot set the breakpoint")
        self._target = target
        self._breakpoint = breakpoint
        self._deletions = deletions
        self._is_deleted = False
        self.number = int(breakpoint.GetID())
        self._callback = callback
        self._callback_name = attach_callback(breakpoint, self._hit)

    def _hit(self, frame: lldb.SBFrame) -> bool:
        """Called by LLDB at each hit; True if the process is to stop."""
        with self._deletions.postponed():
            return not self._is_deleted and self._callback(frame)

    def is_alive(self) -> bool:
        self._deletions.flush()
        return not self._is_deleted and bool(self._target.FindBreakpointByID(self.number).IsValid())

    def switch_off(self) -> None:
        if self.is_alive():
            self._breakpoint.SetEnabled(False)

    def delete(self) -> None:
        """Disable the breakpoint at once, and delete it when that is safe."""
        if self.is_alive():
            self.switch_off()
            self._is_deleted = True
            self._deletions.add(self._target, self.number, self._callback_name)

    delete_later = delete


class LldbTrap:
    """An address at which a function is called, and which never stops the process."""

    def __init__(self, owner: LldbBreakpointSetter, address: int, hit: Callback) -> None:
        self._owner = owner
        self._address = address
        self._hit = hit
        self._is_on = False

    def enable(self, wanted: bool) -> None:
        """Have the function called from now on, or no longer. Raises TargetError."""
        if wanted != self._is_on:
            self._is_on = wanted
            if wanted:
                self._owner.trap_breakpoint().add(self._address, self, self._hit)
            else:
                self._owner.drop_trap(self._address, self)

    def delete(self) -> None:
        self.enable(wanted=False)


class LldbBreakpointSetter:
    """Sets breakpoints in LLDB's target: a BreakpointSetter (live/breakpoint_setter.py)."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._on_exit: list[Callable[[], None]] = []
        self._run: int | None = None  # LLDB's unique id of the process
        self._start: LldbBreakpoint | None = None  # at the start of a program
        self._traps: HookBreakpoint | None = None
        self._runs = 1  # how often the program was started
        self._deletions = Deletions(lambda: self._runs == 1 or not is_there(self._selection.process()))

    def set_stop(self, address: int, condition: Condition, reached: Reached) -> LldbBreakpoint:
        """Stop at an address if the condition holds; ``reached`` is called then."""

        def hit(frame: lldb.SBFrame) -> bool:
            thread = StoppedAt(frame)
            try:
                stops = holds(condition, thread)
            except (TargetError, MemoryFault):
                stops = True  # so that the user sees it
            if stops:
                reached(thread)
            return stops

        return self._breakpoint_at(address, hit)

    def set_call(self, address: int, reached: Reached) -> LldbBreakpoint:
        """Call ``reached`` at an address, without a stop."""

        def hit(frame: lldb.SBFrame) -> bool:
            thread = StoppedAt(frame)
            reached(thread)
            return thread.is_lost

        return self._breakpoint_at(address, hit)

    def set_pending(self, function: str, symbol: str, reached: Callable[[], bool]) -> LldbBreakpoint:  # noqa: ARG002
        """Stop at a function, now or once it is loaded, if ``reached`` returns True."""
        self._watch_runs()
        target = self._selection.target()
        breakpoint = target.BreakpointCreateByName(function)
        return LldbBreakpoint(target, breakpoint, lambda _: reached(), self._deletions)

    def set_placeholder(self, address: int) -> LldbBreakpoint:
        """A breakpoint for the user to see and delete, which never stops."""
        return self._breakpoint_at(address, lambda _: False)

    def set_trap(self, address: int, reached: Reached) -> LldbTrap:
        """Call ``reached`` at an address; the user sees one breakpoint for all traps."""

        def hit(frame: lldb.SBFrame) -> bool:
            thread = StoppedAt(frame)
            with self._deletions.postponed():
                reached(thread)
            return thread.is_lost

        self._watch_runs()
        trap = LldbTrap(self, address, hit)
        trap.enable(wanted=True)
        return trap

    def trap_breakpoint(self) -> HookBreakpoint:
        """The breakpoint of all traps. Raises TargetError."""
        if not self._traps or not self._traps.is_used:
            self._traps = HookBreakpoint(self._selection.target())
        return self._traps

    def drop_trap(self, address: int, trap: LldbTrap) -> None:
        """Stop calling the trap; with the last one the breakpoint is deleted."""
        if self._traps:
            self._traps.drop(address, trap)
            if not self._traps.is_used:
                self._traps.delete(self._deletions.add)
                self._traps = None

    def notes(self, go_on: bool) -> tuple[str, ...]:
        del go_on  # breakpoints of both kinds take conditions, and LLDB lets all threads run
        return ()

    def text_of(self, condition: Condition) -> str:
        return condition_text(condition)

    def call_soon(self, action: Callable[[], None]) -> None:
        action()

    def by_probes(self) -> BreakpointSetter:
        raise ProbesRefused(
            "dispatch-break has none in LLDB",
            why="LLDB has no hook that decides whether a signal stops",
            help="use gdb, or --engine breakpoints",
        )

    def on_exit(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the program is started again: LLDB does not report that a process has exited."""
        self._on_exit.append(action)

    def _breakpoint_at(self, address: int, callback: Callback) -> LldbBreakpoint:
        """A breakpoint that the user sees; ``callback`` returns True if it is to stop."""
        self._watch_runs()
        target = self._selection.target()
        return LldbBreakpoint(target, target.BreakpointCreateByAddress(address), callback, self._deletions)

    def _watch_runs(self) -> None:
        """Notice when the program is started again: LLDB's breakpoints outlive a run, our conditions do not."""
        process = self._selection.process()
        if process.IsValid():
            self._run = process.GetUniqueID()
        if not self._start or not self._start.is_alive():
            # each run of a program calls this once, before any library of torch is used
            target = self._selection.target()
            breakpoint = target.BreakpointCreateByName("__libc_start_main", "libc.so.6")
            self._start = LldbBreakpoint(target, breakpoint, self._notice_new_run, self._deletions)

    def _notice_new_run(self, frame: lldb.SBFrame) -> bool:
        """Called by LLDB when a program starts: call the ``on_exit`` actions if it is another run."""
        run = frame.GetThread().GetProcess().GetUniqueID()
        if self._run is not None and run != self._run:
            self._run = run
            self._runs += 1
            for action in self._on_exit:
                action()
        return False
