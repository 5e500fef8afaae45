"""What is known of a dispatch that was seen as it happened."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Found:
    """What a lookup with one keyset finds; the same for every dispatch of that operator, event and keyset.

    ``key`` is what ``highestPriorityTypeId`` names. ``kernel`` is the kernel's function, with file and line where it
    is Python; ``addresses`` are its unboxed, sym-unboxed and boxed entry. ``path`` and ``registered_at`` are known
    only where they were asked for and the table agrees with its registrations.
    """

    event: str
    op: str
    overload: str
    bits: int
    keys: tuple[str, ...]
    key: str
    table_index: int
    kernel: str
    kind: str
    valid: bool
    boxed: bool
    unboxed: bool
    fallthrough: bool
    addresses: frozenset[int] = frozenset()
    boxed_address: int = 0
    path: str = ""
    registered_at: str = ""

    @property
    def qualified(self) -> str:
        """``aten::add.Tensor``: what PyTorch calls ``toString(op.operator_name())``."""
        return f"{self.op}.{self.overload}" if self.overload else self.op


@dataclass
class Dispatch:
    """One pass through the dispatcher. ``cfa`` identifies its frame, ``body`` is the lowest address it is sure to use.

    ``depth`` counts from 1; ``started`` and ``ended`` are microseconds since the trace began. ``returned`` is False
    where only a later stop showed that it had ended, or nothing did.
    """

    found: Found
    tid: int
    depth: int
    cfa: int
    body: int
    started: float
    ended: float | None = None
    returned: bool = False
    entered: bool = False
    """Its kernel was seen to be entered."""
    left: bool = False
    """Its kernel was seen to return."""
    last: str = "lookup"
    """The last step that was seen."""
    kernel_started: float | None = None
    kernel_ended: float | None = None
    number: int = field(default=0)
