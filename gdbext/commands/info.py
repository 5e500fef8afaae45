"""``dispatch-info``: what was found of torch, Python, libc and layouts, and what could not be read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdbext.commands.reporting import dispatcher_errors, make_report

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report

NAME = "dispatch-info"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command has no options of its own."""


def run(session: Session, args: argparse.Namespace) -> Report:
    """Collects the facts; everything here is allowed to be unknown."""
    from gdbext.inspection.info_collection import read_target_info

    info = read_target_info(session)
    return make_report(session, args, NAME, "info", errors=dispatcher_errors(session), sections=(info,))
