"""Kernels as the dispatcher stores them: what they can do, and what they are called."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Callable, Optional

from gdbext.errors import LayoutError, MemoryFault
from gdbext.formats.symbols.demangle import demangle
from gdbext.layouts.layout import Layout
from gdbext.model.record import Record
from gdbext.process.memory import Memory
from gdbext.process.symbols import Symbolizer
from gdbext.torch.registry.kernel_name import FUNCTION_POINTER, is_wrapper, kernel_target, most_telling, plain_name
from gdbext.torch.symbols import AMBIGUOUS_AUTOGRAD_OTHER, FALLTHROUGH, PYTHON_KERNEL_CLASS

if TYPE_CHECKING:
    from gdbext.cpython.objects.functions import PythonFunction

    PythonSource = Callable[[int], Optional[PythonFunction]]
    """PyObject* to its source; None when the address is not a Python function that can be read."""


class KernelFunction(Record):
    """A ``c10::KernelFunction``: the addresses it consists of. All zero where nothing is registered."""

    functor: int
    boxed: int
    unboxed: int
    sym_unboxed: int

    @property
    def valid(self) -> bool:
        """``isValid()``: there is a boxed function (every valid kernel has one)."""
        return self.boxed != 0

    @property
    def same_code(self) -> tuple[int, int, int]:
        """What ``_equalsBoxedAndUnboxed`` compares in one word less: the three functions, without the functor."""
        return (self.boxed, self.unboxed, self.sym_unboxed)


class KernelName(Record):
    """What a kernel is called. ``kind`` is "c++", "python", "fallthrough", "ambiguous", "missing" or "unknown".

    ``aliases`` are the other functions whose code was folded into the same address. ``file`` and ``line`` are those
    of a Python function; a C++ kernel's source line is not in a release build.
    """

    function: str
    kind: str = "c++"
    aliases: tuple[str, ...] = ()
    file: str = ""
    line: int | None = None


class KernelReader:
    """Reads and names kernels. ``python_source`` is used for kernels written in Python; None shows them as such."""

    def __init__(
        self, memory: Memory, layout: Layout, symbolizer: Symbolizer, python_source: PythonSource | None = None
    ) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self.python_source = python_source
        kernel = layout.struct("c10::KernelFunction")
        self.size = kernel.size
        self._read_words = _word_reader(layout)
        self._functor_size = layout.struct("c10::OperatorKernel").size
        self._python_function = self._functor_size + layout.struct("c10::SafePyObject").field("data_").offset
        self.fallthrough_address = FALLTHROUGH.address(symbolizer) or 0
        self.ambiguous_address = AMBIGUOUS_AUTOGRAD_OTHER.address(symbolizer) or 0
        self._names: dict[KernelFunction, KernelName] = {}
        self._candidates: dict[tuple[int, int], tuple[str, ...]] = {}

    # --- reading ---------------------------------------------------------------------------------

    def read(self, address: int) -> KernelFunction:
        """The KernelFunction at ``address``. Raises MemoryFault."""
        return self.parse(self._memory.read(address, self.size), 0)

    def parse(self, raw: bytes, offset: int) -> KernelFunction:
        """The KernelFunction whose bytes are at ``raw[offset:]``."""
        return KernelFunction(*self._read_words(raw, offset))

    def fallthrough(self, kernel: KernelFunction) -> bool:
        """``isFallthrough()``: its boxed function is the marker, it is never called."""
        return kernel.boxed != 0 and kernel.boxed == self.fallthrough_address

    def ambiguous(self, kernel: KernelFunction) -> bool:
        """The kernel that reports "ambiguous autogradother"."""
        return kernel.boxed != 0 and kernel.boxed == self.ambiguous_address

    # --- naming ----------------------------------------------------------------------------------

    def name(self, kernel: KernelFunction, key: str = "", operator: str = "") -> KernelName:
        """The kernel's own function. ``key`` and ``operator`` help to choose among folded functions.

        Never raises: what cannot be read or named is of kind "unknown".
        """
        known = self._names.get(kernel)
        if known is None:
            known = self._names[kernel] = self._read_name(kernel)
        if known.aliases and (key or operator):
            functions = (known.function, *known.aliases)
            best = most_telling(functions, key, operator)
            if best != known.function:
                return KernelName(best, known.kind, tuple(name for name in functions if name != best))
        return known

    def _read_name(self, kernel: KernelFunction) -> KernelName:
        if not kernel.valid:
            return KernelName("", "missing")
        if kernel.boxed == self.fallthrough_address:
            return KernelName("fallthrough", "fallthrough")
        if kernel.boxed == self.ambiguous_address:
            return KernelName("c10::ambiguous_autogradother_kernel", "ambiguous")
        entry = kernel.unboxed or kernel.sym_unboxed or kernel.boxed
        if kernel.boxed == entry and kernel.functor:
            python = self._python_name(kernel)
            if python is not None:
                return python
        functions = self._functions_at(entry, kernel.functor)
        if not functions:
            return KernelName(self._place(entry), "unknown")
        return KernelName(functions[0], "c++", functions[1:])

    def _functions_at(self, entry: int, functor: int) -> tuple[str, ...]:
        found = self._candidates.get((entry, 0))
        if found is None:
            found = self._candidates[(entry, 0)] = self._wrapped_functions(entry)
        if FUNCTION_POINTER in found:
            pointed = self._candidates.get((entry, functor))
            if pointed is None:
                pointed = self._candidates[(entry, functor)] = self._pointed_functions(functor)
            return pointed or found
        return found

    def _wrapped_functions(self, entry: int) -> tuple[str, ...]:
        """The functions behind all wrappers at ``entry``; the plain names there when none is a wrapper."""
        names = [demangle(name) for name in self._symbolizer.names_at(entry)]
        targets = [target for target in map(kernel_target, names) if target]
        if not targets:
            targets = [plain_name(name) for name in names if not is_wrapper(name)] or names
        return tuple(dict.fromkeys(targets))

    def _pointed_functions(self, functor: int) -> tuple[str, ...]:
        """Names of the function whose address a ``WrapFunctionIntoRuntimeFunctor_`` holds as its only member."""
        try:
            pointer = self._memory.u64(functor + self._functor_size)
        except MemoryFault:
            return ()
        return tuple(dict.fromkeys(plain_name(demangle(name)) for name in self._symbolizer.names_at(pointer)))

    def _python_name(self, kernel: KernelFunction) -> KernelName | None:
        """The Python function of a ``PythonKernelHolder`` (torch/csrc/utils/python_dispatch.cpp), else None.

        Its first member is ``c10::SafePyObject func_``. The pointer counts only when it is a Python function.
        """
        if not any(PYTHON_KERNEL_CLASS in name for name in self._symbolizer.names_at(kernel.boxed)):
            return None
        try:
            callable_ = self._memory.u64(kernel.functor + self._python_function)
        except MemoryFault:
            return KernelName("a Python function that cannot be read", "python")
        source = self.python_source(callable_) if self.python_source else None
        if source is None:
            return KernelName(f"the Python object at {callable_:#x}", "python")
        return KernelName(source.qualname, "python", (), source.file or "", source.line)

    def _place(self, address: int) -> str:
        function = self._symbolizer.function(address)
        if function is not None:
            return f"{function.module.name}+{address - function.module.base:#x}"
        return f"{address:#x}"


def _word_reader(layout: Layout) -> Callable[[bytes, int], tuple[int, int, int, int]]:
    """Unpacks (functor, boxed, unboxed, sym_unboxed) of a KernelFunction at an offset.

    Versions before 1.12 have no sym_unboxed_kernel_func_; it reads as 0 then.
    """
    kernel, boxed = layout.struct("c10::KernelFunction").fields, layout.struct("c10::BoxedKernel").fields
    base = kernel["boxed_kernel_func_"].offset
    offsets = [base + boxed["functor_"].offset, base + boxed["boxed_kernel_func_"].offset]
    offsets.append(kernel["unboxed_kernel_func_"].offset)
    if "sym_unboxed_kernel_func_" in kernel:
        offsets.append(kernel["sym_unboxed_kernel_func_"].offset)
    if offsets != [8 * index for index in range(len(offsets))]:
        raise LayoutError("the layout of c10::KernelFunction is not a known one")
    unpack = struct.Struct(f"<{len(offsets)}Q").unpack_from
    if len(offsets) == 4:
        return unpack
    return lambda raw, offset: (*unpack(raw, offset), 0)
