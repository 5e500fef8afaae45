"""The tool timeout: runs a command, diagnoses it and all its children when it takes too long, and then kills them.

Exit status and durations are those of timeout(1) of GNU coreutils.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine import libc, numbers
from gdbext.engine.formats.workplace import Workplace
from gdbext.engine.targets.budget import duration
from gdbext.engine.targets.system.linux import is_alive
from gdbext.engine.terminal import shown, shown_json
from gdbext.errors import GdbextError, TargetError, UsageError
from gdbext.render import escape
from gdbext.tools.family import descendants, diagnose_tree, end_processes
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

    from gdbext.tools.program import Dispatch

TIMED_OUT, FAILED, NOT_INVOKED, NOT_FOUND = 124, 125, 126, 127
"""Exit statuses of timeout(1): the command took too long; we failed; it cannot be invoked; it was not found."""
_EPILOG = """\
DURATION is a number of seconds, or a number followed by s, m, h or d; 0 means no limit. When it has passed, COMMAND and
all of its descendants are diagnosed, for which each is stopped for a few milliseconds. The verdicts are written to
standard error, and recordings are saved in DIR (default: a new temporary folder). Then the signal is sent to all of
them, and SIGKILL to those that still run after --kill-after (default: 10 s).

If this command receives SIGTERM or SIGHUP, which schedulers send before they kill a job, it does the same at once: it
writes the verdicts, then forwards the signal.

The exit status is that of timeout(1): 124 on a timeout, 137 if SIGKILL was needed, 125 if this command itself failed,
126 if COMMAND cannot be invoked, 127 if it is not found; otherwise COMMAND's own, or 128+N if signal N killed it.

  scripts/dispatch timeout 30m --save hangs -- torchrun --nproc-per-node 8 train.py
"""


class TimeoutOrder(NamedTuple):
    """The command line, split. Times are in seconds; ``folder`` is "" if the user names none."""

    duration: float
    command: tuple[str, ...]
    kill_after: float
    signal: int
    folder: str
    json: bool
    keeps_status: bool = False
    in_foreground: bool = False


class TimeoutProgram(Program):
    """The program ``scripts/dispatch timeout`` as a tool."""

    common = ("--json",)

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _EPILOG
        parser.add_argument("duration", metavar="DURATION", help="how long COMMAND may run: 600, 10m, 1.5h, 2d")
        parser.add_argument("command", metavar="[--] COMMAND …", nargs="*", help="the command with its arguments")
        kill_help = "send SIGKILL if it still runs this long afterwards (default: 10)"
        parser.add_argument("--kill-after", "-k", metavar="DURATION", default="10", help=kill_help)
        signal_help = "the signal to send on timeout (default: TERM)"
        parser.add_argument("--signal", "-s", metavar="SIGNAL", default="TERM", help=signal_help)
        status_help = "exit with COMMAND's status even on a timeout"
        parser.add_argument("--preserve-status", action="store_true", help=status_help)
        group_help = "keep COMMAND in the terminal's foreground process group, so that it can read from it"
        parser.add_argument("--foreground", action="store_true", help=group_help)
        parser.add_argument("--verbose", "-v", action="store_true", help="no effect: the output is always verbose")
        parser.add_argument("--save", metavar="DIR", default="", help="folder for verdicts and recordings")

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        try:
            return Outcome(_TimedCommand(self.order(argv), dispatch).run())
        except _NotStarted as error:
            return Outcome(error.status, error=error.what)
        except GdbextError as error:
            return Outcome(FAILED, error="\n  try: ".join(filter(None, (error.what, error.help))))

    def order(self, argv: Sequence[str]) -> TimeoutOrder:
        """The parsed command line. Raises UsageError, HelpRequested."""
        own, command = _split(list(argv))
        args = self.parse(own)
        if not command:
            raise UsageError("there is no COMMAND", help="dispatch timeout DURATION -- COMMAND …")
        name = args.signal.upper()
        signals = signal.Signals.__members__
        number = signals.get(name if name.startswith("SIG") else f"SIG{name}") or numbers.number(args.signal) or 0
        kill_after = duration(args.kill_after or "10", "--kill-after", is_endless=True)
        limit = duration(args.duration, "DURATION", is_endless=True)
        if number not in signal.valid_signals():
            raise UsageError(f"there is no signal {args.signal!r}")
        flags = (args.json, args.preserve_status, args.foreground)
        return TimeoutOrder(limit, tuple(command), kill_after, int(number), args.save, *flags)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """(our own words, the command): the command begins after "--", or at the first word after the duration that is no
    option of ours."""
    has_duration = is_value = False
    for index, word in enumerate(words):
        if is_value:
            is_value = False
        elif word == "--":
            return words[:index], words[index + 1 :]
        elif word in ("-k", "--kill-after", "-s", "--signal", "--save"):
            is_value = True
        elif not word.startswith("-"):
            if has_duration:
                return words[:index], words[index:]
            has_duration = True
    return words, []


class _NotStarted(TargetError):
    """The command did not start; ``status`` is timeout(1)'s."""

    status = NOT_FOUND


class _TimedCommand:
    """One command while it runs."""

    def __init__(self, order: TimeoutOrder, dispatch: Dispatch) -> None:
        """Start the command, in a session of its own: its whole group gets our signals. Raises TargetError."""
        self._order = order
        self._dispatch = dispatch
        if order.folder:
            Workplace(order.folder).close()
        self._wakes, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        self._received: list[int] = []
        libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER (linux/prctl.h): orphans of the command become our children
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # These ask for the end of the command. It is diagnosed first, save on Ctrl+C and Ctrl+\.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, lambda number, _: self._received.append(number))
        try:
            self._child = subprocess.Popen(order.command, start_new_session=not order.in_foreground)
        except OSError as error:
            failure = _NotStarted(f"{order.command[0]} cannot be started: {error.strerror}")
            failure.status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_INVOKED
            raise failure from error

    def run(self) -> int:
        """Wait for the command's end, or kill it; the exit status of timeout(1)."""
        status = self._wait(self._order.duration or None)
        if status is None:
            number = self._received[0] if self._received else None
            if number not in (signal.SIGINT, signal.SIGQUIT):
                self._diagnose(number)
            return self._kill(number)
        return status if status >= 0 else 128 - status

    def _wait(self, limit: float | None) -> int | None:
        """The command's status; None after ``limit`` seconds, or when a signal asks for its end."""
        deadline = None if limit is None else time.monotonic() + limit
        while True:
            status = self._child.poll()
            if status is not None or self._received:
                return status
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            ready, _, _ = select.select([self._wakes], [], [], left)
            if ready:
                os.read(self._wakes, 4096)

    def _diagnose(self, number: int | None) -> None:
        """Diagnose the command and its descendants; ``number``: the signal that asks for the end, None for timeout."""
        pid = self._child.pid
        why = f"has run for {self._order.duration:g} s"
        if number is not None:
            why = f"will be killed by {signal.Signals(number).name}"
        try:
            folder = self._order.folder or tempfile.mkdtemp(prefix="gdbext-timeout-")
            orphans = set(descendants(os.getpid())) - {pid, *descendants(pid)}
            report = diagnose_tree(pid, folder, "timeout", self._dispatch, others=orphans)
        except GdbextError as error:
            document: dict[str, object] = {"event": "failed", "pid": pid, "text": error.what}
            self._print(document, f"process {pid} {why}, and {error.what}")
            return
        processes = [
            {
                "pid": look.pid,
                "program": escape(look.program),
                "verdict": {"kind": look.kind, "summary": look.summary},
                "file": f"{report.path_prefix}-{look.pid}",
                "problem": look.problem,
            }
            for look in report.verdicts
        ]
        document = {"event": "exceeded", "pid": pid, "processes": processes, "job": report.job}
        self._print(document, f"process {pid} {why}\n{report.text}")

    def _kill(self, number: int | None) -> int:
        """Ask the command and its descendants to end, then kill the rest; the exit status of timeout(1). ``number``: as
        in _diagnose()."""
        first = number or self._order.signal
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, first)
        others = [pid for pid in descendants(os.getpid()) if pid != self._child.pid]
        end_processes([self._child.pid, *others], self._order.kill_after, first)
        is_killed = self._child.wait() == -signal.SIGKILL
        late = [pid for pid in descendants(os.getpid()) if is_alive(pid)]
        end_processes(late, 0.0, signal.SIGKILL)
        if number is None and not self._order.keeps_status:
            return 128 + signal.SIGKILL if is_killed else TIMED_OUT
        return 128 - self._child.returncode if self._child.returncode < 0 else self._child.returncode

    def _print(self, document: dict[str, object], text: str) -> None:
        """Write one of the two to standard error: standard output is the command's."""
        line = shown_json(json.dumps(document)) if self._order.json else f"dispatch timeout: {text.rstrip()}"
        with contextlib.suppress(OSError):
            print(shown(line), file=sys.stderr, flush=True)
