"""``scripts/dispatch ranks``: collects the reports, judges, shows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gdbext.cli.ranks import options as command_line
from gdbext.cli.ranks import sources
from gdbext.commands.options import HelpRequested
from gdbext.commands.registry import Outcome
from gdbext.jobs.judge import judge
from gdbext.jobs.merge import Rows
from gdbext.model.job.job_report import JobReport


def run(argv: Sequence[str], color: bool) -> Outcome:
    """The outcome. Raises UsageError, TargetError."""
    try:
        options = command_line.parse(argv)
    except HelpRequested as request:
        return Outcome(0, str(request))
    if options.show_commands:
        from gdbext.cli.ranks import other_machines

        return Outcome(0, "".join(f"{line}\n" for line in other_machines.shown(options)))
    report = judge(_rows(options), options.pid)
    _write_files(report, options)
    status = 0 if report.reports else 1
    if options.json:
        from gdbext.render.json.documents import ranks_document

        return Outcome(status, ranks_document.render(report, pretty=color))
    from gdbext.render.text import ranks_text

    return Outcome(status, ranks_text.render(report, color))


def _rows(options: argparse.Namespace) -> Rows:
    if options.reports:
        return sources.report_rows(options.reports)
    if options.hosts or options.slurm or options.kubernetes:
        from gdbext.cli.ranks import other_machines

        return other_machines.remote_rows(options)
    return sources.local_rows(options)


def _write_files(report: JobReport, options: argparse.Namespace) -> None:
    if options.dot:
        from gdbext.render import ranks_dot

        _write(options.dot, ranks_dot.render(report))
    if options.html:
        from gdbext.render.html import ranks_page

        _write(options.html, ranks_page.render(report))


def _write(path: str, text: str) -> None:
    from gdbext.formats.whole_file import write

    write(path, text.encode())
