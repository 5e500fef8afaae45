"""Modes of gdb, the user's settings for ``continue``: which threads and which processes it lets run, whom gdb keeps
after a fork, and whether it could stop the process again. None of them is changed.

Tried with gdb 13.1 and 18.1: with ``scheduler-locking on`` one thread runs, and waits for ever where another one has
what it needs (a GIL); with ``detach-on-fork off`` the other side of a fork stands still until somebody lets it go, and
a parent that waits for its child with it; with ``follow-fork-mode child`` gdb lets the parent go, without a breakpoint
in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gdb

from gdbext.diagnosis.report.report import Ending, EndingKind
from gdbext.engine.targets.system.linux import is_alive
from gdbext.errors import ProbesRefused, TargetError, UsageError
from gdbext.hosts.gdb.gdb_target import execute


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


def check_probes() -> None:
    """Raise ProbesRefused where kernel probes, which watch this process, would see nothing."""
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
            "detach-on-fork is off: what this process forks stands still, and it does, too, while it waits for that: "
            "set schedule-multiple on lets both run"
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
                text = f"process {each.pid} stands still since the fork, as inferior {each.num} (detach-on-fork off)"
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
            return f"process {self._first} stands still: inferior {held[0]} selects it"
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


def quietly(command: str) -> bool:
    """Run a command of gdb's without output; False where it fails."""
    try:
        gdb.execute(command, False, True)
    except gdb.error:
        return False
    return True
