"""gdb's settings for ``continue``, which are never changed: the threads and processes that it resumes or keeps after a
fork, and whether gdb can interrupt the process.

With ``scheduler-locking on`` one thread runs, and waits forever for what another one holds (the GIL); with
``detach-on-fork off`` the other side of a fork stays stopped until the user resumes it, and a parent that waits for it,
too; with ``follow-fork-mode child`` gdb detaches from the parent, which then has no breakpoints.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gdb

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.engine.targets.live.proc_checks import living_threads
from gdbext.engine.targets.system.linux import is_alive, signals_in
from gdbext.engine.targets.system.proc_files import status_fields
from gdbext.errors import ProbesRefused, TargetError, UsageError
from gdbext.hosts.gdb.gdb_target import connection_type, execute, quietly
from gdbext.live.host import probes_are_elsewhere
from gdbext.log import logger

_log = logger(__name__)


def check_pause_works(alternative: str) -> None:
    """Raise UsageError, with the help ``alternative``, if gdb would not resume all threads or could not stop them."""
    non_stop = bool(gdb.parameter("non-stop"))
    if non_stop or _is_locked():
        setting = "non-stop mode is on" if non_stop else "scheduler-locking is on"
        raise UsageError(f"--samples lets the whole process run, but {setting}", help=alternative)
    check_interrupt(f", or {alternative}")


def check_interrupt(alternative: str = "") -> None:
    """Raise UsageError if gdb could not interrupt the process; ``alternative`` is added to the help."""
    if not stops_by_interrupt():
        raise UsageError(
            "this command interrupts the process by SIGINT, but gdb passes SIGINT on to the program",
            help=f"handle SIGINT stop nopass{alternative}",
        )


def _is_locked() -> bool:
    """True if ``continue`` resumes the selected thread alone, though there are others."""
    return gdb.parameter("scheduler-locking") == "on" and len(gdb.selected_inferior().threads()) > 1


def _locked_text() -> str:
    """The sentence for the user that scheduler-locking is on."""
    thread = gdb.selected_thread()
    number = f"thread {thread.num}" if thread is not None else "one thread"
    return f"scheduler-locking is on: {number} would run alone, without the threads that it may wait for"


def stops_by_interrupt() -> bool:
    """True if gdb stops by SIGINT and does not pass it on to the program, as is its default."""
    return signal_actions("SIGINT")[::2] == (True, False)


def signal_actions(name: str) -> tuple[bool, ...]:
    """(stop, print, pass) of a signal in gdb's table, each True if gdb does so. Raises TargetError."""
    rows = (line.split() for line in execute(f"info signals {name}").splitlines())
    row = next((row for row in rows if row[:1] == [name]), ["", "No", "No", "Yes"])
    return tuple(word == "Yes" for word in row[1:4])


def refusal() -> TargetError | None:
    """The reason why hooks cannot work during ``continue``, None if they can."""
    if gdb.parameter("non-stop"):
        return TargetError(
            "non-stop mode is on: continue would resume one thread, and threads would stop one by one",
            help="detach, set non-stop off, attach again",
        )
    if "full" in execute("info record"):  # "Active record target: record-full"
        return TargetError(
            "gdb records each instruction (record full), which makes the process 100,000 times slower",
            help="record stop",
        )
    if _is_locked():
        return TargetError(_locked_text(), help="set scheduler-locking replay, which is gdb's default")
    return None


def check_probes() -> None:
    """Raise ProbesRefused if kernel probes, which watch a process of this machine, would not see this one."""
    if connection_type(gdb.selected_inferior()) != "native":
        raise probes_are_elsewhere()
    if gdb.parameter("follow-fork-mode") == "child":
        raise ProbesRefused(
            f"they watch process {gdb.selected_inferior().pid}, and gdb would leave it and follow its first child "
            "(follow-fork-mode child)",
            help="set follow-fork-mode parent, or --engine breakpoints",
        )


def breakpoint_notes() -> tuple[str, ...]:
    """Notes on breakpoints that stay, for the user to read before the next ``continue``."""
    notes = [f"{_locked_text()}: set scheduler-locking replay"] if _is_locked() else []
    if not gdb.parameter("detach-on-fork") and not gdb.parameter("schedule-multiple"):
        notes.append(
            "detach-on-fork is off: children that this process forks stay stopped, and so does this process when it "
            "waits for one; set schedule-multiple on lets both run"
        )
    return tuple(notes)


class Forks:
    """Notes the processes of one run: those that gdb holds after a fork, and how those that it ran ended."""

    def __init__(self) -> None:
        self._first = gdb.selected_inferior().pid
        self._endings: dict[int, tuple[int, Ending]] = {}  # number of an inferior → pid, ending
        self._noted: set[int] = set()  # pids of the children that the user was told of

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note these events meanwhile."""
        gdb.events.new_inferior.connect(self._on_new_inferior)
        gdb.events.exited.connect(self._on_exited)
        try:
            yield
        finally:
            gdb.events.new_inferior.disconnect(self._on_new_inferior)
            gdb.events.exited.disconnect(self._on_exited)

    def _on_new_inferior(self, event: Any) -> None:
        """Called by gdb before the new inferior has its process id."""
        del event
        gdb.post_event(self._write_notes)

    def _write_notes(self) -> None:
        """Tell the user of each process that gdb keeps stopped after a fork, once."""
        if gdb.parameter("schedule-multiple") or gdb.parameter("detach-on-fork"):
            return
        follows = gdb.parameter("follow-fork-mode") == "child"
        for inferior in gdb.inferiors():
            pid, number = inferior.pid, inferior.num
            if pid and (pid == self._first) == follows and pid not in self._noted:
                self._noted.add(pid)
                text = f"process {pid} has been stopped since the fork, as inferior {number} (detach-on-fork off)"
                advice = f"Ctrl+C, then detach inferiors {number}, or set schedule-multiple on to let both run"
                gdb.write(f"note: {text}: {advice}\n", gdb.STDERR)

    def _on_exited(self, event: Any) -> None:
        """Called by gdb when a process has exited or was detached: note how it ended."""
        status = getattr(event, "exit_code", None)
        if status is None:
            ending = Ending(EndingKind.KILLED, "was killed by a signal")
        else:
            ending = Ending(EndingKind.EXITED, f"exited with status {status}", status=int(status))
        self._endings[event.inferior.num] = (event.inferior.pid, ending)

    def ending(self) -> Ending | None:
        """The ending of the process that gdb ran last; None while gdb has a process."""
        inferior = gdb.selected_inferior()
        if inferior.pid:
            return None
        pid, ending = self._endings.get(inferior.num, (0, Ending(EndingKind.GONE, "ended")))
        if pid in (0, self._first):
            return ending._replace(text=f"the process {ending.text}")
        return ending._replace(text=f"process {pid}, a child, {ending.text}; {self._first_process_text()}")

    def check_same(self) -> None:
        """Raise TargetError if gdb now has another process than when the run began."""
        pid = gdb.selected_inferior().pid
        if pid not in (0, self._first):
            raise TargetError(
                f"gdb has process {pid} now, a child; {self._first_process_text()}",
                help="set follow-fork-mode parent, then again",
            )

    def _first_process_text(self) -> str:
        """The clause on the present state of the process that gdb had when the run began."""
        held = next((inferior.num for inferior in gdb.inferiors() if inferior.pid == self._first), None)
        if held is not None:
            return f"process {self._first} is stopped: inferior {held} selects it"
        if is_alive(self._first):
            return f"process {self._first} runs without gdb (follow-fork-mode child): attach {self._first}"
        return f"process {self._first} is gone, too"


class QuietConsole:
    """Keeps gdb's console, but not editors, from reporting a stop of ours (gdb 13 and later)."""

    _SETTING = "suppress-cli-notifications"

    def __init__(self) -> None:
        self._is_ours = False

    def begin(self) -> None:
        """Suppress the notifications unless the user has done so."""
        try:
            self._is_ours = self._is_ours or not gdb.parameter(self._SETTING)
        except RuntimeError:  # an older gdb
            return
        quietly(f"set {self._SETTING} on")

    def end(self) -> None:
        """Restore the user's setting."""
        if self._is_ours:
            self._is_ours = False
            quietly(f"set {self._SETTING} off")


def take_interrupts() -> None:
    """Have gdb take the SIGINTs that are pending because another event stopped the process first: they would stop the
    next run at once, and kill the process after a detach. Does nothing if gdb passes SIGINT on to the program. Raises
    gdb.error if the process exits."""
    for _ in range(50):  # stops that gdb may report before that of an interrupt: one for each thread at a probe
        inferior = gdb.selected_inferior()
        if not inferior.pid or connection_type(inferior) != "native":
            return
        bit = 1 << (signal.SIGINT - 1)
        statuses = (status_fields(f"/proc/{inferior.pid}/task/{tid}/status") for tid in living_threads(inferior.pid))
        masks = [(signals_in(row, "SigPnd", "ShdPnd") or 0, signals_in(row, "SigBlk") or 0) for row in statuses]
        if not any(pending & ~blocked & bit for pending, blocked in masks) or not stops_by_interrupt():
            return
        _log.debug("an interrupt is under way")
        gdb.execute("continue", False, True)
