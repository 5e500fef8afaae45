"""The tool watch: waits, without stopping the process, until it makes no progress; then saves the evidence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from gdbext.diagnosis.kinds import kind_of
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.session import Session
from gdbext.engine.formats.whole_file import write_text
from gdbext.engine.formats.workplace import Workplace
from gdbext.engine.numbers import integer
from gdbext.engine.targets.budget import duration
from gdbext.engine.targets.live.proc_checks import check_readable
from gdbext.engine.targets.live.unstopped import RunningProcess
from gdbext.engine.targets.system.linux import signals_handled
from gdbext.engine.terminal import environment_value, shown, shown_json
from gdbext.errors import GdbextError, TargetError, TargetGone, UsageError
from gdbext.render import escape
from gdbext.tools.outcome import Outcome
from gdbext.tools.probes.dispatch_counter import DispatchActivity
from gdbext.tools.program import Program
from gdbext.tools.watch.evidence import ENDINGS, Evidence, EvidenceFolder, TraceBuffer, take_core
from gdbext.tools.watch.progress_watch import History, ProgressWatch, with_torch

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

    from gdbext.tools.program import Dispatch

MAX_SECONDS = 86400.0
_SHORTEST = 5.0
"""Minimum of --history in seconds: a look takes one."""
_MOST = 8
"""Most processes of one program that are diagnosed, such as the ranks of a node."""
_EPILOG = """\
Any of these counts as progress of the process or its children: a dispatch, 64 KB read or written, a child process that
starts or exits, or 5% of a CPU used. If kernel probes are permitted, a process that computes without dispatching counts
as hung unless the diagnosis finds a busy thread, an idle thread, or one that waits for a child process. Every few
seconds, the command reads /proc (and one probe looks for a dispatch), which stops no process. Only the diagnosis stops
the process, for a few milliseconds. If the process does not use PyTorch (timeout, bash, nice, accelerate, torchrun),
its descendants that do are diagnosed, at most eight of them.

At each hang, the diagnosis is printed. With --save, DIR/hang-PID-TIME.txt, .html (a page to share), .json and .rec (for
scripts/dispatch -r FILE) are written, readable only by their owner. Further options save more:
  --trace    .trace.html: the last dispatches before the hang. Its kernel probes add one or two microseconds to each
             dispatch during the whole run, and this command needs at least one percent of a CPU
  --history  .history.txt, also printed in short: every half minute (less often beyond two hours), the dispatches of one
             second by operator if probes are permitted, and where the threads are. No process is stopped for it
  --job      .job.txt, .job.json and .job.html, as scripts/dispatch ranks writes them
  --core     .core, as large as the process's memory. The process is stopped until it is written
The shell runs COMMAND with these environment variables: GDBEXT_PID, GDBEXT_VERDICT (deadlock, blocked, …),
GDBEXT_SUMMARY, GDBEXT_FOLDER and GDBEXT_FILE (the files' path without .txt, .html, .json or .rec).
The command then continues to watch. With --json, each event is a JSON object on its own line. The command exits when
the process does; with PROGRAM, its exit status is the program's.

  scripts/dispatch watch --hung-after 600 --save /var/hangs --run 'mail -s "$GDBEXT_SUMMARY" me < $GDBEXT_FILE.txt' \\
      -- python train.py
"""


class WatchProgram(Program):
    """The program ``scripts/dispatch watch`` as a tool."""

    common = ("--json",)

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog, add = _EPILOG, parser.add_argument
        add("-p", "--pid", type=integer, metavar="PID", help="the process to watch (or start one: -- PROGRAM …)")
        hung_help = "seconds without progress that count as a hang (default: 300)"
        add("--hung-after", type=float, default=300.0, metavar="S", help=hung_help)
        add("--save", metavar="DIR", help="save the diagnosis and a recording in this folder")
        add("--core", action="store_true", help="with --save: also write a core dump, using gcore")
        add("--job", action="store_true", help="with --save: also write a report on all ranks of the job")
        trace_help = "with --save: also write the last S seconds of a trace"
        add("--trace", type=float, default=0.0, metavar="S", help=trace_help)
        time = partial(duration, option="--history", is_endless=True)
        history_help = "with --save: also write a history of the last TIME, such as 10m"
        add("--history", type=time, default=0.0, metavar="TIME", help=history_help)
        add("--run", metavar="COMMAND", help="shell command to run at each hang")
        metrics_help = "keep metrics for the textfile collector of Prometheus' node_exporter in this file"
        add("--metrics", metavar="FILE.prom", help=metrics_help)

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Watch until the process ends; ``dispatch`` makes the diagnosis. Raises GdbextError."""
        end = argv.index("--") if "--" in argv else len(argv)
        args, program = self.parse(argv[:end]), argv[end + 1 :]
        if (args.pid is None) == (not program):
            raise UsageError("say what to watch: -p PID, or -- PROGRAM", help="dispatch watch --help")
        return Outcome(Watch(args, program, dispatch).run())


class Watch:
    """Watches one process or program until it exits."""

    def __init__(self, args: Namespace, program: Sequence[str], dispatch: Dispatch) -> None:
        """``program``: the command to start, () to watch the process --pid. Raises UsageError, TargetError,
        NoSuchProcess, NotPermitted."""
        if not 0 < args.hung_after <= MAX_SECONDS:
            raise UsageError(f"--hung-after takes up to {MAX_SECONDS:.0f} seconds")
        if (args.core or args.job or args.trace or args.history) and not args.save:
            raise UsageError("--core, --job, --trace and --history need --save DIR", why="the files may be large")
        if not 0 <= args.trace <= MAX_SECONDS:
            raise UsageError(f"--trace takes up to {MAX_SECONDS:.0f} seconds")
        if args.history and not _SHORTEST <= args.history <= MAX_SECONDS:
            raise UsageError(f"--history takes {_SHORTEST:.0f} seconds to a day", help="--history 10m")
        self._args = args
        self._folder = EvidenceFolder(args.save, dispatch)
        self._commands: list[subprocess.Popen[bytes]] = []
        self._hangs, self._was_hung = 0, False
        self._program: subprocess.Popen[bytes] | None = None
        if program:
            try:
                self._program = subprocess.Popen(list(program))
            except OSError as error:
                raise TargetError(f"{program[0]} cannot be started: {error.strerror}") from error
        self.pid: int = self._program.pid if self._program else args.pid
        if not self._program:
            check_readable(self.pid)
        self._subjects: tuple[int, ...] = ()
        """The processes that use PyTorch, which are diagnosed; () until there are some."""
        self._trace: TraceBuffer | None = None
        self._history: History | None = None
        if args.trace or args.history:
            Workplace(args.save).close()
        # Standard output is left to the program.
        self._output = sys.stderr if program else sys.stdout

    def run(self) -> int:
        """Watch until the process exits or Ctrl+C; the exit status."""

        def interrupt(*_: object) -> None:
            """Handle Ctrl+C, which our own program gets, too; it may need time to exit."""
            if not self._program:
                raise KeyboardInterrupt

        with signals_handled([signal.SIGINT], interrupt):
            try:
                self._watch()
            except TargetGone:
                pass
            except KeyboardInterrupt:
                self._print_event("ended", "interrupted; the process continues")
                return 0
            finally:
                for buffer in (self._trace, self._history):
                    if buffer:
                        buffer.end()
            status = self._program.wait() if self._program else None
            if status is None:
                how = "the process has exited"
            elif status < 0:
                how = f"the program was killed by {signal.Signals(-status).name}"
            else:
                how = f"the program exited with status {status}"
            self._print_event("ended", how)
            for command in self._commands:
                command.wait()
            return 0 if status is None else status if status >= 0 else 128 - status

    def _watch(self) -> None:
        """Sample the progress, and report each hang. Raises TargetGone when the process exits."""
        limit = self._args.hung_after
        progress = ProgressWatch(self.pid)
        last_progress = last_dispatch = time.monotonic()
        hangs = is_prepared = False
        dispatches = 0
        created = f"; the folder {self._args.save} was created" if self._folder.is_new else ""
        text = f"process {self.pid}: {limit:g} s without progress count as a hang{created}"
        self._print_event("watching", text)
        while True:
            self._sleep(min(limit / 12, 15.0))
            if not is_prepared and self._find_subjects():
                is_prepared = True
                progress.activity_probe = _activity_probe(self._subjects[0]) if len(self._subjects) == 1 else None
            if is_prepared and self._trace:
                try:
                    self._trace.keep()
                except TargetError as error:
                    self._print_event("failed", error.what)
                    self._trace = None
            if self._history and not hangs:
                self._history.keep()
            work = progress.since_last_look()
            now = time.monotonic()
            dispatches += work.dispatches
            if work.moves:
                last_progress = now
                last_dispatch = last_dispatch if work.computes_only else now
            if hangs and last_dispatch == now:
                hangs = False
                self._print_event("moves", "it makes progress again")
            if not hangs and now - last_progress > limit:
                hangs = self._report_hang(now - last_progress)
            elif not hangs and work.computes_only and now - last_dispatch > limit:
                hangs = self._report_hang(now - last_dispatch, computes=True)
                last_dispatch = last_dispatch if hangs else now
            self._write_metrics(hangs, now - last_progress, dispatches if progress.activity_probe else None)

    def _find_subjects(self) -> bool:
        """Find the processes that use PyTorch, and start the trace and history of the first; False if there is none.
        Raises TargetGone."""
        args = self._args
        self._subjects = with_torch(self.pid)
        if self._subjects and self._subjects != (self.pid,):
            pids = ", ".join(map(str, self._subjects[:_MOST]))
            one = len(self._subjects) == 1
            self._print_event("watching", f"its descendant{'' if one else 's'} {pids} use{'s' if one else ''} PyTorch")
        if self._subjects and args.trace:
            self._trace = TraceBuffer(self._subjects[0], args.trace, args.save, self._folder.dispatch)
        if self._subjects and args.history:
            self._history = History(self._subjects[0], args.history, args.save, self._folder.dispatch)
        return bool(self._subjects)

    def _write_metrics(self, hangs: bool, idle: float, dispatches: int | None) -> None:
        """Write the file of --metrics. ``hangs``: now; ``idle``: seconds without progress; ``dispatches``: seen so far,
        None without a probe."""
        if not self._args.metrics:
            return
        self._hangs += hangs and not self._was_hung
        self._was_hung = hangs
        metrics = [
            ("hung", "gauge", "1 while the process makes no progress", int(hangs)),
            ("hangs_total", "counter", "hangs since the watch began", self._hangs),
            ("seconds_since_progress", "gauge", "seconds without progress", round(idle, 1)),
            ("watch_time_seconds", "gauge", "when this was written, in seconds since the epoch", int(time.time())),
        ]
        if dispatches is not None:
            metrics.append(("dispatches_seen_total", "counter", "dispatches that short looks saw", dispatches))
        text = ""  # the text format of Prometheus, version 0.0.4
        for name, kind, meaning, value in metrics:
            text += f"# HELP gdbext_{name} {meaning}\n# TYPE gdbext_{name} {kind}\n"
            text += f'gdbext_{name}{{pid="{self.pid}"}} {value}\n'
        write_text(self._args.metrics, text)

    def _sleep(self, seconds: float) -> None:
        """Sleep. Raises TargetGone when our own program exits."""
        self._commands = [command for command in self._commands if command.poll() is None]
        if not self._program:
            time.sleep(seconds)
            return
        with suppress(subprocess.TimeoutExpired):
            self._program.wait(seconds)
            raise TargetGone.of(self.pid)

    def _report_hang(self, seconds: float, computes: bool = False) -> bool:
        """Diagnose the processes, and save the evidence; False if they do not hang. ``seconds``: how long there was no
        progress; ``computes``: they use a CPU, so that they hang only if the diagnosis finds a defect."""
        with suppress(TargetGone):
            self._subjects = with_torch(self.pid)  # processes may have been replaced
        taken: list[tuple[int, Evidence]] = []
        for pid in (self._subjects or (self.pid,))[:_MOST]:
            try:
                taken.append((pid, self._folder.take(pid)))
            except TargetError as error:
                text = f"no progress for {seconds:.0f} s; process {pid} cannot be diagnosed: {error.what}"
                self._print_event("failed", text)

        def is_healthy(evidence: Evidence) -> bool:
            """True if the process does not hang; its children may compute, as compilers do."""
            return kind_of(evidence.verdict["kind"]).is_healthy or evidence.waits == {WaitKind.CHILD_PROCESS.value}

        if computes and taken and all(is_healthy(evidence) for _, evidence in taken):
            for _, evidence in taken:
                evidence.remove()
            return False
        for number, (pid, evidence) in enumerate(taken):
            text = f"no progress for {seconds:.0f} s: {evidence.verdict['summary']}"
            self._print_event("hung", text, evidence, pid)
            self._keep_more(evidence, pid, number == 0)
            if self._args.run and number == 0:
                self._run_command(evidence, pid)
        return True

    def _keep_more(self, evidence: Evidence, pid: int, is_first: bool) -> None:
        """Save the evidence that takes long, after the diagnosis was shown. ``is_first``: also history, trace and job,
        which are saved once for all processes."""

        def take_history() -> Sequence[str]:
            """Save the history and print its summary; the endings of the files, as in all steps."""
            ending, lines = history.take(evidence.stem) if history else ("", [])
            self._print_event("history", "\n".join(["its last minutes:", *lines]))
            return [ending]

        steps: list[Callable[[], Sequence[str]]] = []
        history, trace = self._history, self._trace
        if history and is_first:
            steps.append(take_history)
        if trace and is_first:
            steps.append(lambda: [trace.take(evidence.stem)])
        if self._args.job and is_first:
            steps.append(lambda: self._folder.take_job(evidence, pid))
        if self._args.core:
            steps.append(lambda: [take_core(evidence, pid)])
        for step in steps:
            try:
                self._print_event("kept", f"kept: {evidence.start}.{', .'.join(step())}")
            except TargetError as error:
                self._print_event("failed", error.what)

    def _run_command(self, evidence: Evidence, pid: int) -> None:
        """Start the command of --run, with the verdict in its environment."""
        names = {"GDBEXT_VERDICT": "kind", "GDBEXT_SUMMARY": "summary"}
        verdict = {name: environment_value(evidence.verdict[member]) for name, member in names.items()}
        paths = {"GDBEXT_FOLDER": evidence.folder, "GDBEXT_FILE": evidence.start}  # below what the user named
        environment: dict[str, str | bytes] = {**os.environ, **verdict, **paths, "GDBEXT_PID": str(pid)}
        command = ["/bin/sh", "-c", self._args.run]
        try:
            self._commands.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))
        except OSError as error:
            self._print_event("failed", f"--run: the shell cannot be started: {error.strerror}")

    def _print_event(self, event: str, text: str, evidence: Evidence | None = None, pid: int | None = None) -> None:
        """Print an event, with --json as an object. ``evidence``: of a hang, to be printed, too; ``pid``: of the hung
        process."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        if self._args.json:
            members: dict[str, object] = {"event": event, "time": stamp, "pid": pid or self.pid, "text": text}
            if evidence:
                members |= {"verdict": evidence.verdict, "file": evidence.start}
            line = shown_json(json.dumps(members))
        else:
            words = text.partition(":")[0] if evidence else text
            line = f"{stamp} " + "\n".join(map(escape, words.split("\n")))
            if evidence:
                line += f"\n{evidence.text}kept: {evidence.start}.{', .'.join(ENDINGS)}"
        print(shown(line), file=self._output, flush=True)


def _activity_probe(pid: int) -> DispatchActivity | None:
    """A probe for dispatches of a process; None if probes are not permitted."""
    try:
        target = RunningProcess(pid, may_be_traced=True)
        try:
            return DispatchActivity(Session(target))
        finally:
            target.close()
    except GdbextError:
        return None
