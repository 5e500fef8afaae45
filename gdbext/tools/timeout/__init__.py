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
from functools import partial
from typing import TYPE_CHECKING

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
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

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


class TimeoutProgram(Program):
    """The program ``scripts/dispatch timeout`` as a tool."""

    common = ("--json",)

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog, add = _EPILOG, parser.add_argument

        def time(option: str) -> Callable[[str], float]:
            """The type of an argument that is a duration."""
            return partial(duration, option=option, is_endless=True)

        add("duration", type=time("DURATION"), metavar="DURATION", help="how long COMMAND may run: 600, 10m, 1.5h, 2d")
        add("command", metavar="[--] COMMAND …", nargs="*", help="the command with its arguments")
        kill_help = "send SIGKILL if it still runs this long afterwards (default: 10)"
        add("--kill-after", "-k", type=time("--kill-after"), metavar="DURATION", default="10", help=kill_help)
        signal_help = "the signal to send on timeout (default: TERM)"
        add("--signal", "-s", type=_signal_number, metavar="SIGNAL", default="TERM", help=signal_help)
        add("--preserve-status", action="store_true", help="exit with COMMAND's status even on a timeout")
        group_help = "keep COMMAND in the terminal's foreground process group, so that it can read from it"
        add("--foreground", action="store_true", help=group_help)
        add("--verbose", "-v", action="store_true", help="no effect: the output is always verbose")
        add("--save", metavar="DIR", default="", help="folder for verdicts and recordings")

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Run the command. A failure of our own has the exit status that timeout(1) gives it."""
        own, command = _split(list(argv))
        try:
            args = self.parse(own)
            if not command:
                raise UsageError("there is no COMMAND", help="dispatch timeout DURATION -- COMMAND …")
            return Outcome(_TimedCommand(args, command, dispatch).run())
        except _NotStarted as error:
            return Outcome(error.status, error=error.what)
        except GdbextError as error:
            return Outcome(FAILED, error="\n  try: ".join(filter(None, (error.what, error.help))))


def _signal_number(text: str) -> int:
    """The number of a signal, which the user gives as TERM, SIGTERM or a number. Raises UsageError."""
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    number = signal.Signals.__members__.get(name) or numbers.number(text) or 0
    if number not in signal.valid_signals():
        raise UsageError(f"there is no signal {text!r}")
    return int(number)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """(our own words, the command): the command begins after "--", or at the first word after the duration that is not
    an option."""
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
    """The command did not start."""

    status = NOT_FOUND


class _TimedCommand:
    """One command while it runs."""

    def __init__(self, args: Namespace, command: Sequence[str], dispatch: Dispatch) -> None:
        """Start the command, in a session of its own unless --foreground, so that its whole group gets our signals.
        Raises TargetError."""
        self._args = args
        self._dispatch = dispatch
        if args.save:
            Workplace(args.save).close()
        self._wakes, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        self._received: list[int] = []
        libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER (linux/prctl.h): orphans of the command become our children
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # These ask for the end of the command. It is diagnosed first, except on Ctrl+C and Ctrl+\.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, lambda number, _: self._received.append(number))
        try:
            self._child = subprocess.Popen(command, start_new_session=not args.foreground)
        except OSError as error:
            failure = _NotStarted(f"{command[0]} cannot be started: {error.strerror}")
            failure.status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_INVOKED
            raise failure from error

    def run(self) -> int:
        """Wait for the command's end, or kill it; the exit status of timeout(1)."""
        status = self._wait(self._args.duration or None)
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
        """Diagnose the command and its descendants. ``number``: the signal that asks for the end, None on a timeout."""
        pid = self._child.pid
        why = f"has run for {self._args.duration:g} s"
        if number is not None:
            why = f"will be killed by {signal.Signals(number).name}"
        try:
            folder = self._args.save or tempfile.mkdtemp(prefix="gdbext-timeout-")
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
        first = number or self._args.signal
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, first)
        others = [pid for pid in descendants(os.getpid()) if pid != self._child.pid]
        end_processes([self._child.pid, *others], self._args.kill_after, first)
        is_killed = self._child.wait() == -signal.SIGKILL
        late = [pid for pid in descendants(os.getpid()) if is_alive(pid)]
        end_processes(late, 0.0, signal.SIGKILL)
        if number is None and not self._args.preserve_status:
            return 128 + signal.SIGKILL if is_killed else TIMED_OUT
        return 128 - self._child.returncode if self._child.returncode < 0 else self._child.returncode

    def _print(self, document: dict[str, object], text: str) -> None:
        """Write the document (--json) or the text to standard error; standard output is the command's."""
        line = shown_json(json.dumps(document)) if self._args.json else f"dispatch timeout: {text.rstrip()}"
        with contextlib.suppress(OSError):
            print(shown(line), file=sys.stderr, flush=True)
