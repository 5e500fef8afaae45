"""``lookup`` of a report as JSON."""

from __future__ import annotations

from typing import Any

from gdbext.model.sections.lookup_section import CallKeys, ChainLink, LookupSection
from gdbext.render.json.documents.operators_document import kernel
from gdbext.render.json.values import keyset, optional_keyset


def document(section: LookupSection, why: bool) -> dict[str, Any]:  # noqa: ARG001 - the same with evidence
    """The lookup and the chain of redispatches; ``call`` where the keyset was computed from arguments."""
    chain = [_link(link) for link in section.chain]
    value: dict[str, Any] = {
        "op": section.op,
        "overload": section.overload,
        "keyset": keyset(section.keyset),
        "key": section.key,
        "table_index": section.table_index,
        "kernel": chain[0]["kernel"],
        "consistent": section.consistent,
        "chain": chain,
    }
    if section.call is not None:
        value["call"] = _call(section.call)
    return value


def _link(link: ChainLink) -> dict[str, Any]:
    """``next`` is the key of the next link, null at the end."""
    return {
        "key": link.key,
        "kernel": {
            **kernel(link.kernel),
            "registered_at": link.registered_at,
            "reason": link.reason,
            "path": link.path,
        },
        "keyset": keyset(link.keyset),
        "next": link.next_key,
        "next_keyset": optional_keyset(link.next_keyset),
        "certainty": link.certainty,
        "why": link.why,
    }


def _call(call: CallKeys) -> dict[str, Any]:
    return {
        "arguments": [
            {"argument": one.argument, "tensor": one.tensor, "keyset": keyset(one.keyset)} for one in call.arguments
        ],
        "thread": call.thread,
        "included": keyset(call.included),
        "excluded": keyset(call.excluded),
        "fallthrough": keyset(call.fallthrough),
    }
