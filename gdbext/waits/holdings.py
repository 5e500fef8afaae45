"""What threads hold, as far as it is known: the GIL, and everything that others wait for them to release."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gdbext.model.threads.wait import Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind

if TYPE_CHECKING:
    from gdbext.cpython.sync.gil import GilState


def held_resources(waits: Iterable[Wait | None], gils: Sequence[GilState]) -> dict[int, tuple[Resource, ...]]:
    """Thread id → what the thread holds, each resource once."""
    held: dict[int, dict[tuple[WaitKind, int], Resource]] = {}
    for gil in gils:
        if gil.holder_tid is not None:
            name = f"interpreter {gil.interpreter}" if gil.interpreter else ""
            held.setdefault(gil.holder_tid, {})[WaitKind.GIL, gil.address] = Resource(WaitKind.GIL, gil.address, name)
    for wait in waits:
        if wait is None or wait.handover or not wait.kind.traits.relation.is_possession:
            continue
        for owner in wait.owners:
            held.setdefault(owner.tid, {}).setdefault((wait.kind, wait.resource.address), wait.resource)
    return {tid: tuple(resources.values()) for tid, resources in held.items()}
