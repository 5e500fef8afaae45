"""``dispatch-top``: what a running process dispatches, counted by kernel probes."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from gdbext.commands.reporting import make_report
from gdbext.errors import TargetGone, UsageError
from gdbext.probes.summary import GROUPINGS, ORDERS, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gdbext.inspection.session import Session
    from gdbext.live.host import Host
    from gdbext.model.report import Report
    from gdbext.model.sections.top_section import TopSection
    from gdbext.probes.bpf.place_program import Filter
    from gdbext.probes.dispatch_meter import DispatchMeter
    from gdbext.probes.late_interrupt import LateInterrupt
    from gdbext.probes.watched_process import WatchedProcess
    from gdbext.torch.registry.operators import Operator

NAME = "dispatch-top"
MAX_SECONDS = 86400.0
_LEARN = 1.0
"""Seconds after which the process is looked at again."""
_EPILOG = """\
Counts in the kernel, about a microsecond a dispatch; nothing is stopped, nothing is written to the process, and the
probes are gone when this command ends, by kill -9, too: another process of ours, gdbext-probes, places them and takes
them away. (Only where that one is killed within the 0.3 s in which it places them, the kernel leaves some in the code,
dmesg: leaking uprobe; placing probes once more takes them away.)
From the shell only: scripts/dispatch -p PID dispatch-top

Counted are all calls and redispatches, boxed or not, through torch's own libraries, and through the dispatcher's copies
in extensions where these are recognised (those that are loaded later from a second after that on; not with --latency).
"8 functions not seen": so many look operators up by code that is not recognised (seven of libtorch_cpu 2.13, one of
libtorch_python: fallbacks of lazy tensors, functionalization, quantized modules by name); what they dispatch is not
counted. --thread and --key leave others out in the kernel. With OP the probes are at these operators' own functions:
all others run as fast as ever, unless they are boxed.

Marked is what is odd: an entry that falls through or has no kernel, a backend's boxed fallback, an operator that
decomposes into others (CompositeImplicitAutograd), one that is redispatched many times a call, one on the processor in
a job that runs on an accelerator. --by line: the innermost line of Python (CPython 3.11 and later). On a terminal the
screen is drawn anew every interval; q ends it, c, o, k, n, t and l sort by count, operator, key, kernel, thread, line.

  count     rate/s  event       operator   key           kernel
  40000    20000.0  call        aten::mm   AutogradCPU   torch::autograd::VariableType::(anonymous namespace)::mm

--latency: from the lookup to the return of each call of OP, by a second probe at the function's ret instruction.
Nothing is written to the process's stack. (The kernel's own return probes do that, and an exception of C++ thrown
through such a frame ends the process.) A call that an exception leaves is counted as one that did not return.
Redispatches are part of their call. A call of OP takes about 12 microseconds more, of which its time includes one: the
kernel steps over each ret.

Needs Linux 6.6 or later, and root or CAP_BPF with CAP_PERFMON. From Linux 5.15 on operators that are named can be
counted, too, by probes one by one: it then takes some seconds more to end.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.epilog = _EPILOG
    parser.add_argument("op", nargs="*", metavar="OP", help="only these operators (mm, aten::mm.out, *mm*)")
    parser.add_argument("--by", choices=GROUPINGS, default="op", help="what a row tells apart (default op)")
    parser.add_argument(
        "--latency", action="store_true", help="how long calls of these operators take, as a histogram (see below)"
    )
    parser.add_argument("--thread", metavar="TID", help="only this thread")
    parser.add_argument("--key", metavar="KEY", default="", help="only dispatches to this key (CPU, AutogradCPU)")
    parser.add_argument("--sort", choices=ORDERS, default="count", help="the order of the rows (default count)")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds to count (default 1)")
    parser.add_argument(
        "--count", type=int, metavar="N", help="reports to make (default 1; on a terminal, until q is pressed)"
    )
    parser.add_argument("--html", metavar="FILE", help="also write the last report as a page, which needs nothing else")
    parser.add_argument("--limit", type=int, default=40, metavar="N", help="rows to show (default 40)")


def run(session: Session, args: argparse.Namespace, host: Host) -> Report:
    """Counts for that long. Raises UsageError, ProbesRefused."""
    from gdbext.inspection.threads.thread_choice import running_thread
    from gdbext.probes.dispatch_filter import filter_of
    from gdbext.probes.dispatch_meter import DispatchMeter
    from gdbext.probes.late_interrupt import LateInterrupt
    from gdbext.probes.summary import chosen
    from gdbext.probes.watched_process import WatchedProcess
    from gdbext.targets.live.running_process import RunningProcess

    process = session.target
    if not isinstance(process, RunningProcess):
        raise UsageError(
            "dispatch-top counts in a process that runs, and this one is stopped or a file",
            help=f"from a shell: scripts/dispatch -p {process.pid} dispatch-top",
        )
    if not 0 < args.interval <= MAX_SECONDS or args.limit < 1 or (args.count is not None and args.count < 1):
        raise UsageError(
            f"--interval takes up to {MAX_SECONDS:.0f} seconds, --limit at least one row, --count one report"
        )
    operators = chosen(session.dispatcher, args.op)
    tid = running_thread(process, args.thread) if args.thread is not None else None
    only = filter_of(session, tid, args.key)
    watched = WatchedProcess(process.pid)  # before there are probes: from then on its end is one that is reported
    if args.latency:
        return _latency(session, args, host, operators, only, watched)
    with DispatchMeter(session, process, operators, args.by, only) as meter, LateInterrupt() as interrupt:
        report = _Top(session, args, host, meter, watched).run(interrupt)
    return _with_page(report, args.html) if args.html else report


def _with_page(report: Report, path: str) -> Report:
    """Raises TargetError."""
    from dataclasses import replace

    from gdbext.formats import whole_file
    from gdbext.model.sections.top_section import TopSection
    from gdbext.render.html import top_page

    section = report.section(TopSection)
    whole_file.write(path, top_page.render(section, report.target).encode())
    return report._replace(sections=(replace(section, page=path),))


def _latency(
    session: Session, args: argparse.Namespace, host: Host, operators: Sequence[Operator], only: Filter,
    watched: WatchedProcess,
) -> Report:  # fmt: skip
    """How long calls take. Raises UsageError, ProbesRefused."""
    from gdbext.probes.late_interrupt import LateInterrupt
    from gdbext.probes.latency_meter import LatencyMeter

    if not operators or args.html or args.by != "op":
        raise UsageError(
            "--latency is for operators that are named, and goes with neither --by nor --html",
            why="two probes for each call of every operator would slow all of them by some microseconds",
            help="dispatch-top --latency mm addmm",
        )
    with LatencyMeter(session, operators, only) as meter, LateInterrupt() as interrupt:
        def report() -> Report:
            return make_report(session, args, NAME, "latency", sections=(meter.section(args.limit),))

        return _repeated(session, report, meter.learn, args, host, interrupt, watched)


def _repeated(
    session: Session, report: Callable[[], Report], learn: Callable[[], None], args: argparse.Namespace, host: Host,
    interrupt: LateInterrupt, process: WatchedProcess,
) -> Report:  # fmt: skip
    """The last of --count reports; those before it are shown at once. It ends with the process, too."""
    for _ in range((args.count or 1) - 1):
        if not _counted(args.interval, interrupt, process, learn):
            break
        _show(report(), args, host)
    else:
        _counted(args.interval, interrupt, process, learn)
    ending = process.ending()
    if ending is not None:
        session.errors.note(TargetGone(ending.text, help="what is counted is what it did before"), NAME)
    return report()


def _counted(seconds: float, interrupt: LateInterrupt, process: WatchedProcess, learn: Callable[[], None]) -> bool:
    """Whether that time is over; False where a signal came or the process ended before. ``learn`` is called meanwhile,
    since what is counted cannot be read of a process that is gone."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not interrupt.sleep(min(_LEARN, end - time.monotonic())) or process.ending() is not None:
            return False
        learn()
    return True


def _show(report: Report, args: argparse.Namespace, host: Host) -> None:
    from gdbext.render.json import json_report
    from gdbext.render.text import text_report

    if args.json:
        host.show(json_report.render(report, pretty=False))
    else:
        host.show(text_report.render(report, color=False) + "\n")


class _Top:
    """One run: reports, or a screen."""

    def __init__(
        self, session: Session, args: argparse.Namespace, host: Host, meter: DispatchMeter, process: WatchedProcess
    ) -> None:
        self._session = session
        self._process = process
        self._args = args
        self._host = host
        self._meter = meter
        self._select = Selection(args.by, args.sort, args.limit)

    def run(self, interrupt: LateInterrupt) -> Report:
        """The last report; those before it are shown at once."""
        from gdbext.render.text import top_screen

        args = self._args
        if args.count is None and not args.json and top_screen.is_possible():
            screen = top_screen.TopScreen(self._report, self._select, args.interval)
            return screen.run(lambda: interrupt.came or self._process.ending() is not None)
        report, learn = (lambda: self._report(self._select)), self._meter.learn
        return _repeated(self._session, report, learn, args, self._host, interrupt, self._process)

    def _report(self, select: Selection) -> Report:
        section: TopSection = self._meter.section(select)
        return make_report(self._session, self._args, NAME, "top", sections=(section,))
