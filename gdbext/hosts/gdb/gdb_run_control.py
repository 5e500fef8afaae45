"""gdb's side of the live commands: breakpoints with a Python stop() that does next to nothing, and ``continue``.

Measured with gdb 13.1 on this project's machine: a breakpoint with an empty stop() costs 160 to 290 µs a hit (two
context switches, a step over the instruction), plus the time of stop(). ``gdb.parse_and_eval`` of a register takes 6 µs
without symbols and 22 µs with torch's symbols read; ``gdb.selected_frame()`` alone takes 14 and 128 µs, since it
computes the frame's identity. So registers are read by parse_and_eval.

``continue`` is executed with its output, so that what is shown meanwhile reaches gdb's console in every interpreter:
with to_string, gdb.write would write into that string, and MI would miss the ^running that is its result record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import gdb

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.tool import run_for
from gdbext.engine.targets.live import ptrace
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget
from gdbext.engine.targets.system.linux import signal_name
from gdbext.errors import GdbextError, TargetError
from gdbext.hosts.gdb import gdb_modes
from gdbext.hosts.gdb.gdb_editor import editor_heard
from gdbext.hosts.gdb.gdb_loader import BreakpointKeeper, loader_unwatched, program_of
from gdbext.hosts.gdb.gdb_printers import WORD
from gdbext.hosts.gdb.gdb_probes import ProbedThreads, stopping_for
from gdbext.hosts.gdb.gdb_target import (
    GdbTarget,
    brief_stop,
    connection_type,
    interrupt_all,
    is_running,
    low_word,
    post_whole,
    quietly,
    read_memory,
    stopped_target,
)
from gdbext.live.host import HookSpec
from gdbext.live.timed_run import TimedRun, check_pause, ending_of_failure
from gdbext.log import logger
from gdbext.tools.probes.thread_stopper import ProbeHooks

if TYPE_CHECKING:
    from gdbext.diagnosis.samples import Pause, Watch
    from gdbext.engine.targets.base_target import Target
    from gdbext.live.host import AddressHook
    from gdbext.live.timed_run import Work


def pause_of(target: Target) -> Pause:
    """The function that lets the process run for some seconds. Raises UsageError if gdb would not resume all of it, or
    could not stop it again."""
    pid = target.pid  # not the target, which the next one replaces
    alternative = f"examine it from outside: detach, then scripts/dispatch -p {pid} dispatch-diagnose --samples 5"

    def look_again(seconds: float, watch: Watch) -> Target:
        run_for(seconds, watch)  # the process runs already
        return brief_stop(pid)

    def pause(seconds: float, watch: Watch) -> Target:
        selected, forks = gdb.selected_thread(), gdb_modes.Forks()
        ending = GdbRunControl().run_beside(lambda run: run_for(seconds, watch, run.sleep), by_probes=False)
        check_pause(ending, alternative)
        forks.check_same()
        if selected is not None and selected.is_valid():
            selected.switch()
        return GdbTarget(gdb.selected_inferior())

    if isinstance(target, SnapshotTarget):
        return look_again
    gdb_modes.check_pause_works(alternative)
    return pause


_log = logger(__name__)
_evaluate = gdb.parse_and_eval


class GdbHook(gdb.Breakpoint):  # type: ignore[misc]
    """An internal breakpoint at an address."""

    def __init__(self, control: GdbRunControl, spec: HookSpec) -> None:
        super().__init__(f"*{spec.address:#x}", internal=True)
        self.silent = True
        self._control = control
        self._handler = spec.handler
        self._frame_register = f"${spec.frame.register}"
        self._offset = spec.frame.offset
        register = f"${spec.register}"
        loaded = f"*(unsigned long*)((unsigned long){register} + {spec.load})"
        self._value = "" if not spec.register else register if spec.load is None else loaded

    def stop(self) -> bool:
        """Called by gdb at each hit; its time counts."""
        if self._control.is_over:
            return True
        try:
            cfa = (int(_evaluate(self._frame_register)) & WORD) + self._offset
            value = int(_evaluate(self._value)) & WORD if self._value else 0
            stops = self._handler(gdb.selected_thread().ptid[1], cfa, value)
            if stops:
                self._control.stop_requested = True
                self.silent = False  # or MI's *stopped would have no frame
                self._control.quiet.begin()
            return stops
        except (GdbextError, OSError, gdb.error, KeyboardInterrupt) as error:
            self._control.fail(error)
            return True

    def remove(self) -> None:
        if self.is_valid():
            self.delete()


class _Stop(NamedTuple):
    """The needed part of gdb's event. The event itself must not be kept: it holds the breakpoints, and Python's
    collector does not see through gdb's objects, so that everything that a breakpoint's handler refers to would live
    for ever."""

    signal: str = ""
    breakpoints: tuple[int, ...] = ()
    """The numbers of those that are not hooks of ours."""
    is_at_breakpoint: bool = False


class GdbRunControl:
    """Places hooks and runs the selected inferior: a RunControl (live/host.py)."""

    def __init__(self) -> None:
        self._hooks: list[GdbHook] = []
        self._keeper = BreakpointKeeper()
        self._failure: BaseException | None = None
        self.stop_requested = False
        """A handler has requested the stop."""
        self._stop: _Stop | None = None
        self._ran = ""
        self._is_replaced = False
        self.quiet = gdb_modes.QuietConsole()
        self._probes: ProbeHooks | None = None
        self._probed: ProbedThreads | None = None
        self._probed_thread = 0
        self._stops_anyway = False
        self.is_over = False
        """True: handlers are not called any more; gdb only takes an interrupt."""

    def use_probes(self) -> None:
        gdb_modes.check_probes()
        self._probes = ProbeHooks(stopped_target, self.read)

    def place(self, spec: HookSpec) -> AddressHook:
        if self._probes:
            return self._probes.place(spec)
        try:
            hook = GdbHook(self, spec)
        except gdb.error as error:
            raise TargetError(f"gdb cannot set a breakpoint at {spec.address:#x}: {error}") from error
        self._keeper.keep(hook, spec.address)
        self._hooks.append(hook)
        return hook

    def read(self, address: int, size: int) -> bytes:
        return read_memory(address, size)

    def register(self, name: str) -> int:
        """Raises TargetError."""
        at_probe = self._probes.register(name) if self._probes else None
        if at_probe is not None:
            return at_probe
        try:
            return int(_evaluate(f"${name}")) & WORD
        except gdb.error as error:
            raise TargetError(f"gdb cannot read the register {name}: {error}") from error

    def float_register(self, name: str) -> int:
        if self._probes:
            self._probes.check_vectors()
            return ptrace.float_registers(self._probed_thread, stopped_target().architecture)[name]
        try:
            return low_word(_evaluate(f"${name}"))
        except gdb.error as error:
            raise TargetError(f"gdb cannot read the register {name}: {error}") from error

    def fail(self, error: BaseException) -> None:
        """Keep the error of a handler; the first one counts."""
        self._failure = self._failure or error

    def start(self) -> None:
        try:
            gdb.execute("starti", False, True)
        except gdb.error as error:
            raise TargetError(
                f"gdb cannot start a program: {error}", help="file PROGRAM, or attach PID, then the command again"
            ) from error

    def session(self) -> Session:
        return Session(stopped_target())

    def close(self) -> None:
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()
        if self._probes:
            self._probes.close()

    # --- running ---------------------------------------------------------------------------------

    @property
    def can_run_beside(self) -> bool:
        return connection_type(gdb.selected_inferior()) == "native"

    def run_beside(self, work: Work, by_probes: bool = True) -> Ending:
        """``by_probes``: the work is to read what kernel probes record."""
        if by_probes:
            gdb_modes.check_probes()
        refused = gdb_modes.refusal()
        if refused:
            raise refused
        gdb_modes.check_interrupt()
        timed = TimedRun(work, lambda: post_whole(interrupt, interrupt))
        interrupt = partial(gdb_modes.interrupt_running, timed, self.quiet)
        with timed:
            ending = self.run()
        return timed.ending(ending)

    def run(self) -> Ending:
        refused = gdb_modes.refusal()
        if refused:
            return Ending(EndingKind.FAILED, refused.what, error=refused)
        gdb.events.new_objfile.connect(self._on_new_objfile)
        gdb.events.stop.connect(self._on_stop)
        forks = gdb_modes.Forks()
        ending: Ending | None = None
        self.is_over = False
        try:
            with loader_unwatched() as expect, self._stopping_by_probes(), forks.watched(), editor_heard() as is_to_end:
                while not ending:
                    _log.debug("continue with %d hooks", len(self._hooks))
                    expect()
                    ending = _INTERRUPTED if is_to_end() else self._continue(forks)
                self.is_over = True
                with suppress(gdb.error):
                    gdb_modes.take_interrupts()
            return ending
        finally:
            self.quiet.end()
            if self._probes and ending and ending.kind in _STOPS:
                with suppress(gdb.error):
                    gdb.execute("frame", False, False)  # gdb's console was quiet about its own stops, too
            gdb.events.new_objfile.disconnect(self._on_new_objfile)
            gdb.events.stop.disconnect(self._on_stop)

    @contextmanager
    def _stopping_by_probes(self) -> Iterator[None]:
        """Let the probes, if there are any, stop threads meanwhile. Raises TargetError."""
        if not self._probes:
            yield
            return
        self._probes.begin(arms=False)
        self.quiet.begin()
        with stopping_for(self._probes.signal) as self._stops_anyway:
            self._probed = ProbedThreads(self._probes, self._reached_probe, self.fail)
            yield

    def _reached_probe(self, tid: int) -> bool:
        """Handle a thread that has stopped by the probes' signal; True if gdb is to stop there."""
        assert self._probes
        self._probed_thread = tid
        try:
            self.stop_requested = self._probes.handle(tid)
        except (GdbextError, OSError, gdb.error, KeyboardInterrupt) as error:
            self.fail(error)
            return True
        if self.stop_requested:
            self.quiet.begin()
        return self.stop_requested

    def _handle_probe_stops(self) -> bool:
        """Handle the waiting threads if gdb has stopped for the probes' signal; True if that stop is of no other
        interest."""
        if not self._probes or not self._stop or self._stop.signal != signal_name(self._probes.signal):
            return False
        if self.stop_requested or self._failure:
            return True
        waiting = self._probes.waiting()
        for tid in waiting:
            if self.stop_requested or self._failure:
                break
            self._reached_probe(tid)
        return bool(waiting) or not self._stops_anyway

    def _continue(self, forks: gdb_modes.Forks) -> Ending | None:
        """One run; None if the process is to be resumed."""
        self._failure = self._stop = None
        self.stop_requested = self._is_replaced = False
        self._ran = program_of(gdb.selected_inferior().pid)
        try:
            with self._probed.watched() if self._probed else nullcontext():
                gdb.execute("continue", False, False)
        except KeyboardInterrupt:
            interrupt_all()  # it may still run
            return _INTERRUPTED
        except gdb.error as error:
            if self._is_another_program():  # gdb tried to set our breakpoints in it
                return _REPLACED
            return Ending(EndingKind.FAILED, f"gdb cannot resume the process: {error}", error=TargetError(str(error)))
        if is_running():
            self.is_over = True
            interrupt_all()
            return gdb_modes.not_awaited()
        is_probe = self._handle_probe_stops()
        if self._failure:
            return ending_of_failure(self._failure, "gdb")
        return None if is_probe and not self.stop_requested else forks.ending() or self._why_stopped()

    def _why_stopped(self) -> Ending | None:
        if self._is_replaced:
            return _REPLACED
        if self.stop_requested:
            # select the thread that was the last to reach a probe: gdb may have heard of another one first
            for thread in gdb.selected_inferior().threads():
                if self._probed_thread == thread.ptid[1] and thread != gdb.selected_thread():
                    thread.switch()
            return Ending(EndingKind.ASKED, "")
        stop = self._stop or _Stop()
        if stop.signal == "SIGINT":
            return _INTERRUPTED
        if stop.signal:
            return Ending(EndingKind.SIGNAL, f"the process got {stop.signal}")
        if stop.is_at_breakpoint:
            numbers = stop.breakpoints
            return Ending(EndingKind.STOPPED, f"breakpoint {numbers[0]}" if numbers else "a breakpoint")
        return Ending(EndingKind.STOPPED, "gdb stopped the process")

    def _is_another_program(self) -> bool:
        """True if the process executes another program than when it was resumed."""
        return program_of(gdb.selected_inferior().pid) not in ("", self._ran)

    def _on_new_objfile(self, event: Any) -> None:
        """Called by gdb when it has read a file's symbols. In another program all addresses are others: our breakpoints
        must not be set there. (``catch exec`` would take a number of the user's, and show in the editor's list.)"""
        del event
        if not self._is_replaced and self._is_another_program():
            self._is_replaced = True
            self.close()
            if gdb_modes.stops_by_interrupt():
                gdb.post_event(lambda: quietly("interrupt"))

    def _on_stop(self, event: Any) -> None:
        self._stop = _Stop()
        if isinstance(event, gdb.SignalEvent):
            self._stop = _Stop(signal=event.stop_signal)
        elif isinstance(event, gdb.BreakpointEvent):
            numbers = tuple(each.number for each in event.breakpoints if not isinstance(each, GdbHook))
            is_internal = bool(numbers) and max(numbers) < 0  # a GdbTrap resumes by itself
            self._stop = _Stop("SIGINT" if is_internal else "", numbers, True)


_STOPS = (EndingKind.STOPPED, EndingKind.SIGNAL, EndingKind.INTERRUPTED)
_INTERRUPTED = Ending(EndingKind.INTERRUPTED, "interrupted")
_REPLACED = Ending(EndingKind.REPLACED, "the process replaced itself by another program (exec)")
