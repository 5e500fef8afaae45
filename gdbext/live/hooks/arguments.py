"""The arguments of a dispatch at a stop: where the compiler keeps them by then, and what they are.

Integer arguments and references come in the architecture's argument registers. At a lookup in the middle of a function
they have been moved to callee-saved registers or stack slots (arch/argument_holders.py). Only arguments in
registers are reported, up to the first one whose class is not certain from its schema type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.arch.argument_holders import Holder
from gdbext.arch.base import Architecture
from gdbext.errors import GdbextError
from gdbext.model.record import Record
from gdbext.torch.registry.schema_types import hidden_result, schema_types

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.torch.registry.operators import Operator

_SIGN = 1 << 63
_WIDTHS = {"Tensor": 1, "Tensor?": 1, "Scalar": 1, "int": 1, "SymInt": 1, "bool": 1}
"""Registers that an argument of a schema type takes (torchgen/api/cpp.py): references, int64_t, SymInt by reference.
Lists are ArrayRefs of two words. Everything else ends the search."""
_WORD = 8
_USED = {"Tensor": _WORD, "Tensor?": _WORD, "int": _WORD, "bool": 1}
"""Low bytes that matter of those that are shown."""


class KeptWord(Record):
    """What an argument register had, of which the low ``size`` bytes were kept."""

    value: int
    size: int = _WORD


def argument_texts(session: Session, operator: Operator, values: Sequence[KeptWord | None], skipped: int) -> list[str]:
    """``self=f32[4, 4] Meta`` for each argument that the register values give.

    ``values`` are those of the argument registers at the start of the function, ``skipped`` how many stand between a
    hidden result pointer and the arguments (functor, keyset). [] where the schema does not determine the calling
    convention, or where there is no tensor in the place of one.
    """
    schema = operator.schema
    hidden = hidden_result(schema.text) if schema is not None else None
    if schema is None or hidden is None:
        return []
    return _read(session, schema_types(schema.text), values[skipped + hidden :])


def _read(session: Session, types: Sequence[tuple[str, str]], values: Sequence[KeptWord | None]) -> list[str]:
    """[] unless at least one tensor was read, and every one that must be a tensor is."""
    texts: list[str] = []
    proven = False
    position = 0
    for kind, name in types:
        width = 2 if "[" in kind and not kind.endswith("?") else _WIDTHS.get(kind, 0)
        if not width or position + width > len(values):
            break
        kept = values[position]
        position += width
        if kept is None or kept.size < _USED.get(kind, _WORD + 1):
            continue
        value = kept.value
        if kind in ("int", "bool"):
            number = value & 1 if kind == "bool" else value - (1 << 64) if value & _SIGN else value
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
    where: Mapping[str, Holder],
    register: Callable[[str], int],
    word: Callable[[int], int | None],
    cfa: int | None = None,
) -> list[KeptWord | None]:
    """The values of the argument registers as the function was called; None where one did not survive. ``cfa`` is the
    top of its caller's stack, where that is known."""
    found: list[KeptWord | None] = []
    for name in architecture.argument_registers:
        holder = where.get(name)
        value = holder.word(register, word, cfa) if holder is not None else None
        found.append(None if holder is None or value is None else KeptWord(value, holder.size))
    return found
