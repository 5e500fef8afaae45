"""``dispatch-top``: what a running process dispatches, counted by kernel probes."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from gdbext.commands.reporting import make_report
from gdbext.errors import UsageError
from gdbext.model.sections.top_section import TopSection
from gdbext.probes.summary import GROUPINGS

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report

NAME = "dispatch-top"
MAX_SECONDS = 86400.0
_EPILOG = """\
Counts in the kernel, about a microsecond a dispatch; nothing is stopped, nothing is written to the process, and the
probes are gone when this command ends, however it ends. From the shell only: scripts/dispatch -p PID dispatch-top

Counted are all calls and redispatches, boxed or not, through torch's own libraries and through extensions that were
loaded before. With OP the probes are at these operators' own functions: all others run as fast as ever, unless they
are boxed.

  count     rate/s  event       operator   key           kernel
  40000    20000.0  call        aten::mm   AutogradCPU   torch::autograd::VariableType::(anonymous namespace)::mm

Needs Linux 6.6 or later, and root or CAP_BPF with CAP_PERFMON.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.epilog = _EPILOG
    parser.add_argument("op", nargs="*", metavar="OP", help="only these operators (mm, aten::mm.out, *mm*)")
    parser.add_argument("--by", choices=GROUPINGS, default="op", help="what a row tells apart (default op)")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds to count (default 1)")
    parser.add_argument("--limit", type=int, default=40, metavar="N", help="rows to show (default 40)")


def run(session: Session, args: argparse.Namespace) -> Report:
    """Counts for that long. Raises UsageError, ProbesRefused."""
    from gdbext.probes.dispatch_counter import DispatchCounter
    from gdbext.probes.summary import chosen, rows
    from gdbext.probes.trace_places import TracePlaces
    from gdbext.targets.running_process import RunningProcess

    target = session.target
    if not isinstance(target, RunningProcess):
        raise UsageError(
            "dispatch-top counts in a process that runs, and this one is stopped or a file",
            help=f"from a shell: scripts/dispatch -p {target.pid} dispatch-top",
        )
    if not 0 < args.interval <= MAX_SECONDS or args.limit < 1:
        raise UsageError(f"--interval takes up to {MAX_SECONDS:.0f} seconds, --limit at least one row")
    operators = chosen(session.dispatcher, args.op)
    finder = TracePlaces(session)
    places = finder.of(operators) if operators else finder.everything()
    wanted = [operator.address for operator in operators]
    with DispatchCounter(session.memory.architecture, target.pid, places, wanted) as counter:
        time.sleep(args.interval)
        seconds = time.monotonic() - counter.started
        counts, lost = counter.counts(), counter.lost()
    found = rows(counts, session.dispatcher, args.by, seconds, target.thread_names())
    section = TopSection(
        seconds=round(seconds, 3),
        engine="probes",
        total=sum(count.times for count in counts),
        lost=lost,
        places=len(places),
        rows=tuple(found[: args.limit]),
        more=max(0, len(found) - args.limit),
    )
    return make_report(session, args, NAME, "top", sections=(section,))
