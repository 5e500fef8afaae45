"""``dispatch-bt``: the dispatcher's path through a stack."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from gdbext.commands.options import add_thread_choice, chosen_threads
from gdbext.errors import GdbextError
from gdbext.model.report import ErrorFact, Report

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

NAME = "dispatch-bt"
_EPILOG = """\
Innermost first. Each entry is one pass through the dispatcher:

  #11   [redispatch] op=[aten::mm], key=[Meta]  in-kernel, exact
        DispatchKeySet(Meta)  0x18000, table index 16
        kernel meta_mm at model.py:3  (boxed only)
               registered at model.py:9, path 1

#11 is the native frame, [redispatch] the event (call, redispatch, callBoxed, redispatchBoxed), key the one that was
chosen. The stage is entering (the operator's handle is being made), lookup, invoking (boxing layers) or in-kernel.
exact: the keyset was read where the calling code passed it, and this operator's table has the running kernel for it;
verified: found in the frame and proven the same way; inferred: from the kernel alone. --why shows the proof. path is
the step of computeDispatchTableEntryWithDebug that chose the kernel: 1 its own, 2.x an alias key, 3 a fallback.
"never entered" names the key that an innermost kernel was expected to redispatch to and has not reached.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.epilog = _EPILOG
    add_thread_choice(parser)
    parser.add_argument("--native", action="store_true", help="every native frame, too")


def run(session: Session, args: argparse.Namespace) -> Report:
    """The steps of the chosen threads. A thread that cannot be read costs that thread."""
    from gdbext.inspection.source_lines import source_lines

    threads = []
    errors = list(session.torch_errors())
    for thread in chosen_threads(session, args, NAME):
        try:
            facts = session.thread_facts(thread, native=args.native)
            threads.append(replace(facts, dispatch=session.explained(thread, facts.dispatch)) if args.why else facts)
        except GdbextError as error:
            errors.append(ErrorFact.of(error, f"thread {thread.tid}"))
    errors.extend(session.errors())
    return Report(
        command=NAME,
        target=session.target_facts(),
        view="bt",
        threads=tuple(threads),
        errors=tuple(errors),
        why=args.why,
        sources={} if args.json else source_lines(session.target, threads),
    )
