"""Which table entries of an operator are the kernel that runs in a frame, and the words that a frame holds."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.errors import BadData
from gdbext.process.memory import Memory
from gdbext.process.symbols import Symbolizer
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.registry.operators import Operator
from gdbext.torch.stack.call_arguments import CallSites
from gdbext.torch.stack.tail_calls import TailCalls
from gdbext.torch.symbols import RUNTIME_FUNCTOR_CLASS
from gdbext.unwind.frame_tables import FrameTables
from gdbext.unwind.stack import Stack

MAX_FRAME_WORDS = 512
"""Stack words of one frame that are tried; ``at::_ops`` frames have 10 to 60."""


class KernelMatcher:
    """Compares kernels with the functions on stacks of one process."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, sites: CallSites) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._tail_calls = TailCalls(memory, symbolizer)
        self._frame_tables = FrameTables(memory, symbolizer.modules)
        self._indices: dict[tuple[int, int], list[int]] = {}
        """By operator and start of the function that runs."""
        self._reached: dict[tuple[KernelFunction, int], bool] = {}
        """By kernel and start of the function that runs."""

    def matches_frame(self, stack: Stack, level: int, kernel: KernelFunction) -> bool:
        """Frame ``level`` is one of the kernel's entries, or what these jump to."""
        start = self._function_start(stack, level)
        return start is not None and self._reaches(kernel, start)

    def _reaches(self, kernel: KernelFunction, start: int) -> bool:
        """The function at ``start`` is one of the kernel's entries, or what these jump to."""
        reached = self._reached.get((kernel, start))
        if reached is None:
            entries = (kernel.unboxed, kernel.boxed, kernel.sym_unboxed)
            reached = any(self._tail_calls.reaches(entry, start, kernel.functor) for entry in entries)
            self._reached[kernel, start] = reached
        return reached

    def fits(self, stack: Stack, level: int, kernel: KernelFunction) -> bool:
        """Where frame ``level`` is a wrapper that calls the function its functor points to, that function is next."""
        entry = kernel.unboxed or kernel.sym_unboxed
        if not any(RUNTIME_FUNCTOR_CLASS in name for name in self._symbolizer.names_at(entry)):
            return True
        inner = stack.function(level - 1) if level else None
        return inner is not None and inner.start in self._tail_calls.stored_pointers(kernel.functor)

    def indices(self, stack: Stack, level: int | None, operator: Operator) -> list[int]:
        """The table indices whose kernel runs in frame ``level``; [] where there is no kernel frame."""
        start = self._function_start(stack, level) if level is not None else None
        if start is None:
            return []
        found = self._indices.get((operator.address, start))
        if found is None:
            seen = {kernel: self._reaches(kernel, start) for kernel in set(operator.table) if kernel.valid}
            found = [index for index, kernel in enumerate(operator.table) if seen.get(kernel)]
            self._indices[operator.address, start] = found
        return found

    def words(self, stack: Stack, level: int) -> Iterator[tuple[str, int]]:
        """Callee-saved registers and stack words of a frame, with where they are."""
        frame = stack.frames[level]
        for register in self._memory.architecture.callee_saved:
            value = frame.registers.get(register)
            if value is not None:
                yield register, value
        count = min((frame.cfa - frame.sp) // 8, MAX_FRAME_WORDS)
        if count <= 0:
            return
        raw = self._memory.try_read(frame.sp, count * 8)
        for at in range(0, len(raw or b""), 8):
            yield f"stack word {frame.sp + at:#x}", int.from_bytes(raw[at : at + 8], "little")  # type: ignore[index]

    def _function_start(self, stack: Stack, level: int) -> int | None:
        function = stack.function(level)
        if function is None:
            start = self._start_by_frame_table(stack, level)
            return self._sites.site(stack, level + 1).target if start is None and level + 1 < len(stack) else start
        for name in function.names:
            if name.endswith(".cold"):
                return self._symbolizer.address_of(name[: -len(".cold")], function.module.name)
        return function.start

    def _start_by_frame_table(self, stack: Stack, level: int) -> int | None:
        """Where code without symbols (a stripped extension) begins: its call frame information tells."""
        try:
            found = self._frame_tables.entry(stack.frames[level].lookup_pc)
        except BadData:
            return None
        return None if found is None else found[0].base + found[1].start
