"""``dispatch-break``: breakpoints in the dispatcher, by operator and key."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from gdbext.commands.reporting import make_report
from gdbext.errors import UsageError
from gdbext.live.breakpoints.break_plan import PLACES, check_keys
from gdbext.live.breakpoints.generated_sites import check_pattern, is_generated
from gdbext.live.host import write
from gdbext.model.sections.breaks_section import BreakRequest, BreaksSection

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.host import Host
    from gdbext.live.run_control import RunControl
    from gdbext.model.report import Report

NAME = "dispatch-break"
COMPLETIONS = {"where": PLACES}
"""For arguments whose values argparse does not check."""

DESCRIPTION = """
WHERE:
  call        in at::_ops::OP::call, at the lookup: the keyset is known
  redispatch  the same in at::_ops::OP::redispatch
  lookup      both
  boxed       at the boxed entries of the operator's kernels
  kernel      at each distinct kernel of the operator's table, or the one for --key; also at kernels that Inductor
              has written in C++ (cpp_fused_add_relu_0, 'cpp_fused_*') and at functions that its code calls
              (aoti_torch_cpu_mm_out), once they are loaded, and where the driver launches kernels that it has
              written for Triton ('triton_poi_*'), from their second launch on
  meta, impl  at TORCH_META_FUNC and TORCH_IMPL_FUNC of its structured kernels
  register    when an entry of its table is computed, until the program begins to end
  return      at the ends of call and redispatch

In gdb these are ordinary breakpoints: info breakpoints, delete, disable, condition, commands work on them, and the
process runs on when you say so. Without torch they are pending, and so are those for operators that are not registered
yet. With --continue gdb takes no condition: use --key and --has. scripts/dispatch runs the process to the first stop
(with --continue: until Ctrl+C, --timeout or its end), reports, and lets it go on. A condition costs 0.2 ms a hit.

In LLDB they are ordinary breakpoints, too (breakpoint list, delete, disable). A condition is part of the callback, so
"breakpoint modify -c" adds to it and cannot change it. LLDB also lists the breakpoints by which registrations and the
next run of the program are noticed. In a second run deleted ones are only off until it ends.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.description = f"{parser.description}\n{DESCRIPTION}"
    parser.add_argument("where", nargs="?", metavar="WHERE", help=", ".join(PLACES))
    parser.add_argument("op", nargs="*", metavar="OP", help="operators: mm, aten::mm, aten::mm.out, '*mm*'")
    parser.add_argument("--key", metavar="KEY", default="", help="only for this highest key (kernel: its kernel)")
    parser.add_argument("--has", metavar="KEY", default="", help="only where the keyset holds this key")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="report each stop and go on")
    parser.add_argument("--list", action="store_true", help="show the breakpoints of dispatch-break")
    parser.add_argument("--delete", nargs="*", type=int, metavar="N", help="delete these, or all")


def run(session: Session, args: argparse.Namespace, host: Host) -> Report:
    """Sets, lists or deletes. Raises UsageError, TargetError."""
    control = host.run_control(session)
    if args.delete is not None:
        deleted = host.breakpoints.delete(args.delete)
        return _report(session, args, BreaksSection(host.breakpoints.listed(), deleted=deleted))
    if args.list:
        return _report(session, args, BreaksSection(host.breakpoints.listed()))
    request = _request(session, args)
    if host.is_batch:
        return _report(session, args, _set_and_run(session, host, control, request, args.json))
    return _report(session, args, _set(session, host, request))


def _report(session: Session, args: argparse.Namespace, section: BreaksSection) -> Report:
    return make_report(session, args, NAME, "breaks", sections=(section,), ending=section.ending)


def _request(session: Session, args: argparse.Namespace) -> BreakRequest:
    if args.where not in PLACES:
        what = "say where to stop" if args.where is None else f"{args.where!r} is not a place to stop"
        raise UsageError(f"{what}: {', '.join(PLACES)}", help="dispatch-break call mm")
    if not args.op:
        raise UsageError("name the operators", help=f"dispatch-break {args.where} mm")
    for pattern in args.op:
        if is_generated(pattern):
            check_pattern(pattern, args.where)
    request = BreakRequest(args.where, tuple(args.op), args.key, args.has, args.go_on)
    if session.has_torch:
        check_keys(session.dispatch_keys, request)
    return request


def _set(session: Session, host: Host, request: BreakRequest) -> BreaksSection:
    """Set the breakpoints in the user's own debugger."""
    notes = host.breakpoints.add(request, session, host.show).notes
    on_calls = host.breakpoints.note_on_calls if request.go_on else ""
    return BreaksSection(host.breakpoints.listed()[-1:], (*notes, on_calls) if on_calls else notes)


def _set_and_run(
    session: Session, host: Host, control: RunControl, request: BreakRequest, quiet: bool
) -> BreaksSection:
    """Set the breakpoints and let the process run. With ``quiet`` standard output is for the one document: stops are
    reported on standard error, and notes are left to the document."""
    from gdbext.live.waiting import torch_session

    show = partial(write, 2) if quiet else host.show
    with host.running(NAME):
        try:
            notes = host.breakpoints.add(request, torch_session(control, session), show).notes
            for note in () if quiet else notes:  # at once: without a stop the process may run for long
                show(f"note: {note}\n")
            ending = control.run()
            left = host.breakpoints.listed()[-1:] if ending.kind.leaves_process else ()
            return BreaksSection(left, notes, ending=ending)
        finally:
            host.breakpoints.delete([])
            control.close()
