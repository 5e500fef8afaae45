"""The table entries of an operator that are the kernel running in a frame, and the words that a frame holds.

A table entry points to a wrapper; the wrapper often ends in a jump to the function it wraps, and then only that
function is on the stack. The jumps are read from the wrapper's code, never guessed.
"""

from __future__ import annotations

from _blake2 import blake2b
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache

from gdbext.cache import cache_folder
from gdbext.engine.arch import Architecture
from gdbext.engine.formats.symbol_cache import text_cache
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.unwind import NativeStack
from gdbext.engine.unwind.frame_steps import FrameTables
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import (
    KERNEL_MACHINERY,
    KERNEL_MACHINERY_PARTS,
    POINTER_FUNCTOR_CLASSES,
    RUNTIME_FUNCTOR_CLASS,
)
from gdbext.torch.memoized import memoized
from gdbext.torch.registry import Operator
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.stack.call_arguments import CallSites, follow_stub
from gdbext.torch.stack.roles import KernelSignature, kernel_signature, returns_by_sret, split_types
from gdbext.torch.values.cpp_objects import mangled_class


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
    """(kind, offset from ``start``) of each jump in a function whose bytes are ``code``: ("to", offset of the target),
    ("by", offset of the PLT stub's slot that holds the target), or ("somewhere", 0) if a register or other memory does.

    They depend on nothing but the code, so they are cached by its digest, also for other processes.
    """
    cached = text_cache(cache_folder(), "jumps")
    key = f"{architecture.name} {blake2b(code, digest_size=16).hexdigest()}".encode()
    text = cached.text(key)
    if text is None:
        jumps = []
        for insn in architecture.decode(code, start):
            if insn.kind == "jmp" and insn.target:
                jumps.append(f"to:{insn.target - start}")
            elif insn.kind == "jmp":
                jumps.append(f"by:{insn.fixed_operand - start}" if insn.fixed_operand else "somewhere:0")
        text = " ".join(jumps).encode()
        cached.keep(key, text)
    words = (word.partition(":") for word in text.decode().split())
    return tuple((kind, int(offset)) for kind, _, offset in words)


class TailCalls:
    """Finds the functions for which kernels of one process may leave by a jump (a tail call)."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, extents: FrameTables | None = None) -> None:
        """``extents``: the bounds of functions without symbols."""
        self._memory = memory
        self._symbolizer = symbolizer
        self._extents = extents
        self._by_pointer: set[int] = set()  # entries of kernels that may end in a jump through a pointer

    def reaches(self, entry: int, start: int, functor: int = 0) -> bool:
        """True if the kernel's function at ``entry``, called with its ``functor``, is the one at ``start`` or leaves by
        jumps for that one."""
        return bool(entry) and (entry == start or start in self.ends(entry, functor))

    def ends(self, entry: int, functor: int) -> frozenset[int]:
        """Starts of functions for which the one at ``entry`` may leave by jumps. A jump through a pointer leads to one
        of the words of the ``functor`` that it was called with (a wrapper of a run-time function pointer)."""
        ends = self._closure(entry)
        if functor and entry in self._by_pointer:
            return ends.union(functor_words(self._memory, functor))
        return ends

    def may_end_in(self, entry: int, start: int) -> bool:
        """True if the function at ``entry`` jumps to the one at ``start``, or through any pointer."""
        ends = self._closure(entry)
        return start in ends or not self._by_pointer.isdisjoint((entry, *ends))

    @memoized
    def _closure(self, entry: int) -> frozenset[int]:
        """Starts of the functions to which up to four jumps in a row lead from ``entry``."""
        frontier, seen = {entry}, {entry}
        for _ in range(4):
            frontier = {target for start in frontier for target in self._jumps(start, entry)} - seen
            seen |= frontier
        return frozenset(seen - {entry})

    def _jumps(self, start: int, entry: int) -> Iterator[int]:
        """Targets of jumps that leave the function at ``start``; ``entry``, from which jumps led there, is added to
        ``_by_pointer`` for a target that is not in the code."""
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
            target: int | None = start + offset
            if kind != "to":
                target = self._memory.try_u64(start + offset) if kind == "by" else None
            if target is None:
                self._by_pointer.add(entry)
            elif not start <= target < start + size:
                yield target
                is_stub = follow_stub(self._memory, target) != target
                if extents and function and not function.names and not is_stub:
                    # rarely run code that the compiler has put elsewhere has no name; a jump may lead into it
                    part = extents.extent(target)
                    if part and part.start != target:
                        yield part.start


def functor_words(memory: Memory, functor: int) -> tuple[int, ...]:
    """The first eight words of a functor object, one of which may be the function that it wraps (its first member,
    behind the 16 or 24 bytes of c10::OperatorKernel); () if they cannot be read."""
    try:
        return memory.words(functor, 8)
    except GdbextError:
        return ()


BETWEEN = 8
"""Frames between a kernel's entry and its body, at most, without optimization."""


def is_wrapping(mangled: str) -> bool:
    """True if the function of that name is a kernel's entry, or one between that and the kernel's own function."""
    parts = (RUNTIME_FUNCTOR_CLASS, *KERNEL_MACHINERY_PARTS)
    return mangled.startswith(KERNEL_MACHINERY) or any(part in mangled for part in parts)


class KernelMatcher:
    """Tells which kernels the functions on stacks of one process are."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, sites: CallSites) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._frame_tables = FrameTables(memory, symbolizer.modules)
        self._tail_calls = TailCalls(memory, symbolizer, self._frame_tables)
        self.jumps = self._tail_calls.ends

    @memoized
    def is_code(self, kernel: KernelFunction) -> bool:
        """True if all functions of the kernel are in executable memory; else its words are those of something else."""
        return all(self._is_executable(entry) for entry in kernel.same_code if entry)

    def _is_executable(self, address: int) -> bool:
        """True if the address is in an executable mapping, or in one of which the core does not say so."""
        mapping = self._symbolizer.modules.mapping_at(address)
        return bool(mapping and ("x" in mapping.permissions or not mapping.permissions))

    def matches_frame(self, stack: NativeStack, level: int, kernel: KernelFunction) -> bool:
        """True if frame ``level`` is one of the kernel's functions, or one for which these leave by a jump."""
        return self.entry_of_frame(stack, level, kernel) != 0

    def entry_of_frame(self, stack: NativeStack, level: int, kernel: KernelFunction) -> int:
        """Start of the kernel's function that frame ``level`` is, or that left by a jump for it; 0 for none."""
        start = self._function_start(stack, level)
        entry = self._entry(kernel, start) if start else 0
        return 0 if entry and self._calls_another(stack, level, kernel) else entry

    @memoized
    def _entry(self, kernel: KernelFunction, start: int) -> int:
        """As ``entry_of_frame``, for a frame whose function is at ``start``, whatever function a wrapper calls."""
        entries = (kernel.unboxed, kernel.boxed, kernel.sym_unboxed) if self.is_code(kernel) else ()
        return next((entry for entry in entries if self._tail_calls.reaches(entry, start, kernel.functor)), 0)

    def wrapped_function(self, stack: NativeStack, level: int) -> int:
        """Start of the function that the wrapper in frame ``level`` called through the pointer in its functor; 0 if the
        frame is no such wrapper, by its name, or has not called it yet. It may have left by a jump for another."""
        wrapper = stack.function(level)
        names = wrapper.names if wrapper else ()
        holds_pointer = any(part in name for name in names for part in POINTER_FUNCTOR_CLASSES)
        return self._called_by_wrapper(stack, level) if holds_pointer else 0

    def _called_by_wrapper(self, stack: NativeStack, level: int) -> int:
        """Start of the first function inside frame ``level`` that was called through a pointer; 0 for none."""
        for inner in range(level - 1, max(level - 1 - BETWEEN, -1), -1):
            if self._sites.is_through_pointer(stack, inner + 1):
                return self._function_start(stack, inner)
        return 0

    def _calls_another(self, stack: NativeStack, level: int, kernel: KernelFunction) -> bool:
        """True if the wrapper in frame ``level``, an entry of the kernel, has called a function that is not this
        kernel's: the wrappers of all functions of one type are the same code, so that the entry alone proves nothing.
        """
        if stack.function(level) or not self._holds_pointer(kernel.functor):
            body = self.wrapped_function(stack, level)
        else:  # a wrapper without a name
            start = self._function_start(stack, level)
            body = self._called_by_wrapper(stack, level) if start and start in kernel.same_code else 0
        return bool(body and kernel.functor) and self._holds_another(kernel.functor, body)

    @memoized
    def _holds_another(self, functor: int, body: int) -> bool:
        """True if the object at ``functor`` holds pointers to functions, none of which leads to the one at ``body``."""
        pointers = [word for word in functor_words(self._memory, functor) if self._is_executable(word)]
        leads_there = any(word == body or self._tail_calls.may_end_in(word, body) for word in pointers)
        return bool(pointers) and not leads_there

    def may_have_left(self, stack: NativeStack, level: int, kernel: KernelFunction, operator: Operator) -> bool:
        """True if frame ``level`` is another kernel of the operator, for which this boxed one may have left by a jump
        through a pointer: a fallback that ends with ``op.redispatchBoxed(…)``."""
        start = self._function_start(stack, level)
        if not start or kernel.unboxed or kernel.sym_unboxed or not kernel.boxed or not self.is_code(kernel):
            return False
        return self._tail_calls.may_end_in(kernel.boxed, start) and bool(self.indices(stack, level, operator))

    @memoized
    def _holds_pointer(self, functor: int) -> bool:
        """True if the object at ``functor`` wraps a pointer to a function, by the name of its class."""
        with suppress(GdbextError):
            name = mangled_class(self._memory, functor) if functor else ""
            return any(part in name for part in POINTER_FUNCTOR_CLASSES)
        return False

    def indices(self, stack: NativeStack, level: int | None, operator: Operator) -> list[int]:
        """The indices of the operator's table whose kernel runs in frame ``level``; [] if ``level`` is None."""
        start = self._function_start(stack, level) if level is not None else 0
        if level is None or not start:
            return []
        table = operator.table
        return [
            index
            for index in self._indices_of_function(operator, start)
            if not self._calls_another(stack, level, table[index])
        ]

    @memoized
    def _indices_of_function(self, operator: Operator, start: int) -> list[int]:
        """As ``indices``, for a frame whose function is at ``start``, whatever function a wrapper calls."""
        running = {kernel for kernel in set(operator.table) if kernel.valid and self._entry(kernel, start)}
        return [index for index, kernel in enumerate(operator.table) if kernel in running]

    def words(self, stack: NativeStack, level: int) -> Iterator[tuple[str, int]]:
        """(where it is, for people; word) of each callee-saved register and stack word of frame ``level``."""
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
        """Start of the function of frame ``level``, of the whole one if GCC has moved a part of it away (``.cold``); 0
        if it is unknown."""
        function = stack.function(level)
        if not function:  # code without symbols (a stripped extension)
            extent = self._frame_tables.extent(stack.frames[level].lookup_pc)
            if extent and extent.start:
                return extent.start
            return self._sites.site(stack, level + 1).target if level + 1 < len(stack) else 0
        cold = next((name for name in function.names if name.endswith(".cold")), "")
        return self._symbolizer.address_of(cold[: -len(".cold")], function.module.name) if cold else function.start
