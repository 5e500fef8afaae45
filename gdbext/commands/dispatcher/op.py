"""``dispatch-op``: an operator's schema, registrations and computed dispatch table."""

from __future__ import annotations

import argparse
import contextlib
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.commands.reporting import make_report
from gdbext.errors import UsageError
from gdbext.model.sections.operator_section import OperatorSection

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report
    from gdbext.torch.values.key_names import KeyNames

NAME = "dispatch-op"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "op",
        nargs="?",
        metavar="OP[.OVERLOAD]|PATTERN",
        help="mm: every operator with that base name; aten::mm, aten::mm.out: exact (aten::mm.default: the overload "
        "without a name); '*mm*': a pattern over base names",
    )
    parser.add_argument("--all", action="store_true", help="every operator")
    parser.add_argument("--key", metavar="KEY", help="this key only (a runtime key or an alias key)")


def run(session: Session, args: argparse.Namespace) -> Report:
    """Reads the operators. One that cannot be read costs that one. Raises UsageError for an unknown name or key."""
    from gdbext.torch.registry.operator_report import OperatorReporter

    if bool(args.op) == args.all:
        raise UsageError("name one operator or pattern, or give --all", help="dispatch-op aten::mm")
    dispatcher = session.dispatcher
    if args.key is not None:
        _check_key(dispatcher.keys, args.key)
    operators = dispatcher.operators() if args.all else dispatcher.find(args.op)
    if not operators:
        raise dispatcher.unknown(args.op)
    reporter = OperatorReporter(session.tables, args.key)
    with _no_garbage_collection():
        section = OperatorSection(reporter.report_all(operators))
    return make_report(
        session, args, NAME, "op", findings=reporter.findings, errors=reporter.errors, sections=(section,)
    )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Half a million table entries, none in a cycle: looking for cycles would take a quarter of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check_key(keys: KeyNames, key: str) -> None:
    if key not in keys.alias_keys:
        keys.index_of_key(key)
