"""The commands: their table, how one is run, and the boundary at which every failure becomes a message.

A command is a module of gdbext/commands with NAME, ``configure(parser)`` and ``run(session, args) -> Report``; one
that lets the process run has ``run(session, args, host)``. It is imported when it is used. --json, --why and --help
are added here. Imports little: the launcher starts with it.
"""

from __future__ import annotations

import sys

from gdbext import log
from gdbext.errors import GdbextError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from gdbext.commands.options import CommandParser
    from gdbext.inspection.session import Session
    from gdbext.live.host import Host
    from gdbext.model.report import Report

DEFAULT = "dispatch-diagnose"
"""What scripts/dispatch runs when no command is named."""

_log = log.logger(__name__)


class Entry:
    """A line of the table.

    ``live`` marks the commands that run the process on and so need one, not a core; ``takes_host`` them and those that
    do so on demand. ``running`` commands look at a process that is not stopped, so from the launcher only;
    one that is ``live``, too, does so where its ``watches(argv)`` says so, and needs no debugger then.
    ``is_setting`` marks those that only change what the user's debugger shows.
    """

    __slots__ = ("is_setting", "live", "module", "name", "running", "summary", "takes_host")

    def __init__(
        self,
        name: str,
        module: str,
        summary: str,
        live: bool = False,
        takes_host: bool = False,
        running: bool = False,
        is_setting: bool = False,
    ) -> None:
        self.name = name
        self.module = module
        self.summary = summary
        self.live = live
        self.is_setting = is_setting
        self.takes_host = takes_host or live or is_setting
        self.running = running


TABLE = (
    Entry("dispatch-bt", "bt", "Show the dispatcher's path through a thread's stack: operators, keysets, kernels."),
    Entry("all-threads", "all_threads", "Show what each thread does and waits for, who holds that, and deadlocks."),
    Entry(
        "dispatch-diagnose", "diagnose", "Say why the process hangs or crashed, with evidence and what to try next.",
        takes_host=True,
    ),
    Entry("dispatch-keyset", "dispatcher.keyset", "Decode a DispatchKeySet, or turn key names into bits."),
    Entry("dispatch-op", "dispatcher.op", "Show an operator: schema, registrations and its computed dispatch table."),
    Entry(
        "dispatch-lookup", "dispatcher.lookup",
        "Show which kernel an operator finds for a keyset, and the redispatches from it.",
    ),
    Entry(
        "dispatch-tls", "dispatcher.tls",
        "Show a thread's dispatch state: included and excluded keys, grad mode, autocast, …",
    ),
    Entry(
        "dispatch-tensor", "dispatcher.tensor",
        "Describe a tensor: metadata, statistics, values; --py finds it by its name.",
    ),
    Entry(
        "dispatch-autograd", "dispatcher.autograd",
        "Show forward or backward: the running node, its forward operator and line, hooks.",
    ),
    Entry(
        "dispatch-compile", "dispatcher.compile",
        "Show what torch.compile did, broke and compiled again, and what compiles now.",
    ),
    Entry("dispatch-info", "info", "Show what was found of torch, Python and layouts, and what could not be read."),
    Entry("dispatch-collectives", "collectives", "Show process groups, sequence numbers and pending collectives."),
    Entry(
        "dispatch-top", "live.top", "Count what a running process dispatches, stopping nothing.",
        takes_host=True, running=True,
    ),
    Entry(
        "dispatch-break", "live.break_", "Stop when the dispatcher reaches an operator. Resumes the process.",
        live=True,
    ),
    Entry(
        "dispatch-values", "live.values", "Show or save what operators get and return. Resumes the process.",
        live=True,
    ),
    Entry("dispatch-trace", "live.trace", "Trace dispatches as they happen, nested.", live=True, running=True),
    Entry(
        "dispatch-frames", "frames", "Show Python functions and dispatches in the debugger's own bt, or no more.",
        is_setting=True,
    ),
)


class Outcome:
    """What a run gave: ``output`` for standard output, ``error`` for standard error, ``status`` as scripts/dispatch."""

    __slots__ = ("error", "output", "status")

    def __init__(self, status: int, output: str = "", error: str = "") -> None:
        self.status = status
        self.output = output
        self.error = error

    def encode(self) -> bytes:
        """As it travels from a debugger to the launcher: a line with the lengths, then both texts."""
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


def find(name: str) -> Entry:
    """The command of that name. Raises UsageError naming the nearest ones."""
    for entry in TABLE:
        if entry.name == name:
            return entry
    names = [entry.name for entry in TABLE]
    import difflib

    near = difflib.get_close_matches(name, [*names, *(part for n in names for part in [n.partition("-")[2]])], 3, 0.5)
    close = [n for n in names if n in near or n.partition("-")[2] in near]
    raise UsageError(
        f"there is no command {name!r}",
        why="" if not close else "did you mean " + " or ".join(close) + "?",
        help="commands are: " + ", ".join(names),
    )


def module_of(entry: Entry) -> ModuleType:
    """The command's module, imported."""
    from importlib import import_module

    return import_module(f"gdbext.commands.{entry.module}")


def needs_running(name: str, argv: Sequence[str]) -> bool:
    """The command has no answer for what cannot be resumed: a core, or a process that nobody holds for it. Raises
    UsageError for arguments that it cannot parse."""
    entry = find(name)
    answers = getattr(module_of(entry), "answers_stopped", None) if entry.live else None
    return entry.live and (answers is None or not answers(argv))


def parser_of(entry: Entry) -> CommandParser:
    """The parser of the command's arguments, which also makes its help."""
    from gdbext.commands.options import CommandParser

    parser = CommandParser(entry.name, entry.summary)
    module_of(entry).configure(parser)
    return parser


def help_text(entry: Entry) -> str:
    """What ``help dispatch-bt`` in gdb and ``scripts/dispatch dispatch-bt --help`` show."""
    return parser_of(entry).format_help()


def execute(
    name: str,
    argv: Sequence[str],
    open_session: Callable[[], Session],
    color: bool = False,
    host: Host | None = None,
) -> Outcome:
    """Run a command. The arguments are checked before ``open_session`` is called. No ``host`` means no debugger.
    ``color``: for a terminal that shows colours.

    This is the boundary: whatever goes wrong comes back as an Outcome. Only SystemExit passes.
    """
    try:
        return _execute(name, argv, open_session, color, host)
    except GdbextError as error:
        return failure(name, argv, error)
    except KeyboardInterrupt:
        return failure(name, argv, GdbextError("interrupted", why="Ctrl+C", help="the process was not changed"))
    except Exception as error:
        return failure(name, argv, _unexpected(error))


def _execute(
    name: str, argv: Sequence[str], open_session: Callable[[], Session], color: bool, host: Host | None
) -> Outcome:
    from gdbext.commands.options import HelpRequested

    entry = find(name)
    try:
        args = parser_of(entry).parse(argv)
    except HelpRequested as request:
        return Outcome(0, str(request))
    _log.info("%s %s", name, argv)
    report = _run(entry, open_session(), args, host)
    if args.json:
        from gdbext.render.json import json_report

        return Outcome(0, json_report.render(report, pretty=color))
    from gdbext.render.text import text_report

    return Outcome(0, text_report.render(report, color))


def _run(entry: Entry, session: Session, args: Namespace, host: Host | None) -> Report:
    module = module_of(entry)
    if entry.takes_host:
        from gdbext.live.host import NoDebugger

        report: Report = module.run(session, args, host or NoDebugger())
    else:
        report = module.run(session, args)
    later = session.again()
    return report if later is None else _run(entry, later, args, host)


def failure(name: str, argv: Sequence[str], error: GdbextError) -> Outcome:
    """The error as text and, with --json, as the contract's error document."""
    status = 2 if isinstance(error, UsageError) else 1
    output = error_document(name, error) if "--json" in argv else ""
    return Outcome(status, output, error_text(error))


def error_text(error: GdbextError) -> str:
    """What happened, why it can happen and the next step, a line each."""
    lines = [error.what]
    if error.why:
        lines.append(f"  why: {error.why}")
    if error.help:
        lines.append(f"  try: {error.help}")
    from gdbext.render.text.style import escape

    return "\n".join(escape(line) for line in "\n".join(lines).split("\n"))


def error_document(name: str, error: GdbextError) -> str:
    """The JSON document of a command that could not report."""
    from gdbext.model.error_report import ErrorReport
    from gdbext.model.report import Report
    from gdbext.render.json import json_report

    return json_report.render(Report(name, None, errors=(ErrorReport.of(error, name),)))


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
