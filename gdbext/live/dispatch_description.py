"""Descriptions of dispatches as they happen: what an operator's table gives for a keyset, and the arguments at a stop.

Integer arguments and references are passed in the architecture's argument registers. At a lookup in the middle of a
function they have been moved to callee-saved registers or stack slots (engine/arch/argument_places.py). Only arguments
in registers are reported, up to the first one whose class is not certain from its schema type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.arch.argument_places import SavedArgument
from gdbext.engine.vocabulary import json_member
from gdbext.errors import BadData, GdbextError
from gdbext.torch.registry.schema import hidden_result, schema_types
from gdbext.torch.stack import DispatchEvent, DispatchKeySet, Kernel

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.unwind.caller_check import IsOpen
    from gdbext.engine.vocabulary import Count, Inline, Internal, Sparse
    from gdbext.torch.registry import Operator


class LookupResult(NamedTuple):
    """The result of a lookup with one keyset; the same for every dispatch of that operator, event and keyset.

    ``key`` is what ``highestPriorityTypeId`` names. ``addresses`` are the kernel's unboxed, sym-unboxed and boxed
    entry. ``table_bytes`` are the bytes at ``table_entry``, the address of the entry's KernelFunction, as long as no
    kernel is registered or removed. ``kernel`` says where it was registered only if that was asked for and the table
    agrees with its registrations.
    """

    event: DispatchEvent
    op: str
    overload: str
    keyset: DispatchKeySet
    key: str
    table_index: Count
    kernel: Kernel
    kind: Internal[str]
    """The kind of the kernel's name."""
    addresses: Internal[frozenset[int]] = frozenset()
    boxed_address: Internal[int] = 0
    table_entry: Internal[int] = 0
    table_bytes: Internal[bytes] = b""

    @property
    def qualified(self) -> str:
        """``aten::add.Tensor``: what PyTorch calls ``toString(op.operator_name())``."""
        return f"{self.op}.{self.overload}" if self.overload else self.op

    @property
    def kernel_text(self) -> str:
        """The kernel's function, or why it has none: ``no kernel``."""
        return self.kernel.function or ("no kernel" if self.kernel.valid is False else self.kind)


@dataclass
class TracedDispatch:
    """One pass through the dispatcher.

    Its frame ends at the address ``cfa``; ``body`` is the lowest address that the frame is sure to use. ``code`` is
    [start, end) of the function that runs in it, (0, 0) if it may have left by a tail call; ``returns_to`` is its
    return address. ``depth`` counts from 1; ``started`` and ``ended`` are microseconds since the trace began.
    ``returned`` is False if its return was not seen: only a later stop showed that it had ended, or nothing did.
    """

    number: Count
    tid: Count
    depth: Count
    lookup: Inline[LookupResult]
    cfa: Internal[int]
    body: Internal[int]
    code: Internal[tuple[int, int]]
    returns_to: Internal[int]
    started: Internal[float]
    ended: Internal[float | None] = None
    returned: Internal[bool] = False
    entered: Internal[bool] = False
    """Its kernel was seen to be entered."""
    left: Internal[bool] = False
    """Its kernel was seen to return."""
    last: Internal[str] = "lookup"
    """The last step that was seen."""
    kernel_started: Internal[float | None] = None
    kernel_ended: Internal[float | None] = None
    is_open: Internal[IsOpen | None] = None
    """Tells by a return address in its function if the dispatch still runs there; None: it does everywhere."""
    nesting: Sparse[Literal["not proven"] | None] = None
    """Set if the dispatch is shown inside another one, but its stack could not be unwound up to there."""

    @json_member(after="")
    def step(self) -> Literal["dispatch"]:
        """The step that a trace has it as."""
        return "dispatch"


@dataclass
class Describer:
    """Reads operators' tables while the process is stopped."""

    _open: Callable[[], Session]
    """Returns a fresh session of the process."""
    _session: Session
    registrations: bool
    """Find out where kernels were registered, too."""

    def operator(self, address: int) -> Operator | None:
        """The operator whose OperatorEntry is at ``address``. Raises BadData, MemoryFault."""
        operator = self._session.dispatcher.by_def(address)
        if not operator:  # registered since
            self._renew()
            operator = self._session.dispatcher.by_def(address)
        return operator

    def find(self, operator: Operator, event: str, bits: int) -> LookupResult:
        """Look up the keyset ``bits`` in the operator's current table; ``event`` is a DispatchEvent's value. Raises
        BadData (no keyset, or the operator was removed), MemoryFault."""
        self._session.memory.forget()
        current = self.operator(operator.address)
        if not current:
            raise BadData(f"{operator.qualified} is not registered any more")
        session = self._session
        keys, kernels = session.dispatcher.keys, session.dispatcher.kernels
        current.forget_table()
        index, kernel = current.kernel_for(bits)
        key = keys.highest_key(bits)
        name = kernels.name(kernel, key, current.name)
        if name.kind == "unknown" and not session.modules.find(kernel.boxed):  # of a library that was loaded since
            self._renew()
            kernels = self._session.dispatcher.kernels
            name = kernels.name(kernel, key, current.name)
        proven = None
        with suppress(GdbextError):
            entry = self._session.tables.entry(current, index) if self.registrations else None
            proven = entry if entry and entry.consistent else None
        return LookupResult(
            event=DispatchEvent(event),
            op=current.name,
            overload=current.overload,
            keyset=DispatchKeySet.of_bits(bits, keys),
            key=key,
            table_index=index,
            kernel=Kernel.of_table(kernel, name.text, kernels.fallthrough(kernel), proven),
            kind=name.kind,
            addresses=frozenset((kernel.unboxed, kernel.sym_unboxed, kernel.boxed)) - {0},
            boxed_address=kernel.boxed,
            table_entry=session.dispatcher.table_entry(current.address, index),
            table_bytes=struct.pack("<4Q", *kernel)[: kernels.size],
        )

    def _renew(self) -> None:
        """Open a session that knows new libraries and operators."""
        self._session = self._session.session_after_stop(self._open().target)


_WIDTHS = {"Tensor": 1, "Tensor?": 1, "Scalar": 1, "int": 1, "SymInt": 1, "bool": 1}
"""Registers that an argument of a schema type takes (torchgen/api/cpp.py): references, int64_t, SymInt by reference.
Lists are ArrayRefs of two words. Everything else ends the search."""
_WORD = 8
_USED = {"Tensor": _WORD, "Tensor?": _WORD, "int": _WORD, "bool": 1}
"""Schema type that is shown → number of low bytes of its word that matter."""


class KeptWord(NamedTuple):
    """The word of an argument register, of which the low ``size`` bytes were kept."""

    value: int
    size: int = _WORD


def argument_texts(session: Session, operator: Operator, values: Sequence[KeptWord | None], skipped: int) -> list[str]:
    """``self=f32[4, 4] meta`` for each argument that the register values show.

    ``values``: those of the argument registers at the function's entry; ``skipped``: number of registers between the
    pointer for the result (sret) and the arguments (functor, keyset). [] if the schema does not determine the calling
    convention, if no tensor was read, or if the value of a Tensor argument is not a tensor.
    """
    schema = operator.schema
    uses_sret = hidden_result(schema.text) if schema else None
    if not schema or uses_sret is None:
        return []
    texts: list[str] = []
    proven = False
    position = skipped + session.memory.architecture.leading_arguments(uses_sret)
    for kind, name in schema_types(schema.text):
        width = 2 if "[" in kind and not kind.endswith("?") else _WIDTHS.get(kind, 0)
        if not width or position + width > len(values):
            break
        kept = values[position]
        position += width
        if not kept or kept.size < _USED.get(kind, _WORD + 1):
            continue
        value = kept.value
        if kind in ("int", "bool"):
            number = value & 1 if kind == "bool" else value - (1 << 64) if value >> 63 else value
            texts.append(f"{name}={number}")
            continue
        try:
            texts.append(f"{name}={session.tensors.read(session.memory.u64(value)).short}")
            proven = True
        except GdbextError:
            if kind == "Tensor":
                return []
    return texts if proven else []


def register_values(
    architecture: Architecture,
    holders: Mapping[str, SavedArgument],
    register: Callable[[str], int],
    word: Callable[[int], int | None],
) -> list[KeptWord | None]:
    """The values that the argument registers had at the function's entry; None for one that is lost. ``holders``:
    argument register → the register or stack slot that holds its value now; ``register`` and ``word`` read a register
    by its name, and the word at an address."""
    values: list[KeptWord | None] = []
    for name in architecture.argument_registers:
        holder = holders.get(name)
        value = holder.word(register, word, None) if holder else None
        values.append(None if not holder or value is None else KeptWord(value, holder.size))
    return values
