"""The tools: their table, how one is run, and the boundary at which every failure becomes a message.

A tool is a class of diagnosis/tool.py, or of program.py, that is imported when it is used. --json, --why and --help are
added here. Imports little: the launcher starts with it.
"""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

from gdbext import log
from gdbext.errors import AddOnError, GdbextError, UsageError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal

    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import BaseTool, Tool, ToolHost
    from gdbext.diagnosis.tool_arguments import CommandParser
    from gdbext.engine.entry_points import EntryPoint

    ModeName = Literal["stopped", "resumes", "running", "setting", "program"]

DEFAULT = "dispatch-diagnose"
"""The command that scripts/dispatch runs when none is named."""

_NOTHING: Mapping[str, str] = MappingProxyType({})
_log = log.logger(__name__)


class ToolRow:
    """A line of the table: what is known of a tool without importing it.

    ``modes``: the values of diagnosis.tool.Mode that it can work in, its own one first. ``place``: its class, as
    "module:class". ``resuming_options`` let the process run where the mode does not. ``offers`` says which functions
    ("module:function") add what to reports of the diagnosis, by the methods of diagnosis.session.Extras. ``recorded``:
    with which options it reads what belongs into every recording.
    """

    __slots__ = ("is_alone", "modes", "name", "offers", "place", "recorded", "resuming_options", "summary")

    def __init__(
        self,
        name: str,
        summary: str,
        modes: tuple[ModeName, ...],
        place: str,
        *,
        resuming_options: tuple[str, ...] = (),
        offers: Mapping[str, str] = _NOTHING,
        recorded: tuple[tuple[str, ...], ...] = (),
        is_alone: bool = False,
    ) -> None:
        self.name = name
        self.summary = summary
        self.modes = modes
        self.place = place
        self.resuming_options = resuming_options
        self.offers = offers
        self.recorded = recorded
        self.is_alone = is_alone
        """It has an answer without a process, too: run_alone()."""

    @property
    def mode(self) -> ModeName:
        """The mode that the tool itself has."""
        return self.modes[0]

    @property
    def resumes(self) -> bool:
        """It lets the process run, and so needs one, not a core."""
        return self.mode == "resumes"

    def runs_on(self, argv: Sequence[str]) -> bool:
        """It has no end of its own, or lets the process run in between: no time is set for it."""
        words = {word.partition("=")[0] for word in argv}
        return self.mode in ("resumes", "running") or not words.isdisjoint(self.resuming_options)


TABLE = (
    ToolRow(
        "dispatch-bt",
        "Show the dispatcher's path through a thread's stack: operators, keysets, kernels.",
        ("stopped",),
        "gdbext.diagnosis.commands.bt:DispatchBacktrace",
        recorded=(("--all", "--why"),),
    ),
    ToolRow(
        "all-threads",
        "Show what each thread does and waits for, who holds that, and deadlocks.",
        ("stopped",),
        "gdbext.diagnosis.commands.all_threads:AllThreads",
        recorded=(("--stacks",),),
    ),
    ToolRow(
        "dispatch-diagnose",
        "Say why the process hangs or crashed, with evidence and what to try next.",
        ("stopped",),
        "gdbext.diagnosis.commands.diagnose:Diagnose",
        resuming_options=("--samples",),
        recorded=(("--why",),),
    ),
    ToolRow(
        "dispatch-keyset",
        "Decode a DispatchKeySet, or turn key names into bits.",
        ("stopped",),
        "gdbext.tools.operators.keysets:KeySetTool",
        is_alone=True,
    ),
    ToolRow(
        "dispatch-op",
        "Show an operator: schema, registrations and its computed dispatch table.",
        ("stopped",),
        "gdbext.tools.operators.op:OperatorTool",
        is_alone=True,
    ),
    ToolRow(
        "dispatch-lookup",
        "Show which kernel an operator finds for a keyset, and the redispatches from it.",
        ("stopped",),
        "gdbext.tools.operators.lookup:LookupTool",
    ),
    ToolRow(
        "dispatch-tls",
        "Show a thread's dispatch state: included and excluded keys, grad mode, autocast, …",
        ("stopped",),
        "gdbext.tools.operators.keysets:ThreadStateTool",
        recorded=((),),
    ),
    ToolRow(
        "dispatch-tensor",
        "Describe a tensor: metadata, statistics, values; --py finds it by its name.",
        ("stopped",),
        "gdbext.tools.tensor.tensor_tool:TensorTool",
        offers={"tensor_statistics": "gdbext.tools.tensor.tensor_report:tensor_statistics"},
    ),
    ToolRow(
        "dispatch-autograd",
        "Show forward or backward: the running node, its forward operator and line, hooks.",
        ("stopped",),
        "gdbext.tools.autograd.autograd:AutogradTool",
        offers={"backward_nodes": "gdbext.tools.autograd.autograd_report:nodes_on_stack"},
    ),
    ToolRow(
        "dispatch-compile",
        "Show what torch.compile did, broke and compiled again, and what compiles now.",
        ("stopped",),
        "gdbext.tools.compile:CompileTool",
    ),
    ToolRow(
        "dispatch-info",
        "Show what was found of torch, Python and layouts, and what could not be read.",
        ("stopped",),
        "gdbext.tools.info:InfoTool",
        recorded=((), ("--settings",)),
    ),
    ToolRow(
        "dispatch-collectives",
        "Show process groups, sequence numbers and pending collectives.",
        ("stopped",),
        "gdbext.tools.collectives:CollectivesTool",
    ),
    ToolRow(
        "dispatch-top",
        "Count what a running process dispatches, stopping nothing.",
        ("running",),
        "gdbext.tools.probes.top:TopTool",
        offers={"call_count": "gdbext.tools.probes.dispatch_counter:call_count"},
    ),
    ToolRow(
        "dispatch-break",
        "Stop when the dispatcher reaches an operator. Resumes the process.",
        ("resumes",),
        "gdbext.tools.breaks:BreakTool",
    ),
    ToolRow(
        "dispatch-values",
        "Show or save what operators get and return. Resumes the process.",
        ("resumes", "stopped"),
        "gdbext.tools.values:ValuesTool",
    ),
    ToolRow(
        "dispatch-trace",
        "Trace dispatches as they happen, nested.",
        ("resumes", "running"),
        "gdbext.tools.trace:TraceTool",
    ),
    ToolRow(
        "dispatch-frames",
        "Show Python functions and dispatches in the debugger's own bt, or hide them again.",
        ("setting",),
        "gdbext.tools.frames:FramesTool",
    ),
    ToolRow(
        "watch",
        "Wait until a process makes no progress; then say why, and keep it.",
        ("program",),
        "gdbext.tools.watch:WatchProgram",
    ),
    ToolRow(
        "timeout",
        "Run a command; when it takes too long, explain it and its children, then end it.",
        ("program",),
        "gdbext.tools.timeout:TimeoutProgram",
    ),
    ToolRow(
        "core-handler",
        "For the kernel's core_pattern: keep a diagnosis and a recording of a crash, no core.",
        ("program",),
        "gdbext.tools.core_handler:CoreHandlerProgram",
    ),
    ToolRow(
        "ranks",
        "Look at all ranks of a job and say which one the others wait for, and why.",
        ("program",),
        "gdbext.tools.ranks:RanksProgram",
    ),
    ToolRow(
        "known",
        "Compare a report or a recording with the known bugs of other projects, or list these.",
        ("program",),
        "gdbext.tools.known:KnownProgram",
    ),
    ToolRow(
        "ps",
        "List the processes of this machine that have PyTorch loaded, and for how long each has stood still.",
        ("program",),
        "gdbext.tools.ps:PsProgram",
    ),
    ToolRow(
        "report",
        "Write one bundle for a bug report: verdict, recording, versions, known bugs.",
        ("program",),
        "gdbext.tools.report:ReportProgram",
    ),
    ToolRow(
        "measure",
        "Measure the structures of an installed PyTorch that is not known, from its headers.",
        ("program",),
        "gdbext.tools.info:MeasureProgram",
    ),
    ToolRow(
        "mcp",
        "Serve diagnoses to agents by the Model Context Protocol on standard input and output.",
        ("program",),
        "gdbext.hosts.mcp_server:McpProgram",
    ),
    ToolRow(
        "shell",
        "Open a Python prompt in which p is the process: p.threads, p.diagnose(), …",
        ("program",),
        "gdbext.tools.shell:ShellProgram",
    ),
)
"""All tools of this package; deleting one is its folder and its row. gdb, LLDB, scripts/dispatch, completion, the
pages of docs/ and the library follow from it."""
GROUP = "gdbext.tools"
"""The group of entry points by which other packages add tools: NAME = "module:class", a class of diagnosis.tool."""
ADDED_PREFIX = "dispatch-"
"""The beginning of the name of a tool that another package adds: in a debugger it stands beside all other commands."""


class Outcome:
    """The result of a run: ``output`` for standard output, ``error`` for standard error, ``status`` as
    scripts/dispatch."""

    __slots__ = ("error", "output", "status")

    def __init__(self, status: int, output: str = "", error: str = "") -> None:
        self.status = status
        self.output = output
        self.error = error

    def encode(self) -> bytes:
        """The bytes that travel from a debugger to the launcher: a line with the lengths, then both texts."""
        output, error = (text.encode("utf-8", "backslashreplace") for text in (self.output, self.error))
        return b"gdbext-result %d %d %d\n" % (self.status, len(output), len(error)) + output + error

    @classmethod
    def decode(cls, data: bytes) -> Outcome | None:
        """The counterpart of encode(); None where the result is not complete."""
        head, _, body = data.partition(b"\n")
        words = head.split()
        if len(words) != 4 or words[0] != b"gdbext-result":
            return None
        status, length, rest = (int(word) for word in words[1:])
        if len(body) != length + rest:
            return None
        return cls(status, body[:length].decode(), body[length:].decode())


def commands() -> list[ToolRow]:
    """The tools that are commands on one process, in a debugger and in scripts/dispatch."""
    return [row for row in TABLE if row.mode != "program"]


def program(name: str) -> ToolRow | None:
    """The tool that ``scripts/dispatch NAME`` hands its whole command line to; None where it is none of these."""
    return next((row for row in TABLE if row.name == name and row.mode == "program"), None)


class AddedCommands:
    """The commands that other packages add by entry points of ``GROUP``.

    ``rows`` of those that can be used; ``problems``: name → why a command cannot be used. They are imported for that.
    """

    def __init__(self) -> None:
        from gdbext.engine.entry_points import entry_points

        self.rows: list[ToolRow] = []
        self.problems: dict[str, AddOnError] = {}
        for point in entry_points(GROUP):
            try:
                self.rows.append(_added_row(point))
            except AddOnError as error:
                self.problems[point.name] = error


def _added_row(point: EntryPoint) -> ToolRow:
    """The row of another package's tool. Raises AddOnError."""
    from gdbext.diagnosis.tool import Mode, Tool

    tool = point.load()
    what = f"{GROUP} {point.name!r} of {point.package}"
    if not isinstance(tool, type) or not issubclass(tool, Tool):
        raise AddOnError(f"{what} is no subclass of gdbext.Tool")
    if tool.__abstractmethods__:
        raise AddOnError(f"{what} lacks {', '.join(sorted(tool.__abstractmethods__))}")
    if tool.name != point.name or not point.name.startswith(ADDED_PREFIX):
        raise AddOnError(f"{what} is named {tool.name!r}", help=f"both names must be the same: {ADDED_PREFIX}…")
    if any(row.name == point.name for row in TABLE):
        raise AddOnError(f"{what} has the name of a command of gdbext")
    if tool.mode not in (Mode.STOPPED, Mode.RUNNING):
        raise AddOnError(f"{what} has the mode {tool.mode.value}", help="only stopped and running can be added")
    return ToolRow(point.name, tool.summary, (tool.mode.value,), point.place)


def every_command() -> list[ToolRow]:
    """All commands, ours and those of other packages."""
    return [*commands(), *AddedCommands().rows]


_SHORT = {"threads": "all-threads"}
"""Short names besides those that leave out ``ADDED_PREFIX``."""
PREFIX = "dispatch"
"""The command of which the others are words in a debugger."""


def short_name(row: ToolRow) -> str:
    """The name without what all have in common: ``bt``, ``threads``."""
    return next((short for short, name in _SHORT.items() if name == row.name), row.name.partition("-")[2])


def _own(name: str) -> ToolRow | None:
    """The command of the table that has that name, or that short name."""
    return next((row for row in commands() if row.name in (name, ADDED_PREFIX + name, _SHORT.get(name))), None)


def is_command(name: str) -> bool:
    """A command has that name, or that short name; whether another package adds one is asked last."""
    if _own(name):
        return True
    added = AddedCommands() if name.startswith(ADDED_PREFIX) else None
    return added is not None and any(name in known for known in ({row.name for row in added.rows}, added.problems))


def find(name: str) -> ToolRow:
    """The command of that name, or of that short name: ``bt``, ``threads``.

    Raises UsageError naming the nearest ones, and AddOnError for one of another package that cannot be used. Other
    packages are asked only for what the table lacks.
    """
    own = _own(name)
    if own:
        return own
    added = AddedCommands()
    for row in added.rows:
        if row.name == name:
            return row
    if name in added.problems:
        raise added.problems[name]
    raise _unknown(name, [row.name for row in (*commands(), *added.rows)])


def _unknown(name: str, names: Sequence[str]) -> UsageError:
    import difflib

    pool = [*names, *(row.name for row in TABLE if row.mode == "program"), *(n.partition("-")[2] for n in names)]
    near = difflib.get_close_matches(name, pool, 6, 0.0)  # some are short names of others
    whole = dict.fromkeys(next((n for n in names if n.partition("-")[2] == each), each) for each in near)
    first, second, third = list(whole)[:3]
    return UsageError(f"there is no command {name!r}; did you mean {first}, {second} or {third}?")


def load(place: str) -> Any:
    """Import the object at "module:name"."""
    from importlib import import_module

    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def tool_of(row: ToolRow) -> Tool:
    """The command of that row."""
    tool: Tool = load(row.place)()
    return tool


def offered(extra: str) -> Callable[..., Any] | None:
    """The function that the first tool offers as that extra of reports; None where none does."""
    place = next((row.offers[extra] for row in TABLE if extra in row.offers), None)
    function: Callable[..., Any] | None = load(place) if place else None
    return function


def needs_running(name: str, argv: Sequence[str]) -> bool:
    """The command has no answer for what cannot be resumed: a core, or a process that nobody holds for it. Raises
    UsageError for arguments that it cannot parse."""
    row = find(name)
    return row.resumes and not _works_as(row, "stopped", argv)


def gains_by_running(name: str, argv: Sequence[str]) -> bool:
    """The command tells less of what stands still than of what a debugger lets run. Raises UsageError."""
    row = find(name)
    return row.resumes and not _works_as(row, "running", argv)


def needs_no_stop(name: str, argv: Sequence[str], has_process: bool) -> bool:
    """The command looks at a process that is not stopped, and needs no debugger for it. Raises UsageError."""
    row = find(name)
    return row.mode == "running" or (has_process and _works_as(row, "running", argv))


def _works_as(row: ToolRow, mode: ModeName, argv: Sequence[str]) -> bool:
    """These arguments can be answered in that mode, too. Imports the tool only where its row has the mode."""
    if mode not in row.modes:
        return False
    from gdbext.diagnosis.tool import Mode

    return Mode(mode) in tool_of(row).modes(parser_of(row).parse(argv))


def parser_of(row: ToolRow) -> CommandParser:
    """The parser of the command's arguments, which also makes its help."""
    return tool_of(row).parser()


def help_text(row: ToolRow) -> str:
    """The text that ``help dispatch-bt`` in gdb and ``scripts/dispatch dispatch-bt --help`` show."""
    tool: BaseTool = load(row.place)()
    return tool.parser().format_help()


def execute(
    name: str,
    argv: Sequence[str],
    open_session: Callable[[], Session],
    color: bool = False,
    host: ToolHost | None = None,
) -> Outcome:
    """Run a command. The arguments are checked before ``open_session`` is called. No ``host`` means no debugger.
    ``color``: for a terminal that shows colours.

    This is the boundary: whatever goes wrong comes back as an Outcome. Only SystemExit passes.
    """
    return guard(name, argv, lambda: _execute(name, argv, open_session, color, host))


def guard(name: str, argv: Sequence[str], work: Callable[[], Outcome]) -> Outcome:
    """The outcome of ``work``, or of its failure. Only SystemExit passes, and the end of a look's time."""
    try:
        return work()
    except GdbextError as error:
        return failure(name, argv, error)
    except KeyboardInterrupt:
        return failure(name, argv, _interrupted())
    except MemoryError:
        pass  # what the error holds is to be free before it is told
    except Exception as error:
        hidden = _raised_by_a_signal(error)
        if not hidden:
            return failure(name, argv, _unexpected(error))
        if not isinstance(hidden, KeyboardInterrupt):
            raise hidden from None
        return failure(name, argv, _interrupted())
    return failure(name, argv, _out_of_memory())


def _interrupted() -> GdbextError:
    return GdbextError("interrupted", why="Ctrl+C, or the end of --timeout", help="the process was not changed")


def _raised_by_a_signal(error: Exception) -> BaseException | None:
    """The error that a signal's handler raised while a class was being made, None for any other error.

    CPython before 3.12 turns whatever leaves ``__set_name__`` into a RuntimeError (type_new_set_names, typeobject.c).
    """
    cause = error.__cause__
    return cause if isinstance(error, RuntimeError) and not isinstance(cause, (Exception, type(None))) else None


def report(name: str, argv: Sequence[str], open_session: Callable[[], Session], host: ToolHost | None = None) -> Report:
    """The report of a command, for whoever shows it himself. Raises GdbextError."""
    row = find(name)
    args = parser_of(row).parse([*argv])
    return _run(row, open_session(), args, host, only_text=False)


def execute_alone(name: str, argv: Sequence[str], color: bool = False) -> Outcome:
    """Run a command that needs no process for these arguments."""
    return guard(name, argv, lambda: _execute(name, argv, None, color, None))


def _execute(
    name: str, argv: Sequence[str], open_session: Callable[[], Session] | None, color: bool, host: ToolHost | None
) -> Outcome:
    from gdbext.diagnosis.tool_arguments import HelpRequested

    row = find(name)
    try:
        args = parser_of(row).parse(argv)
    except HelpRequested as request:
        return Outcome(0, str(request))
    _log.info("%s %s", name, argv)
    report = _run(row, open_session(), args, host, not args.json) if open_session else tool_of(row).run_alone(args)
    status = tool_of(row).exit_status(report, args)
    if args.json:
        from gdbext.diagnosis.report import json_report

        return Outcome(status, json_report.render(report, pretty=color))
    from gdbext.diagnosis.report import render_text

    return Outcome(status, render_text(report, color))


def _run(row: ToolRow, session: Session, args: Namespace, host: ToolHost | None, only_text: bool) -> Report:
    """``only_text``: nobody sees more of the report than its text; the tool is told by the argument of that name."""
    from gdbext.diagnosis.reporting import ToolExtras
    from gdbext.diagnosis.tool import Alone

    args.only_text = only_text
    session.extras = ToolExtras(offered)
    host = host or Alone()
    return tool_of(row).run(session, args, host)._replace(called=host.called)


def failure(name: str, argv: Sequence[str], error: GdbextError) -> Outcome:
    """The error as text and, with --json, as the contract's error document."""
    output = error_document(name, error) if "--json" in argv else ""
    return Outcome(error.exit_status, output, error_text(error))


def error_text(error: GdbextError) -> str:
    """The error in words: what happened, why it can happen and the next step, a line each."""
    lines = [error.what]
    if error.why:
        lines.append(f"  why: {error.why}")
    if error.help:
        lines.append(f"  try: {error.help}")
    from gdbext.render import escape

    return "\n".join(escape(line) for line in "\n".join(lines).split("\n"))


def error_document(name: str, error: GdbextError) -> str:
    """The JSON document of a command that could not report."""
    from gdbext.diagnosis.report import Report, json_report
    from gdbext.engine.vocabulary import ErrorReport

    return json_report.render(Report(name, None, errors=(ErrorReport.of(error, name),)))


def _out_of_memory() -> GdbextError:
    from gdbext.engine.targets.budget import make_room, memory_error

    make_room()
    return memory_error()


def _unexpected(error: Exception) -> GdbextError:
    what = f"internal error: {type(error).__name__}: {error}"
    if not log.is_wanted():
        return GdbextError(
            what,
            why="this is a fault of gdbext, or of the debugger below it; the process was not changed",
            help="run it again with GDBEXT_DEBUG=1 in the environment, and report the traceback that it shows",
        )
    import traceback

    return GdbextError(what, why=traceback.format_exc(), help=f"report this, with Python {sys.version.split()[0]}")
