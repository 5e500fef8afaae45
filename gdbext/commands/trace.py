"""``dispatch-trace``: dispatches as they happen, nested, as PyTorch itself prints them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gdbext.errors import TargetError, UsageError
from gdbext.inspection.thread_choice import find_thread
from gdbext.live.host import write
from gdbext.live.trace.trace_request import TraceRequest
from gdbext.live.trace.tracing import Traced, Tracing
from gdbext.model.error_report import ErrorReport
from gdbext.model.report import Report
from gdbext.model.sections.trace_section import TraceSection

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.host import Host
    from gdbext.live.trace.sink import Sink

NAME = "dispatch-trace"

DESCRIPTION = """
Resumes the process, and shows each dispatch of the named operators as it happens:

  [call] op=[aten::mm], key=[AutogradCPU]
   [redispatch] op=[aten::mm], key=[CPU]

as TORCH_SHOW_DISPATCH_TRACE prints it in a debug build, one space of indent a level. Ctrl+C ends the trace and takes
all its breakpoints away; the process is stopped then (scripts/dispatch lets it go on).

Cost: a stop takes about 0.2 ms (0.4 ms when gdb has read torch's symbols). There is one for each call and one for
each redispatch of a named operator; all other operators run at full speed. --verbose has six or more for each
dispatch, --output FILE.json four. --all stops once for each call of any operator: forward and backward of a small
model take 64 times as long (118 calls, 0.35 ms become 22 ms), a torch.mm of 1 us 200 times. It shows calls only:
the redispatches of all operators together are 3,101 functions.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.description = f"{parser.description}\n{DESCRIPTION}"
    parser.add_argument("op", nargs="*", metavar="OP", help="operators: mm, aten::mm, aten::mm.out, '*mm*'")
    parser.add_argument("--all", action="store_true", help="every call of every operator (slow, see above)")
    parser.add_argument(
        "--verbose", action="store_true", help="every step: entry, lookup, kernel, boxing, meta/impl functions, returns"
    )
    parser.add_argument("--output", metavar="FILE", help="to FILE: .json a Chrome trace, .jsonl JSON lines, else text")
    parser.add_argument("--limit", metavar="N", type=positive, default=0, help="end after N dispatches")
    parser.add_argument("--depth", metavar="N", type=positive, default=0, help="show N levels of nesting only")
    parser.add_argument("--thread", metavar="TID|N", help="this thread only")
    parser.add_argument("--since", metavar="OP", default="", help="begin when this operator is entered")
    parser.add_argument(
        "--boxed", action="store_true", help="stop in Dispatcher::callBoxed, too: slows all boxed calls"
    )


def positive(word: str) -> int:
    """A number greater than 0. Raises ArgumentTypeError."""
    try:
        number = int(word)
    except ValueError:
        number = 0
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number greater than 0")
    return number


def run(session: Session, args: argparse.Namespace, host: Host) -> Report:
    """Traces. Raises UsageError, TargetError."""
    if bool(args.op) == bool(args.all):
        raise UsageError("name the operators, or give --all", help="dispatch-trace mm   or   dispatch-trace --all")
    control = host.run_control(session)
    tid = find_thread(session.target, args.thread).tid if args.thread is not None else None
    chrome = bool(args.output) and args.output.endswith(".json")
    request = TraceRequest(
        args.op, args.all, args.verbose, chrome, args.boxed, args.limit, args.depth, tid, args.since
    )  # fmt: skip
    output = _Output(args, host.output)
    try:
        with host.running(NAME):
            traced = Tracing(session, control, request, output.notify).run(output.sink)
    finally:
        output.close()
    host.lets_finish = traced.ending.kind.is_by_command
    section = TraceSection(
        traced.count, traced.operators, traced.hooks, traced.ending, traced.open, traced.notes,
        args.output, output.events,
    )  # fmt: skip
    return Report(
        command=NAME,
        target=traced.target,
        view="trace",
        errors=(*session.errors.reports(), *_errors(traced)),
        sections=(section,),
        why=args.why,
    )


def _errors(traced: Traced) -> tuple[ErrorReport, ...]:
    error = traced.ending.error
    return (ErrorReport.of(error, NAME),) if error is not None else ()


class _Output:
    """The file, the terminal, or (with --json and no file) the events for the document."""

    def __init__(self, args: argparse.Namespace, standard_output: int) -> None:
        self._path: str | None = args.output
        self._verbose: bool = args.verbose
        self._quiet: bool = args.json
        self._events: list[Mapping[str, object]] | None = [] if args.json and not args.output else None
        self._standard_output = standard_output
        self._descriptor = standard_output if self._path is None else open_output(self._path)

    def sink(self, now: Callable[[], float], pid: int) -> Sink:
        """What the trace goes to."""
        from gdbext.render.json.trace_events import JsonTrace, json_lines
        from gdbext.render.text.trace_text import TextTrace, Writer

        if self._events is not None:
            return JsonTrace(self._events.append)
        write = Writer(self._descriptor)
        if self._path is not None and self._path.endswith(".json"):
            from gdbext.render.json.chrome_trace import ChromeTrace

            return ChromeTrace(write, pid, now)
        if self._path is not None and self._path.endswith(".jsonl"):
            return JsonTrace(json_lines(write))
        return TextTrace(write, self._verbose)

    def notify(self, text: str) -> None:
        """Tell something at once, where people look; with --json it is in the document's notes."""
        if not self._quiet:
            write(self._standard_output, f"note: {text}\n")

    @property
    def events(self) -> tuple[Mapping[str, object], ...] | None:
        """Those for the document, None where they went elsewhere."""
        return None if self._events is None else tuple(self._events)

    def close(self) -> None:
        """Close the file."""
        if self._path is not None:
            os.close(self._descriptor)


def open_output(path: str) -> int:
    """A descriptor of the file, emptied. Raises TargetError."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise TargetError(f"cannot write to {path}: {error.strerror}", help="name another --output") from error
