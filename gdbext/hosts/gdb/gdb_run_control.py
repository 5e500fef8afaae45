"""gdb's side of the live commands: hooks at addresses, and ``continue``.

A breakpoint costs 160 to 290 µs a hit (gdb 13.1), plus the time of stop(). Registers are read by gdb.parse_and_eval: 6
to 22 µs; gdb.selected_frame() alone takes 14 to 128 µs. ``continue`` is executed with its output: with to_string,
gdb.write would write into that string, and MI would miss the ^running that is its result record.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
from gdbext.hosts.gdb import gdb_modes, gdb_target
from gdbext.hosts.gdb.gdb_loader import BreakpointKeeper, loader_unwatched, program_of
from gdbext.hosts.gdb.gdb_printers import WORD
from gdbext.hosts.gdb.gdb_target import execute, interrupt_all, is_running, post_whole, quietly, stopped_target
from gdbext.live.host import HookSpec
from gdbext.live.timed_run import TimedRun, check_pause, ending_of_failure
from gdbext.log import logger
from gdbext.tools.probes.thread_stopper import ProbeHooks

if TYPE_CHECKING:
    from gdbext.diagnosis.samples import Pause, Watch
    from gdbext.engine.targets.base_target import Target
    from gdbext.live.host import AddressHook
    from gdbext.live.timed_run import Work


# --- threads that kernel probes stop ---


@contextmanager
def stopping_for(number: int) -> Iterator[bool]:
    """Have gdb stop for signal ``number`` meanwhile; yields True if the user's own setting does so. Raises
    TargetError."""
    name = signal_name(number)
    before = gdb_modes.signal_actions(name)
    execute(f"handle {name} stop print")
    try:
        yield before[0]
    finally:
        words = (word if wanted else f"no{word}" for word, wanted in zip(("stop", "print", "pass"), before))
        quietly(f"handle {name} {' '.join(words)}")


class ProbedThreads:
    """Handles the threads that kernel probes stop before gdb sees them. A catchpoint would take one of the user's
    numbers and show in an editor's list, and for each stop the editor would read everything anew.

    gdb's main thread is the tracer. Within gdb's event loop it waits for the threads itself, and resumes each as gdb
    resumes one whose signal it ignores (linux_nat_filter_event, gdb/linux-nat.c). gdb stops for threads that it sees
    first, between two turns.
    """

    _TURN, _PAUSE = 0.2, 0.002
    """Seconds after which gdb has its turn, even without an event for it; seconds between two checks."""
    _BUSY = 10
    """Turns without waiting after an event: gdb needs several for each."""

    def __init__(self, hooks: ProbeHooks, handle: Callable[[int], bool], fail: Callable[[BaseException], None]) -> None:
        """``handle`` takes a thread id, raises nothing, and returns whether gdb is to stop the process there; ``fail``
        gets the errors of everything around it."""
        self._signal = hooks.signal
        self._hooks = hooks
        self._handle = handle
        self._fail = fail
        self._run: object = None  # identity of the current run
        self._busy = 0  # turns left without waiting

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Handle the threads of the process, which runs meanwhile. Raises ProbesRefused."""
        reads_running = int(gdb.VERSION.partition(".")[0]) >= 12  # the first that reads a running thread's memory
        # for a watchpoint gdb steps each thread: one that we resume would run away
        is_stepped = any(row.enabled and row.type == gdb.BP_WATCHPOINT for row in gdb.breakpoints())
        if not reads_running or is_stepped:
            self._hooks.arm()
            yield
            return
        if any(word in execute("info program") for word in ("breakpoint", "stepped")):
            self._hooks.arm()  # stopped at a known address, not by a signal: the next hook must not be missed
        self._run, self._busy = object(), 0
        self._post(self._run)
        try:
            yield
        finally:
            self._run = None

    def _post(self, run: object) -> None:
        """Have gdb's event loop call ``_turn``."""
        post_whole(partial(self._turn, run), partial(self._interrupted, run))

    def _turn(self, run: object) -> None:
        """Called in gdb's event loop, during ``run`` or after it: handle the stopped threads, then call again."""
        if run is not self._run:
            return
        try:
            self._hooks.arm()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            try:
                is_over = self._handle_all()
            finally:
                _let_gdb_check()
        except (GdbextError, OSError) as error:
            self._end(error)
            return
        if not is_over:
            self._post(run)

    def _interrupted(self, run: object) -> None:
        """Called after ``_turn`` if Ctrl+C came during it."""
        _let_gdb_check()
        if run is self._run:
            self._end(KeyboardInterrupt())

    def _end(self, error: BaseException) -> None:
        """Stop the process because of an error."""
        self._fail(error)
        quietly("interrupt")

    def _handle_all(self) -> bool:
        """Handle threads until it is gdb's turn; True if gdb is to stop the process."""
        end, seen = time.monotonic() + self._TURN, set[int]()
        while True:
            for tid in self._hooks.waiting():
                if _pending_stop(tid) == (tid, self._signal):
                    if self._handle(tid):
                        return True
                    with suppress(OSError):
                        os.waitpid(tid, ptrace.WALL)
                        ptrace.resume(tid)
                    seen.discard(tid)
            pending = _pending_stop()
            if pending and pending[1] == self._signal and pending[0] not in seen:
                seen.add(pending[0])  # it has reached a probe since
                continue
            self._busy = self._BUSY if pending else max(self._busy - 1, 0)
            if pending or self._busy or time.monotonic() >= end:
                return False
            signal.sigtimedwait({signal.SIGCHLD}, self._PAUSE)


def _pending_stop(tid: int | None = None) -> tuple[int, int] | None:
    """(thread id, signal) of a stop that gdb has not seen yet, of thread ``tid`` (None: any); None without one."""
    with suppress(ChildProcessError):
        return ptrace.peek_stop(tid)
    return None


def _let_gdb_check() -> None:
    """Unblock SIGCHLD for gdb, and have it check its threads at once. Without the signal it would wait forever."""
    try:
        signal.raise_signal(signal.SIGCHLD)  # it may raise KeyboardInterrupt
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


# --- requests of an editor: gdb's DAP server handles one after the other, and none before a command has ended
# (Server.main_loop of gdb's package gdb.dap, in gdb 18) ---

_CANCELLER, _IN_FLIGHT, _CANCEL = "canceller", "in_flight_gdb_thread", "cancel"
"""The member of gdb's DAP server that cancels requests; its member with the number of the current request; and its
method."""


@contextmanager
def editor_heard() -> Iterator[Callable[[], bool]]:
    """Interrupt the process as soon as an editor wants it stopped, or exits; yields a function that returns True once
    that has happened."""
    server = getattr(sys.modules.get("gdb.dap.server"), "_server", None)
    # the queue of requests that the server has read; its name in gdb 18, and before
    name = next((name for name in ("_read_queue", "read_queue") if hasattr(server, name)), "")
    if not name:
        yield lambda: False
        return
    queue, canceller = getattr(server, name), getattr(server, _CANCELLER, None)
    watched = WatchedQueue(queue, canceller, lambda: post_whole(interrupt_all, interrupt_all))
    setattr(server, name, watched)
    can_cancel = hasattr(canceller, _IN_FLIGHT)
    if can_cancel:
        setattr(canceller, _CANCEL, watched.cancel)
    try:
        watched.read_waiting()
        yield lambda: watched.is_to_end
    finally:
        if can_cancel:
            delattr(canceller, _CANCEL)
        setattr(server, name, queue)
        watched.end()


class WatchedQueue:
    """Stands for the queue of requests, which another thread fills while a command runs.

    A cancel of the command is handled here: gdb.interrupt(), by which gdb 18 cancels, was lost, or had gdb abort, in 3
    of 8 runs of dispatch-values by probes.
    """

    def __init__(self, queue: Any, canceller: Any, interrupt: Callable[[], None]) -> None:
        """``interrupt`` is called from the thread that fills the queue."""
        self._queue = queue
        self._canceller = canceller
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._is_over = False
        self.is_to_end = False  # True once a request has come that ends the run

    def put(self, request: Any) -> None:
        """Add a request; None: the editor has exited."""
        self._queue.put(request)
        if _ends_run(request):
            self._end_run()

    def get(self) -> Any:
        return self._queue.get()

    def cancel(self, number: int) -> None:
        """Cancel the request with that number: by an interrupt if its command runs, else as gdb does."""
        with self._canceller.lock:
            if number != getattr(self._canceller, _IN_FLIGHT):
                getattr(type(self._canceller), _CANCEL)(self._canceller, number)
                return
        self._end_run()

    def _end_run(self) -> None:
        """Interrupt the process, once."""
        with self._lock:
            if not self.is_to_end and not self._is_over:
                self._interrupt()
            self.is_to_end = True

    def read_waiting(self) -> None:
        """Examine the requests that were in the queue before; they stay there."""
        for _ in range(self._queue.qsize()):
            request = self._queue.get()
            self._queue.put(request)
            self.is_to_end = self.is_to_end or _ends_run(request)

    def end(self) -> None:
        """Stop interrupting the process: it has stopped."""
        with self._lock:
            self._is_over = True


def _ends_run(request: Any) -> bool:
    """True for a request that cannot wait until the process stops by itself."""
    commands = ("pause", "disconnect", "terminate")
    return request is None or (isinstance(request, dict) and request.get("command") in commands)


# --- hooks and the run ---


def pause_of(target: Target) -> Pause:
    """Returns a function that lets the process run for some seconds and returns the target at the next stop. Raises
    UsageError if gdb would not resume all threads, or could not stop the process again."""
    pid = target.pid  # not the target, which the next one replaces
    alternative = f"examine it from outside: detach, then scripts/dispatch -p {pid} dispatch-diagnose --samples 5"

    def stop_again(seconds: float, watch: Watch) -> Target:
        run_for(seconds, watch)  # the process runs already
        return gdb_target.brief_stop(pid)

    def pause(seconds: float, watch: Watch) -> Target:
        """The pause of a process that gdb holds: resume it, and interrupt it after that time."""
        selected, forks = gdb.selected_thread(), gdb_modes.Forks()
        ending = GdbRunControl().run_beside(lambda run: run_for(seconds, watch, run.sleep), by_probes=False)
        check_pause(ending, alternative)
        forks.check_same()
        if selected is not None and selected.is_valid():
            selected.switch()
        return gdb_target.GdbTarget(gdb.selected_inferior())

    if isinstance(target, SnapshotTarget):
        return stop_again
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
    """The needed part of gdb's event: the signal's name, and numbers of breakpoints other than our hooks. The event
    must not be kept: it holds the breakpoints, and Python's collector cannot see into gdb's objects, so that everything
    that a breakpoint's handler refers to would leak."""

    signal: str = ""
    breakpoints: tuple[int, ...] = ()
    is_at_breakpoint: bool = False


class GdbRunControl:
    """Places hooks and runs the selected inferior: a RunControl (live/host.py)."""

    def __init__(self) -> None:
        self._hooks: list[GdbHook] = []
        self._keeper = BreakpointKeeper()
        self._failure: BaseException | None = None
        self.stop_requested = False  # by a handler
        self._stop: _Stop | None = None
        self._ran = ""  # ``program_of`` the process when it was resumed
        self._is_replaced = False
        self.quiet = gdb_modes.QuietConsole()
        self._probes: ProbeHooks | None = None
        self._probed: ProbedThreads | None = None
        self._probed_thread = 0  # tid of the last thread that a probe has stopped
        self._stops_anyway = False  # the user has gdb stop for the probes' signal
        self.is_over = False
        """True at the end of a run, while gdb takes pending interrupts: handlers are not called."""

    def use_probes(self) -> None:
        gdb_modes.check_probes()
        self._probes = ProbeHooks(stopped_target, self.read)

    def place(self, spec: HookSpec) -> AddressHook:
        """Call the hook's handler whenever a thread reaches its address, until it is removed. Raises TargetError."""
        if self._probes:
            return self._probes.place(spec)
        with gdb_target.gdb_errors(f"set a breakpoint at {spec.address:#x}"):
            hook = GdbHook(self, spec)
        self._keeper.keep(hook, spec.address)
        self._hooks.append(hook)
        return hook

    def read(self, address: int, size: int) -> bytes:
        return gdb_target.read_memory(address, size)

    def register(self, name: str) -> int:
        """A register of the thread at a hook. Raises TargetError."""
        at_probe = self._probes.register(name) if self._probes else None
        return gdb_target.read_register(name) if at_probe is None else at_probe

    def float_register(self, name: str) -> int:
        """The low 8 bytes of a vector register of the thread at a hook. Raises TargetError."""
        if self._probes:
            self._probes.check_vectors()
            return ptrace.float_registers(self._probed_thread, stopped_target().architecture)[name]
        with gdb_target.gdb_errors(f"read the register {name}"):
            return gdb_target.low_word(_evaluate(f"${name}"))

    def fail(self, error: BaseException) -> None:
        """Keep the error of a handler; the first one counts."""
        self._failure = self._failure or error

    def start(self) -> None:
        with gdb_target.gdb_errors("start a program", "file PROGRAM, or attach PID, then the command again"):
            gdb.execute("starti", False, True)

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
        return gdb_target.connection_type(gdb.selected_inferior()) == "native"

    def run_beside(self, work: Work, by_probes: bool = True) -> Ending:
        """``by_probes``: the work reads what kernel probes record. Raises TargetError, UsageError."""
        if by_probes:
            gdb_modes.check_probes()
        refused = gdb_modes.refusal()
        if refused:
            raise refused
        gdb_modes.check_interrupt()

        def interrupt() -> None:  # in gdb's event loop, where the process may have stopped before
            if timed.is_running and is_running():
                self.quiet.begin()
                quietly("interrupt")

        timed = TimedRun(work, lambda: post_whole(interrupt, interrupt))
        with timed:
            ending = self.run()
        return timed.ending(ending)

    def run(self) -> Ending:
        """Let the process run until something other than a hook stops it, or a handler requests that."""
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
        """Handle the threads at probes; True if gdb has stopped for these alone."""
        if not self._probes or not self._stop or self._stop.signal != signal_name(self._probes.signal):
            return False
        if self.stop_requested or self._failure:
            return True
        waiting = self._probes.waiting()
        any(map(self._reached_probe, waiting))  # up to the first one that is to stop
        return bool(waiting) or not self._stops_anyway

    def _continue(self, forks: gdb_modes.Forks) -> Ending | None:
        """Resume the process and wait until it stops; the ending of that run, None if it is to be resumed again."""
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
            if self._has_other_program():  # gdb tried to set our breakpoints in it
                return _REPLACED
            return Ending(EndingKind.FAILED, f"gdb cannot resume the process: {error}", error=TargetError(str(error)))
        if is_running():
            # gdb waits only in a command that was typed or sent (all_uis_on_sync_execution_starting, gdb/event-top.c)
            self.is_over = True
            interrupt_all()
            unawaited = TargetError(
                "gdb does not wait for the process in functions called by gdb.post_event while its prompt is shown",
                why="the command would end while the process runs on; it was interrupted instead",
                help="type it at gdb's prompt, send it by MI or DAP, or: scripts/dispatch -p PID",
            )
            return Ending(EndingKind.FAILED, unawaited.what, error=unawaited)
        is_probe = self._handle_probe_stops()
        if self._failure:
            return ending_of_failure(self._failure, "gdb")
        return None if is_probe and not self.stop_requested else forks.ending() or self._ending_at_stop()

    def _ending_at_stop(self) -> Ending:
        """The ending of a run that gdb stopped while the process exists."""
        if self._is_replaced:
            return _REPLACED
        if self.stop_requested:
            # select the thread that was the last to reach a probe: gdb may have heard of another one first
            for thread in gdb.selected_inferior().threads():
                if self._probed_thread == thread.ptid[1] and thread != gdb.selected_thread():
                    thread.switch()
            return Ending(EndingKind.ASKED, "")
        stop = self._stop or _Stop()
        if stop.signal:
            is_interrupt = stop.signal == "SIGINT"
            return _INTERRUPTED if is_interrupt else Ending(EndingKind.SIGNAL, f"the process got {stop.signal}")
        if stop.is_at_breakpoint:
            numbers = stop.breakpoints
            return Ending(EndingKind.STOPPED, f"breakpoint {numbers[0]}" if numbers else "a breakpoint")
        return Ending(EndingKind.STOPPED, "gdb stopped the process")

    def _has_other_program(self) -> bool:
        """True if the process executes another program than when it was resumed."""
        return program_of(gdb.selected_inferior().pid) not in ("", self._ran)

    def _on_new_objfile(self, event: Any) -> None:
        """Called by gdb when it has read a file's symbols. In another program all addresses are others: our breakpoints
        must not be set there. (``catch exec`` would take a number of the user's, and show in the editor's list.)"""
        del event
        if not self._is_replaced and self._has_other_program():
            self._is_replaced = True
            self.close()
            if gdb_modes.stops_by_interrupt():
                gdb.post_event(lambda: quietly("interrupt"))

    def _on_stop(self, event: Any) -> None:
        """Called by gdb at each stop: note why."""
        self._stop = _Stop()
        if isinstance(event, gdb.SignalEvent):
            self._stop = _Stop(signal=event.stop_signal)
        elif isinstance(event, gdb.BreakpointEvent):
            numbers = tuple(hit.number for hit in event.breakpoints if not isinstance(hit, GdbHook))
            is_internal = bool(numbers) and max(numbers) < 0  # a GdbTrap resumes by itself
            self._stop = _Stop("SIGINT" if is_internal else "", numbers, is_at_breakpoint=True)


_STOPS = (EndingKind.STOPPED, EndingKind.SIGNAL, EndingKind.INTERRUPTED)
_INTERRUPTED = Ending(EndingKind.INTERRUPTED, "interrupted")
_REPLACED = Ending(EndingKind.REPLACED, "the process replaced itself by another program (exec)")
