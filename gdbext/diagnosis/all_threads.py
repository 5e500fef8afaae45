"""``all-threads``: what each thread does and waits for, who holds it, and what is wrong with that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.reporting import core_errors, dispatcher_errors, make_report
from gdbext.diagnosis.tool import Mode, Tool

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from gdbext.diagnosis.report.report import Report
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.engine.vocabulary import Section
    from gdbext.render.style import Style


class AllThreads(Tool):
    """The command ``all-threads`` as a tool."""

    name = "all-threads"
    summary = "Show what each thread does and waits for, who holds that, and deadlocks."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the options: what is shown besides the threads' waits."""
        parser.add_argument(
            "--stacks", action="store_true", help="also show all frames of all threads; equal stacks are shown once"
        )
        parser.add_argument(
            "--tasks", action="store_true", help="also show the tasks of asyncio's event loops, and what each awaits"
        )
        parser.add_argument(
            "--dot", metavar="FILE", help="write the wait-for graph (and an SVG beside it where graphviz is there)"
        )

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:  # noqa: ARG002
        """Inspect all threads and judge; with --dot, draw them."""
        from gdbext.diagnosis.inspection import inspect_threads

        session, found = session.settled(lambda each: inspect_threads(each, frames=args.stacks))
        sections: list[Section] = []
        if args.dot:
            from gdbext.diagnosis.threads_view import write

            sections.append(write(args.dot, found.threads))
        return make_report(
            self,
            session,
            args,
            threads=found.threads if args.tasks else [thread._replace(loop=None) for thread in found.threads],
            verdict=found.judgement.verdict,
            findings=found.judgement.findings,
            errors=(*dispatcher_errors(session), *core_errors(session.target, found.threads)),
            sections=sections,
        )

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        from gdbext.diagnosis.threads_view import render

        return render(report, style)
