"""Modes of gdb, the user's settings for ``continue``: which threads and which processes it lets run, whom gdb keeps
after a fork, and whether it could stop the process again. None of them is changed.

Tried with gdb 13.1 and 18.1: with ``scheduler-locking on`` one thread runs, and waits for ever where another one has
what it needs (a GIL); with ``detach-on-fork off`` the other side of a fork stands still until somebody lets it go, and
a parent that waits for its child with it; with ``follow-fork-mode child`` gdb lets the parent go, without a breakpoint
in it.

The table of signals, too, is the user's: while kernel probes stop threads by a signal gdb has to stop for it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import gdb

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.engine.targets.live import ptrace
from gdbext.engine.targets.live.proc_checks import living_threads, status_fields
from gdbext.engine.targets.system.linux import is_alive, signal_name, signals_in
from gdbext.errors import GdbextError, ProbesRefused, TargetError, UsageError
from gdbext.hosts.gdb.gdb_target import connection_type, execute, is_running, post_whole, quietly
from gdbext.live.host import probes_are_elsewhere
from gdbext.log import logger

if TYPE_CHECKING:
    from gdbext.live.timed_run import TimedRun
    from gdbext.tools.probes.thread_stopper import ProbeHooks

_log = logger(__name__)


def check_pause_works(alternative: str) -> None:
    """Raise UsageError where gdb would not let all of the process run for a while, or could not stop it again; the
    help is ``alternative`` then."""
    if _runs_in_part():
        setting = "non-stop mode is on" if gdb.parameter("non-stop") else "scheduler-locking is on"
        raise UsageError(f"--samples lets the whole process run, and {setting}", help=alternative)
    check_interrupt(f", or {alternative}")


def check_interrupt(alternative: str = "") -> None:
    """Raise UsageError where gdb could not interrupt the process; ``alternative`` is added to the help."""
    if not stops_by_interrupt():
        raise UsageError(
            "this command stops the process by an interrupt, and gdb passes SIGINT on to the program",
            help=f"handle SIGINT stop nopass{alternative}",
        )


def _runs_in_part() -> bool:
    """``continue`` lets some thread run, not all."""
    return _locked() or bool(gdb.parameter("non-stop"))


def _locked() -> bool:
    """``continue`` lets the selected thread run alone, though there are others."""
    return gdb.parameter("scheduler-locking") == "on" and len(gdb.selected_inferior().threads()) > 1


def stops_by_interrupt() -> bool:
    """True if gdb stops by SIGINT and hides it, as its table of signals has it from the beginning: else
    the program would get a SIGINT that nobody sent."""
    rows = [line.split() for line in execute("info signals SIGINT").splitlines()]
    return any(row[:1] == ["SIGINT"] and row[1:4:2] == ["Yes", "No"] for row in rows)


@contextmanager
def stopping_for(number: int) -> Iterator[bool]:
    """gdb stops for a signal meanwhile; True where it does by the user's own will. Raises TargetError."""
    name = signal_name(number)
    rows = [line.split() for line in execute(f"info signals {name}").splitlines()]
    before = next(
        (tuple(word == "Yes" for word in row[1:4]) for row in rows if row[:1] == [name]), (False, False, True)
    )
    execute(f"handle {name} stop print")
    try:
        yield before[0]
    finally:
        words = (word if wanted else f"no{word}" for word, wanted in zip(("stop", "print", "pass"), before))
        quietly(f"handle {name} {' '.join(words)}")


_READS_RUNNING = 12
"""The first gdb that reads the memory of a thread that runs."""


class ProbedThreads:
    """Handles the threads that kernel probes stop before gdb sees them. A catchpoint would take one of the user's
    numbers and show in an editor's list, and a stop for each would have the editor look at everything anew.

    gdb's main thread is the tracer. Within gdb's event loop it waits for the threads itself, and lets each go on as gdb
    does for a signal that nobody wants to know of (linux_nat_filter_event, gdb/linux-nat.c). For those that gdb gets
    first, in the moments in between, it stops.
    """

    _TURN, _PAUSE = 0.2, 0.002
    """Seconds after which gdb has its turn, though the process has no news for it; and between two looks."""
    _BUSY = 10
    """Turns without waiting, once there were news: gdb has more to do for each than one."""

    def __init__(self, hooks: ProbeHooks, handle: Callable[[int], bool], fail: Callable[[BaseException], None]) -> None:
        """``handle`` raises nothing, and says whether gdb is to stop the process there; ``fail`` gets what else
        fails."""
        self._signal = hooks.signal
        self._hooks = hooks
        self._handle = handle
        self._fail = fail
        self._run: object = None
        self._busy = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Handle the threads of the process, which runs meanwhile. Raises ProbesRefused."""
        if int(gdb.VERSION.partition(".")[0]) < _READS_RUNNING or _is_stepped():
            self._hooks.arm()
            yield
            return
        if _stands_at_a_place():
            self._hooks.arm()  # what comes next must not be missed
        self._run, self._busy = object(), 0
        self._post(self._run)
        try:
            yield
        finally:
            self._run = None

    def _post(self, run: object) -> None:
        post_whole(partial(self._turn, run), partial(self._cut, run))

    def _turn(self, run: object) -> None:
        """Called in gdb's event loop, in the run that it belongs to or after it."""
        if run is not self._run:
            return
        try:
            self._hooks.arm()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            try:
                is_over = self._handle_all()
            finally:
                _look_for_itself()
        except (GdbextError, OSError) as error:
            self._end(error)
            return
        if not is_over:
            self._post(run)

    def _cut(self, run: object) -> None:
        """Ctrl+C came in a turn."""
        _look_for_itself()
        if run is self._run:
            self._end(KeyboardInterrupt())

    def _end(self, error: BaseException) -> None:
        self._fail(error)
        quietly("interrupt")

    def _handle_all(self) -> bool:
        """Handle threads until gdb has something to do; True where that is to stop the process."""
        end, seen = time.monotonic() + self._TURN, set[int]()
        while True:
            for thread in self._hooks.waiting():
                if self._is_stopped(thread):
                    if self._handle(thread):
                        return True
                    self._let_go(thread)
                    seen.discard(thread)
            news = self._news()
            if news and news[1] == self._signal and news[0] not in seen:
                seen.add(news[0])  # it has got to a probe since
                continue
            self._busy = self._BUSY if news else max(self._busy - 1, 0)
            if news or self._busy or time.monotonic() >= end:
                return False
            signal.sigtimedwait({signal.SIGCHLD}, self._PAUSE)

    def _is_stopped(self, thread: int) -> bool:
        with suppress(ChildProcessError):
            return ptrace.peek_stop(thread) == (thread, self._signal)
        return False

    def _let_go(self, thread: int) -> None:
        with suppress(OSError):
            os.waitpid(thread, ptrace.WALL)
            ptrace.go_on(thread)

    def _news(self) -> tuple[int, int] | None:
        with suppress(ChildProcessError):
            return ptrace.peek_stop()
        return None


def _look_for_itself() -> None:
    """gdb hears SIGCHLD again, and looks at once. Without it, it would wait for ever."""
    try:
        signal.raise_signal(signal.SIGCHLD)  # it may raise KeyboardInterrupt
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _is_stepped() -> bool:
    """gdb steps each thread for a watchpoint of the user's: whoever lets one go on would let it run away."""
    return any(each.enabled and each.type == gdb.BP_WATCHPOINT for each in gdb.breakpoints())


def _stands_at_a_place() -> bool:
    """The process has stopped at a breakpoint, or after a step: not anywhere, by a signal."""
    return any(word in execute("info program") for word in ("breakpoint", "stepped"))


def refusal() -> TargetError | None:
    """The reason why nothing would come of ``continue`` with hooks, None where all is well."""
    if gdb.parameter("non-stop"):
        return TargetError(
            "non-stop mode is on: continue would let one thread run, and threads stop one by one",
            help="detach, set non-stop off, attach again",
        )
    if "full" in execute("info record"):  # "Active record target: record-full"
        return TargetError(
            "gdb records each instruction (record full), which takes the process 100,000 times as long",
            help="record stop",
        )
    if _locked():
        return TargetError(_locked_text(), help="set scheduler-locking replay, which is gdb's default")
    return None


def not_awaited() -> Ending:
    """The ending where gdb came back from ``continue`` while the process runs: it waits only in a command that was
    typed or sent (all_uis_on_sync_execution_starting, gdb/event-top.c). The process is interrupted."""
    error = TargetError(
        "gdb does not wait for the process in what it calls by gdb.post_event while its prompt is shown",
        why="the command would end while the process runs on; it was interrupted instead",
        help="type it at gdb's prompt, send it by MI or DAP, or: scripts/dispatch -p PID",
    )
    return Ending(EndingKind.FAILED, error.what, error=error)


def check_probes() -> None:
    """Raise ProbesRefused where kernel probes, which watch a process of this machine, would see nothing of this one."""
    if connection_type(gdb.selected_inferior()) != "native":
        raise probes_are_elsewhere()
    if gdb.parameter("follow-fork-mode") == "child":
        raise ProbesRefused(
            f"they watch process {gdb.selected_inferior().pid}, and gdb would leave it for the first child that it "
            "forks (follow-fork-mode child)",
            help="set follow-fork-mode parent, or --engine breakpoints",
        )


def _locked_text() -> str:
    thread = gdb.selected_thread()
    number = f"thread {thread.num}" if thread is not None else "one thread"
    return f"scheduler-locking is on: {number} would run alone, without those that it may wait for"


def breakpoint_notes() -> tuple[str, ...]:
    """Notes on breakpoints that stay, for the user to read before he says ``continue``."""
    found = [f"{_locked_text()}: set scheduler-locking replay"] if _locked() else []
    if not gdb.parameter("detach-on-fork") and not gdb.parameter("schedule-multiple"):
        found.append(
            "detach-on-fork is off: what this process forks stays stopped, and so does this process while it waits for "
            "that: set schedule-multiple on lets both run"
        )
    return tuple(found)


class Forks:
    """The processes of one run: whom gdb holds after a fork, and how those ended that it ran."""

    def __init__(self) -> None:
        self._first = gdb.selected_inferior().pid
        self._ended: dict[int, tuple[int, Ending]] = {}
        """Number of an inferior → process id, ending."""
        self._told: set[int] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """gdb's events are listened to meanwhile."""
        gdb.events.new_inferior.connect(self._appeared)
        gdb.events.exited.connect(self._exited)
        try:
            yield
        finally:
            gdb.events.new_inferior.disconnect(self._appeared)
            gdb.events.exited.disconnect(self._exited)

    def _appeared(self, event: Any) -> None:
        """Called by gdb before the new one has its process id."""
        del event
        gdb.post_event(self._tell)

    def _tell(self) -> None:
        if gdb.parameter("schedule-multiple") or gdb.parameter("detach-on-fork"):
            return
        follows = gdb.parameter("follow-fork-mode") == "child"
        for each in gdb.inferiors():
            if each.pid and (each.pid == self._first) == follows and each.pid not in self._told:
                self._told.add(each.pid)
                text = f"process {each.pid} stays stopped since the fork, as inferior {each.num} (detach-on-fork off)"
                advice = f"Ctrl+C, then detach inferiors {each.num}, or set schedule-multiple on to let both run"
                gdb.write(f"note: {text}: {advice}\n", gdb.STDERR)

    def _exited(self, event: Any) -> None:
        """Called by gdb also for a process that it lets go."""
        status = getattr(event, "exit_code", None)
        if status is None:
            ending = Ending(EndingKind.KILLED, "was killed by a signal")
        else:
            ending = Ending(EndingKind.EXITED, f"exited with status {status}", status=int(status))
        self._ended[event.inferior.num] = (event.inferior.pid, ending)

    @property
    def ending(self) -> Ending | None:
        """The ending of the process that gdb ran last; None while there is one."""
        inferior = gdb.selected_inferior()
        if inferior.pid:
            return None
        pid, ending = self._ended.get(inferior.num, (0, Ending(EndingKind.GONE, "ended")))
        if pid in (0, self._first):
            return ending._replace(text=f"the process {ending.text}")
        return ending._replace(text=f"process {pid}, a child, {ending.text}; {self._rest()}")

    def check_same(self) -> None:
        """Raise TargetError where gdb now has another process than when the run began."""
        pid = gdb.selected_inferior().pid
        if pid not in (0, self._first):
            raise TargetError(
                f"gdb has process {pid} now, a child; {self._rest()}", help="set follow-fork-mode parent, then again"
            )

    def _rest(self) -> str:
        """A sentence on the process that ran at first."""
        held = [each.num for each in gdb.inferiors() if each.pid == self._first]
        if held:
            return f"process {self._first} is stopped: inferior {held[0]} selects it"
        if is_alive(self._first):
            return f"process {self._first} runs on without gdb (follow-fork-mode child): attach {self._first}"
        return f"process {self._first} is gone, too"


class QuietConsole:
    """gdb's console says nothing of a stop that is ours; editors are told (gdb 13 and later)."""

    _SETTING = "suppress-cli-notifications"

    def __init__(self) -> None:
        self._is_ours = False

    def begin(self) -> None:
        """Suppress what the user has not suppressed already."""
        try:
            self._is_ours = self._is_ours or not gdb.parameter(self._SETTING)
        except RuntimeError:  # an older gdb
            return
        quietly(f"set {self._SETTING} on")

    def end(self) -> None:
        """Leave the setting as it was."""
        if self._is_ours:
            self._is_ours = False
            quietly(f"set {self._SETTING} off")


def interrupt_running(timed: TimedRun, quiet: QuietConsole) -> None:
    """Called in gdb's event loop: the process may have stopped before."""
    if timed.is_running and is_running():
        quiet.begin()
        quietly("interrupt")


_TRIES = 50
"""Stops that gdb may have to tell of before that of an interrupt: one for each thread at a probe."""


def take_interrupts() -> None:
    """Have gdb take the interrupts that are under way where something else has stopped the process first: the next run
    would stop at once, and after a detach they would end it. Where they are not gdb's by its table they stay. Raises
    gdb.error: the process ends."""
    for _ in range(_TRIES):
        pid = gdb.selected_inferior().pid
        if not (pid and connection_type(gdb.selected_inferior()) == "native" and _is_due(pid) and stops_by_interrupt()):
            return
        _log.debug("an interrupt is under way")
        gdb.execute("continue", False, True)


def _is_due(pid: int) -> bool:
    """A SIGINT waits for the process, and some thread takes it."""
    bit = 1 << (signal.SIGINT - 1)
    threads = [status_fields(f"/proc/{pid}/task/{thread}/status") for thread in living_threads(pid)]
    pending = ((signals_in(each, "SigPnd", "ShdPnd") or 0, signals_in(each, "SigBlk") or 0) for each in threads)
    return any(waiting & ~blocked & bit for waiting, blocked in pending)
