"""Finds the places of arguments: where the caller took one from, and where the called function keeps it.

The source of a call's argument is the last write of its register before the call, followed to where it came from. The
answer is a place that still holds the value while the call is under way: a callee-saved register of the calling frame,
or a stack slot. Where that is not certain there is no answer.

What a function keeps of its own arguments is told by the moves at its start, from argument registers to places that
last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gdbext.engine.arch import Architecture
    from gdbext.engine.arch.instruction import Instruction, MemoryOperand

_WORD = 8
_ENDS = ("call", "jmp", "ret", "trap")


class Location(NamedTuple):
    """The place of a value: ``kind`` "register" (register + displacement), "memory" (at register + displacement), or
    "constant" (``value``), or "and": the bitwise and of the values at the places in ``parts``, as a keyset is masked.
    Registers are as they were at the call.

    "fixed" is the word at the address ``value``, which holds whatever it does while the call is under way.

    "memory" held the value when the call began. The called function can change it only where the slot is a variable
    whose address it was given; a compiler's own spill slots never change. It is the value only if ``others``, places
    that were stored to after it was loaded (register, displacement, bytes), do not overlap it: their registers have
    values only in a real frame.
    """

    kind: str
    register: str = ""
    displacement: int = 0
    value: int | None = None
    parts: tuple[Location, ...] = ()
    others: tuple[tuple[str, int, int], ...] = ()
    size: int = _WORD
    """Number of its low bytes that are the value; the others of it are zero."""

    def intact(self, registers: Mapping[str, int]) -> bool:
        """True if, with the frame's registers, none of ``others`` overlaps the 8 bytes of this place."""
        if self.others and self.register not in registers:
            return False
        start = registers.get(self.register, 0) + self.displacement
        for register, displacement, size in self.others:
            other = registers.get(register)
            if other is None or (other + displacement < start + _WORD and start < other + displacement + size):
                return False
        return True


def argument_source(
    architecture: Architecture, code: Sequence[Instruction], register: str, labels: Iterable[int] = ()
) -> Location | None:
    """The place of what ``register`` holds at the call that ends ``code``; None when unsure.

    Walks back through straight-line code only: it ends at a call, at an unconditional jump, and at an instruction
    that some jump leads to before the source was found. Jumps inside ``code`` are known; ``labels`` are the targets
    of all others that may lead into it: from behind the call, and from the function's cold part (``jump_targets``).
    """
    known = jump_targets(code)
    known.update(labels)
    return _OriginSearch(architecture, code, known).find(len(code) - 1, register)


def jump_targets(code: Iterable[Instruction]) -> set[int]:
    """Targets of the direct jumps of ``code``."""
    return {found.target for found in code if found.kind in ("jmp", "jcc") and found.target}


class _OriginSearch:
    def __init__(self, architecture: Architecture, code: Sequence[Instruction], labels: set[int]) -> None:
        self._stack_pointer = architecture.stack_pointer
        self._kept = frozenset((*architecture.callee_saved, architecture.stack_pointer))
        """Registers that a called function gives back as they were; unwinding recovers them."""
        self._code = code
        self._labels = labels
        self._call = len(code) - 1

    def find(self, before: int, register: str) -> Location | None:
        """The place of ``register`` at the call, as it is just before instruction number ``before``."""
        position = before
        while position >= 0:
            if register in self._kept:
                kept = self._unchanged(register, position)
                if kept is not None:
                    return Location("register", register, kept)
            if self._code[position].address in self._labels or position == 0:
                return None
            position -= 1
            found = self._code[position]
            if found.kind in _ENDS:
                return None
            if register in found.writes or register in found.float_writes:
                return self._source(position, found, register)
        return None

    def _source(self, position: int, found: Instruction, register: str) -> Location | None:
        if found.destination != register:
            return None  # a pop writes the stack pointer, too, and many write without naming
        if found.kind == "and":
            parts = (self.find(position, register), self._operand(position, found))
            return Location("and", parts=(parts[0], parts[1])) if parts[0] and parts[1] else None
        source = self._operand(position, found)
        if found.kind != "low" or not source or found.immediate is None:
            return source
        return source._replace(size=min(source.size, found.immediate))

    def _operand(self, position: int, found: Instruction) -> Location | None:
        """The place of what an instruction takes from its source, memory or immediate operand."""
        if found.kind in ("zero", "mov", "and") and found.immediate is not None:
            return Location("constant", value=found.immediate & 0xFFFF_FFFF_FFFF_FFFF)
        if found.kind == "fzero":
            return Location("constant", value=0)
        if found.kind in ("mov", "and", "low", "fmov") and found.source:
            return self.find(position, found.source)
        if not found.memory or found.memory.index_register or not found.memory.base:
            return None
        if found.fixed_operand:
            if found.kind in ("fmov", "low"):
                return Location("fixed", value=found.fixed_operand)
            return Location("constant", value=found.fixed_operand) if found.kind == "lea" else None
        return self._through_base(position, found, found.memory)

    def _through_base(self, position: int, found: Instruction, memory: MemoryOperand) -> Location | None:
        """``lea`` and loads relative to a register that can itself be followed to the call."""
        base = self.find(position, memory.base)
        if not base or base.kind != "register" or base.size < _WORD:
            return None
        displacement = base.displacement + memory.displacement
        if found.kind == "lea":
            return Location("register", base.register, displacement)
        if found.kind not in ("mov", "and", "low", "fmov"):
            return None
        others = self._stores_elsewhere(position, base.register, displacement)
        return None if others is None else Location("memory", base.register, displacement, others=others)

    def _unchanged(self, register: str, position: int) -> int | None:
        """The number to add to the register at the call to get it as before instruction ``position``; None when
        unsure."""
        added = 0
        for found in self._code[position : self._call]:
            if register not in found.writes:
                continue
            is_top = register == self._stack_pointer
            if is_top and found.kind == "push":
                added += _WORD
            elif is_top and found.kind == "pop" and found.destination != self._stack_pointer:
                added -= _WORD
            elif found.kind == "add" and found.immediate is not None:
                added -= found.immediate
            else:
                return None
        return added

    def _stores_elsewhere(
        self, position: int, register: str, displacement: int
    ) -> tuple[tuple[str, int, int], ...] | None:
        """Stores between the load and the call relative to other registers; None when one may hit the slot.

        A store relative to the same register is known to miss it. A push writes below the stack pointer, where no
        variable can be.
        """
        others = []
        for number in range(position + 1, self._call):
            found = self._code[number]
            if not found.stored:
                continue
            memory = found.memory
            if not memory or not memory.base or memory.index_register:
                return None
            base = self.find(number, memory.base) if memory.base in self._kept else None
            if not base or base.kind != "register" or base.size < _WORD:
                return None
            start = base.displacement + memory.displacement
            if base.register != register:
                others.append((base.register, start, found.stored))
            elif start < displacement + _WORD and displacement < start + found.stored:
                return None
        return tuple(others)


CFA = "cfa"
"""The top of the caller's stack, in the place of a register's name."""
_MOVES = ("mov", "fmov", "low", "part")
_JUMPS = ("jmp", "jcc", "ret", "trap")


class SavedArgument(NamedTuple):
    """The place of an argument register's value: ``register``, or memory at ``register`` + ``displacement``; only the
    low ``size`` bytes of it."""

    register: str
    displacement: int | None = None
    size: int = _WORD

    def word(
        self, register: Callable[[str], int | None], read: Callable[[int], int | None], cfa: int | None
    ) -> int | None:
        """The word there, by the value of a register and the word at an address; None where it is not known."""
        base = cfa if self.register == CFA else register(self.register)
        return base if base is None or self.displacement is None else read(base + self.displacement)


def saved_arguments(architecture: Architecture, code: Sequence[Instruction], site: int) -> dict[str, SavedArgument]:
    """Argument register → where its value is at the instruction at ``site``, for those that survived.

    A place counts only when nothing else that can run before ``site`` writes it; {} where the code up to there is not
    known.
    """
    if not any(site in (one.address, one.end) for one in code):
        return {}
    return _SavedArgumentSearch(architecture, code, site).find()


class _SavedArgumentSearch:
    def __init__(self, architecture: Architecture, code: Sequence[Instruction], site: int) -> None:
        self._architecture = architecture
        self._code = code
        self._site = site
        self._before = _leading_to(code, site)
        self._depths: Mapping[int, int | None] | None = None

    def find(self) -> dict[str, SavedArgument]:
        found: dict[str, SavedArgument] = {}
        architecture = self._architecture
        arguments = {*architecture.argument_registers, *architecture.float_argument_registers}
        holding = {name: (name, _WORD) for name in arguments}
        """Register → the argument that it holds, and how many low bytes of it."""
        joins = jump_targets(self._code)
        for one in self._code:
            if one.address >= self._site or not holding:
                break
            if one.address in joins or one.kind in _JUMPS:  # code without optimisation copies before any of these
                holding = {name: held for name, held in holding.items() if held[0] == name}
            name, size = holding.get(one.source, ("", 0)) if one.kind in _MOVES else ("", 0)
            holder = self._saved(one, size) if name and name not in found else None
            if holder and self._only_write(one, holder):
                found[name] = holder
            for register in [*holding] if one.is_call else one.writes | one.float_writes:
                holding.pop(register, None)
            if name and one.destination:
                size = min(size, _moved(one))
                holding[one.destination] = (name, size)
        intact = {name for name, held in holding.items() if held == (name, _WORD)}
        for name in intact.difference(found):
            if not any(one.is_call or name in one.writes or name in one.float_writes for one in self._before):
                found[name] = SavedArgument(name)
        return found

    def _saved(self, one: Instruction, size: int) -> SavedArgument | None:
        """The place to which an instruction moves the low ``size`` bytes of an argument, if it lasts."""
        size = min(size, _moved(one))
        if one.destination:
            is_kept = one.destination in self._architecture.callee_saved
            return SavedArgument(one.destination, None, size) if is_kept else None
        memory = one.memory
        if not memory or memory.index_register:
            return None
        size = min(size, one.stored or size)
        if memory.base == self._architecture.frame_pointer:
            return SavedArgument(memory.base, memory.displacement, size)
        place = self._from_cfa(one)
        return None if place is None else SavedArgument(CFA, place, size)

    def _only_write(self, move: Instruction, holder: SavedArgument) -> bool:
        """Nothing but ``move`` writes the place; called functions preserve it."""
        for one in self._before:
            if one is move:
                continue
            if holder.displacement is None:
                if holder.register in one.writes and not one.is_call:
                    return False
            elif one.stored and one.memory and self._may_overlap(one, holder):
                return False
        return True

    def _may_overlap(self, one: Instruction, holder: SavedArgument) -> bool:
        assert one.memory
        assert holder.displacement is not None
        if holder.register != CFA:
            start: int | None = one.memory.displacement if one.memory.base == holder.register else None
        elif one.memory.base == self._architecture.stack_pointer:
            start = self._from_cfa(one)
            if start is None:
                return True
        else:
            start = None
        if start is None:
            return False
        return start < holder.displacement + holder.size and start + one.stored > holder.displacement

    def _from_cfa(self, one: Instruction) -> int | None:
        """Offset of a memory operand relative to the stack pointer, counted from the CFA."""
        architecture = self._architecture
        if not one.memory or one.memory.base != architecture.stack_pointer:
            return None
        if self._depths is None:
            self._depths = _stack_depths(architecture, self._code)
        depth = self._depths.get(one.address)
        return None if depth is None else one.memory.displacement - depth - architecture.call_pushes


def _moved(one: Instruction) -> int:
    return one.immediate if one.kind in ("low", "part") and one.immediate is not None else _WORD


def _leading_to(code: Sequence[Instruction], site: int) -> list[Instruction]:
    """The instructions from which some path leads to ``site``; a jump through a pointer may lead anywhere."""
    comes_from: dict[int, list[int]] = {}
    pending = [site]
    for number, one in enumerate(code):
        if one.kind not in ("jmp", "ret", "trap") and number + 1 < len(code):
            comes_from.setdefault(code[number + 1].address, []).append(number)
        if one.kind in ("jmp", "jcc") and one.target:
            comes_from.setdefault(one.target, []).append(number)
        elif one.kind == "jmp":
            pending.append(one.address)
    found: set[int] = {number for number, one in enumerate(code) if one.kind == "jmp" and not one.target}
    while pending:
        for number in comes_from.get(pending.pop(), ()):
            if number not in found:
                found.add(number)
                pending.append(code[number].address)
    return [code[number] for number in sorted(found)]


def _stack_depths(architecture: Architecture, code: Sequence[Instruction]) -> dict[int, int | None]:
    """Address → by how many bytes the stack pointer is below what it was at the function's start; None where that
    depends on the path, or is not known."""
    numbers = {one.address: number for number, one in enumerate(code)}
    found: dict[int, int | None] = {}
    pending: list[tuple[int, int | None]] = [(0, 0)] if code else []
    while pending:
        number, depth = pending.pop()
        one = code[number]
        if one.address in found and found[one.address] in (depth, None):
            continue
        if one.address in found:
            depth = None
        found[one.address] = depth
        after = _depth_after(architecture, one, depth)
        if one.kind not in ("jmp", "ret", "trap") and number + 1 < len(code):
            pending.append((number + 1, after))
        if one.kind in ("jmp", "jcc") and one.target in numbers:
            pending.append((numbers[one.target], after))
    return found


def _depth_after(architecture: Architecture, one: Instruction, depth: int | None) -> int | None:
    top = architecture.stack_pointer
    if depth is None or one.is_call or top not in one.writes:
        return depth
    if one.kind == "push":
        return depth + _WORD
    if one.kind == "pop" and one.destination != top:
        return depth - _WORD
    if one.kind == "add" and one.destination == top and one.immediate is not None:
        return depth - one.immediate
    return None
