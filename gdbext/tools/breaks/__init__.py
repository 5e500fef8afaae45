"""The tool dispatch-break: breakpoints by operator and key, conditions, the report of a stop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import make_report
from gdbext.engine.numbers import integer
from gdbext.engine.terminal import write
from gdbext.errors import ProbesRefused, UsageError
from gdbext.live.host import ENGINES, PROBES, Host, LiveTool, RunControl
from gdbext.live.registrations import check_pattern, is_generated
from gdbext.live.timed_run import SilenceNotice
from gdbext.live.waiting import torch_session
from gdbext.render import Style, counted, escape, short_name
from gdbext.tools.breaks.break_plan import MISSING, PLACES, check_keys
from gdbext.tools.breaks.break_set import BreakTable
from gdbext.tools.breaks.breaks_section import BreakRequest, BreaksSection, PlacedBreakpoint

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session

DESCRIPTION = """

WHERE is one of:
  call        the lookup in at::_ops::OP::call, where the keyset is known
  redispatch  the lookup in at::_ops::OP::redispatch
  lookup      both of these
  boxed       the boxed entry of each of the operator's kernels
  kernel      each distinct kernel of the operator's table, or only the one for --key. OP may also be generated code:
              kernels that Inductor wrote in C++ (cpp_fused_add_relu_0, 'cpp_fused_*') and functions that its code calls
              (aoti_torch_cpu_mm_out), once they are loaded, and kernels that it wrote for Triton ('triton_poi_*'),
              where the driver launches them, from their second launch on
  meta, impl  TORCH_META_FUNC and TORCH_IMPL_FUNC of structured kernels. For an operator without structured kernels,
              such as your own, meta is its kernel for Meta, and impl its kernels for backends
  register    the computation of an entry of the operator's table, until program exit begins
  missing     the function that raises "Could not run 'OP' with arguments from the 'KEY' backend": no kernel was found
              for the keyset. Without OP, for any operator
  return      the return of call and redispatch; if the dispatcher is inlined into your code, the instruction after it

In gdb, these are ordinary breakpoints: info breakpoints, delete, disable, condition and commands work on them, and the
process runs when you resume it. They are pending until torch is loaded and the operator is registered. With --continue,
gdb accepts no condition; use --key and --has instead. scripts/dispatch runs the process to the first stop (with
--continue: until Ctrl+C, --timeout or its exit), reports the stop and resumes the process. If it does not stop within 5
s, a note says what the process does instead. A condition costs 0.2 ms per hit.

In LLDB, they are ordinary breakpoints, too (breakpoint list, delete, disable). A condition is part of the callback, so
"breakpoint modify -c" adds to the condition and cannot replace it. LLDB also lists the internal breakpoints by which
gdbext notices registrations and the next run of the program. In a second run, breakpoints that you delete are only
disabled until the run ends.

Killing gdb (kill -9) while a thread hits a breakpoint kills the process: likely at hundreds of calls a second with
--continue or a condition, never seen at a stop. If LLDB is killed, the helper gdbext-guard takes over its server
connection and detaches safely.
--engine probes (in gdb, for a process that runs already; needs root or CAP_BPF and CAP_PERFMON) uses kernel probes
instead of breakpoints, so killing gdb does no harm. A probe stops the thread by a signal that the program ignores, one
instruction past the location. gdb shows each probe as a catchpoint. Probes are the default for --continue unless a
breakpoint is already set. See dispatch-values for what probes cannot do.
"""


class BreakTool(LiveTool):
    """The command ``dispatch-break`` as a tool."""

    completions = MappingProxyType({"where": PLACES})

    def arguments(self, parser: ArgumentParser) -> None:
        parser.description = f"{parser.description}\n{DESCRIPTION}"
        add, engine = parser.add_argument, "kernel probes (default in gdb with --continue) or breakpoints, see above"
        add("where", nargs="?", metavar="WHERE", help=", ".join(PLACES))
        add("op", nargs="*", metavar="OP", help="operators: mm, aten::mm, aten::mm.out, '*mm*'")
        add(
            "--key", metavar="KEY", default="", help="stop only if this is the highest key (kernel: only at its kernel)"
        )
        add("--has", metavar="KEY", default="", help="stop only if the keyset contains this key")
        add("--continue", dest="go_on", action="store_true", help="report each stop and continue")
        add("--engine", choices=ENGINES, help=engine)
        add("--list", action="store_true", help="show the breakpoints of dispatch-break")
        add("--delete", nargs="*", type=integer, metavar="N", help="delete these breakpoints (default: all)")

    def run_live(self, session: Session, args: Namespace, host: Host) -> Report:
        """Set, list or delete; the latter two beside a core, too. Raises UsageError, TargetError."""
        if args.delete is not None:
            table = _breakpoints(host)
            deleted = table.delete(args.delete)
            section = BreaksSection(table.listed(), deleted=deleted)
        elif args.list:
            section = BreaksSection(_breakpoints(host).listed())
        else:
            control = host.run_control(session)
            request, table = _request(session, args), _breakpoints(host)
            if host.is_batch:
                table.use_probes(args.engine == PROBES)
                section = self._set_and_run(session, host, table, control, request, args.json)
            else:
                section = _set(session, host, table, request, args.engine)
        return make_report(self, session, args, sections=(section,), ending=section.ending)

    def _set_and_run(
        self, session: Session, host: Host, table: BreakTable, control: RunControl, request: BreakRequest, quiet: bool
    ) -> BreaksSection:
        """Set the breakpoints and let the process run. ``quiet``: standard output is for the JSON document, so stops
        are reported on standard error, and notes only in the document."""
        show = partial(write, 2) if quiet else host.show
        limits = " with that key" if request.key or request.has else ""
        instead = f"did not get there{limits}: {escape(' '.join(['dispatch-top', *request.op]))} counts calls"
        with host.running(self.name):
            try:
                notes = table.add(request, torch_session(control, session), show).notes
                for note in () if quiet else notes:  # at once: without a stop the process may run for long
                    show(f"note: {note}\n")
                with SilenceNotice(
                    session.target.pid or 0,
                    "stop",
                    instead,
                    lambda: bool(table.hits),
                    lambda text: show(f"note: {text}\n"),
                ) as silent:
                    ending = control.run()
                notes = (*notes, silent.text) if quiet and silent.text else notes
                left = table.listed()[-1:] if ending.kind.leaves_process else ()
                return BreaksSection(left, notes, ending=ending)
            finally:
                table.delete([])
                control.close()

    def view(self, report: Report, style: Style) -> Iterator[str]:
        return render(report, style)


def _breakpoints(host: Host) -> BreakTable:
    """The table of all breakpoints in this debugger. Raises UsageError without a debugger."""
    return host.object_of(BreakTable, lambda: BreakTable(host.breakpoint_setter(), host.stopped_session))


def _request(session: Session, args: Namespace) -> BreakRequest:
    """The request of the command line. Raises UsageError."""
    if args.where not in PLACES:
        what = "say where to stop" if args.where is None else f"{args.where!r} is not a place to stop"
        raise UsageError(f"{what}: {', '.join(PLACES)}", help="dispatch-break call mm")
    if not args.op and args.where != MISSING:
        raise UsageError("name the operators", help=f"dispatch-break {args.where} mm")
    for pattern in args.op:
        if is_generated(pattern):
            check_pattern(pattern, args.where)
    request = BreakRequest(args.where, tuple(args.op), args.key or None, args.has or None, args.go_on, args.why)
    check_keys(session.dispatch_keys if session.has_torch else None, request)
    return request


def _set(session: Session, host: Host, table: BreakTable, request: BreakRequest, engine: str | None) -> BreaksSection:
    """Set the breakpoints in the user's own debugger, by the engine of existing ones. The first request uses probes, if
    permitted, if it only reports and resumes; otherwise breakpoints, which stop exactly there and take conditions."""
    refused = None
    if not engine and request.continue_ and not table.listed() and PROBES in host.engines(None, session):
        try:
            table.use_probes(True)
        except ProbesRefused as error:
            refused = error
    elif engine or not table.listed():
        table.use_probes(engine == PROBES)
    notes = (*table.add(request, session, host.show).notes, *table.setter.notes(request.continue_))
    more = () if table.is_probed else host.note_on_breakpoints(session, refused)
    return BreaksSection(table.listed()[-1:], (*notes, *more))


def render(report: Report, style: Style) -> Iterator[str]:
    """The lines of the report: what was deleted, or how the process ended; then each breakpoint."""
    breaks = report.section(BreaksSection)
    if breaks.deleted is not None:
        yield f"{counted(breaks.deleted, 'breakpoint')} deleted"
    if breaks.ending:
        yield f"ended: {escape(breaks.ending.text or 'as requested')}"
    elif not breaks.requests and breaks.deleted is None:
        yield "no breakpoints of dispatch-break"
    for note in breaks.notes:
        yield f"note: {escape(note)}"
    for requested in breaks.requests:
        request, breakpoints = requested.request, requested.breakpoints
        limits = "".join(f" --{name} {key}" for name, key in (("key", request.key), ("has", request.has)) if key)
        option = " --continue" if request.continue_ else ""
        yield style(f"{escape(' '.join([request.where, *request.op]))}{limits}{option}", "bold")
        # An operator has a kernel, and a boxed entry, for each of many keys: six are listed.
        shown = len(breakpoints) if report.why or len(breakpoints) <= 7 else 6
        yield from (_line(placed, report.why) for placed in breakpoints[:shown])
        rest = breakpoints[shown:]
        if rest:
            hits = counted(sum(placed.hits for placed in rest), "hit")
            yield f"  breakpoints {rest[0].number} to {rest[-1].number}: {hits} (--why lists them)"


def _line(placed: PlacedBreakpoint, why: bool) -> str:
    """The line on a breakpoint; ``why``: with its condition."""
    head = f"  breakpoint {placed.number}"
    if placed.waits_for:
        return f"{head}: pending: set when {escape(placed.waits_for)}"
    if placed.address is None:
        return f"{head}: pending: set when torch is loaded and used ({placed.place})"
    condition = f", if {placed.condition}" if placed.condition and why else ""
    what = f"{escape(placed.op or '')} {placed.event}: {escape(short_name(placed.place))}{condition}"
    return f"{head} at {placed.address:#x}: {what}, {placed.hits} {'hit' if placed.hits == 1 else 'hits'}"
