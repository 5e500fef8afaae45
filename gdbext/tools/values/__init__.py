"""The tool dispatch-values: operators' arguments and return values, live; the first NaN."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Ending, EndingKind, Report, TargetReport
from gdbext.diagnosis.reporting import make_report, report_target
from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.diagnosis.tool_arguments import find_thread, positive
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.terminal import shown_json
from gdbext.errors import ProbesRefused, UsageError
from gdbext.live.dispatch_description import Describer
from gdbext.live.dispatch_places import AllCalls
from gdbext.live.host import ENGINES, PROBES, Host, LiveTool, RunControl
from gdbext.live.timed_run import SilenceNotice
from gdbext.live.waiting import torch_session
from gdbext.render import Style, escape
from gdbext.tools.values.compiled_code_watch import CompiledCodeWatch, is_compiled
from gdbext.tools.values.first_nan import FirstBad, find_lines, notes_on_stacks, python_place, sought_numbers
from gdbext.tools.values.launch import Find, LaunchPrinter, find_document, json_lines, kernel_line, launch_lines
from gdbext.tools.values.value_watch import ValueRequest, ValueSink, ValueWatch, WatchedOperators
from gdbext.tools.values.values_section import ValueFiles, ValuesSection, render

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator, Sequence

    from gdbext.diagnosis.session import Session

SEEKS = ("nan", "inf")

DESCRIPTION = """

The process is resumed, and the arguments and results of the named operators are shown or saved. The modes are:

  save   write a file for each call: DIR/before_launch_aten__mm_0.safetensors, after_launch_…. A file has a tensor for
         each argument or result, under its name in the schema (result0 if it has none)
  print  print the size, dtype, mean, min, max and std of each tensor, and the value of each number; with --json, one
         object per line
  names  print only a line [ before_launch: KERNEL ] for each kernel, at once, so that the last line before a crash
         names the kernel
  nan    find the first operator whose result has a NaN although no argument had one. Print its kernel, Python line and
         statistics, and the 20 calls before it. Without OP, all operators are watched. --above X looks for numbers
         further from zero than X instead. --continue prints each find and continues. In a core, or without gdb,
         only the operators on the stacks are checked
  inf    the same for infinities and NaNs
  off    watch nothing

OP may also be compiled code. 'cpp_fused*' matches kernels of Inductor's C++ backend. Their tensors are taken from the
Python line or the C++ function that calls them, and a tensor is shown if a pointer points to its first element.
'aoti_torch_cpu_*' matches the functions that AOTInductor's code calls. Kernels that are compiled later are also
watched.

The number in a file's name counts the operator's calls from 0. Ctrl+C ends the command and stops the process
(scripts/dispatch resumes it).

Operators that are not registered yet are watched once they are. An operator without functions of its own
(torch.library, extensions) is watched at the code that all boxed calls share, as torch.ops makes them, so the boxed
calls of other operators stop there, too, for 0.3 ms. Calls that an extension's own C++ makes through a typed handle are
not seen.

Each call of a named operator costs about 2 ms of CPU time, for two or three stops and for reading its tensors. Tensors
of more than 262,144 elements are sampled, and the output says so (save writes all elements). All other operators run at
full speed.

Killing gdb (kill -9) while its breakpoints are in the code usually kills the process; killing LLDB does not.
--engine probes uses kernel probes instead of breakpoints; it needs root or CAP_BPF and CAP_PERFMON. A probe stops the
thread by a signal that the program ignores, SIGURG or SIGWINCH, and the probes disappear with the debugger. In your own
gdb or LLDB, probes are the default if they are possible; otherwise a note says why they are not. A stop costs the same.
Probes cannot stop in code that is not in a file, cannot be used from inside a container, and do not see a thread that
blocks the signal later. While any tool probes torch's libraries, your breakpoints at the same addresses may be missed.
"""


class ValuesTool(LiveTool):
    """The command ``dispatch-values`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.description = f"{parser.description}\n{DESCRIPTION}"
        add, modes = parser.add_argument, "off|save|print|names|nan|inf"
        operators = "operators: mm, aten::mm, aten::mm.out, '*mm*'; compiled code: 'cpp_fused*', 'aoti_torch_*'"
        folder = "save: folder for the files (default: the current one)"
        when, moments = "when to read the values (default: both; for names: before)", ("before", "after", "both")
        above = "nan: look for numbers beyond X or -X instead of NaNs"
        engine = "kernel probes (default inside gdb and LLDB) or breakpoints, see above"
        add("mode", choices=modes.split("|"), metavar=modes, help="what to do with values")
        add("op", nargs="*", metavar="OP", help=operators)
        add("--when", choices=moments, default=None, help=when)
        add("--dir", metavar="DIR", default=".", help=folder)
        add("--max-bytes", metavar="N", type=positive, default=0, help="save: omit tensors that are larger than this")
        add("--key", metavar="KEY", default="", help="only calls that are dispatched to this key")
        add("--kernel", metavar="PATTERN", default="", help="only kernels whose name contains this")
        add("--above", metavar="X", type=float, help=above)
        add("--continue", action="store_true", dest="goes_on", help="nan: print each find and continue")
        add("--limit", metavar="N", type=positive, default=0, help="stop after N calls")
        add("--thread", metavar="TID|N", help="watch only this thread")
        add("--engine", choices=ENGINES, help=engine)

    def modes(self, args: Namespace) -> Sequence[Mode]:
        """For NaNs and infinities the operators on stacks can be examined, too."""
        return (Mode.RESUMES, Mode.STOPPED) if args.mode in SEEKS else (Mode.RESUMES,)

    def run_live(self, session: Session, args: Namespace, host: Host) -> Report:
        """Watch the operators, and report at the end. Raises UsageError, TargetError."""
        target = None
        if args.mode == "off":
            section = ValuesSection("off", 0, Ending(EndingKind.ASKED, "nothing is watched"))
        elif not args.op and args.mode not in SEEKS:
            raise UsageError("name the operators", help=f"dispatch-values {args.mode} mm")
        elif args.mode in SEEKS and (session.target.origin.is_core or host.name == "none"):
            # The operators on the stacks that have such numbers among their arguments.
            reporter = ArgumentReporter(session, statistics=True)
            what, is_bad = sought_numbers(args.mode, args.above)
            notes = notes_on_stacks(session, reporter, args.op, is_bad, what)
            ending = Ending(EndingKind.ASKED, "only the operators on the stacks were checked: nothing was resumed")
            section = ValuesSection(args.mode, 0, ending, tuple(notes))
        else:
            section, target = self._watch(session, args, host)
            host.lets_finish = section.ending.kind.is_by_command
        return make_report(self, session, args, sections=(section,), target=target, ending=section.ending)

    def _watch(self, session: Session, args: Namespace, host: Host) -> tuple[ValuesSection, TargetReport]:
        """Watch by the first engine that the kernel permits. Raises UsageError, TargetError."""
        refused = None
        *others, last = host.engines(args.engine, session)
        for engine in others:
            try:
                return self._watch_by(engine, session, args, host)
            except ProbesRefused as error:
                refused = error
        return self._watch_by(last, session, args, host, refused)

    def _watch_by(
        self, engine: str, session: Session, args: Namespace, host: Host, refused: ProbesRefused | None = None
    ) -> tuple[ValuesSection, TargetReport]:
        """Watch by one engine. ``refused``: the error by which a better one was refused. Raises ProbesRefused,
        UsageError, TargetError."""
        control = host.run_control(session)

        def notify(text: str) -> None:
            if not args.json:
                host.show(f"note: {text}\n")

        sink = _sink(args, control, host.show)
        request = _request(session, args)
        warnings: tuple[str, ...] = ()
        if engine == PROBES:
            control.use_probes()
        else:
            warnings = host.note_on_breakpoints(session, refused)
        with host.running(self.name):
            section, target = _watch_values(session, control, request, sink, warnings, notify)
        folder = args.dir if args.mode == "save" else None
        return replace(section, mode=args.mode, folder=folder, files=getattr(sink, "count", 0)), target

    def view(self, report: Report, style: Style) -> Iterator[str]:
        return render(report, style)


def _watch_values(
    session: Session,
    control: RunControl,
    request: ValueRequest,
    sink: ValueSink,
    warnings: Sequence[str],
    notify: Callable[[str], None],
) -> tuple[ValuesSection, TargetReport]:
    """Run the process and watch it until something ends that. ``warnings``: the first notes; ``notify`` shows a note at
    once. Raises TargetError, UsageError for an unknown key or operator."""
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        notify(text)

    for warning in warnings:
        note(warning)
    limited = request.tid or request.key or request.kernel
    limits = " that matches --thread, --key and --kernel" if limited else ""
    called = f"did not call {escape(' '.join(request.patterns))}" if request.patterns else "called no operator"
    try:
        session = torch_session(control, session)
        if request.key:
            session.dispatch_keys.bits_of(request.key)
            request = request._replace(key=session.dispatch_keys.own_name(request.key))
        describer = Describer(control.session, session, registrations=False)
        watch = ValueWatch(session, control, describer, request, sink)
        kernels = CompiledCodeWatch(session, control, request, sink)
        compiled = [pattern for pattern in request.patterns if is_compiled(pattern)]
        if compiled:
            kernels.place(compiled)
        if request.everything:
            watch.watch_lookups(AllCalls(session).lookups())
        else:
            operators = WatchedOperators(session, control, watch, note, request.redispatches)
            operators.place([pattern for pattern in request.patterns if pattern not in compiled])

        def has_calls() -> bool:
            return bool(watch.count + kernels.count)

        pid = session.target.pid if control.can_run_beside else 0
        with SilenceNotice(pid, "call", f"{called}{limits}: dispatch-top shows what they dispatch", has_calls, note):
            ending = control.run()
    finally:
        control.close()
    if watch.over or kernels.over:
        ending = Ending(EndingKind.LIMIT, f"--limit {request.limit}")
    return ValuesSection("", watch.count + kernels.count, ending, tuple(notes)), report_target(session)


def _request(session: Session, args: Namespace) -> ValueRequest:
    """The request of the command line. Raises UsageError for an unknown thread."""
    when = "both" if args.mode in SEEKS else args.when or ("before" if args.mode == "names" else "both")
    return ValueRequest(
        patterns=args.op,
        before=when != "after",
        after=when != "before",
        key=args.key,
        kernel=args.kernel,
        limit=args.limit,
        tid=find_thread(session.target, args.thread).tid if args.thread is not None else None,
        statistics=args.mode in ("print", *SEEKS),
        redispatches=bool(args.key) or args.mode == "names",
        everything=not args.op,
    )


def _sink(args: Namespace, control: RunControl, show: Callable[[str], None]) -> ValueSink:
    """The receiver of calls for the mode; ``show`` prints text."""
    if args.mode in SEEKS:
        what, is_bad = sought_numbers(args.mode, args.above)

        def show_find(find: Find) -> None:
            """Show a find with the Python line of its call."""
            file, line = python_place(control, find.launch.tid)
            find = find._replace(file=file, line=line)
            if args.json:
                show(shown_json(json.dumps(find_document(find))) + "\n")
            else:
                show("".join(f"{line}\n" for line in find_lines(find, what)))

        return FirstBad(is_bad, show_find, not args.goes_on)
    if args.mode == "save":
        return ValueFiles(args.dir, args.max_bytes, lambda text: None if args.json else show(f"{text}\n"))
    if args.mode == "names":
        return LaunchPrinter(show, lambda launch: iter((kernel_line(launch),)))
    return LaunchPrinter(show, json_lines if args.json else launch_lines)
