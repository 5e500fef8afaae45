"""``all-threads``: what each thread does and waits for, who holds it, and what is wrong with that."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdbext.commands.reporting import dispatcher_errors, make_report
from gdbext.inspection.target_reporting import core_errors

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report
    from gdbext.model.sections.section import Section

NAME = "all-threads"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--stacks", action="store_true", help="every frame of every thread, equal stacks folded")
    parser.add_argument("--tasks", action="store_true", help="the tasks of asyncio's event loops, and what each awaits")
    parser.add_argument(
        "--dot", metavar="FILE", help="write the wait-for graph (and an SVG beside it where graphviz is there)"
    )


def run(session: Session, args: argparse.Namespace) -> Report:
    """Inspects all threads and judges."""
    from gdbext.inspection.inspection import inspect_threads

    found = inspect_threads(session, frames=args.stacks)
    sections: list[Section] = []
    if args.dot:
        from gdbext.render.dot import write

        sections.append(write(args.dot, found.threads))
    return make_report(
        session,
        args,
        NAME,
        "threads",
        threads=found.threads if args.tasks else [thread._replace(loop=None) for thread in found.threads],
        verdict=found.judgement.verdict,
        findings=found.judgement.findings,
        errors=(*dispatcher_errors(session), *core_errors(session.target, found.threads)),
        sections=sections,
    )
