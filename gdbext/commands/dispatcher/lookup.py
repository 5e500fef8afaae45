"""``dispatch-lookup``: which kernel an operator finds for a keyset, and the redispatches expected from there."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdbext.commands.options import TENSOR
from gdbext.commands.reporting import make_report
from gdbext.errors import BadData, UsageError
from gdbext.inspection.expression import number

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.report import Report
    from gdbext.model.sections.lookup_section import ArgumentKeys, CallKeys
    from gdbext.torch.registry.operators import Operator

NAME = "dispatch-lookup"


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("op", metavar="OP[.OVERLOAD]", help="one operator: aten::mm, aten::add.Tensor")
    parser.add_argument(
        "keyset", nargs="*", metavar="KEYSET", help="key names (Meta,AutogradMeta) or bits (0x1000018000)"
    )
    parser.add_argument("--thread", metavar="TID|N", help="apply this thread's included and excluded keys")
    parser.add_argument(
        "--args",
        metavar="KEYS;KEYS",
        help="the keys of each tensor argument, or tensor:0x7f... for one in memory; needs no KEYSET",
    )


def run(session: Session, args: argparse.Namespace) -> Report:
    """Looks up. Raises UsageError for an unknown or ambiguous operator or a malformed keyset."""
    from gdbext.torch.registry.lookup_report import lookup_section

    words = " ".join(args.keyset)
    if bool(words) == bool(args.args):
        raise UsageError("give either a keyset or --args", help="dispatch-lookup aten::mm Meta,AutogradMeta")
    if words and args.thread:
        raise UsageError("--thread goes with --args: a keyset is taken as it is")
    operator = session.dispatcher.find_one(args.op)
    keyset, call = _call(session, operator, args) if args.args else (session.dispatcher.keys.parse(words), None)
    _check(session, keyset)
    section = lookup_section(session.chains, operator, keyset, call)
    return make_report(session, args, NAME, "lookup", sections=(section,))


def _check(session: Session, keyset: int) -> None:
    """Raises UsageError for a keyset that no lookup can be made with."""
    try:
        session.dispatcher.keys.table_index(keyset)
    except BadData as error:
        raise UsageError(error.what, help="check it with: dispatch-keyset") from None


def _call(session: Session, operator: Operator, args: argparse.Namespace) -> tuple[int, CallKeys]:
    """What a call with these tensors computes as its keyset."""
    from gdbext.inspection.threads.thread_choice import find_thread
    from gdbext.torch.registry.lookup_report import call_keys

    arguments = [_argument(session, position, word) for position, word in enumerate(args.args.split(";"))]
    if args.thread is None:
        constant = session.layout.constant
        initial = constant("keyset.default_included_set"), constant("keyset.default_excluded_set")
        return call_keys(operator, arguments, None, *initial)
    thread = find_thread(session.target, args.thread)
    local = session.dispatch_states.keysets(session.memory.architecture.thread_pointer(thread.registers()))
    return call_keys(operator, arguments, thread.tid, *local)


def _argument(session: Session, position: int, word: str) -> ArgumentKeys:
    """``CPU,AutogradCPU``, ``tensor:0x7f…``, or nothing."""
    from gdbext.torch.registry.lookup_report import argument_keys

    keys, word = session.dispatcher.keys, word.strip()
    tensor = TENSOR.fullmatch(word)
    if tensor:
        facts = session.tensors.read(number(tensor.group(1)))
        return argument_keys(keys, position, facts.key_set, facts.short)
    return argument_keys(keys, position, keys.parse(word)) if word else argument_keys(keys, position, 0, "no tensor")
