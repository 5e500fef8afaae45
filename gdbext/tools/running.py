"""Runs the commands of the table: --json, --why and --help are added here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext import log
from gdbext.diagnosis.report import Report, json_report, render_text
from gdbext.diagnosis.session import Extras
from gdbext.diagnosis.tool import Alone, Tool, ToolHost
from gdbext.errors import HelpRequested
from gdbext.tools.outcome import Outcome, guard
from gdbext.tools.table import find, offered, tool_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from gdbext.diagnosis.session import Session

_log = log.logger(__name__)


def execute(
    name: str,
    argv: Sequence[str],
    open_session: Callable[[], Session] | None,
    color: bool = False,
    host: ToolHost | None = None,
) -> Outcome:
    """Run a command. The arguments are checked before ``open_session`` is called, which is None if the command needs no
    process. No ``host`` means no debugger. ``color``: for a terminal that shows colors. Every failure is returned as an
    Outcome, as of guard()."""

    def run() -> Outcome:
        tool: Tool = tool_of(find(name))
        try:
            args = tool.parser().parse(argv)
        except HelpRequested as request:
            return Outcome(0, str(request))
        _log.info("%s %s", name, argv)
        report = _run(tool, open_session(), args, host, not args.json) if open_session else tool.run_alone(args)
        status = tool.exit_status(report, args)
        if args.json:
            return Outcome(status, json_report.render(report, pretty=color))
        return Outcome(status, render_text(report, color))

    return guard(name, argv, run)


def report(name: str, argv: Sequence[str], open_session: Callable[[], Session], host: ToolHost | None = None) -> Report:
    """Run a command and return its report, for a caller that shows it itself. Raises GdbextError."""
    tool: Tool = tool_of(find(name))
    args = tool.parser().parse([*argv])
    return _run(tool, open_session(), args, host, only_text=False)


def _run(tool: Tool, session: Session, args: Namespace, host: ToolHost | None, only_text: bool) -> Report:
    """Run a tool. ``only_text``, which becomes an argument: only the text of the report will be used."""
    args.only_text = only_text
    session.extras = Extras(offered)
    host = host or Alone()
    return tool.run(session, args, host)._replace(called=host.called)
