"""The arguments of a dispatch at a stop: where the compiler keeps them by then, and what they are.

Integer arguments and references come in the architecture's argument registers. At a lookup in the middle of a function
they have been moved to callee-saved registers or stack slots; those moves are followed. Only arguments in
registers are reported, up to the first one whose class is not certain from its schema type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.arch.base import Architecture
from gdbext.arch.instruction import Instruction
from gdbext.errors import GdbextError
from gdbext.torch.registry.schema_types import hidden_result, schema_types

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.torch.registry.operators import Operator

_SIGN = 1 << 63
_WIDTHS = {"Tensor": 1, "Tensor?": 1, "Scalar": 1, "int": 1, "SymInt": 1, "bool": 1}
"""Registers that an argument of a schema type takes (torchgen/api/cpp.py): references, int64_t, SymInt by reference.
Lists are ArrayRefs of two words. Everything else ends the search."""


class Holder(NamedTuple):
    """Where an argument register's value is: in ``register``, or in memory at ``register`` + ``displacement``."""

    register: str
    displacement: int | None = None


def holders(architecture: Architecture, code: Sequence[Instruction], site: int) -> dict[str, Holder]:
    """Argument register → where its value is at the instruction at ``site``, for those that survived.

    A place counts only when nothing else in the whole function writes it, so that no branch can have changed it.
    """
    found: dict[str, Holder] = {}
    arguments = set(architecture.argument_registers)
    intact = set(arguments)
    for one in code:
        if one.address >= site or not intact:
            break
        if one.kind == "mov" and one.source in intact and one.source not in found:
            holder = _holder(architecture, one)
            if holder is not None and _only_write(architecture.frame_pointer, code, one, holder):
                found[one.source] = holder
        intact -= arguments if one.is_call else one.writes
    return found


def _holder(architecture: Architecture, one: Instruction) -> Holder | None:
    if one.destination in architecture.callee_saved:
        return Holder(str(one.destination))
    memory, base = one.memory, architecture.frame_pointer
    if one.destination is None and memory is not None and memory.base == base and memory.index_register is None:
        return Holder(base, memory.displacement)
    return None


def _only_write(frame_pointer: str, code: Sequence[Instruction], move: Instruction, holder: Holder) -> bool:
    """Nothing but ``move``, and the pops before a return, writes the place; called functions preserve it."""
    for one in code:
        if one is move:
            continue
        if holder.displacement is None:
            if holder.register in one.writes and one.kind not in ("pop", "leave", "call"):
                return False
        elif one.stored and one.memory is not None and one.memory.base == frame_pointer:
            start = one.memory.displacement
            if start < holder.displacement + 8 and start + one.stored > holder.displacement:
                return False
    return True


def argument_texts(session: Session, operator: Operator, values: Sequence[int | None], skipped: int) -> list[str]:
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


def _read(session: Session, types: Sequence[tuple[str, str]], values: Sequence[int | None]) -> list[str]:
    """[] unless at least one tensor was read, and every one that must be a tensor is."""
    texts: list[str] = []
    proven = False
    position = 0
    for kind, name in types:
        width = 2 if "[" in kind and not kind.endswith("?") else _WIDTHS.get(kind, 0)
        if not width or position + width > len(values):
            break
        value = values[position]
        position += width
        if value is None or kind not in ("Tensor", "Tensor?", "int", "bool"):
            continue
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
    where: dict[str, Holder],
    register: Callable[[str], int],
    word: Callable[[int], int | None],
) -> list[int | None]:
    """The values of the argument registers as the function was called; None where one did not survive."""
    values: list[int | None] = []
    for name in architecture.argument_registers:
        holder = where.get(name)
        if holder is None:
            values.append(None)
        elif holder.displacement is None:
            values.append(register(holder.register))
        else:
            values.append(word(register(holder.register) + holder.displacement))
    return values
