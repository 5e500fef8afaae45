"""``dispatch-lookup``: which kernel an operator finds for a keyset, and the redispatches expected from there."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gdbext.commands.options import TENSOR, number
from gdbext.errors import BadData, UsageError
from gdbext.model.report import Report

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
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
    from gdbext.render.json.operators import chain_document, keyset_document

    words = " ".join(args.keyset)
    if bool(words) == bool(args.args):
        raise UsageError("give either a keyset or --args", help="dispatch-lookup aten::mm Meta,AutogradMeta")
    if words and args.thread:
        raise UsageError("--thread goes with --args: a keyset is taken as it is")
    operator = session.dispatcher.find_one(args.op)
    keys = session.dispatcher.keys
    call = _Call(session, operator, args) if args.args else None
    keyset = call.keyset if call else keys.parse(words)
    try:
        index = keys.table_index(keyset)
    except BadData as error:
        raise UsageError(error.what, help="check it with: dispatch-keyset") from None
    links = session.chains.chain(operator, keyset)
    chain = chain_document(links, session.tables)
    lookup: dict[str, Any] = {
        "op": operator.name,
        "overload": operator.overload,
        "keyset": keyset_document(keys, keyset),
        "key": keys.highest_key(keyset),
        "table_index": index,
        "kernel": chain[0]["kernel"],
        "consistent": links[0].cell.consistent,
        "chain": chain,
    }
    if call:
        lookup["call"] = call.document()
    return Report(
        command=NAME,
        target=session.target_facts(),
        view="lookup",
        errors=session.errors(),
        extra={"lookup": lookup},
        why=args.why,
    )


class _Call:
    """What a call with these tensors computes as its keyset: ((keys | included) - excluded) & mask."""

    def __init__(self, session: Session, operator: Operator, args: argparse.Namespace) -> None:
        self._session = session
        self._keys = session.dispatcher.keys
        self._arguments = [self._argument(word) for word in args.args.split(";")]
        self._thread = session.find_thread(args.thread) if args.thread is not None else None
        self._included, self._excluded = self._thread_keys()
        united = 0
        for bits, _text in self._arguments:
            united |= bits
        local = self._keys.minus(united | self._included, self._excluded)
        self._mask = operator.extractor.mask(self._keys, local)
        self._local = local
        self.keyset = local & self._mask

    def _thread_keys(self) -> tuple[int, int]:
        if self._thread is None:
            constant = self._session.layout.constant
            return constant("keyset.default_included_set"), constant("keyset.default_excluded_set")
        return self._session.dispatch_states.keysets(self._thread.registers().get("fs_base", 0))

    def _argument(self, word: str) -> tuple[int, str]:
        word = word.strip()
        tensor = TENSOR.fullmatch(word)
        if not tensor:
            return (self._keys.parse(word), "") if word else (0, "no tensor")
        facts = self._session.tensors.read(number(tensor.group(1)))
        return facts.key_set, facts.short

    def document(self) -> dict[str, Any]:
        """Each contribution, as bits and keys."""
        from gdbext.render.json.operators import keyset_document

        keys = self._keys
        return {
            "arguments": [
                {"argument": position, "tensor": text or None, "keyset": keyset_document(keys, bits)}
                for position, (bits, text) in enumerate(self._arguments)
            ],
            "thread": self._thread.tid if self._thread else None,
            "included": keyset_document(keys, self._included),
            "excluded": keyset_document(keys, self._excluded),
            "fallthrough": keyset_document(keys, keys.minus(self._local, self._mask) & ~keys.backend_mask),
        }
