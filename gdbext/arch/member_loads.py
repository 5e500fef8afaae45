"""The members of an object that a function loads, where the object is one of its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gdbext.arch.base import Architecture
from gdbext.arch.instruction import Instruction


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
