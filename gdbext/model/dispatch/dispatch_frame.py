"""DispatchFrame: one pass through the dispatcher, as it stands on a stack."""

from __future__ import annotations

from enum import Enum

from gdbext.model.certainty import Certainty
from gdbext.model.dispatch.argument import Argument
from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.model.record import Record


class DispatchStage(Enum):
    """How far a pass through the dispatcher has come."""

    ENTERING = "entering"
    """The operator's handle is being made."""
    LOOKUP = "lookup"
    INVOKING = "invoking"
    """Boxing and its layers, before the kernel."""
    IN_KERNEL = "in-kernel"


class Kernel(Record):
    """A kernel as the dispatch table has it, or as the stack shows it (``valid`` None then)."""

    function: str
    valid: bool | None = None
    boxed: bool | None = None
    unboxed: bool | None = None
    fallthrough: bool | None = None
    registered_at: str | None = None
    path: str | None = None


class DispatchKeySet(Record):
    """A DispatchKeySet: its bits and its keys in the order of ``str(torch._C._dispatch_keys(t))``."""

    bits: int
    keys: tuple[str, ...]


class DispatchFrame(Record):
    """One pass through the dispatcher, seen in a stack. ``level`` is that of its dispatcher frame."""

    level: int
    event: DispatchEvent
    op: str | None
    overload: str
    keyset: DispatchKeySet | None
    key: str | None
    table_index: int | None
    kernel: Kernel | None
    stage: DispatchStage
    confidence: Certainty
    """That of the keyset."""
    evidence: tuple[str, ...] = ()
    never_entered: str | None = None
    """The key that the kernel was expected to redispatch to and did not reach, where that is known."""

    arguments: tuple[Argument, ...] = ()
    """Where they were asked for, in the order of the schema."""

    @property
    def qualified(self) -> str:
        """``aten::add.Tensor``, or "an unknown operator"."""
        name = self.op or "an unknown operator"
        return f"{name}.{self.overload}" if self.overload else name
