"""Finds the table entries of an operator that are the kernel running in a frame, and the words that a frame holds.

A table entry points to a wrapper; the wrapper often ends in a jump to the function it wraps, and then only that
function stands on the stack. The jumps are read from the wrapper's code, never guessed.
"""

from __future__ import annotations

from _blake2 import blake2b
from functools import lru_cache
from typing import TYPE_CHECKING

from gdbext.cache import cache_folder
from gdbext.engine.formats.symbol_cache import kept_texts
from gdbext.engine.unwind.frame_steps import FrameTables
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import (
    KERNEL_MACHINERY,
    KERNEL_MACHINERY_PARTS,
    POINTER_FUNCTOR_CLASSES,
    RUNTIME_FUNCTOR_CLASS,
)
from gdbext.torch.stack.call_arguments import CallSites, follow_stub
from gdbext.torch.stack.roles import KernelSignature, _is_hidden, kernel_signature, split_types
from gdbext.torch.values.cpp_objects import mangled_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gdbext.engine.arch import Architecture
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.registry import Operator
    from gdbext.torch.registry.kernel import KernelFunction


def entered_unboxed(
    operator: Operator, kernel: KernelFunction, start: int, names: Sequence[str]
) -> KernelSignature | None:
    """The signature of the function at ``start``, an unboxed entry of the operator's kernel; None where nothing tells
    it.

    Its own names say it, and the operator has the type that all its kernels were checked with: a program without
    symbols has that, too.
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
    result, opening, taken = text.partition(" (")
    hidden = _is_hidden(result) if opening and taken.endswith(")") else None
    return None if hidden is None else KernelSignature(tuple(split_types(taken[:-1])), hidden)


MAX_CODE = 4096
"""Bytes of a wrapper that are decoded; real ones have 20 to 600."""
MAX_DEPTH = 4
"""Jumps that are followed one after the other."""
MAX_STACK = 1 << 26
"""Bytes from a frame to the outermost one that a pointer into the stack may span."""
FUNCTOR_WORDS = 8
"""Words of a functor object that are looked through for a function pointer (the function pointer is its first
member, behind the 16 or 24 bytes of c10::OperatorKernel)."""


_DIGEST = 16
"""Bytes: nobody finds other code that has the same."""
_TO, _BY, _SOMEWHERE = "to", "by", "somewhere"
"""Jumps to a place, by a slot that holds it, and wherever a register or other memory says."""


@lru_cache(maxsize=1024)
def _jumps_in(architecture: Architecture, code: bytes, start: int) -> tuple[tuple[str, int], ...]:
    """The jumps in the code of a function: how, and how far from its start is what that names. They are kept for later
    looks, also at other processes: by a digest of the code, for that is all that they depend on."""
    kept = kept_texts(cache_folder(), "jumps")
    key = f"{architecture.name} {blake2b(code, digest_size=_DIGEST).hexdigest()}".encode()
    text = kept.text(key)
    if text is None:
        text = " ".join(f"{how}:{far}" for how, far in _decoded_jumps(architecture, code, start)).encode()
        kept.keep(key, text)
    words = (word.partition(":") for word in text.decode().split())
    return tuple((how, int(far)) for how, _, far in words)


def _decoded_jumps(architecture: Architecture, code: bytes, start: int) -> Iterator[tuple[str, int]]:
    for found in architecture.decode(code, start):
        if found.kind != "jmp":
            continue
        if found.target:
            yield _TO, found.target - start
        elif found.fixed_operand:  # of a PLT stub: the slot holds the function
            yield _BY, found.fixed_operand - start
        else:
            yield _SOMEWHERE, 0


class TailCalls:
    """Answers ``reaches(entry, start)``; results are kept, because the same kernels come again and again."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, extents: FrameTables | None = None) -> None:
        """``extents``: where functions without symbols end."""
        self._memory = memory
        self._symbolizer = symbolizer
        self._extents = extents
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

    def ends(self, entry: int, functor: int) -> frozenset[int]:
        """Functions in which the one at ``entry`` may end by jumps, called with that functor."""
        found = self._closure(entry)
        if functor and self._by_pointer.get(entry, False):
            return found.union(self.stored_pointers(functor))
        return found

    def may_end_in(self, entry: int, start: int) -> bool:
        """The function at ``entry`` may have been left by jumps for the one at ``start``: it jumps there, or through a
        pointer."""
        ends = self._closure(entry)
        return start in ends or any(self._by_pointer.get(one, False) for one in (entry, *ends))

    def _closure(self, entry: int) -> frozenset[int]:
        if entry not in self._targets:
            self._targets[entry] = frozenset(self._follow(entry))
        return self._targets[entry]

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
        function, extents = self._symbolizer.function(start), self._extents
        if not function and extents:
            function = extents.extent(start)
        is_whole = function and function.start == start and function.size > 0
        size = function.size if function and is_whole else 64
        code = self._memory.try_read(start, min(size, MAX_CODE))
        if not code:
            return
        found = _jumps_in(self._memory.architecture, code, start)
        for how, far in found[: None if is_whole else 1]:
            # where its end is unknown, other functions' code may follow its first jump: the stubs behind a stub
            target = start + far if how == _TO else self._memory.try_u64(start + far) if how == _BY else None
            if target is None:
                self._by_pointer[entry] = True
            elif not start <= target < start + size:
                yield target
                part = extents.extent(target) if extents and function and not function.names else None
                if part and part.start != target == follow_stub(self._memory, target):
                    yield part.start  # rarely run code that the compiler has put elsewhere, and that has no name

    def stored_pointers(self, functor: int) -> tuple[int, ...]:
        """The words of a functor object, one of which may be the function that it wraps."""
        return functor_words(self._memory, functor)


def functor_words(memory: Memory, functor: int) -> tuple[int, ...]:
    """The words of a functor object, one of which may be the function that it wraps; () where it cannot be read."""
    try:
        return memory.words(functor, FUNCTOR_WORDS)
    except GdbextError:
        return ()


BETWEEN = 8
"""Frames between a kernel's entry and its body, at most, without optimisation."""


def is_machinery(name: str) -> bool:
    """A kernel's entry, or a function between it and the kernel's body, by its mangled name."""
    parts = (RUNTIME_FUNCTOR_CLASS, *KERNEL_MACHINERY_PARTS)
    return name.startswith(KERNEL_MACHINERY) or any(part in name for part in parts)


MAX_FRAME_WORDS = 512
"""Stack words of one frame that are tried; ``at::_ops`` frames have 10 to 60."""
_COLD = ".cold"
"""The end of the name of the part of a function that GCC has moved away."""


class KernelMatcher:
    """Compares kernels with the functions on stacks of one process."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, sites: CallSites) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._sites = sites
        self._frame_tables = FrameTables(memory, symbolizer.modules)
        self._tail_calls = TailCalls(memory, symbolizer, self._frame_tables)
        self._indices: dict[tuple[int, int], list[int]] = {}
        """Indices by operator and start of the function that runs."""
        self._reached: dict[tuple[KernelFunction, int], int] = {}
        """Answers by kernel and start of the function that runs."""
        self._code: dict[KernelFunction, bool] = {}
        self._pointers: dict[int, bool] = {}
        self._wrappers: dict[int, bool] = {}
        """Functions by their start: whether they are wrappers of a pointer."""
        self._starts: dict[int, int] = {}
        """Functors that hold a pointer to a function, by their addresses."""
        self._others: dict[tuple[int, int], bool] = {}
        """Answers by a function that a wrapper called, and a functor."""

    def jumps(self, entry: int, functor: int) -> frozenset[int]:
        """Functions in which a kernel's function may end by jumps."""
        return self._tail_calls.ends(entry, functor)

    def is_code(self, kernel: KernelFunction) -> bool:
        """All functions of the kernel lie in executable memory; without that, it is no kernel but something else."""
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
        """The kernel's entry that frame ``level`` is, or is jumped to by; 0 for none."""
        start = self._function_start(stack, level)
        entry = self._entry(kernel, start) if start else 0
        return 0 if entry and self._goes_to_another(stack, level, kernel) else entry

    def _entry(self, kernel: KernelFunction, start: int) -> int:
        """The entry of the kernel that is the function at ``start``, or jumps there; 0 for none."""
        if (kernel, start) not in self._reached:
            entries = (kernel.unboxed, kernel.boxed, kernel.sym_unboxed) if self.is_code(kernel) else ()
            reaching = (entry for entry in entries if self._tail_calls.reaches(entry, start, kernel.functor))
            self._reached[kernel, start] = next(reaching, 0)
        return self._reached[kernel, start]

    def body(self, stack: NativeStack, level: int) -> int:
        """The function that the wrapper in frame ``level`` called through the pointer that its functor holds, itself or
        by its helpers; 0 for other frames, and before it is called. It may have left by a jump for another."""
        wrapper = stack.function(level)
        if not wrapper:
            return 0
        if wrapper.start not in self._wrappers:
            is_one = any(one in name for name in wrapper.names for one in POINTER_FUNCTOR_CLASSES)
            self._wrappers[wrapper.start] = is_one
        return self._called_by_wrapper(stack, level) if self._wrappers[wrapper.start] else 0

    def _called_by_wrapper(self, stack: NativeStack, level: int) -> int:
        for inner in range(level - 1, max(level - 1 - BETWEEN, -1), -1):
            if self._sites.is_through_pointer(stack, inner + 1):
                return self._function_start(stack, inner)
        return 0

    def _goes_to_another(self, stack: NativeStack, level: int, kernel: KernelFunction) -> bool:
        """The wrapper in frame ``level``, an entry of the kernel, has called a function that is not this kernel's. One
        without a name is such a wrapper if the kernel's functor is of their class."""
        if stack.function(level) or not self._holds_pointer(kernel):
            return self._calls_another(self.body(stack, level), kernel)
        start = self._function_start(stack, level)
        is_wrapper = start != 0 and start in (kernel.unboxed, kernel.boxed, kernel.sym_unboxed)
        return is_wrapper and self._calls_another(self._called_by_wrapper(stack, level), kernel)

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
            try:
                name = mangled_class(self._memory, kernel.functor) if kernel.functor else ""
            except GdbextError:
                name = ""
            self._pointers[kernel.functor] = any(one in name for one in POINTER_FUNCTOR_CLASSES)
        return self._pointers[kernel.functor]

    def _calls_another(self, body: int, kernel: KernelFunction) -> bool:
        """The wrapper that runs has called a function, ``body``, that is not this kernel's: the wrappers of all
        functions of one type are the same code."""
        if not body or not kernel.functor:
            return False
        if (body, kernel.functor) not in self._others:
            pointers = [one for one in self._tail_calls.stored_pointers(kernel.functor) if self._is_executable(one)]
            calls = any(one == body or self._tail_calls.may_end_in(one, body) for one in pointers)
            self._others[body, kernel.functor] = bool(pointers) and not calls
        return self._others[body, kernel.functor]

    def indices(self, stack: NativeStack, level: int | None, operator: Operator) -> list[int]:
        """The table indices whose kernel runs in frame ``level``; [] where there is no kernel frame."""
        start = self._function_start(stack, level) if level is not None else 0
        if not start:
            return []
        found = self._indices.get((operator.address, start))
        if found is None:
            seen = {kernel: self._entry(kernel, start) != 0 for kernel in set(operator.table) if kernel.valid}
            found = [index for index, kernel in enumerate(operator.table) if seen.get(kernel)]
            self._indices[operator.address, start] = found
        return [index for index in found if not self._goes_to_another(stack, level or 0, operator.table[index])]

    def in_unboxed_call(
        self, stack: NativeStack, level: int, kernel: int | None, first: int | None
    ) -> Callable[[int, KernelFunction], bool]:
        """The position of the keyset in a call to an unboxed kernel, in frame ``kernel``, where it must have one.

        The kernel is called as (functor, keyset, …), or as (result, functor, keyset, …) where the result is returned
        through memory. So the second argument is the keyset or the functor, never anything else; the third is the
        keyset if the first is not the functor.
        """
        calls_kernel = kernel == level - 1 and self._sites.site(stack, level).through_pointer

        def must_be_keyset(position: int, kernel: KernelFunction) -> bool:
            if not calls_kernel or not (kernel.unboxed or kernel.sym_unboxed):
                return False
            return position == 1 or (position == 2 and first is not None and first != kernel.functor)

        return must_be_keyset

    def in_redispatch(self, stack: NativeStack, level: int, first: int | None) -> Callable[[int, KernelFunction], bool]:
        """The position of the keyset in a call to ``at::_ops::NAME::redispatch``, where it must have one.

        It is the first one, or the second behind a pointer to where the result goes: a place on the stack above.
        """
        sp = stack.frames[level].sp
        hidden = first is not None and sp <= first < sp + MAX_STACK
        keyset_at = None if first is None else 1 if hidden else 0
        return lambda position, _kernel: position == keyset_at

    def words(self, stack: NativeStack, level: int) -> Iterator[tuple[str, int]]:
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
        for at in range(0, len(raw), 8):
            yield f"stack word {frame.sp + at:#x}", int.from_bytes(raw[at : at + 8], "little")

    def _function_start(self, stack: NativeStack, level: int) -> int:
        """Address of the function of frame ``level``, 0 where it is unknown."""
        function = stack.function(level)
        if not function:
            start = self._start_by_frame_table(stack, level)
            return self._sites.site(stack, level + 1).target if not start and level + 1 < len(stack) else start
        if function.start not in self._starts:
            cold = next((name for name in function.names if name.endswith(_COLD)), "")
            start = self._symbolizer.address_of(cold[: -len(_COLD)], function.module.name) if cold else function.start
            self._starts[function.start] = start
        return self._starts[function.start]

    def _start_by_frame_table(self, stack: NativeStack, level: int) -> int:
        """The start of code without symbols (a stripped extension), as its call frame information tells; else 0."""
        found = self._frame_tables.extent(stack.frames[level].lookup_pc)
        return found.start if found else 0


def in_lookup(position: int, _kernel: KernelFunction) -> bool:
    """The position of the keyset in ``OperatorEntry::lookup(this, keyset)``."""
    return position == 1
