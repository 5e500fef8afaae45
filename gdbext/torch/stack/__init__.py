"""The records of one pass through the dispatcher: its event, operator, key, kernel and arguments."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.vocabulary import Certainty, json_member
from gdbext.torch.values.key_names import shown_key

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gdbext.engine.vocabulary import Explained, Hexadecimal, Inline, Internal, Sparse
    from gdbext.torch.registry.dispatch_table import ComputedEntry
    from gdbext.torch.registry.kernel import KernelFunction
    from gdbext.torch.values.key_names import KeyNames
    from gdbext.torch.values.value_text import Statistics


class DispatchEvent(Enum):
    """The method of c10::Dispatcher (aten/src/ATen/core/dispatch/Dispatcher.h); the value is its name."""

    CALL = "call"
    REDISPATCH = "redispatch"
    CALL_BOXED = "callBoxed"
    REDISPATCH_BOXED = "redispatchBoxed"

    @property
    def is_redispatch(self) -> bool:
        """A kernel calls its operator again, with a keyset of its own choice."""
        return self in (DispatchEvent.REDISPATCH, DispatchEvent.REDISPATCH_BOXED)


class ArgumentTensor(NamedTuple):
    """A tensor of an argument; a list of tensors has several."""

    address: Hexadecimal
    """Address of its TensorImpl; 0 for an undefined tensor (None in a list)."""
    short: str
    statistics: Inline[Statistics | None] = None


class Argument(NamedTuple):
    """An argument by its name in the schema. ``text`` is "" if its value is unknown."""

    name: str
    type: str
    """The type in the schema: "Tensor", "int[]"."""
    text: Internal[str]
    confidence: Certainty
    tensors: tuple[ArgumentTensor, ...] = ()
    variable: Sparse[str] = ""
    """The variable of the Python kernel's frame whose present value ``text`` is; "" for an argument that was read where
    the call passes it."""

    @json_member(after="type")
    def value(self) -> str | None:
        """Its text; null if it is unknown."""
        return self.text or None

    @property
    def short(self) -> str:
        """``self=f32[4, 4] cpu``, ``alpha=?`` for an unknown one."""
        return f"{self.name}={self.text or '?'}"


class DispatchStage(Enum):
    """The stage of a pass through the dispatcher."""

    ENTERING = "entering"
    """The operator's handle is being made."""
    LOOKUP = "lookup"
    INVOKING = "invoking"
    """Boxing and its layers, before the kernel."""
    IN_KERNEL = "in-kernel"


class Kernel(NamedTuple):
    """A kernel of the dispatch table, or as the stack shows it (``valid`` None then)."""

    function: str
    valid: bool | None = None
    boxed: bool | None = None
    unboxed: bool | None = None
    fallthrough: bool | None = None
    registered_at: str | None = None
    path: str | None = None

    @classmethod
    def of_table(cls, kernel: KernelFunction, function: str, fallthrough: bool, proven: ComputedEntry | None) -> Kernel:
        """The kernel of a table entry; ``proven`` is that entry if it agrees with the registrations."""
        return cls(
            function=function,
            valid=kernel.valid,
            boxed=kernel.valid,
            unboxed=kernel.unboxed != 0 or kernel.sym_unboxed != 0,
            fallthrough=fallthrough,
            registered_at=proven.debug if proven else None,
            path=proven.path if proven else None,
        )


class DispatchKeySet(NamedTuple):
    """A DispatchKeySet: its bits and its keys in the order of ``str(torch._C._dispatch_keys(t))``."""

    bits: Hexadecimal
    keys: tuple[str, ...]

    @classmethod
    def of_bits(cls, bits: int, names: KeyNames) -> DispatchKeySet:
        """The keyset of these bits, with its keys as ``names`` has them."""
        return cls(bits, names.decode(bits))


class DispatchFrame(NamedTuple):
    """One pass through the dispatcher, seen in a stack. ``level`` is the level of its dispatcher frame."""

    level: int
    event: DispatchEvent | None
    """None if the dispatcher was inlined into code that does not prove it."""
    op: str | None
    overload: str
    keyset: DispatchKeySet | None
    key: str | None
    table_index: int | None
    kernel: Kernel | None
    stage: DispatchStage
    confidence: Certainty
    """The confidence of the keyset."""
    never_entered: Sparse[str | None] = None
    """The key that the kernel was expected to redispatch to and did not reach, if that is known."""
    arguments: Sparse[tuple[Argument, ...]] = ()
    """The arguments if they were requested, in the order of the schema."""
    evidence: Explained[tuple[str, ...]] = ()
    backend: Internal[str] = ""
    """The process's name of PrivateUse1, if the key or the keyset has that."""
    unread_inside: Internal[bool] = False
    """Frames further in cannot be read: there may be passes in them, so that its kernel need not be what runs."""

    @property
    def fold_key(self) -> Hashable:
        """Equal for two steps of a recursion: all but the level, the arguments and the evidence, which names addresses
        on the stack."""
        return self._replace(level=0, evidence=(), arguments=())

    def without_values(self) -> DispatchFrame:
        """The pass with its arguments' names, without their values."""
        unknown = (Argument(argument.name, argument.type, "", Certainty.UNKNOWN) for argument in self.arguments)
        return self._replace(arguments=tuple(unknown))

    @property
    def key_text(self) -> str:
        """The key for people: ``PrivateUse1 (npu)`` for a backend with a name of its own; "" if it is unknown."""
        return shown_key(self.key, self.backend) if self.key else ""

    @property
    def keyset_text(self) -> str:
        """The keyset for people: ``DispatchKeySet(CPU, AutogradCPU)``."""
        keys = self.keyset.keys if self.keyset else ()
        return f"DispatchKeySet({', '.join(shown_key(key, self.backend) for key in keys)})"

    @property
    def event_name(self) -> str:
        """The method of the dispatcher, "unknown" if that is not proven."""
        return self.event.value if self.event else "unknown"

    @property
    def qualified(self) -> str:
        """``aten::add.Tensor``, or "an unknown operator"."""
        name = self.op or "an unknown operator"
        return f"{name}.{self.overload}" if self.overload else name
