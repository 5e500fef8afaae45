"""``dispatch-info``: what was found of torch, Python, libc and layouts, and what could not be read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdbext.model.report import Report

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

NAME = "dispatch-info"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command has no options of its own."""


def run(session: Session, args: argparse.Namespace) -> Report:
    """Collects the facts; everything here is allowed to be unknown."""
    from gdbext.inspection.target_info import read_target_info

    info = read_target_info(session)
    return Report(
        command=NAME,
        target=session.target_facts(),
        view="info",
        errors=(*session.torch_errors(), *session.errors()),
        sections=(info,),
        why=args.why,
    )
