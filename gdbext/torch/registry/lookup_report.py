"""What a lookup finds, as a report carries it (``model.lookup_section``)."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.model.sections.lookup_section import ArgumentKeys, CallKeys, ChainLink, LookupSection
from gdbext.torch.registry.operator_report import key_set, registered_kernel
from gdbext.torch.registry.operators import Operator
from gdbext.torch.registry.redispatch_chain import ExpectedLookup, RedispatchPredictor
from gdbext.torch.values.key_names import KeyNames


def lookup_section(
    predictor: RedispatchPredictor, operator: Operator, keyset: int, call: CallKeys | None = None
) -> LookupSection:
    """What ``OperatorEntry::lookup`` returns for a keyset. Raises BadData (bits without meaning), MemoryFault."""
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
    """What the tensor argument at a position contributes."""
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
