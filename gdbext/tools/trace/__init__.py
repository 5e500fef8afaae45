"""The tool dispatch-trace: dispatches as they happen, nested, by breakpoints or probes; as text, JSON or a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from gdbext.diagnosis.reporting import make_report, page_origin, report_target
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.tool_arguments import find_thread, positive, running_thread
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.arch import architectures
from gdbext.engine.targets.budget import duration
from gdbext.engine.targets.live.unstopped import RunningProcess
from gdbext.errors import GdbextError, ProbesRefused, UsageError
from gdbext.live.host import ENGINES, PROBES, Host, LiveTool
from gdbext.tools.probes.bpf.bpf_kernel import permitted
from gdbext.tools.trace.hook_installer import Traced, trace_by_breakpoints
from gdbext.tools.trace.nesting import ProbeTrace
from gdbext.tools.trace.trace_output import TraceOutput, shows_time
from gdbext.tools.trace.trace_section import TraceSection, render
from gdbext.tools.trace.tracer import TraceRequest

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.report import Ending, Report, TargetReport
    from gdbext.live.timed_run import Work
    from gdbext.render import Style

MAX_SECONDS = 86400.0

DESCRIPTION = """

Each dispatch of the named operators is shown as it happens:

  [call] op=[aten::mm], key=[AutogradCPU], at=[0.001042 s]
   [redispatch] op=[aten::mm], key=[CPU], at=[0.001049 s]

The format is that of TORCH_SHOW_DISPATCH_TRACE in a debug build, indented by one space per level, plus the time since
the trace began.

--engine probes is the default from the shell (scripts/dispatch -p PID) if the kernel permits probes. They need root or
CAP_BPF and CAP_PERFMON, and Linux 6.6 or later (5.15 without --all). The process is not stopped, and a dispatch takes
one or two microseconds longer. --all also shows the redispatches of all operators, and boxed dispatches. gdbext unwinds
copies of stacks to prove which dispatches are nested. A dispatch is taken to end when its thread starts the next one
outside it. If the buffer is full, further dispatches are counted but not shown. --last S keeps the last S seconds, and
writes them when the trace is interrupted, when the process exits, or when nothing was dispatched for a while
(--hung-after S). Inside a debugger, the process runs under the debugger's own continue, killing the debugger does no
harm, and the process is stopped somewhere after the last dispatch. While any tool probes torch's libraries, your
breakpoints at the same addresses may be missed.

--engine breakpoints is used with --verbose, or if probes are not permitted. Killing gdb (kill -9) during the trace
usually kills the process; killing LLDB does not. Ctrl+C ends the trace, removes all breakpoints and stops the process
(scripts/dispatch resumes it). A stop takes about 0.2 ms (0.4 ms if gdb has read torch's symbols; five times as long in
LLDB). There is one stop for each call and each redispatch of a named operator; all other operators run at full speed.
--verbose stops at least six times per dispatch, and --output FILE.json or FILE.html four times. --all stops once for
each call of any operator: the forward and backward pass of a small model takes 64 times as long (118 calls, 22 ms
instead of 0.35 ms), and a torch.mm of 1 us 200 times as long. It shows calls only: redispatches would need 3,101
breakpoints.
"""


MOST_IN_A_FILE = 500_000
"""Default limit of a trace into a file: a page of 25 MB, in half a minute of a busy process. A file of gigabytes is
useless and fills the disk."""


class TraceTool(LiveTool):
    """The command ``dispatch-trace`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.description = f"{parser.description}\n{DESCRIPTION}"
        add, seconds = parser.add_argument, partial(duration, most=MAX_SECONDS)
        steps = "show every step: entry, lookup, kernel, boxing, meta/impl functions, returns"
        output = (
            "write to FILE: a page with a timeline (.html), a Chrome trace (.json), JSON lines (.jsonl), a speedscope "
            "profile (.speedscope.json), stacks for flame graphs in nanoseconds (.collapsed), or else text"
        )
        limit = f"stop after N dispatches (default with --output: {MOST_IN_A_FILE:,})"
        last, hung = partial(seconds, option="--last"), partial(seconds, option="--hung-after")
        boxed = "also stop in Dispatcher::callBoxed, which slows all boxed calls"
        engine = "kernel probes, which stop no thread (default if permitted), or breakpoints"
        add("op", nargs="*", metavar="OP", help="operators: mm, aten::mm, aten::mm.out, '*mm*'")
        add("--all", action="store_true", help="trace every call of every operator (slow, see above)")
        add("--verbose", action="store_true", help=steps)
        add("--output", metavar="FILE", help=output)
        add("--limit", metavar="N", type=positive, default=0, help=limit)
        add("--depth", metavar="N", type=positive, default=0, help="show at most N levels of nesting")
        add("--thread", metavar="TID|N", help="trace only this thread")
        add("--key", metavar="KEY", default="", help="probes: show only dispatches to this key, such as CPU")
        add("--since", metavar="OP", default="", help="start when this operator is entered")
        add("--engine", choices=ENGINES, help=engine)
        add("--last", metavar="S", type=last, default=0.0, help="probes: write only the last S seconds, at the end")
        add("--hung-after", metavar="S", type=hung, default=0.0, help="probes: stop after S seconds without a dispatch")
        add("--boxed", action="store_true", help=boxed)

    def modes(self, args: Namespace) -> Sequence[Mode]:
        """By probes, which need no debugger, or by breakpoints. Raises UsageError."""
        if args.verbose and args.engine == PROBES:
            raise UsageError(
                "--verbose needs --engine breakpoints", why="probes see lookups, not the steps around them"
            )
        by_probes = args.engine == PROBES
        if args.engine is None and not args.verbose:
            by_probes = permitted(architectures.by_name(os.uname().machine), bool(args.all))
        return (Mode.RUNNING,) if by_probes else (Mode.RESUMES,)

    def run_live(self, session: Session, args: Namespace, host: Host) -> Report:
        """Trace, and report at the end. Raises UsageError, TargetError."""
        if bool(args.op) == bool(args.all):
            raise UsageError("name the operators, or give --all", help="dispatch-trace mm   or   dispatch-trace --all")
        if args.last and args.limit:
            raise UsageError("--last traces until Ctrl+C, but --limit stops earlier", help="use only one of them")
        if args.output and not args.limit and not args.last:
            args.limit = MOST_IN_A_FILE
        if isinstance(session.target, RunningProcess):
            tid = running_thread(session.target, args.thread) if args.thread is not None else None
            return self._report(session, args, *self._trace_by_probes(session, args, host, tid))
        needs_probes = bool(args.engine == PROBES or args.last or args.hung_after or args.key)
        refused = None
        is_interactive = not host.is_batch and session.target.pid != 0
        may_probe = (
            is_interactive and not args.verbose and not args.boxed and PROBES in host.engines(args.engine, session)
        )
        if may_probe and host.run_control(session).can_run_beside:
            try:
                return self._trace_in_debugger(session, args, host)
            except ProbesRefused as error:
                if needs_probes:
                    raise
                refused = error
        if needs_probes:
            raise UsageError(
                "probes need a running process; this one is stopped or not started yet",
                help="from a shell: "
                f"scripts/dispatch -p {session.target.pid or 'PID'} dispatch-trace --all --engine probes",
            )
        control = host.run_control(session)
        tid = find_thread(session.target, args.thread).tid if args.thread is not None else None
        steps = args.verbose, shows_time(args.output), args.boxed
        request = TraceRequest(args.op, args.all, *steps, args.limit, args.depth, tid, args.since)
        with self._output(session, args, host) as output:
            warnings = host.note_on_breakpoints(session, refused)
            with host.running(self.name):
                section, target = trace_by_breakpoints(session, control, request, warnings, output.notify, output.sink)
            output.finish(section.ending)
        host.lets_finish = section.ending.kind.is_by_command
        return self._report(session, args, replace(section, output=args.output, events=output.events), target)

    def _output(self, session: Session, args: Namespace, host: Host) -> TraceOutput:
        """The output that the arguments name."""
        origin = page_origin(session, host.called.command(self.name))
        return TraceOutput(args.output, args.verbose, args.json, host.show, _thread_names(session), origin)

    def _trace_by_probes(
        self,
        session: Session,
        args: Namespace,
        host: Host,
        tid: int | None,
        run_beside: Callable[[Work], Ending] | None = None,
    ) -> Traced:
        """Trace by kernel probes while the process runs. ``tid``: only this thread; ``run_beside``: for a process that
        a debugger traces, see ProbeTrace."""
        limits = args.limit, args.depth, tid, args.since, args.key, args.last, args.hung_after
        request = TraceRequest(args.op, args.all, False, False, False, *limits)
        with self._output(session, args, host) as output:
            trace = ProbeTrace(session, request, output.notify, output.flush, run_beside)
            section, target = trace.run(output.batches)
            output.finish(section.ending)
        return replace(section, output=args.output, events=output.events), target

    def _trace_in_debugger(self, session: Session, args: Namespace, host: Host) -> Report:
        """Trace by kernel probes a process that the user's debugger resumes meanwhile. Then nothing is left in its code
        if the debugger is killed."""
        tid = find_thread(session.target, args.thread).tid if args.thread is not None else None
        process = RunningProcess(session.target.pid, inside_debugger=True)
        try:
            beside = Session(process)
            with host.running(self.name):
                run_beside = host.run_control(session).run_beside
                section, _ = self._trace_by_probes(beside, args, host, tid, run_beside)
            host.show("")  # flush what another thread has shown, before the report
            return self._report(beside, args, section, report_target(session))
        finally:
            process.close()

    def _report(self, session: Session, args: Namespace, section: TraceSection, target: TargetReport) -> Report:
        return make_report(self, session, args, sections=(section,), target=target, ending=section.ending)

    def view(self, report: Report, style: Style) -> Iterator[str]:
        return render(report, style)


def _thread_names(session: Session) -> Callable[[int], str]:
    """A function that returns the name of a thread with its id, ``python (7394)``."""

    @cache
    def name(tid: int) -> str:
        """The name by thread id, read once; ``thread (7394)`` if the process has exited."""
        target = session.target
        try:
            threads = {thread.tid: thread.name for thread in target.memory.threads()}
            names = target.thread_names() if isinstance(target, RunningProcess) else threads
        except GdbextError:
            names = {}
        return f"{names.get(tid) or 'thread'} ({tid})"

    return name
