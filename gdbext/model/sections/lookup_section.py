"""A lookup as ``dispatch-lookup`` reports it: the keyset, the kernel found, the redispatches expected from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.dispatch.dispatch_frame import DispatchKeySet
from gdbext.model.dispatch.registered_kernel import RegisteredKernel
from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class ChainLink:
    """One lookup of an expected chain of redispatches."""

    key: str
    kernel: RegisteredKernel
    registered_at: str | None
    reason: str
    """Why the table entry holds this kernel, in PyTorch's words."""
    path: str
    """The step of ``OperatorEntry::computeDispatchTableEntryWithDebug`` that chose it."""
    keyset: DispatchKeySet
    next_key: str | None
    """The highest key of ``next_keyset``."""
    next_keyset: DispatchKeySet | None
    """What the kernel is expected to redispatch with; None where it redispatches no more, or nobody knows."""
    certainty: str
    """"expected", "end" (it calls nothing of this operator any more) or "unknown"."""
    why: str


@dataclass(frozen=True)
class ArgumentKeys:
    """What one tensor argument of a call contributes. ``tensor`` describes it, None where only keys were given."""

    argument: int
    tensor: str | None
    keyset: DispatchKeySet


@dataclass(frozen=True)
class CallKeys:
    """What a call computes its keyset from: ((arguments | included) - excluded) & ~fallthrough."""

    arguments: tuple[ArgumentKeys, ...]
    thread: int | None
    """The tid of the thread whose local keys were taken, None for those of a thread in its initial state."""
    included: DispatchKeySet
    excluded: DispatchKeySet
    fallthrough: DispatchKeySet
    """Keys that were skipped, since this operator's kernels for them fall through."""


@dataclass(frozen=True)
class LookupSection(Section):
    """What ``OperatorEntry::lookup`` returns for a keyset, and what is expected to follow."""

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
    """Where the keyset comes from, when it was computed from arguments."""
