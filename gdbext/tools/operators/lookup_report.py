"""The result of a lookup, as a report carries it.

A lookup as ``dispatch-lookup`` reports it: the keyset, the kernel found, the redispatches expected from there.

``lookup`` of a report as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gdbext.engine.vocabulary import Section
from gdbext.render.plain_json import keyset, optional_keyset
from gdbext.tools.operators.op import key_set, registered_kernel
from gdbext.tools.operators.operator_section import RegisteredKernel, kernel
from gdbext.torch.registry.operators import Operator
from gdbext.torch.stack.dispatch_frame import DispatchKeySet
from gdbext.torch.stack.key_choice import ExpectedLookup, RedispatchPredictor
from gdbext.torch.values.key_names import KeyNames


@dataclass(frozen=True)
class ChainLink:
    """One lookup of an expected chain of redispatches."""

    key: str
    kernel: RegisteredKernel
    registered_at: str | None
    reason: str
    """The reason why the table entry holds this kernel, in PyTorch's words."""
    path: str
    """The step of ``OperatorEntry::computeDispatchTableEntryWithDebug`` that chose it."""
    keyset: DispatchKeySet
    next_key: str | None
    """The highest key of ``next_keyset``."""
    next_keyset: DispatchKeySet | None
    """The keyset that the kernel is expected to redispatch with; None where it redispatches no more, or nobody
    knows."""
    certainty: str
    """"expected", "end" (it calls nothing of this operator any more) or "unknown"."""
    why: str


@dataclass(frozen=True)
class ArgumentKeys:
    """The contribution of one tensor argument of a call. ``tensor`` describes it, None where only keys were given."""

    argument: int
    tensor: str | None
    keyset: DispatchKeySet


@dataclass(frozen=True)
class CallKeys:
    """The parts of a call's keyset: ((arguments | included) - excluded) & ~fallthrough."""

    arguments: tuple[ArgumentKeys, ...]
    thread: int | None
    """The tid of the thread whose local keys were taken, None for those of a thread in its initial state."""
    included: DispatchKeySet
    excluded: DispatchKeySet
    fallthrough: DispatchKeySet
    """Keys that were skipped, since this operator's kernels for them fall through."""


@dataclass(frozen=True)
class LookupSection(Section):
    """The result of ``OperatorEntry::lookup`` for a keyset, and what is expected to follow."""

    name: ClassVar[str] = "lookup"
    op: str
    overload: str
    keyset: DispatchKeySet
    key: str
    table_index: int
    consistent: bool
    """The table in memory holds what the registrations lead to."""
    chain: tuple[ChainLink, ...]
    """The lookup itself, then each expected redispatch."""
    call: CallKeys | None = None
    """The origin of the keyset, when it was computed from arguments."""

    def document(self, why: bool) -> dict[str, Any]:
        """The section, as the JSON document has it."""
        return document(self, why)


def lookup_section(
    predictor: RedispatchPredictor, operator: Operator, keyset: int, call: CallKeys | None = None
) -> LookupSection:
    """The result of ``OperatorEntry::lookup`` for a keyset. Raises BadData (bits without meaning), MemoryFault."""
    keys = operator.dispatcher.keys
    index = keys.table_index(keyset)
    links = predictor.chain(operator, keyset)
    return LookupSection(
        op=operator.name,
        overload=operator.overload,
        keyset=key_set(keys, keyset),
        key=keys.highest_key(keyset),
        table_index=index,
        consistent=links[0].entry.consistent,
        chain=tuple(_chain_link(operator, link) for link in links),
        call=call,
    )


def call_keys(
    operator: Operator, arguments: Sequence[ArgumentKeys], thread: int | None, included: int, excluded: int
) -> tuple[int, CallKeys]:
    """The keyset that a call computes, and from what: ``computeDispatchKeySet`` (ATen/core/dispatch/
    DispatchKeyExtractor.h), ((arguments | included) - excluded) & the operator's mask."""
    keys = operator.dispatcher.keys
    united = 0
    for argument in arguments:
        united |= argument.keyset.bits
    local = keys.minus(united | included, excluded)
    mask = operator.extractor.mask(keys, local)
    skipped = keys.minus(local, mask) & ~keys.backend_mask
    return local & mask, CallKeys(
        tuple(arguments), thread, key_set(keys, included), key_set(keys, excluded), key_set(keys, skipped)
    )


def argument_keys(keys: KeyNames, position: int, bits: int, tensor: str = "") -> ArgumentKeys:
    """The contribution of the tensor argument at a position."""
    return ArgumentKeys(position, tensor or None, key_set(keys, bits))


def _chain_link(operator: Operator, link: ExpectedLookup) -> ChainLink:
    keys, kernels, entry = operator.dispatcher.keys, operator.dispatcher.kernels, link.entry
    following = link.next_keyset
    return ChainLink(
        key=entry.key,
        kernel=registered_kernel(kernels, entry.kernel, link.name),
        registered_at=entry.debug or None,
        reason=entry.reason,
        path=entry.path,
        keyset=key_set(keys, link.keyset),
        next_key=None if following is None else keys.highest_key(following),
        next_keyset=None if following is None else key_set(keys, following),
        certainty=link.certainty,
        why=link.why,
    )


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
