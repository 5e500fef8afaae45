"""One decoded instruction, for every architecture."""

from __future__ import annotations

from typing import NamedTuple

PC_RELATIVE = "pc"  # the base of a memory operand that counts from the end of its instruction
NOTHING: frozenset[str] = frozenset()


class MemoryOperand(NamedTuple):
    """``[base + index*scale + displacement]``; the base is a general register, PC_RELATIVE or "" (none), the index
    register may be "", too."""

    base: str
    index_register: str
    scale: int
    displacement: int


class Instruction(NamedTuple):
    """One instruction. ``kind`` is "mov", "lea", "zero", "add", "and", "shr", "push", "pop", "leave", "call", "jmp",
    "jcc", "ret", "trap" (does not continue behind itself), "low", "part", "fmov", "fzero" or "other".

    "mov" and "lea" move a whole register's width and have a ``destination`` register ("": it stores to memory) and a
    ``source`` register, a ``memory`` operand or an ``immediate``; "and" has them, too, and always a ``destination``;
    "add" adds ``immediate`` to ``destination`` (a subtraction is one, too); "shr" shifts ``destination`` right by
    ``immediate`` bits; "leave" sets the stack pointer to ``destination``, the frame pointer, and pops that register.
    "low" moves the low ``immediate`` bytes and clears the others of a ``destination`` register; "part" (from register
    to register) leaves those. "fmov" moves at least a floating-point number, "fzero" makes one zero: in the low bytes
    of a vector register, which is ``destination`` or ``source``; the other side is a vector register, a general one, or
    ``memory``. ``target`` is the target of a direct call or jump, 0 if it goes through a register (``source``) or
    memory. ``writes`` are the general registers that it may change, flags aside, ``float_writes`` the vector registers
    (a call may change them all); ``stored`` is the most bytes at ``memory`` that it may change (a push not counted);
    ``memory`` is None if the operand is relative to a segment.
    """

    address: int
    length: int
    kind: str
    destination: str = ""
    source: str = ""
    memory: MemoryOperand | None = None
    immediate: int | None = None
    target: int = 0
    writes: frozenset[str] = NOTHING
    stored: int = 0
    float_writes: frozenset[str] = NOTHING

    @property
    def is_call(self) -> bool:
        return self.kind == "call"

    @property
    def end(self) -> int:
        return self.address + self.length

    @property
    def leads_to_fixed(self) -> bool:
        """True for a jump or call whose target, or the address of the word with its target, is in the instruction."""
        return bool(self.target or self.fixed_operand)

    @property
    def fixed_operand(self) -> int:
        """The address of a memory operand relative to the program counter, 0 for any other operand."""
        memory = self.memory
        return self.end + memory.displacement if memory and memory.base == PC_RELATIVE else 0
