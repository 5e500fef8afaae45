"""The tools: their table, and how one is found by its name; running.py runs it.

A tool is a class of diagnosis/tool.py, or of program.py, that is imported when it is used. Imports little: the launcher
starts with it.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gdbext import log
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.entry_points import EntryPoint, entry_points
from gdbext.errors import AddOnError, UsageError, words_like

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal

    from gdbext.diagnosis.tool import BaseTool, Tool
    from gdbext.diagnosis.tool_arguments import CommandParser

    ModeName = Literal["stopped", "resumes", "running", "setting", "program"]

DEFAULT = "dispatch-diagnose"
"""The command that scripts/dispatch runs when none is named."""

_NOTHING: Mapping[str, str] = MappingProxyType({})
_log = log.logger(__name__)


class ToolRow(NamedTuple):
    """A row of the table: what is known about a tool without importing it."""

    name: str
    summary: str
    place: str
    """Its class, as "module:class"."""
    modes: tuple[ModeName, ...] = ("stopped",)
    """The values of diagnosis.tool.Mode that the tool can work in, its default first."""
    resuming_options: tuple[str, ...] = ()
    """Options that resume the process although the mode does not."""
    offers: Mapping[str, str] = _NOTHING
    """Method of diagnosis.session.Extras → "module:function" that extends the diagnosis's reports."""
    recorded: tuple[tuple[str, ...], ...] = ()
    """Options whose data belongs in every recording, so that a replay can answer them."""
    is_alone: bool = False
    """It also has an answer without a process (run_alone())."""

    @property
    def mode(self) -> ModeName:
        """The tool's own mode."""
        return self.modes[0]

    @property
    def resumes(self) -> bool:
        """True if the tool resumes the process, and so cannot use a core."""
        return self.mode == "resumes"

    def runs_on(self, argv: Sequence[str]) -> bool:
        """True if the tool has no time limit: it runs until it is interrupted, or resumes the process in between."""
        options = {word.partition("=")[0] for word in argv}
        return self.mode in ("resumes", "running") or not options.isdisjoint(self.resuming_options)


TABLE = (
    ToolRow(
        "dispatch-bt",
        "Show the dispatcher's path through a thread's stack: operators, keysets, kernels.",
        "gdbext.diagnosis.commands.bt:DispatchBacktrace",
        recorded=(("--all", "--why"),),
    ),
    ToolRow(
        "all-threads",
        "Show what each thread does and waits for, which thread holds it, and deadlocks.",
        "gdbext.diagnosis.commands.all_threads:AllThreads",
        recorded=(("--stacks",),),
    ),
    ToolRow(
        "dispatch-diagnose",
        "Say why the process hangs or crashed, with evidence and what to try next.",
        "gdbext.diagnosis.commands.diagnose:Diagnose",
        resuming_options=("--samples",),
        recorded=(("--why",),),
    ),
    ToolRow(
        "dispatch-keyset",
        "Decode a DispatchKeySet, or turn key names into bits.",
        "gdbext.tools.operators.keysets:KeySetTool",
        is_alone=True,
    ),
    ToolRow(
        "dispatch-op",
        "Show an operator: schema, registrations and its computed dispatch table.",
        "gdbext.tools.operators.op:OperatorTool",
        is_alone=True,
    ),
    ToolRow(
        "dispatch-lookup",
        "Show which kernel an operator uses for a keyset, and the redispatches from it.",
        "gdbext.tools.operators.lookup:LookupTool",
    ),
    ToolRow(
        "dispatch-tls",
        "Show a thread's dispatch state: included and excluded keys, grad mode, autocast, …",
        "gdbext.tools.operators.keysets:ThreadStateTool",
        recorded=((),),
    ),
    ToolRow(
        "dispatch-tensor",
        "Describe a tensor: metadata, statistics, values; --py finds it by name.",
        "gdbext.tools.tensor.tensor_tool:TensorTool",
        offers={"tensor_statistics": "gdbext.tools.tensor.tensor_report:tensor_statistics"},
    ),
    ToolRow(
        "dispatch-autograd",
        "Show the forward or backward pass: running node, forward operator and line, hooks.",
        "gdbext.tools.autograd.autograd:AutogradTool",
        offers={"backward_nodes": "gdbext.tools.autograd.autograd_report:nodes_on_stack"},
    ),
    ToolRow(
        "dispatch-compile",
        "Show torch.compile's graph breaks, recompilations, failures, and what compiles now.",
        "gdbext.tools.compile:CompileTool",
    ),
    ToolRow(
        "dispatch-info",
        "Show the torch, Python and layouts that were found, and what could not be read.",
        "gdbext.tools.info:InfoTool",
        recorded=((), ("--settings",)),
    ),
    ToolRow(
        "dispatch-collectives",
        "Show process groups, sequence numbers and pending collectives.",
        "gdbext.tools.collectives:CollectivesTool",
    ),
    ToolRow(
        "dispatch-top",
        "Count what a running process dispatches, without stopping it.",
        "gdbext.tools.probes.top:TopTool",
        ("running",),
        offers={"call_count": "gdbext.tools.probes.dispatch_counter:call_count"},
    ),
    ToolRow(
        "dispatch-break",
        "Stop when the dispatcher reaches an operator. Resumes the process.",
        "gdbext.tools.breaks:BreakTool",
        ("resumes",),
    ),
    ToolRow(
        "dispatch-values",
        "Show or save the arguments and results of operators. Resumes the process.",
        "gdbext.tools.values:ValuesTool",
        ("resumes", "stopped"),
    ),
    ToolRow(
        "dispatch-trace",
        "Trace dispatches as they happen, nested.",
        "gdbext.tools.trace:TraceTool",
        ("resumes", "running"),
    ),
    ToolRow(
        "dispatch-frames",
        "Show Python functions and dispatches in the debugger's own bt, or hide them again.",
        "gdbext.tools.frames:FramesTool",
        ("setting",),
    ),
    ToolRow(
        "watch",
        "Wait until a process stops making progress, then diagnose it and save the evidence.",
        "gdbext.tools.watch:WatchProgram",
        ("program",),
    ),
    ToolRow(
        "timeout",
        "Run a command; when it takes too long, diagnose it and its children, then kill it.",
        "gdbext.tools.timeout:TimeoutProgram",
        ("program",),
    ),
    ToolRow(
        "core-handler",
        "Handle core_pattern: save a diagnosis and a recording of a crash instead of a core.",
        "gdbext.tools.core_handler:CoreHandlerProgram",
        ("program",),
    ),
    ToolRow(
        "ranks",
        "Examine all ranks of a job and say which one the others wait for, and why.",
        "gdbext.tools.ranks:RanksProgram",
        ("program",),
    ),
    ToolRow(
        "known",
        "Compare a report or recording with known bugs of other projects, or list the bugs.",
        "gdbext.tools.known:KnownProgram",
        ("program",),
    ),
    ToolRow(
        "ps",
        "List the processes of this machine that use PyTorch, and how long each has been idle.",
        "gdbext.tools.ps:PsProgram",
        ("program",),
    ),
    ToolRow(
        "report",
        "Write one bundle for a bug report: verdict, recording, versions, known bugs.",
        "gdbext.tools.report:ReportProgram",
        ("program",),
    ),
    ToolRow(
        "measure",
        "Measure the structure layouts of an unknown PyTorch build from its headers.",
        "gdbext.tools.info:MeasureProgram",
        ("program",),
    ),
    ToolRow(
        "mcp",
        "Serve diagnoses to agents over the Model Context Protocol on standard input and output.",
        "gdbext.hosts.mcp_server:McpProgram",
        ("program",),
    ),
    ToolRow(
        "shell",
        "Open a Python prompt in which p is the process: p.threads, p.diagnose(), …",
        "gdbext.tools.shell:ShellProgram",
        ("program",),
    ),
)
"""All tools of this package. gdb, LLDB, scripts/dispatch, completion, the pages of docs/ and the library follow it."""
GROUP = "gdbext.tools"
"""The group of entry points by which other packages add tools: NAME = "module:class", a class of diagnosis.tool."""
ADDED_PREFIX = "dispatch-"
"""The beginning of the name of a tool that another package adds, to set it apart from a debugger's own commands."""


def commands() -> list[ToolRow]:
    """The tools that are commands on one process, in a debugger and in scripts/dispatch."""
    return [row for row in TABLE if row.mode != "program"]


def program(name: str) -> ToolRow | None:
    """The tool that ``scripts/dispatch NAME`` gives its whole command line to; None if there is none."""
    return next((row for row in TABLE if row.name == name and row.mode == "program"), None)


class AddedCommands:
    """The commands that other packages add by entry points of ``GROUP``, whose classes it imports. ``rows``: the usable
    ones; ``problems``: name → why a command cannot be used."""

    def __init__(self) -> None:
        self.rows: list[ToolRow] = []
        self.problems: dict[str, AddOnError] = {}
        for point in entry_points(GROUP):
            try:
                self.rows.append(_added_row(point))
            except AddOnError as error:
                self.problems[point.name] = error


def _added_row(point: EntryPoint) -> ToolRow:
    """The row of another package's tool. Raises AddOnError."""
    from gdbext.diagnosis.tool import Tool  # 40 ms, which --help need not wait for where no package adds a tool

    tool = point.load()
    what = f"{GROUP} {point.name!r} of {point.package}"
    if not isinstance(tool, type) or not issubclass(tool, Tool):
        raise AddOnError(f"{what} is not a subclass of gdbext.Tool")
    if tool.__abstractmethods__:
        raise AddOnError(f"{what} lacks {', '.join(sorted(tool.__abstractmethods__))}")
    name, mode, summary = (getattr(tool, attribute, None) for attribute in ("name", "mode", "summary"))
    if name != point.name or not point.name.startswith(ADDED_PREFIX):
        raise AddOnError(f"{what} is named {name!r}", help=f"both names must be the same: {ADDED_PREFIX}…")
    if any(row.name == point.name for row in TABLE):
        raise AddOnError(f"{what} has the name of a command of gdbext")
    if mode not in (Mode.STOPPED, Mode.RUNNING):
        shown = mode.value if isinstance(mode, Mode) else repr(mode)
        raise AddOnError(f"{what} has the mode {shown}", help="only stopped and running can be added")
    return ToolRow(point.name, str(summary or ""), point.object_ref, (mode.value,))


def every_command() -> list[ToolRow]:
    """All commands, ours and those of other packages."""
    return [*commands(), *AddedCommands().rows]


_SHORT = {"threads": "all-threads"}
"""Short names besides those that leave out ``ADDED_PREFIX``."""
PREFIX = "dispatch"
"""The debugger's prefix command: ``dispatch bt`` is ``dispatch-bt``."""


def short_name(row: ToolRow) -> str:
    """The name without ``ADDED_PREFIX``: ``bt``, ``threads``."""
    return next((short for short, name in _SHORT.items() if name == row.name), row.name.partition("-")[2])


def _find(name: str) -> ToolRow | AddOnError | None:
    """The command with that name or short name (``bt``, ``threads``), or the reason why another package's command
    cannot be used. Other packages' entry points are read only if none of our commands has the name."""
    row = next((row for row in commands() if row.name in (name, ADDED_PREFIX + name, _SHORT.get(name))), None)
    if row or not name.startswith(ADDED_PREFIX):
        return row
    added = AddedCommands()
    return next((row for row in added.rows if row.name == name), added.problems.get(name))


def is_command(name: str) -> bool:
    """True if a command has that name or short name."""
    return _find(name) is not None


def find(name: str) -> ToolRow:
    """The command of that name or short name. Raises UsageError naming the nearest ones, and AddOnError for another
    package's command that cannot be used."""
    row = _find(name)
    if isinstance(row, AddOnError):
        raise row
    if row:
        return row
    added = AddedCommands()
    if name in added.problems:
        raise added.problems[name]
    names = [row.name for row in (*commands(), *added.rows)]
    programs = (row.name for row in TABLE if row.mode == "program")
    full_names = {full.partition("-")[2]: full for full in reversed(names)}  # by short name
    near = words_like(name, [*names, *programs, *(full.partition("-")[2] for full in names)], 6, 0.0)
    first, second, third = list(dict.fromkeys(full_names.get(word, word) for word in near))[:3]
    raise UsageError(f"there is no command {name!r}; did you mean {first}, {second} or {third}?")


def load(place: str) -> Any:
    """Import the object at "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def tool_of(row: ToolRow) -> Any:
    """The tool of that row, a Program if its mode is "program", else a Tool."""
    tool: BaseTool = load(row.place)()
    tool.name, tool.summary, tool.mode = row.name, row.summary, Mode(row.mode)
    return tool


def offered(extra: str) -> Callable[..., Any] | None:
    """The function that a tool offers as that method of Extras (ToolRow.offers); None if no tool does."""
    place = next((row.offers[extra] for row in TABLE if extra in row.offers), None)
    function: Callable[..., Any] | None = load(place) if place else None
    return function


def needs_running(name: str, argv: Sequence[str]) -> bool:
    """True if the command needs a process that can be resumed, not a core or a process without a debugger. Raises
    UsageError for arguments that it cannot parse."""
    row = find(name)
    return row.resumes and not _works_as(row, "stopped", argv)


def gains_by_running(name: str, argv: Sequence[str]) -> bool:
    """True if the command shows more of a process that a debugger resumes than of a stopped one. Raises UsageError."""
    row = find(name)
    return row.resumes and not _works_as(row, "running", argv)


def needs_no_stop(name: str, argv: Sequence[str], has_process: bool) -> bool:
    """True if the command examines a running process without a stop and without a debugger. Raises UsageError."""
    row = find(name)
    return row.mode == "running" or (has_process and _works_as(row, "running", argv))


def _works_as(row: ToolRow, mode: ModeName, argv: Sequence[str]) -> bool:
    """True if the tool can also answer these arguments in ``mode``. Imports the tool only if its row has the mode."""
    if mode not in row.modes:
        return False
    tool: Tool = tool_of(row)
    return Mode(mode) in tool.modes(tool.parser().parse(argv))


def parser_of(row: ToolRow) -> CommandParser:
    """The parser of the tool's arguments, which also makes its help."""
    parser: CommandParser = tool_of(row).parser()
    return parser


def help_text(row: ToolRow) -> str:
    """The text that ``help dispatch-bt`` in gdb and ``scripts/dispatch dispatch-bt --help`` show."""
    return parser_of(row).format_help()
