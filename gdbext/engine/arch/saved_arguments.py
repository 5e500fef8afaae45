"""Finds where a function keeps its own arguments: the moves at its start, from argument registers to places that
last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gdbext.engine.arch.base import Architecture
from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.record import Record

CFA = "cfa"
"""The top of the caller's stack, in the place of a register's name."""
_WORD = 8
_MOVES = ("mov", "fmov", "low")


class SavedArgument(Record):
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
        intact = set(arguments)
        for one in self._code:
            if one.address >= self._site or not intact:
                break
            if one.kind in _MOVES and one.source in intact and one.source not in found:
                holder = self._saved(one)
                if holder is not None and self._only_write(one, holder):
                    found[one.source] = holder
            intact -= arguments if one.is_call else one.writes | one.float_writes
        for name in intact.difference(found):
            if not any(one.is_call or name in one.writes or name in one.float_writes for one in self._before):
                found[name] = SavedArgument(name)
        return found

    def _saved(self, one: Instruction) -> SavedArgument | None:
        size = one.immediate if one.kind == "low" and one.immediate is not None else _WORD
        if one.destination is not None:
            is_kept = one.destination in self._architecture.callee_saved
            return SavedArgument(one.destination, None, size) if is_kept else None
        memory = one.memory
        if memory is None or memory.index_register is not None:
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
            elif one.stored and one.memory is not None and self._may_overlap(one, holder):
                return False
        return True

    def _may_overlap(self, one: Instruction, holder: SavedArgument) -> bool:
        assert one.memory is not None
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
        if one.memory is None or one.memory.base != architecture.stack_pointer:
            return None
        if self._depths is None:
            self._depths = _stack_depths(architecture, self._code)
        depth = self._depths.get(one.address)
        return None if depth is None else one.memory.displacement - depth - architecture.call_pushes


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
        target = numbers.get(one.target) if one.kind in ("jmp", "jcc") and one.target is not None else None
        if target is not None:
            pending.append((target, after))
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
