"""Where a function keeps its own arguments: the moves at its start, from argument registers to places that last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gdbext.arch.base import Architecture
from gdbext.arch.instruction import Instruction


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
