"""What is odd about a dispatch that a profile shows: marks for rows of ``dispatch-top``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.probes.dispatch_counter import DispatchCount
    from gdbext.torch.registry.operators import Operator

ACCELERATORS = frozenset(("CUDA", "HIP", "XPU", "MPS", "HPU", "XLA", "MTIA", "IPU", "VE", "Lazy", "PrivateUse1"))
"""Backend components (c10/core/DispatchKey.h) of devices other than the processor."""
_MANY_REDISPATCHES = 8
"""A call passes Autograd, ADInplaceOrView and a backend, and few keys more."""
_REASONS = {"math kernel": "decomposes", "backend fallback": "boxed fallback"}
"""PyTorch's word for how a table entry was chosen → what that means for speed."""


class OddDispatches:
    """Judges by all that was counted."""

    def __init__(self, session: Session, counts: Iterable[DispatchCount]) -> None:
        self._session = session
        calls: dict[int, int] = {}
        redispatches: dict[int, int] = {}
        self._on_accelerator = 0
        for count in counts:
            into = redispatches if count.event.is_redispatch else calls
            into[count.entry] = into.get(count.entry, 0) + count.times
            self._on_accelerator += count.times * (1 if self._backends(count.keyset) & ACCELERATORS else -1)
        # Without a call it was called before: one call at least.
        self._repeated = {
            entry: times / calls.get(entry, 1)
            for entry, times in redispatches.items()
            if times > _MANY_REDISPATCHES * calls.get(entry, 1)
        }

    def _backends(self, keyset: int) -> frozenset[str]:
        try:
            return frozenset(self._session.dispatcher.keys.decode(keyset))
        except GdbextError:
            return frozenset()

    def mark(self, operator: Operator, event: str, keyset: int) -> str:
        """In a few words; "" for what is as usual."""
        dispatcher = self._session.dispatcher
        try:
            index, kernel = operator.kernel_for(keyset)
            if not kernel.valid:
                return "no kernel"
            if dispatcher.kernels.fallthrough(kernel):
                return "falls through"
            found = _REASONS.get(self._session.tables.entry(operator, index).reason, "")
        except GdbextError:
            return ""
        if event.startswith("redispatch") and operator.address in self._repeated:
            return f"redispatched {self._repeated[operator.address]:.0f} times a call"
        backends = self._backends(keyset)
        if not found and self._on_accelerator > 0 and "CPU" in backends and not backends & ACCELERATORS:
            return "on the CPU"
        return found
