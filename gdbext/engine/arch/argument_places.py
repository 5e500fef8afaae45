"""Finds the locations of arguments: where the caller took one from, and where the called function saved it.

The source of a call's argument is the last write of its register before the call, followed back to a location that
still holds the value during the call: a callee-saved register of the calling frame, or a stack slot. A function saves
its own arguments by the moves at its start, from argument registers to locations that last. An uncertain location is
never returned.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gdbext.engine.arch import Architecture
    from gdbext.engine.arch.instruction import Instruction

_WORD = 8
_ENDS = ("call", "jmp", "ret", "trap")


class Location(NamedTuple):
    """The location of a value, with registers as they were at the call. ``kind``: "register" (register + displacement),
    "memory" (the word at register + displacement), "constant" (``value``), "fixed" (the word at the address ``value``,
    which never changes) or "and" (the bitwise and of the values at ``parts``, as a keyset is masked).

    "memory" held the value when the call began. The called function can change it only if the slot is a variable whose
    address it was given; a compiler's own spill slots never change. It holds the value only if ``others``, stores after
    the load (register, displacement, bytes), do not overlap it: ``intact`` decides with the registers of a frame.
    """

    kind: str
    register: str = ""
    displacement: int = 0
    value: int | None = None
    parts: tuple[Location, ...] = ()
    others: tuple[tuple[str, int, int], ...] = ()
    size: int = _WORD  # number of low bytes that are the value; the higher ones of the value are zero

    def intact(self, registers: Mapping[str, int]) -> bool:
        """True if, with the frame's registers, none of ``others`` overlaps these 8 bytes."""
        if self.others and self.register not in registers:
            return False
        start = registers.get(self.register, 0) + self.displacement
        for register, displacement, size in self.others:
            stored_at = registers.get(register, start) + displacement
            if register not in registers or (stored_at < start + _WORD and start < stored_at + size):
                return False
        return True


def argument_source(
    architecture: Architecture, code: Sequence[Instruction], register: str, labels: Iterable[int] = ()
) -> Location | None:
    """The location of the value that ``register`` holds at the call that ends ``code``; None if uncertain.

    Walks back through straight-line code only: it gives up at a call, at an unconditional jump, and at the target of
    any jump. ``labels`` are the targets of jumps outside ``code``: behind the call, in the function's cold part.
    """
    return _OriginSearch(architecture, code, jump_targets(code).union(labels)).find(len(code) - 1, register)


def jump_targets(code: Iterable[Instruction]) -> set[int]:
    """Targets of the direct jumps of ``code``."""
    return {insn.target for insn in code if insn.kind in ("jmp", "jcc") and insn.target}


def _added(insn: Instruction, register: str, stack_pointer: str) -> int | None:
    """The number that an instruction adds to a register that it writes; None if it changes it in another way."""
    if register == stack_pointer and insn.kind == "push":
        return -_WORD
    if register == stack_pointer and insn.kind == "pop" and insn.destination != register:
        return _WORD
    return insn.immediate if insn.kind == "add" and insn.destination == register else None


class _OriginSearch:
    """Searches for the origin of a register's value at a call."""

    def __init__(self, architecture: Architecture, code: Sequence[Instruction], labels: set[int]) -> None:
        """``code`` ends with the call; ``labels`` are the addresses to which jumps lead."""
        self._stack_pointer = architecture.stack_pointer
        self._preserved = frozenset((*architecture.callee_saved, architecture.stack_pointer))
        """Registers that a called function restores; unwinding recovers them."""
        self._code = code
        self._labels = labels
        self._call = len(code) - 1

    def find(self, position: int, register: str) -> Location | None:
        """The location, at the call, of the value that ``register`` holds before instruction number ``position``."""
        while position >= 0:
            if register in self._preserved:
                added = self._added_until_call(register, position)
                if added is not None:
                    return Location("register", register, added)
            if self._code[position].address in self._labels or position == 0:
                return None
            position -= 1
            insn = self._code[position]
            if insn.kind in _ENDS:
                return None
            if register in insn.writes or register in insn.float_writes:
                return self._source(position, insn, register)
        return None

    def _source(self, position: int, insn: Instruction, register: str) -> Location | None:
        """The location of the value that instruction number ``position`` writes to ``register``."""
        if insn.destination != register:
            return None  # a pop writes the stack pointer, too, and many write without naming
        source = self._operand(position, insn)
        if insn.kind == "and":
            former = self.find(position, register)
            return Location("and", parts=(former, source)) if former and source else None
        if insn.kind != "low" or not source or insn.immediate is None:
            return source
        return source._replace(size=min(source.size, insn.immediate))

    def _operand(self, position: int, insn: Instruction) -> Location | None:
        """The location of the source, memory or immediate operand of instruction number ``position``."""
        if insn.kind in ("zero", "mov", "and") and insn.immediate is not None:
            return Location("constant", value=insn.immediate & 0xFFFF_FFFF_FFFF_FFFF)
        if insn.kind == "fzero":
            return Location("constant", value=0)
        if insn.kind in ("mov", "and", "low", "fmov") and insn.source:
            return self.find(position, insn.source)
        memory = insn.memory
        if not memory or memory.index_register or not memory.base:
            return None
        if insn.fixed_operand:
            if insn.kind in ("fmov", "low"):
                return Location("fixed", value=insn.fixed_operand)
            return Location("constant", value=insn.fixed_operand) if insn.kind == "lea" else None
        base = self._base(position, memory.base)
        if not base:
            return None
        displacement = base.displacement + memory.displacement
        if insn.kind == "lea":
            return Location("register", base.register, displacement)
        if insn.kind not in ("mov", "and", "low", "fmov"):
            return None
        others = self._stores_elsewhere(position, base.register, displacement)
        return None if others is None else Location("memory", base.register, displacement, others=others)

    def _base(self, position: int, register: str) -> Location | None:
        """The value of a base register as a register at the call plus a displacement; None if it is something else."""
        base = self.find(position, register)
        return base if base and base.kind == "register" and base.size == _WORD else None

    def _added_until_call(self, register: str, position: int) -> int | None:
        """The value of ``register`` before instruction number ``position``, less its value at the call; None if
        uncertain."""
        changes = [
            _added(insn, register, self._stack_pointer)
            for insn in self._code[position : self._call]
            if register in insn.writes
        ]
        return None if None in changes else -sum(filter(None, changes))

    def _stores_elsewhere(
        self, position: int, register: str, displacement: int
    ) -> tuple[tuple[str, int, int], ...] | None:
        """The stores between the load at ``position`` and the call that are relative to other registers, as (register,
        displacement, bytes); None if a store may hit the slot at ``register`` + ``displacement``. A push writes below
        the stack pointer, where no variable can be."""
        others = []
        for number in range(position + 1, self._call):
            insn = self._code[number]
            if not insn.stored:
                continue
            memory = insn.memory
            is_simple = memory and memory.base in self._preserved and not memory.index_register
            base = self._base(number, memory.base) if memory and is_simple else None
            if not memory or not base:
                return None
            start = base.displacement + memory.displacement
            if base.register != register:
                others.append((base.register, start, insn.stored))
            elif start < displacement + _WORD and displacement < start + insn.stored:
                return None
        return tuple(others)


CFA = "cfa"  # stands for the CFA in the place of a register's name


class SavedArgument(NamedTuple):
    """The location of the low ``size`` bytes of an argument register's value: ``register``, or memory at ``register`` +
    ``displacement``."""

    register: str
    displacement: int | None = None
    size: int = _WORD

    def word(
        self, register: Callable[[str], int | None], read: Callable[[int], int | None], cfa: int | None
    ) -> int | None:
        """The word at this location, None if unknown. ``register`` gives a register's value by name, ``read`` the word
        at an address."""
        base = cfa if self.register == CFA else register(self.register)
        return base if base is None or self.displacement is None else read(base + self.displacement)


def saved_arguments(architecture: Architecture, code: Sequence[Instruction], site: int) -> dict[str, SavedArgument]:
    """Argument register → location of its value at the instruction at ``site``, if it survived. A location counts only
    if nothing else that can run before ``site`` writes it; {} if ``code`` does not reach ``site``."""
    if not any(site in (insn.address, insn.end) for insn in code):
        return {}
    return _SavedArgumentSearch(architecture, code, site).find()


def may_write_slot(
    architecture: Architecture,
    code: Sequence[Instruction],
    site: int,
    offset: int,
    cfa: int,
    registers: Mapping[str, int],
) -> bool:
    """True if an instruction that can run before ``site`` may write the word at ``offset`` from the CFA, an argument on
    the stack, which is the called function's own. ``cfa`` and ``registers`` are those of its frame; True, too, if
    ``code`` does not reach ``site``."""
    if not any(site in (insn.address, insn.end) for insn in code):
        return True
    search = _SavedArgumentSearch(architecture, code, site)
    holder = SavedArgument(CFA, offset)
    for insn in search.before:
        if search.may_write(insn, holder):
            return True
        base = insn.memory.base if insn.memory and insn.stored else ""
        if base in architecture.callee_saved and base in registers and insn.memory:
            start = registers[base] + insn.memory.displacement - cfa
            if start < offset + _WORD and offset < start + insn.stored and not insn.memory.index_register:
                return True
    return False


class _SavedArgumentSearch:
    """Searches for the places to which a function saves its own arguments."""

    def __init__(self, architecture: Architecture, code: Sequence[Instruction], site: int) -> None:
        """``code`` is the function's from its start, ``site`` the address at which its arguments are wanted."""
        self._architecture = architecture
        self._code = code
        self._site = site
        self.before = _instructions_leading_to(code, site)

    def find(self) -> dict[str, SavedArgument]:
        """The result of ``saved_arguments``."""
        saved: dict[str, SavedArgument] = {}
        architecture = self._architecture
        arguments = {*architecture.argument_registers, *architecture.float_argument_registers}
        holding = {name: (name, _WORD) for name in arguments}
        """Register → the argument that it holds, and how many low bytes of it."""
        joins = jump_targets(self._code)
        for insn in self._code:
            if insn.address >= self._site or not holding:
                break
            if insn.address in joins or insn.kind in ("jmp", "jcc", "ret", "trap"):
                # code without optimization copies before any of these
                holding = {name: held for name, held in holding.items() if held[0] == name}
            is_move = insn.kind in ("mov", "fmov", "low", "part")
            name, size = holding.get(insn.source, ("", 0)) if is_move else ("", 0)
            if insn.kind in ("low", "part") and insn.immediate is not None:
                size = min(size, insn.immediate)
            holder = self._holder(insn, size) if name and name not in saved else None
            if holder and not any(self.may_write(other, holder) for other in self.before if other is not insn):
                saved[name] = holder
            for register in [*holding] if insn.is_call else insn.writes | insn.float_writes:
                holding.pop(register, None)
            if name and insn.destination:
                holding[insn.destination] = (name, size)
        intact = {name for name, held in holding.items() if held == (name, _WORD)}
        for name in intact.difference(saved):
            if not any(insn.is_call or name in insn.writes or name in insn.float_writes for insn in self.before):
                saved[name] = SavedArgument(name)
        return saved

    def _holder(self, insn: Instruction, size: int) -> SavedArgument | None:
        """The location to which an instruction moves the low ``size`` bytes of an argument; None if it does not
        last."""
        if insn.destination:
            is_kept = insn.destination in self._architecture.callee_saved
            return SavedArgument(insn.destination, None, size) if is_kept else None
        memory = insn.memory
        if not memory or memory.index_register:
            return None
        size = min(size, insn.stored or size)
        if memory.base == self._architecture.frame_pointer:
            return SavedArgument(memory.base, memory.displacement, size)
        offset = self._cfa_offset(insn)
        return None if offset is None else SavedArgument(CFA, offset, size)

    def may_write(self, insn: Instruction, holder: SavedArgument) -> bool:
        """True if an instruction may write the location; called functions preserve it."""
        if holder.displacement is None:
            return holder.register in insn.writes and not insn.is_call
        base = self._architecture.stack_pointer if holder.register == CFA else holder.register
        if not insn.stored or not insn.memory or insn.memory.base != base:
            return False
        start = self._cfa_offset(insn) if holder.register == CFA else insn.memory.displacement
        if start is None:
            return True
        return start < holder.displacement + holder.size and start + insn.stored > holder.displacement

    def _cfa_offset(self, insn: Instruction) -> int | None:
        """Offset from the CFA of a memory operand that is relative to the stack pointer; None for any other."""
        architecture = self._architecture
        if not insn.memory or insn.memory.base != architecture.stack_pointer:
            return None
        depth = self._depths.get(insn.address)
        return None if depth is None else insn.memory.displacement - depth - architecture.call_pushes

    @cached_property
    def _depths(self) -> Mapping[int, int | None]:
        return _stack_depths(self._architecture, self._code)


def _instructions_leading_to(code: Sequence[Instruction], site: int) -> list[Instruction]:
    """The instructions from which some path leads to ``site``; a jump through a pointer may lead anywhere."""
    predecessors: dict[int, list[int]] = {}  # address → indexes of the instructions that continue or jump there
    pending = [site]
    numbers: set[int] = set()
    for number, insn in enumerate(code):
        if insn.kind not in ("jmp", "ret", "trap") and number + 1 < len(code):
            predecessors.setdefault(code[number + 1].address, []).append(number)
        if insn.kind in ("jmp", "jcc") and insn.target:
            predecessors.setdefault(insn.target, []).append(number)
        elif insn.kind == "jmp":
            pending.append(insn.address)
            numbers.add(number)
    while pending:
        for number in predecessors.get(pending.pop(), ()):
            if number not in numbers:
                numbers.add(number)
                pending.append(code[number].address)
    return [code[number] for number in sorted(numbers)]


def _stack_depths(architecture: Architecture, code: Sequence[Instruction]) -> dict[int, int | None]:
    """Address of an instruction → bytes by which the stack pointer is below its value at the function's start; None if
    that depends on the path or is unknown."""
    numbers = {insn.address: number for number, insn in enumerate(code)}
    depths: dict[int, int | None] = {}
    pending: list[tuple[int, int | None]] = [(0, 0)] if code else []
    top = architecture.stack_pointer
    while pending:
        number, depth = pending.pop()
        insn = code[number]
        if insn.address in depths:
            if depths[insn.address] in (depth, None):
                continue
            depth = None
        depths[insn.address] = depth
        if depth is not None and top in insn.writes and not insn.is_call:
            change = _added(insn, top, top)
            depth = None if change is None else depth - change
        if insn.kind not in ("jmp", "ret", "trap") and number + 1 < len(code):
            pending.append((number + 1, depth))
        if insn.kind in ("jmp", "jcc") and insn.target in numbers:
            pending.append((numbers[insn.target], depth))
    return depths
