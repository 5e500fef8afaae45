"""``dispatch-top``: what a running process dispatches, counted by kernel probes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report import Report, json_report, render_text
from gdbext.diagnosis.reporting import make_report, page_origin
from gdbext.diagnosis.tool import Tool, ToolHost
from gdbext.diagnosis.tool_arguments import running_thread
from gdbext.engine.formats import whole_file
from gdbext.engine.numbers import integer
from gdbext.engine.targets.live.unstopped import RunningProcess
from gdbext.errors import GdbextError, ProbesRefused, TargetGone, UsageError
from gdbext.live.timed_run import DeferredInterrupt, WatchedProcess
from gdbext.tools.probes import latency_meter, top_view
from gdbext.tools.probes.bpf.place_program import Filter, PythonLines
from gdbext.tools.probes.dispatch_counter import DispatchCount, DispatchCounter, filter_of
from gdbext.tools.probes.flame_files import FORMATS, SPEEDSCOPE, FlameStacks, is_flame_file
from gdbext.tools.probes.latency_meter import LatencyMeter
from gdbext.tools.probes.summary import GROUPINGS, ORDERS, RowSelection, Summary, TopSection, named_operators
from gdbext.tools.probes.trace_places import NewLibrarySites, TracePlaces, unseen_in

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator, Sequence

    from gdbext.diagnosis.session import Session
    from gdbext.engine.vocabulary import Section
    from gdbext.render import Style
    from gdbext.torch.registry import Operator


MAX_SECONDS = 86400.0
_EPILOG = """\
Dispatches are counted in the kernel, which takes about a microsecond for each. The process is not stopped, and gdbext
writes nothing to its memory. The probes are removed when this command exits, even by kill -9, because a helper process,
gdbext-probes, owns them. (If the helper itself is killed in the 0.3 s in which it places the probes, the kernel leaves
some of them in the code, and dmesg says "leaking uprobe"; running the command again removes them.) This command works
only from the shell: scripts/dispatch -p PID dispatch-top

All calls and redispatches by torch's own libraries are counted, boxed or not. Those by copies of the dispatcher in
extensions are counted if gdbext recognizes the copy; extensions that are loaded later are counted from one second after
they were loaded (not with --latency). "8 functions not seen" means that 8 functions call the dispatcher in a way that
gdbext does not recognize, so their dispatches are not counted. (In torch 2.13, libtorch_cpu has seven of them and
libtorch_python has one: fallbacks of lazy tensors, functionalization, and quantized modules by name.) The kernel
applies --thread and --key. With OP, the probes are in these operators' own functions, so other operators are not slowed
down, except for boxed calls.

Unusual rows are marked: a fallthrough entry, an entry without a kernel, a backend's boxed fallback, an operator that
decomposes into others (CompositeImplicitAutograd), an operator that is redispatched many times per call, and a CPU
kernel in a job that uses an accelerator. --by line groups by the innermost Python line (CPython 3.11 and later). On a
terminal, the screen is redrawn after each interval. Press q to quit, and c, o, k, n, t or l to sort by count, operator,
key, kernel, thread or line.

  count     rate/s  event       operator   key           kernel
  40000    20000.0  call        aten::mm   AutogradCPU   torch::autograd::VariableType::(anonymous namespace)::mm

--latency measures the time from the lookup to the return of each call of OP, with a second probe at the function's ret
instruction. Nothing is written to the process's stack. (The kernel's own return probes replace the return address
there, and a C++ exception that is thrown through such a frame kills the process.) A call that exits by an exception is
counted as one that did not return. Redispatches are part of their call. Each call of OP takes about 12 microseconds
longer. The measured time includes one of these microseconds, because the kernel single-steps each ret.

This command needs Linux 6.6 or later, and root or CAP_BPF and CAP_PERFMON. On Linux 5.15 to 6.5 it can count named
operators, with probes that are placed one at a time; it then takes several seconds to exit.
"""


class TopTool(Tool):
    """The command ``dispatch-top`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _EPILOG
        add = parser.add_argument
        latency = "show a histogram of the time that calls of these operators take (see below)"
        count = "number of reports (default: 1; on a terminal, until q is pressed)"
        output = "also write the last report for flame graphs, as .collapsed stacks or .speedscope.json"
        key = "count only dispatches to this key, such as CPU or AutogradCPU"
        add("op", nargs="*", metavar="OP", help="count only these operators: mm, aten::mm.out, '*mm*'")
        add("--by", choices=GROUPINGS, default="op", help="what to group the rows by (default: op)")
        add("--latency", action="store_true", help=latency)
        add("--thread", metavar="TID", help="count only this thread")
        add("--key", metavar="KEY", default="", help=key)
        add("--sort", choices=ORDERS, default="count", help="how to sort the rows (default: count)")
        add("--interval", type=float, default=1.0, metavar="S", help="seconds to count for each report (default: 1)")
        add("--count", type=integer, metavar="N", help=count)
        add("--html", metavar="FILE", help="also write the last report as a self-contained HTML page")
        add("--output", metavar="FILE", help=output)
        add("--limit", type=integer, default=40, metavar="N", help="number of rows to show (default: 40)")

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Count for --count intervals. Raises UsageError, ProbesRefused."""
        process = session.target
        if not isinstance(process, RunningProcess):
            raise UsageError(
                f"{self.name} needs a running process; this one is stopped, a core or a recording",
                help=f"from a shell: scripts/dispatch -p {process.pid} dispatch-top",
            )
        if args.output and not is_flame_file(args.output):
            raise UsageError(f"--output {args.output}: the file's ending selects the format", help=FORMATS)
        if not 0 < args.interval <= MAX_SECONDS or args.limit < 1 or (args.count is not None and args.count < 1):
            raise UsageError(f"--interval takes up to {MAX_SECONDS:.0f} s; --limit and --count must be at least 1")
        operators = named_operators(session.dispatcher, args.op)
        tid = running_thread(process, args.thread) if args.thread is not None else None
        only = filter_of(session, tid, args.key)
        watched = WatchedProcess(process.pid)  # before there are probes, so that its exit is noticed
        if args.latency:
            if not operators or args.html or args.output or args.by != "op":
                raise UsageError(
                    "--latency needs the names of operators, and cannot be combined with --by, --html or --output",
                    why="two probes for each call of every operator would slow all calls by several microseconds",
                    help="dispatch-top --latency mm addmm",
                )
            with DeferredInterrupt() as interrupt, LatencyMeter(session, operators, only) as latency:
                reports = _Reports(self, session, args, host, latency, interrupt, watched)
                return reports.last(lambda: latency.section(args.limit))
        with DeferredInterrupt() as interrupt, DispatchMeter(session, process, operators, args.by, only) as meter:
            reports = _Reports(self, session, args, host, meter, interrupt, watched)
            selection = RowSelection(args.by, args.sort, args.limit)
            if args.count is None and not args.json and top_view.can_draw_screen():
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
        if report.find_section(TopSection):
            return top_view.render(report, style)
        return latency_meter.render(report, style)


def _write_stacks(report: Report, path: str) -> None:
    """Write the rows as stacks for a flame graph: line or thread, operator, kernel. Raises TargetError."""
    stacks = FlameStacks()
    for row in report.section(TopSection).rows:
        subject = row.subject
        words = " ".join(filter(None, (subject.event, subject.key)))
        operator = (subject.qualified or "all operators") + (f" [{words}]" if words else "")
        outer = row.line or (f"{row.thread or 'thread'} ({row.tid})" if row.tid else "")
        stacks.add(tuple(filter(None, (outer, operator, subject.kernel))), row.count)
    whole_file.write_text(path, stacks.speedscope("dispatches") if path.endswith(SPEEDSCOPE) else stacks.text())


class _Reports(NamedTuple):
    """Makes the reports of one run, from what ``meter`` measures."""

    tool: Tool
    session: Session
    args: Namespace
    host: ToolHost
    meter: DispatchMeter | LatencyMeter
    interrupt: DeferredInterrupt
    process: WatchedProcess

    def report(self, section: Section) -> Report:
        return make_report(self.tool, self.session, self.args, sections=(section,))

    def last(self, measure: Callable[[], Section]) -> Report:
        """Show all but the last of --count reports as they are made, and return the last; earlier when the process
        exits. ``measure`` returns the section on the time since its last call."""
        for _ in range((self.args.count or 1) - 1):
            if not self._wait():
                break
            report = self.report(measure())
            if self.args.json:
                self.host.show(json_report.render(report, pretty=False))
            else:
                self.host.show(render_text(report, color=False) + "\n")
        else:
            self._wait()
        if ending := self.process.ending():
            error = TargetGone(ending.text, help="the counts are from before it exited")
            self.session.errors.note(error, self.tool.name)
        return self.report(measure())

    def _wait(self) -> bool:
        """Wait for --interval; False if a signal arrived or the process exited before. The meter reads names each
        second, because they cannot be read after the exit."""
        end = time.monotonic() + self.args.interval
        while time.monotonic() < end:
            if not self.interrupt.sleep(min(1.0, end - time.monotonic())) or self.process.ending():
                return False
            self.meter.learn()
        return True


class DispatchMeter(DispatchCounter):
    """Counts from construction to close(); a context manager. Raises GdbextError."""

    def __init__(
        self, session: Session, process: RunningProcess, operators: Sequence[Operator], by: str, only: Filter
    ) -> None:
        """``operators``: only these, () for all; ``by``: one of GROUPINGS; ``only``: the filter that the kernel
        applies."""
        self._process = process
        self._errors = session.errors
        self._lines = PythonLines(session) if by == "line" else None
        self._summary = Summary(session, self._lines)
        finder = TracePlaces(session)
        places = finder.places_of(operators) if operators else finder.everything()
        self._unseen = finder.unseen
        wanted = [operator.address for operator in operators]
        path = self._lines.path if self._lines else None
        states = self._lines.thread_states() if self._lines else None
        self._new_libraries = NewLibrarySites(session, filtered=bool(operators))
        super().__init__(
            session.memory.architecture, process.pid, places, wanted, path, states, only, by_thread=by == "thread"
        )
        self._before: dict[DispatchCount, int] = {}  # the counts at the last report
        self._lost_before = 0
        self._since = self.started

    def section(self, select: RowSelection) -> TopSection:
        """The dispatches since the last section, or since all probes were in place. Raises OSError."""
        counts, lost, now = self.counts(), self.lost(), time.monotonic()
        if self._lines:
            self.set_thread_states(self._lines.thread_states())
        current = {count._replace(times=0): count.times for count in counts}
        increases = [
            count._replace(times=times - self._before.get(count, 0))
            for count, times in current.items()
            if times > self._before.get(count, 0)
        ]
        seconds, unseen = now - self._since, self._unseen + self._new_libraries.unseen
        rows, more = self._summary.rows(increases, select, seconds, self._process.thread_names())
        section = TopSection(
            seconds=round(seconds, 3),
            engine="probes",
            total=sum(count.times for count in increases),
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
        """Read the names of the operators and keysets counted so far, while the process exists, and probe libraries
        that were loaded meanwhile. Raises OSError."""
        self._summary.learn(self.counts())
        try:
            if places := self._new_libraries.find():
                self.add(places)
        except ProbesRefused as error:
            self._errors.note(error, "libraries that are loaded later")
        except GdbextError:  # the process may be about to end
            pass
