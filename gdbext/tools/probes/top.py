"""``dispatch-top``: what a running process dispatches, counted by kernel probes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report import json_report, render_text
from gdbext.diagnosis.reporting import make_report, page_origin
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_arguments import running_thread
from gdbext.engine.formats import whole_file
from gdbext.engine.numbers import integer
from gdbext.engine.targets.live.unstopped import RunningProcess
from gdbext.errors import GdbextError, ProbesRefused, TargetGone, UsageError
from gdbext.live.timed_run import DeferredInterrupt, WatchedProcess
from gdbext.tools.probes import latency_meter, top_view
from gdbext.tools.probes.bpf.place_program import PythonLines
from gdbext.tools.probes.dispatch_counter import DispatchCount, DispatchCounter, filter_of
from gdbext.tools.probes.flame_files import FORMATS, SPEEDSCOPE, FlameStacks, is_flame_file
from gdbext.tools.probes.latency_meter import LatencyMeter
from gdbext.tools.probes.summary import GROUPINGS, ORDERS, RowSelection, Summary, TopSection, named_operators
from gdbext.tools.probes.trace_places import NewLibrarySites, TracePlaces, unseen_in

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator, Sequence

    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.engine.vocabulary import Section
    from gdbext.render import Style
    from gdbext.tools.probes.bpf.place_program import Filter
    from gdbext.torch.registry import Operator


MAX_SECONDS = 86400.0
_LEARN = 1.0
"""Seconds after which the process is examined again."""
_EPILOG = """\
Counts in the kernel, about a microsecond a dispatch; nothing is stopped, nothing is written to the process, and the
probes are gone when this command ends, even by kill -9: another process of ours, gdbext-probes, places them and takes
them away. (If that process itself is killed in the 0.3 s in which it places them, the kernel leaves some in the code,
and dmesg says "leaking uprobe"; placing probes once more takes them away.)
From the shell only: scripts/dispatch -p PID dispatch-top

All calls and redispatches are counted, boxed or not, through torch's own libraries, and through the dispatcher's copies
in extensions where these are recognized (those that are loaded later from a second after that on; not with --latency).
"8 functions not seen": 8 functions call the dispatcher in an unrecognized way; their dispatches are not counted (in
torch 2.13 seven of libtorch_cpu and one of libtorch_python: fallbacks of lazy tensors,
functionalization, quantized modules by name). --thread and --key are applied in the kernel. With OP the probes are in
these operators' own functions: other operators are not slowed, except boxed calls.

Marked: a fallthrough entry or one without a kernel, a backend's boxed fallback, an operator that
decomposes into others (CompositeImplicitAutograd), one that is redispatched many times a call, a CPU kernel in
a job that runs on an accelerator. --by line: the innermost line of Python (CPython 3.11 and later). On a terminal the
screen is drawn anew every interval; q ends it, c, o, k, n, t and l sort by count, operator, key, kernel, thread, line.

  count     rate/s  event       operator   key           kernel
  40000    20000.0  call        aten::mm   AutogradCPU   torch::autograd::VariableType::(anonymous namespace)::mm

--latency: from the lookup to the return of each call of OP, by a second probe at the function's ret instruction.
Nothing is written to the process's stack. (The kernel's own return probes do that, and an exception of C++ thrown
through such a frame ends the process.) A call that exits by an exception is counted as one that did not return.
Redispatches are part of their call. A call of OP takes about 12 microseconds longer, one of which is in its time: the
kernel steps over each ret.

Needs Linux 6.6 or later, and root or CAP_BPF with CAP_PERFMON. From Linux 5.15 on, named operators can be counted, too,
by probes that are placed one by one; ending then takes some seconds longer.
"""


class TopTool(Tool):
    """The command ``dispatch-top`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _EPILOG
        add = parser.add_argument
        latency = "show how long calls of these operators take, as a histogram (see below)"
        count = "reports to make (default 1; on a terminal, until q is pressed)"
        output = "also write the rows of the last report for flame graphs: .collapsed stacks, or .speedscope.json"
        key = "count only dispatches to this key (CPU, AutogradCPU)"
        add("op", nargs="*", metavar="OP", help="only these operators (mm, aten::mm.out, *mm*)")
        add("--by", choices=GROUPINGS, default="op", help="what to group the rows by (default op)")
        add("--latency", action="store_true", help=latency)
        add("--thread", metavar="TID", help="count only this thread")
        add("--key", metavar="KEY", default="", help=key)
        add("--sort", choices=ORDERS, default="count", help="how to sort the rows (default count)")
        add("--interval", type=float, default=1.0, metavar="S", help="seconds to count (default 1)")
        add("--count", type=integer, metavar="N", help=count)
        add("--html", metavar="FILE", help="also write the last report as a self-contained HTML page")
        add("--output", metavar="FILE", help=output)
        add("--limit", type=integer, default=40, metavar="N", help="rows to show (default 40)")

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Count for that long. Raises UsageError, ProbesRefused."""
        process = session.target
        if not isinstance(process, RunningProcess):
            raise UsageError(
                f"{self.name} counts in a process that runs, and this one is stopped or a file",
                help=f"from a shell: scripts/dispatch -p {process.pid} dispatch-top",
            )
        if args.output and not is_flame_file(args.output):
            raise UsageError(f"--output {args.output}: the name says which format", help=FORMATS)
        if not 0 < args.interval <= MAX_SECONDS or args.limit < 1 or (args.count is not None and args.count < 1):
            raise UsageError(
                f"--interval takes up to {MAX_SECONDS:.0f} seconds, --limit at least one row, --count one report"
            )
        operators = named_operators(session.dispatcher, args.op)
        tid = running_thread(process, args.thread) if args.thread is not None else None
        only = filter_of(session, tid, args.key)
        watched = WatchedProcess(process.pid)  # before there are probes: from then on its end is one that is reported
        if args.latency:
            if not operators or args.html or args.output or args.by != "op":
                raise UsageError(
                    "--latency is for operators that are named, and goes with neither --by, --html nor --output",
                    why="two probes for each call of every operator would slow all of them by some microseconds",
                    help="dispatch-top --latency mm addmm",
                )
            with DeferredInterrupt() as interrupt, LatencyMeter(session, operators, only) as latency:
                reports = _Reports(self, session, args, host, latency, interrupt, watched)
                return reports.last(lambda: latency.section(args.limit))
        with DeferredInterrupt() as interrupt, DispatchMeter(session, process, operators, args.by, only) as meter:
            reports = _Reports(self, session, args, host, meter, interrupt, watched)
            selection = RowSelection(args.by, args.sort, args.limit)
            if args.count is None and not args.json and top_view.is_possible():
                screen = top_view.TopScreen(lambda rows: reports.report(meter.section(rows)), selection, args.interval)
                report = screen.run(lambda: interrupt.came or watched.ending() is not None)
            else:
                report = reports.last(lambda: meter.section(selection))
        if args.output:
            _write_stacks(report, args.output)
        if not args.html:
            return report
        section, origin = report.section(TopSection), page_origin(session, host.called.command("dispatch-top"))
        whole_file.write(args.html, top_view.render_page(section, report.target, origin).encode())
        return report._replace(sections=(replace(section, page=args.html),))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text: times of calls, or counts."""
        if report.find_section(TopSection):
            return top_view.render(report, style)
        return latency_meter.render(report, style)


def _write_stacks(report: Report, path: str) -> None:
    """Write the rows as stacks: line or thread, operator, kernel. Raises TargetError."""
    stacks = FlameStacks()
    for row in report.section(TopSection).rows:
        subject = row.subject
        words = " ".join(filter(None, (subject.event, subject.key)))
        operator = (subject.qualified or "all operators") + (f" [{words}]" if words else "")
        outer = row.line or (f"{row.thread or 'thread'} ({row.tid})" if row.tid else "")
        stacks.add(tuple(filter(None, (outer, operator, subject.kernel))), row.count)
    whole_file.write_text(path, stacks.speedscope("dispatches") if path.endswith(SPEEDSCOPE) else stacks.text())


class _Reports(NamedTuple):
    """The reports of one run, from what ``meter`` measures."""

    tool: Tool
    session: Session
    args: Namespace
    host: ToolHost
    meter: DispatchMeter | LatencyMeter
    interrupt: DeferredInterrupt
    process: WatchedProcess

    def report(self, section: Section) -> Report:
        """The report that has this section."""
        return make_report(self.tool, self.session, self.args, sections=(section,))

    def last(self, measure: Callable[[], Section]) -> Report:
        """The last of --count reports; those before it are shown at once. It ends with the process, too."""
        for _ in range((self.args.count or 1) - 1):
            if not self._measure_interval():
                break
            report = self.report(measure())
            if self.args.json:
                self.host.show(json_report.render(report, pretty=False))
            else:
                self.host.show(render_text(report, color=False) + "\n")
        else:
            self._measure_interval()
        ending = self.process.ending()
        if ending:
            error = TargetGone(ending.text, help="what is counted is what it did before")
            self.session.errors.note(error, "dispatch-top")
        return self.report(measure())

    def _measure_interval(self) -> bool:
        return _counted(self.args.interval, self.interrupt, self.process, self.meter.learn)


def _counted(seconds: float, interrupt: DeferredInterrupt, process: WatchedProcess, learn: Callable[[], None]) -> bool:
    """Count until that time is over; False where a signal arrived or the process ended before. ``learn`` is called
    meanwhile, since what is counted cannot be read of a process that has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not interrupt.sleep(min(_LEARN, end - time.monotonic())) or process.ending():
            return False
        learn()
    return True


class DispatchMeter(DispatchCounter):
    """Counts from construction to close(); a context manager. Raises GdbextError."""

    def __init__(
        self, session: Session, process: RunningProcess, operators: Sequence[Operator], by: str, only: Filter
    ) -> None:
        """``operators``: only these; all without one; ``by``: how rows will be grouped (one of GROUPINGS); ``only``:
        what else the kernel leaves out."""
        self._process = process
        self._errors = session.errors
        self._lines = PythonLines(session) if by == "line" else None
        self._summary = Summary(session, self._lines)
        finder = TracePlaces(session)
        places = finder.of(operators) if operators else finder.everything()
        self._unseen = finder.unseen
        wanted = [operator.address for operator in operators]
        path = self._lines.path if self._lines else None
        states = self._lines.thread_states() if self._lines else None
        self._new_libraries = NewLibrarySites(session, filtered=bool(operators))
        super().__init__(
            session.memory.architecture, process.pid, places, wanted, path, states, only, by_thread=by == "thread"
        )
        self._before: dict[DispatchCount, int] = {}
        self._lost_before = 0
        self._since = self.started

    def section(self, select: RowSelection) -> TopSection:
        """The dispatches since the last section, or since all probes were in place. Raises OSError."""
        counts, lost, now = self.counts(), self.lost(), time.monotonic()
        if self._lines:
            self.know_threads(self._lines.thread_states())
        current = {count._replace(times=0): count.times for count in counts}
        news = [
            count._replace(times=times - self._before.get(count, 0))
            for count, times in current.items()
            if times > self._before.get(count, 0)
        ]
        seconds, unseen = now - self._since, self._unseen + self._new_libraries.unseen
        rows, more = self._summary.rows(news, select, seconds, self._process.thread_names())
        section = TopSection(
            seconds=round(seconds, 3),
            engine="probes",
            total=sum(count.times for count in news),
            lost=lost - self._lost_before,
            places=len(self.places),
            rows=tuple(rows),
            more=more,
            unseen=unseen.total(),
            unseen_in=unseen_in(unseen),
        )
        self._before, self._lost_before, self._since = current, lost, now
        return section

    def learn(self) -> None:
        """Learn the names of the operators and keysets that were counted so far, while they can be read; and count in
        libraries that were loaded meanwhile, too. Raises OSError."""
        self._summary.learn(self.counts())
        try:
            places = self._new_libraries.found()
            if places:
                self.add(places)
        except ProbesRefused as error:
            self._errors.note(error, "libraries that are loaded later")
        except GdbextError:  # the process may be about to end
            pass
