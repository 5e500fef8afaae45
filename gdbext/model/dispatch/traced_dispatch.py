"""What is known of a dispatch that was seen as it happened."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LookupResult:
    """What a lookup with one keyset finds; the same for every dispatch of that operator, event and keyset.

    ``key`` is what ``highestPriorityTypeId`` names. ``kernel`` is the kernel's function, with file and line where it
    is Python; ``addresses`` are its unboxed, sym-unboxed and boxed entry. ``path`` and ``registered_at`` are known
    only where they were asked for and the table agrees with its registrations. ``table_bytes`` is what is at
    ``table_entry``, the address of the entry's KernelFunction, as long as no kernel is registered or taken away.
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
    table_entry: int = 0
    table_bytes: bytes = b""
    path: str = ""
    registered_at: str = ""

    @property
    def qualified(self) -> str:
        """``aten::add.Tensor``: what PyTorch calls ``toString(op.operator_name())``."""
        return f"{self.op}.{self.overload}" if self.overload else self.op


@dataclass
class TracedDispatch:
    """One pass through the dispatcher.

    ``cfa`` is where its frame ends, ``body`` the lowest address that the frame is sure to use; ``code`` is the function
    [start, end) that runs in it ((0, 0) where it may have left by a tail call), and ``returns_to`` where it returns.
    ``depth`` counts from 1; ``started`` and ``ended`` are microseconds since the trace began. ``returned`` is False
    where only a later stop showed that it had ended, or nothing did.
    """

    found: LookupResult
    tid: int
    depth: int
    cfa: int
    body: int
    code: tuple[int, int]
    returns_to: int
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
