"""``dispatch-tls``: the thread-local state that takes part in dispatch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdbext.commands.options import add_thread_choice, chosen_threads
from gdbext.commands.reporting import make_report
from gdbext.errors import GdbextError
from gdbext.model.error_report import ErrorReport

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report

NAME = "dispatch-tls"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_thread_choice(parser)


def run(session: Session, args: argparse.Namespace) -> Report:
    """The state of the chosen threads. A thread that cannot be read costs that thread. Raises NotTorch, LayoutError."""
    from gdbext.inspection.threads.thread_reporting import report_dispatch_state

    reader = session.dispatch_states
    threads = []
    errors: list[ErrorReport] = []
    for thread in chosen_threads(session.target, args, NAME):
        try:
            state = reader.read(session.memory.architecture.thread_pointer(thread.registers()))
        except GdbextError as error:
            errors.append(ErrorReport.of(error, f"thread {thread.tid}"))
            continue
        errors.extend(ErrorReport(problem, f"thread {thread.tid}") for problem in state.problems)
        threads.append(report_dispatch_state(session, thread, state))
    return make_report(session, args, NAME, "tls", threads=threads, errors=errors)
