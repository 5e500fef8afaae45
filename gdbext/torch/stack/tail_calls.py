"""Which functions a kernel's entry may have become by tail calls.

A table entry points to a wrapper; the wrapper often ends in a jump to the function it wraps, and then only that
function stands on the stack. The jumps are read from the wrapper's code, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.arch.instruction import Instruction
from gdbext.errors import GdbextError
from gdbext.process.memory import Memory
from gdbext.process.symbols import Symbolizer

MAX_CODE = 4096
"""Bytes of a wrapper that are decoded; real ones have 20 to 600."""
MAX_DEPTH = 4
"""Jumps that are followed one after the other."""
FUNCTOR_WORDS = 8
"""Words of a functor object that are looked through for a function pointer (the function pointer is its first
member, behind the 16 or 24 bytes of c10::OperatorKernel)."""


class TailCalls:
    """Answers ``reaches(entry, start)``; results are kept, because the same kernels come again and again."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._targets: dict[int, frozenset[int]] = {}
        self._by_pointer: dict[int, bool] = {}

    def reaches(self, entry: int, start: int, functor: int = 0) -> bool:
        """True when the function at ``start`` is ``entry`` itself or what ``entry`` jumps to in the end.

        ``functor`` is the object that ``entry`` is called with: a wrapper around a run-time function pointer jumps to
        the pointer that is stored in it.
        """
        if not entry:
            return False
        if entry == start or start in self._closure(entry):
            return True
        return bool(functor) and self._by_pointer.get(entry, False) and start in self.stored_pointers(functor)

    def _closure(self, entry: int) -> frozenset[int]:
        found = self._targets.get(entry)
        if found is None:
            found = self._targets[entry] = frozenset(self._follow(entry))
        return found

    def _follow(self, entry: int) -> Iterator[int]:
        frontier, seen = [entry], {entry}
        for _ in range(MAX_DEPTH):
            frontier = [target for start in frontier for target in self._jumps(start, entry) if target not in seen]
            if not frontier:
                return
            seen.update(frontier)
            yield from frontier

    def _jumps(self, start: int, entry: int) -> Iterator[int]:
        """Targets of jumps that leave the function at ``start``."""
        function = self._symbolizer.function(start)
        size = function.size if function is not None and function.start == start and function.size else 64
        code = self._memory.try_read(start, min(size, MAX_CODE))
        if code is None:
            return
        for instruction in self._memory.architecture.decode(code, start):
            if instruction.kind != "jmp":
                continue
            target = self._jump_target(instruction)
            if target is None:
                self._by_pointer[entry] = True
            elif not start <= target < start + size:
                yield target

    def _jump_target(self, instruction: Instruction) -> int | None:
        if instruction.target is not None:
            return instruction.target
        slot = instruction.fixed_operand  # of a PLT stub: the slot holds the function
        return None if slot is None else self._memory.try_u64(slot)

    def stored_pointers(self, functor: int) -> tuple[int, ...]:
        """The words of a functor object, one of which may be the function that it wraps."""
        try:
            return self._memory.words(functor, FUNCTOR_WORDS)
        except GdbextError:
            return ()
