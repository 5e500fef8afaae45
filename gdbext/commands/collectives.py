"""``dispatch-collectives``: process groups, sequence numbers, pending collectives with the lines that issued them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdbext.commands.reporting import make_report

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report

NAME = "dispatch-collectives"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--output", metavar="FILE",
                        help="also write what the flight recorder holds, in its own format: put one file per rank into "
                        "a folder (NAME_RANK) and run torchfrtrace on it")  # fmt: skip


def run(session: Session, args: argparse.Namespace) -> Report:
    """Reads the groups; with --output all entries as well. Raises NotTorch, LayoutError, TargetError."""
    from gdbext.inspection.job.collectives import read_collectives

    section = read_collectives(session)
    if args.output is not None:
        from gdbext.inspection.job.flight_recorder_contents import recorder_contents
        from gdbext.render.json import flight_recorder_file

        flight_recorder_file.write(recorder_contents(session), args.output)
        section = section.with_output(args.output)
    return make_report(session, args, NAME, "collectives", sections=(section,))
