"""Runs the commands of the table: --json, --why and --help are added here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext import log
from gdbext.diagnosis.report import json_report, render_text
from gdbext.diagnosis.reporting import ToolExtras
from gdbext.diagnosis.tool import Alone
from gdbext.errors import HelpRequested
from gdbext.tools.outcome import Outcome, guard
from gdbext.tools.table import find, offered, parser_of, tool_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.tools.table import ToolRow

_log = log.logger(__name__)


def execute(
    name: str,
    argv: Sequence[str],
    open_session: Callable[[], Session],
    color: bool = False,
    host: ToolHost | None = None,
) -> Outcome:
    """Run a command. The arguments are checked before ``open_session`` is called. No ``host`` means no debugger.
    ``color``: for a terminal that shows colors.

    This is the boundary: every failure is returned as an Outcome. Only SystemExit passes, and the end of the time or
    memory of an inspection.
    """
    return guard(name, argv, lambda: _execute(name, argv, open_session, color, host))


def report(name: str, argv: Sequence[str], open_session: Callable[[], Session], host: ToolHost | None = None) -> Report:
    """The report of a command, for a caller that shows it itself. Raises GdbextError."""
    row = find(name)
    args = parser_of(row).parse([*argv])
    return _run(row, open_session(), args, host, only_text=False)


def execute_alone(name: str, argv: Sequence[str], color: bool = False) -> Outcome:
    """Run a command that needs no process for these arguments."""
    return guard(name, argv, lambda: _execute(name, argv, None, color, None))


def _execute(
    name: str, argv: Sequence[str], open_session: Callable[[], Session] | None, color: bool, host: ToolHost | None
) -> Outcome:
    row = find(name)
    try:
        args = parser_of(row).parse(argv)
    except HelpRequested as request:
        return Outcome(0, str(request))
    _log.info("%s %s", name, argv)
    report = _run(row, open_session(), args, host, not args.json) if open_session else tool_of(row).run_alone(args)
    status = tool_of(row).exit_status(report, args)
    if args.json:
        return Outcome(status, json_report.render(report, pretty=color))
    return Outcome(status, render_text(report, color))


def _run(row: ToolRow, session: Session, args: Namespace, host: ToolHost | None, only_text: bool) -> Report:
    """``only_text``: only the text of the report is used, which the tool can see in the argument of that name."""
    args.only_text = only_text
    session.extras = ToolExtras(offered)
    host = host or Alone()
    return tool_of(row).run(session, args, host)._replace(called=host.called)
