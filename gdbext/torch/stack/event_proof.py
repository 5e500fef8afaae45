"""Proves how code into which the dispatcher was inlined entered it: call or redispatch, boxed or not, by that code.

``Dispatcher::call`` and ``callBoxed`` ask for the step callbacks right before they call the kernel, the redispatches
do not (Dispatcher.h, 2.13.0). So the ways backwards from the call of the kernel tell: all lead to that question, or
none does. ``KernelFunction::call`` looks whether there is an unboxed function before it boxes the arguments;
``callBoxed`` does not (KernelFunction_impl.h). Where the ways disagree, the event is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.arch.instruction import Instruction
from gdbext.engine.process.code_reader import FunctionInstructions

_BOXED_AT, _UNBOXED_AT, _SYM_UNBOXED_AT = 8, 16, 24
"""Offsets in c10::KernelFunction, behind the functor; its layout is checked by ``registry.kernel``."""
_TESTED_WITHIN = 4
"""Instructions between the load of a pointer and the jump that depends on it."""
_NO_WAY_ON = ("jmp", "ret", "trap")

AsksCallbacks = Callable[[int], bool]
"""Address that a direct call leads to → whether that is at::getStepCallbacksUnlessEmpty."""
NeverReturns = Callable[[int], bool]
"""Address that a direct call leads to → whether that function never comes back."""


def _never(_target: int) -> bool:
    return False


class WaysBack(NamedTuple):
    """The first targets of the ways backwards from a call site."""

    asks: bool
    """The question for step callbacks."""
    other_call: bool
    """Another call through a pointer: an earlier dispatch in the same function."""
    begins: bool
    """The beginning of the function."""
    tests_unboxed: bool | None
    """One of them tests whether the kernel has an unboxed function; None where that word is read, and no jump shows
    what for."""

    @property
    def is_call(self) -> bool | None:
        """It is a call (not a redispatch); None where the ways disagree."""
        if self.asks:
            return None if self.other_call or self.begins else True
        return False if self.other_call or self.begins else None


def ways_back(
    architecture: Architecture,
    code: FunctionInstructions,
    site: int,
    asks: AsksCallbacks,
    ends: NeverReturns = _never,
    selects: Callable[[Instruction], bool] = lambda _: False,
) -> WaysBack | None:
    """The ways back from the call that returns to ``site``; None where the code has no such call.

    ``selects``: the instruction is part of a lookup. Before that nobody can look what the kernel has.
    """
    found = walk_back(code.instructions, site, lambda one: _meets(one, asks), ends)
    if not found:
        return None
    met, seen = found
    near = walk_back(code.instructions, site, lambda one: _meets(one, asks) or "lookup" * selects(one), ends)
    if near and "lookup" in near[0]:
        seen = near[1]
    reads = [number for number in seen if _reads_unboxed(architecture, code.instructions[number])]
    tests = any(_depends(code.instructions[number + 1 : number + 1 + _TESTED_WITHIN]) for number in reads)
    return WaysBack("asks" in met, "other_call" in met, "begins" in met, True if tests else None if reads else False)


def walk_back(
    instructions: Sequence[Instruction],
    site: int,
    meets: Callable[[Instruction], str],
    ends: NeverReturns = _never,
) -> tuple[set[str], set[int]] | None:
    """The words of ``meets`` for the first instructions that have one on the ways backwards from the call that returns
    to ``site``, "begins" for the beginning of the code; and the numbers of all instructions between. None where the
    code has no such call."""
    start = next((number for number, one in enumerate(instructions) if one.end == site and one.is_call), None)
    if start is None:
        return None
    sources = _jumps_to(instructions)
    met: set[str] = set()
    seen: set[int] = set()
    frontier = [start]
    while frontier:
        number = frontier.pop()
        before = list(sources.get(instructions[number].address, ()))
        if number == 0:
            met.add("begins")
        elif _goes_on(instructions[number - 1], ends):
            before.append(number - 1)
        for each in before:
            kind = meets(instructions[each])
            if kind:
                met.add(kind)
            elif each not in seen:
                seen.add(each)
                frontier.append(each)
    return met, seen


def _goes_on(one: Instruction, ends: NeverReturns) -> bool:
    """The next instruction may be executed behind this one."""
    if one.kind in _NO_WAY_ON:
        return False
    target = (one.target or one.fixed_operand) if one.is_call else 0
    return not target or not ends(target)


def _meets(one: Instruction, asks: AsksCallbacks) -> str:
    if not one.is_call:
        return ""
    target = one.target or one.fixed_operand
    if not target:
        return "other_call"
    return "asks" if asks(target) else ""


def _jumps_to(instructions: Sequence[Instruction]) -> dict[int, list[int]]:
    """Address to the numbers of the instructions that jump there."""
    found: dict[int, list[int]] = {}
    for number, one in enumerate(instructions):
        if one.kind in ("jmp", "jcc") and one.target:
            found.setdefault(one.target, []).append(number)
    return found


def _reads_unboxed(architecture: Architecture, one: Instruction) -> bool:
    """It reads a word at +16 of something that is not on the stack."""
    memory = one.memory
    if not memory or memory.displacement != _UNBOXED_AT or memory.index_register:
        return False
    is_read = not one.stored and not one.is_call and one.kind not in ("lea", "push", *_NO_WAY_ON)
    return is_read and memory.base not in ("", architecture.stack_pointer)


def _depends(following: Sequence[Instruction]) -> bool:
    """A jump depends on what was read before these instructions."""
    for one in following:
        if one.kind == "jcc":
            return True
        if one.is_call or one.kind in _NO_WAY_ON:
            return False
    return False


KEYSET_BITS = 64
"""clang folds the 64 of "64 - leading zeros", which becomes the index, into the table's offset."""


def offset_in_entry(offset: int | None, table: range) -> int | None:
    """The offset in the table's entry of what stands at ``offset`` of the OperatorEntry, with an index beside it; None
    for what is no entry. ``table`` is the range of offsets of the first one."""
    if offset is None:
        return None
    return next((each - table.start for each in (offset, offset - KEYSET_BITS * len(table)) if each in table), None)


def only_boxed(architecture: Architecture, code: Sequence[Instruction], table: range) -> bool:
    """The kernel that the first instruction looks up is only entered by its boxed function. ``table`` is the range of
    offsets of ``OperatorEntry::dispatchTable_``'s first entry."""
    kernel = {architecture.result_register} if code[0].is_call else set()
    boxed: set[str | None] = set()
    for one in code[1:]:
        member = _member(one, kernel, table)
        if member in (_UNBOXED_AT, _SYM_UNBOXED_AT):
            return False
        if one.kind in ("call", "jmp") and not one.target:
            return member == _BOXED_AT or one.source in boxed
        is_entry = one.kind == "add" and offset_in_entry(one.immediate, table) == 0
        if one.kind == "lea" and one.memory:
            is_entry = offset_in_entry(one.memory.displacement, table) == 0
        is_copy = one.kind == "mov" and one.source in kernel
        kernel = kernel.intersection(architecture.callee_saved) if one.is_call else kernel - one.writes
        boxed -= one.writes
        if one.destination and (is_entry or is_copy):
            kernel.add(one.destination)
        elif one.destination and one.kind == "mov" and member == _BOXED_AT:
            boxed.add(one.destination)
    return False


def _member(one: Instruction, kernel: Collection[str], table: range) -> int | None:
    """Offset in the KernelFunction that the instruction's memory operand names: through a register that holds its
    address, or as an entry of the table itself."""
    memory = one.memory
    if not memory or one.kind not in ("mov", "call", "jmp"):
        return None
    if memory.base in kernel:
        return memory.displacement
    return offset_in_entry(memory.displacement, table)
