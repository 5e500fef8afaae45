"""Facts that short functions tell: which members of an object one loads, which fixed address one returns.

A function that returns a fixed address is the way to a static variable whose symbol was stripped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gdbext.engine.arch.base import Architecture
from gdbext.engine.arch.instruction import Instruction

_MOST_INSTRUCTIONS = 64


def returned_address(architecture: Architecture, code: bytes, address: int) -> int | None:
    """The fixed address that the function whose ``code`` starts at ``address`` returns on a way without calls.

    ``T& get() { static T made; return made; }`` has such a way: the one on which the variable exists already. None
    where there is none, or where its ways return different addresses.
    """
    ways: list[tuple[int, dict[str, int]]] = [(address, {})]
    found: set[int | None] = set()
    visited: set[int] = set()
    while ways:
        start, known = ways.pop()
        if start in visited or not 0 <= start - address < len(code):
            continue
        visited.add(start)
        for instruction in list(architecture.decode(code[start - address :], start))[:_MOST_INSTRUCTIONS]:
            if instruction.kind == "jcc" and instruction.target is not None:
                ways.append((instruction.target, dict(known)))
            elif instruction.kind == "ret":
                found.add(known.get(architecture.result_register))
                break
            elif instruction.kind in ("call", "jmp", "trap"):
                if instruction.kind == "jmp" and instruction.target is not None:
                    ways.append((instruction.target, known))
                break
            else:
                _follow(instruction, known)
    return next(iter(found)) if len(found) == 1 else None


def _follow(instruction: Instruction, known: dict[str, int]) -> None:
    """Note which registers hold fixed addresses behind an instruction."""
    value = None
    if instruction.kind == "lea":
        value = instruction.fixed_operand
    elif instruction.kind == "mov" and instruction.source is not None:
        value = known.get(instruction.source)
    for register in instruction.writes:
        known.pop(register, None)
    if instruction.destination is not None and value is not None:
        known[instruction.destination] = value


def member_loads(architecture: Architecture, code: Iterable[Instruction], argument: int) -> Iterator[int]:
    """Offsets of words that are loaded from the object that an argument points at, in the order of the code.

    ``code`` is the function from its start. It is followed in a straight line, as far as a register is known to have
    the argument's value.
    """
    holders = {architecture.argument_registers[argument]}
    for one in code:
        memory = one.memory
        loads = one.kind == "mov" and one.destination is not None and memory is not None
        if loads and memory is not None and memory.base in holders and memory.index_register is None:
            yield memory.displacement
        copied = one.kind == "mov" and one.source in holders and one.destination is not None
        holders -= one.writes - set(architecture.callee_saved) if one.is_call else one.writes
        if copied and one.destination is not None:
            holders.add(one.destination)
        if not holders or one.kind in ("ret", "jmp", "trap"):
            return
