"""The table entries of an operator that are the kernel running in a frame, and the words that a frame holds.

A table entry points to a wrapper; the wrapper often ends in a jump to the function it wraps, and then only that
function is on the stack. The jumps are read from the wrapper's code, never guessed.
"""

from __future__ import annotations

from _blake2 import blake2b
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from gdbext.cache import cache_folder
from gdbext.engine.formats.symbol_cache import text_cache
from gdbext.engine.unwind.frame_steps import FrameTables
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import (
    KERNEL_MACHINERY,
    KERNEL_MACHINERY_PARTS,
    POINTER_FUNCTOR_CLASSES,
    RUNTIME_FUNCTOR_CLASS,
)
from gdbext.torch.stack.call_arguments import CallSites, follow_stub
from gdbext.torch.stack.roles import KernelSignature, kernel_signature, returns_by_sret, split_types
from gdbext.torch.values.cpp_objects import mangled_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gdbext.engine.arch import Architecture
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.registry import Operator
    from gdbext.torch.registry.kernel import KernelFunction


def unboxed_entry_signature(
    operator: Operator, kernel: KernelFunction, start: int, names: Sequence[str]
) -> KernelSignature | None:
    """The signature of the function at ``start`` with these mangled names, if it is an unboxed entry of the operator's
    kernel; None if nothing tells it.

    Its own names say it; else the operator, even in a program without symbols, has the type that all its kernels were
    checked with.
    """
    if not start or start not in (kernel.unboxed, kernel.sym_unboxed):
        return None
    return kernel_signature(names) or registered_signature(operator, start == kernel.sym_unboxed)


def registered_signature(operator: Operator, symbolic: bool = False) -> KernelSignature | None:
    """The signature of the operator's kernels, by the type with which they were registered; None without one."""
    try:
        text = operator.function_type(symbolic)
    except GdbextError:
        return None
    result, opening, types = text.partition(" (")
    uses_sret = returns_by_sret(result) if opening and types.endswith(")") else None
    return None if uses_sret is None else KernelSignature(tuple(split_types(types[:-1])), uses_sret)


@lru_cache(maxsize=1024)
def _jumps_in(architecture: Architecture, code: bytes, start: int) -> tuple[tuple[str, int], ...]:
    """The jumps in the code of a function: (kind, offset from ``start``).

    The kind is "to" for a jump to that offset, "by" for one through the slot there that holds the target (of a PLT
    stub), "somewhere" for one through a register or other memory. They are cached, also for other processes, by a
    digest of the code: that is all that they depend on.
    """
    cached = text_cache(cache_folder(), "jumps")
    key = f"{architecture.name} {blake2b(code, digest_size=16).hexdigest()}".encode()
    text = cached.text(key)
    if text is None:
        jumps = [
            f"to:{insn.target - start}"
            if insn.target
            else f"by:{insn.fixed_operand - start}"
            if insn.fixed_operand
            else "somewhere:0"
            for insn in architecture.decode(code, start)
            if insn.kind == "jmp"
        ]
        text = " ".join(jumps).encode()
        cached.keep(key, text)
    words = (word.partition(":") for word in text.decode().split())
    return tuple((kind, int(offset)) for kind, _, offset in words)


class TailCalls:
    """The functions in which kernels of one process may end by jumps; answers are cached by a kernel's entry."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, extents: FrameTables | None = None) -> None:
        """``extents``: where functions without symbols end."""
        self._memory = memory
        self._symbolizer = symbolizer
        self._extents = extents
        self._targets: dict[int, frozenset[int]] = {}
        self._by_pointer: set[int] = set()
        """Entries that may end in a jump through a pointer."""

    def reaches(self, entry: int, start: int, functor: int = 0) -> bool:
        """True when the function at ``start`` is ``entry`` itself or what ``entry`` jumps to in the end.

        ``functor`` is the object that ``entry`` is called with: a wrapper around a run-time function pointer jumps to
        the pointer that is stored in it.
        """
        return bool(entry) and (entry == start or start in self.ends(entry, functor))

    def ends(self, entry: int, functor: int) -> frozenset[int]:
        """Functions in which the one at ``entry`` may end by jumps, called with that functor."""
        ends = self._closure(entry)
        if functor and entry in self._by_pointer:
            return ends.union(functor_words(self._memory, functor))
        return ends

    def may_end_in(self, entry: int, start: int) -> bool:
        """The function at ``entry`` may have been left by jumps for the one at ``start``: it jumps there, or through a
        pointer."""
        ends = self._closure(entry)
        return start in ends or not self._by_pointer.isdisjoint((entry, *ends))

    def _closure(self, entry: int) -> frozenset[int]:
        """The functions that up to four jumps, one after the other, lead to from ``entry``."""
        if entry not in self._targets:
            frontier, seen = {entry}, {entry}
            for _ in range(4):
                frontier = {target for start in frontier for target in self._jumps(start, entry)} - seen
                seen |= frontier
            self._targets[entry] = frozenset(seen - {entry})
        return self._targets[entry]

    def _jumps(self, start: int, entry: int) -> Iterator[int]:
        """Targets of jumps that leave the function at ``start``."""
        function, extents = self._symbolizer.function(start), self._extents
        if not function and extents:
            function = extents.extent(start)
        is_whole = function and function.start == start and function.size > 0
        size = function.size if function and is_whole else 64
        code = self._memory.try_read(start, min(size, 4096))  # real wrappers have 20 to 600 bytes
        if not code:
            return
        jumps = _jumps_in(self._memory.architecture, code, start)
        # if its end is unknown, other functions' code may follow its first jump: the stubs behind a stub
        for kind, offset in jumps[: None if is_whole else 1]:
            address = start + offset
            target = address if kind == "to" else self._memory.try_u64(address) if kind == "by" else None
            if target is None:
                self._by_pointer.add(entry)
            elif not start <= target < start + size:
                yield target
                part = extents.extent(target) if extents and function and not function.names else None
                if part and part.start != target == follow_stub(self._memory, target):
                    yield part.start  # rarely run code that the compiler has put elsewhere, and that has no name


def functor_words(memory: Memory, functor: int) -> tuple[int, ...]:
    """The words of a functor object, one of which may be the function that it wraps (its first member, behind the 16 or
    24 bytes of c10::OperatorKernel); () where it cannot be read."""
    try:
        return memory.words(functor, 8)
    except GdbextError:
        return ()


BETWEEN = 8
"""Frames between a kernel's entry and its body, at most, without optimization."""


def is_wrapping(mangled: str) -> bool:
    """The function is a kernel's entry, or between that and the kernel's body."""
    parts = (RUNTIME_FUNCTOR_CLASS, *KERNEL_MACHINERY_PARTS)
    return mangled.startswith(KERNEL_MACHINERY) or any(part in mangled for part in parts)


class KernelMatcher:
    """Compares kernels with the functions on stacks of one process."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, sites: CallSites) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._frame_tables = FrameTables(memory, symbolizer.modules)
        self._tail_calls = TailCalls(memory, symbolizer, self._frame_tables)
        self.jumps = self._tail_calls.ends
        self._indices: dict[tuple[int, int], list[int]] = {}
        """Table indices by operator and start of the function that runs."""
        self._entries: dict[tuple[KernelFunction, int], int] = {}
        """A kernel's entry that runs, 0 for none, by kernel and start of the function that runs."""
        self._code: dict[KernelFunction, bool] = {}
        self._pointers: dict[int, bool] = {}
        """Whether a functor holds a pointer to a function, by its address."""
        self._wrappers: dict[int, bool] = {}
        """Whether a function is a wrapper of a pointer, by its start."""
        self._starts: dict[int, int] = {}
        """Start of the whole function, by the start of a part of it."""
        self._calls_other: dict[tuple[int, int], bool] = {}
        """Whether a function that a wrapper called is another one than that of a functor: by (function, functor)."""

    def is_code(self, kernel: KernelFunction) -> bool:
        """All functions of the kernel are in executable memory; else it is no kernel but something else."""
        if kernel not in self._code:
            entries = (kernel.boxed, kernel.unboxed, kernel.sym_unboxed)
            self._code[kernel] = all(self._is_executable(entry) for entry in entries if entry)
        return self._code[kernel]

    def _is_executable(self, address: int) -> bool:
        mapping = self._symbolizer.modules.mapping_at(address)
        return bool(mapping and ("x" in mapping.permissions or not mapping.permissions))  # not all cores tell

    def matches_frame(self, stack: NativeStack, level: int, kernel: KernelFunction) -> bool:
        """Frame ``level`` is one of the kernel's entries, or what these jump to."""
        return self.entry_of_frame(stack, level, kernel) != 0

    def entry_of_frame(self, stack: NativeStack, level: int, kernel: KernelFunction) -> int:
        """The kernel's entry that frame ``level`` is, or that jumped to it; 0 for none."""
        start = self._function_start(stack, level)
        entry = self._entry(kernel, start) if start else 0
        return 0 if entry and self._calls_another(stack, level, kernel) else entry

    def _entry(self, kernel: KernelFunction, start: int) -> int:
        """The entry of the kernel that is the function at ``start``, or jumps there; 0 for none."""
        if (kernel, start) not in self._entries:
            entries = (kernel.unboxed, kernel.boxed, kernel.sym_unboxed) if self.is_code(kernel) else ()
            reaching = (entry for entry in entries if self._tail_calls.reaches(entry, start, kernel.functor))
            self._entries[kernel, start] = next(reaching, 0)
        return self._entries[kernel, start]

    def wrapped_function(self, stack: NativeStack, level: int) -> int:
        """Start of the function that the wrapper in frame ``level`` called through the pointer that its functor holds,
        itself or by its helpers; 0 for other frames, and before it is called. It may have left by a jump for another.
        """
        wrapper = stack.function(level)
        if not wrapper:
            return 0
        if wrapper.start not in self._wrappers:
            holds_pointer = any(part in name for name in wrapper.names for part in POINTER_FUNCTOR_CLASSES)
            self._wrappers[wrapper.start] = holds_pointer
        return self._called_by_wrapper(stack, level) if self._wrappers[wrapper.start] else 0

    def _called_by_wrapper(self, stack: NativeStack, level: int) -> int:
        """Start of the first function further in that was called through a pointer; 0 for none."""
        for inner in range(level - 1, max(level - 1 - BETWEEN, -1), -1):
            if self._sites.is_through_pointer(stack, inner + 1):
                return self._function_start(stack, inner)
        return 0

    def _calls_another(self, stack: NativeStack, level: int, kernel: KernelFunction) -> bool:
        """The wrapper in frame ``level``, an entry of the kernel, has called a function that is not this kernel's: the
        wrappers of all functions of one type are the same code. A wrapper without a name is known by the class of the
        kernel's functor."""
        if stack.function(level) or not self._holds_pointer(kernel):
            body = self.wrapped_function(stack, level)
        else:
            start = self._function_start(stack, level)
            is_wrapper = start != 0 and start in (kernel.unboxed, kernel.boxed, kernel.sym_unboxed)
            body = self._called_by_wrapper(stack, level) if is_wrapper else 0
        functor = kernel.functor
        if not body or not functor:
            return False
        if (body, functor) not in self._calls_other:
            pointers = [word for word in functor_words(self._memory, functor) if self._is_executable(word)]
            calls = any(word == body or self._tail_calls.may_end_in(word, body) for word in pointers)
            self._calls_other[body, functor] = bool(pointers) and not calls
        return self._calls_other[body, functor]

    def may_have_left(self, stack: NativeStack, level: int, kernel: KernelFunction, operator: Operator) -> bool:
        """The boxed kernel may have been left by a jump through a pointer for another kernel of the operator, which
        frame ``level`` is: a fallback that ends with ``op.redispatchBoxed(…)``."""
        start = self._function_start(stack, level)
        if not start or kernel.unboxed or kernel.sym_unboxed or not kernel.boxed or not self.is_code(kernel):
            return False
        return self._tail_calls.may_end_in(kernel.boxed, start) and bool(self.indices(stack, level, operator))

    def _holds_pointer(self, kernel: KernelFunction) -> bool:
        """The kernel is a pointer to a function, in a functor, by the name of the functor's class."""
        if kernel.functor not in self._pointers:
            name = ""
            with suppress(GdbextError):
                name = mangled_class(self._memory, kernel.functor) if kernel.functor else ""
            self._pointers[kernel.functor] = any(part in name for part in POINTER_FUNCTOR_CLASSES)
        return self._pointers[kernel.functor]

    def indices(self, stack: NativeStack, level: int | None, operator: Operator) -> list[int]:
        """The table indices whose kernel runs in frame ``level``; [] if there is no kernel frame."""
        start = self._function_start(stack, level) if level is not None else 0
        if level is None or not start:
            return []
        if (operator.address, start) not in self._indices:
            running = {kernel for kernel in set(operator.table) if kernel.valid and self._entry(kernel, start)}
            indices = [index for index, kernel in enumerate(operator.table) if kernel in running]
            self._indices[operator.address, start] = indices
        indices, table = self._indices[operator.address, start], operator.table
        return [index for index in indices if not self._calls_another(stack, level, table[index])]

    def words(self, stack: NativeStack, level: int) -> Iterator[tuple[str, int]]:
        """(place, word) of each callee-saved register and stack word of a frame."""
        frame = stack.frames[level]
        for register in self._memory.architecture.callee_saved:
            value = frame.registers.get(register)
            if value is not None:
                yield register, value
        count = min((frame.cfa - frame.sp) // 8, 512)  # ``at::_ops`` frames have 10 to 60 words
        if count <= 0:
            return
        raw = self._memory.try_read(frame.sp, count * 8)
        for offset in range(0, len(raw), 8):
            yield f"stack word {frame.sp + offset:#x}", int.from_bytes(raw[offset : offset + 8], "little")

    def _function_start(self, stack: NativeStack, level: int) -> int:
        """Address of the function of frame ``level``, 0 if it is unknown."""
        function = stack.function(level)
        if not function:  # code without symbols (a stripped extension)
            extent = self._frame_tables.extent(stack.frames[level].lookup_pc)
            if extent and extent.start:
                return extent.start
            return self._sites.site(stack, level + 1).target if level + 1 < len(stack) else 0
        if function.start not in self._starts:
            # GCC has moved a part of the function away
            cold = next((name for name in function.names if name.endswith(".cold")), "")
            whole = cold[: -len(".cold")]
            start = self._symbolizer.address_of(whole, function.module.name) if cold else function.start
            self._starts[function.start] = start
        return self._starts[function.start]
