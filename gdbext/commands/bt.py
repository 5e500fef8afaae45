"""``dispatch-bt``: the dispatcher's path through a stack."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdbext.commands.options import add_thread_choice, chosen_threads
from gdbext.commands.reporting import dispatcher_errors, make_report, with_arguments
from gdbext.errors import GdbextError
from gdbext.model.error_report import ErrorReport

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report
    from gdbext.model.threads.thread_report import ThreadReport
    from gdbext.targets.base import Thread

NAME = "dispatch-bt"
_EPILOG = """\
Innermost first. Each entry is one pass through the dispatcher:

  #11   [redispatch] op=[aten::mm], key=[Meta]  in-kernel, exact
        DispatchKeySet(Meta)  0x18000, table index 16
        kernel meta_mm at model.py:3  (boxed only)
               registered at model.py:9, path 1

#11 is the native frame, [redispatch] the event (call, redispatch, callBoxed, redispatchBoxed), key the one that was
chosen. The stage is entering (the operator's handle is being made), lookup, invoking (boxing layers) or in-kernel.
exact: the keyset was read where the calling code passed it, and this operator's table has the running kernel for it;
verified: found in the frame and proven the same way; inferred: from the kernel alone. --why shows the proof. path is
the step of computeDispatchTableEntryWithDebug that chose the kernel: 1 its own, 2.x an alias key, 3 a fallback.
--args adds a line, "(self=f32[32, 64] cpu, dim=1)": read from the boxed stack, or from registers and stack slots by the
C++ signature. "?" is a value that cannot be known any more, "1?" one that is likely and not proven.
In a backward pass "node" names what the engine runs in the frames above that line, with its sequence number.
"never entered" names the key that an innermost kernel was expected to redispatch to and has not reached.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.epilog = _EPILOG
    add_thread_choice(parser)
    parser.add_argument("--native", action="store_true", help="every native frame, too")
    parser.add_argument("--args", action="store_true", help="the arguments of each operator, where they can be proven")
    parser.add_argument("--values", action="store_true", help="with their tensors' statistics (implies --args)")


def _with_nodes(session: Session, thread: Thread, report: ThreadReport) -> ThreadReport:
    """With the nodes that run, where the thread is in a backward pass."""
    if not session.has_torch:
        return report
    stack = session.threads.of(thread).stack
    levels = session.dispatch_stacks.engine_calls(stack)
    if not levels:
        return report
    from gdbext.inspection.autograd.nodes_on_stack import nodes_on_stack

    return report._replace(nodes=nodes_on_stack(session, thread, stack, levels))


def run(session: Session, args: argparse.Namespace) -> Report:
    """The chosen threads' paths through the dispatcher. A thread that cannot be read costs that thread."""
    from gdbext.inspection.threads.source_lines import source_lines
    from gdbext.inspection.threads.thread_reporting import report_stack

    threads = []
    errors = [*dispatcher_errors(session)]
    for thread in chosen_threads(session.target, args, NAME):
        try:
            report = report_stack(session, thread, native=args.native, explained=args.why)
            if args.args or args.values:
                report = with_arguments(session, report, statistics=args.values)
            threads.append(_with_nodes(session, thread, report))
        except GdbextError as error:
            errors.append(ErrorReport.of(error, f"thread {thread.tid}"))
    sources = {} if args.json else source_lines(session.target, threads)
    return make_report(session, args, NAME, "bt", threads=threads, errors=errors, sources=sources)
