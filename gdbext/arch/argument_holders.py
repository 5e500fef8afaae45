"""Where a function keeps its own arguments: the moves at its start, from argument registers to places that last."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.arch.base import Architecture
from gdbext.arch.instruction import Instruction
from gdbext.model.record import Record


class Holder(Record):
    """Where an argument register's value is: in ``register``, or in memory at ``register`` + ``displacement``."""

    register: str
    displacement: int | None = None


def holders(architecture: Architecture, code: Sequence[Instruction], site: int) -> dict[str, Holder]:
    """Argument register → where its value is at the instruction at ``site``, for those that survived.

    A place counts only when nothing else that can run before ``site`` writes it.
    """
    found: dict[str, Holder] = {}
    before = _leading_to(code, site)
    arguments = set(architecture.argument_registers)
    intact = set(arguments)
    for one in code:
        if one.address >= site or not intact:
            break
        if one.kind == "mov" and one.source in intact and one.source not in found:
            holder = _holder(architecture, one)
            if holder is not None and _only_write(architecture.frame_pointer, before, one, holder):
                found[one.source] = holder
        intact -= arguments if one.is_call else one.writes
    return found


def _leading_to(code: Sequence[Instruction], site: int) -> list[Instruction]:
    """The instructions from which some path leads to ``site``; a jump through a pointer may lead anywhere."""
    comes_from: dict[int, list[int]] = {}
    pending = [site]
    for number, one in enumerate(code):
        if one.kind not in ("jmp", "ret", "trap") and number + 1 < len(code):
            comes_from.setdefault(code[number + 1].address, []).append(number)
        if one.kind in ("jmp", "jcc") and one.target is not None:
            comes_from.setdefault(one.target, []).append(number)
        elif one.kind == "jmp":
            pending.append(one.address)
    found: set[int] = {number for number, one in enumerate(code) if one.kind == "jmp" and one.target is None}
    while pending:
        for number in comes_from.get(pending.pop(), ()):
            if number not in found:
                found.add(number)
                pending.append(code[number].address)
    return [code[number] for number in sorted(found)]


def _holder(architecture: Architecture, one: Instruction) -> Holder | None:
    if one.destination in architecture.callee_saved:
        return Holder(str(one.destination))
    memory, base = one.memory, architecture.frame_pointer
    if one.destination is None and memory is not None and memory.base == base and memory.index_register is None:
        return Holder(base, memory.displacement)
    return None


def _only_write(frame_pointer: str, before: Sequence[Instruction], move: Instruction, holder: Holder) -> bool:
    """Nothing but ``move`` writes the place; called functions preserve it."""
    for one in before:
        if one is move:
            continue
        if holder.displacement is None:
            if holder.register in one.writes and not one.is_call:
                return False
        elif one.stored and one.memory is not None and one.memory.base == frame_pointer:
            start = one.memory.displacement
            if start < holder.displacement + 8 and start + one.stored > holder.displacement:
                return False
    return True
