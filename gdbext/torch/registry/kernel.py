"""Kernels as the dispatcher stores them: what they can do, and their C++ or Python functions.

Every kernel in a dispatch table is a wrapper; the user's function is its template argument::

    c10::impl::wrap_kernel_functor_unboxed_<c10::impl::detail::WrapFunctionIntoFunctor_<c10::CompileTimeFunctionPointer<
        TYPE, &at::(anonymous namespace)::wrapper_CPU_mm>, ...>, SIGNATURE>::call(...)

Wrappers: ATen/core/boxing/KernelFunction_impl.h, BoxedKernel_impl.h and impl/make_boxed_from_unboxed_functor.h, 2.13.0.
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.layouts.declarations import Space
from gdbext.errors import LayoutError, MemoryFault
from gdbext.torch import assumed_symbols
from gdbext.torch.structures import BoxedKernel, KernelFunctionStruct, OperatorKernel, SafePyObject

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Callable, Optional

    from gdbext.cpython.objects.code import PythonFunction
    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.vocabulary import Explained, Internal, Sparse

    PythonSource = Callable[[int], Optional[PythonFunction]]
    """PyObject* to its source; None when the address is not a Python function that can be read."""


class KernelFunction(NamedTuple):
    """A ``c10::KernelFunction``: the addresses it consists of. All zero if nothing is registered."""

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
        """The words that ``_equalsBoxedAndUnboxed`` compares, without the functor: the three functions."""
        return (self.boxed, self.unboxed, self.sym_unboxed)


class KernelName(NamedTuple):
    """The name of a kernel. ``kind`` is "c++", "python", "fallthrough", "ambiguous", "missing" or "unknown".

    ``aliases`` are the other functions whose code was folded into the same address. ``file`` and ``line`` are for a
    Python function; a C++ kernel's source line is not in a release build.
    """

    function: str
    kind: str = "c++"
    aliases: tuple[str, ...] = ()
    file: str = ""
    line: int | None = None

    @property
    def text(self) -> str:
        """The function, with the place of one in Python: ``my_mm at model.py:8``."""
        line = "" if self.line is None else f":{self.line}"
        return f"{self.function} at {self.file}{line}" if self.file else self.function


UNNAMED = KernelName("")


class PythonPlace(NamedTuple):
    """The place where a kernel written in Python is defined; unknown parts are None."""

    file: str | None
    line: int | None


class RegisteredKernel(NamedTuple):
    """A ``c10::KernelFunction``. ``unboxed`` is PyTorch's word: a kernel for SymInts has ``sym_unboxed`` instead."""

    function: str | None
    valid: bool
    boxed: bool
    unboxed: bool
    sym_unboxed: bool
    fallthrough: bool
    python: Sparse[PythonPlace | None] = None
    """None for a kernel written in C++."""
    aliases: Explained[Sparse[tuple[str, ...]]] = ()
    """Other functions whose code the linker folded into the same address."""
    words: Internal[KernelFunction] = KernelFunction(0, 0, 0, 0)


class KernelFacts:
    """The facts of ``kernel`` under the names that a JSON document has beside it."""

    kernel: RegisteredKernel

    @property
    def function(self) -> str | None:
        """The kernel's function, None if there is none."""
        return self.kernel.function

    @property
    def valid(self) -> bool:
        """True if there is a kernel."""
        return self.kernel.valid

    @property
    def boxed(self) -> bool:
        """It can be called with a stack."""
        return self.kernel.boxed

    @property
    def unboxed(self) -> bool:
        """It can be called with C++ arguments."""
        return self.kernel.unboxed

    @property
    def sym_unboxed(self) -> bool:
        """It can be called with C++ arguments, SymInts among them."""
        return self.kernel.sym_unboxed

    @property
    def fallthrough(self) -> bool:
        """The dispatcher skips it."""
        return self.kernel.fallthrough


class KernelReader:
    """Reads and names kernels. ``python_source`` is used for kernels written in Python; None shows them as such."""

    def __init__(
        self, memory: Memory, layout: Layout, symbolizer: Symbolizer, python_source: PythonSource | None = None
    ) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self.python_source = python_source
        space = Space(memory, layout)
        self.size = KernelFunctionStruct.size(space)
        self.parse = kernel_parser(layout)
        """The KernelFunction whose bytes are at an offset of others."""
        self._functor_size = OperatorKernel.size(space)
        self._python_function = self._functor_size + SafePyObject.data_.offset(space)
        self.fallthrough_address = assumed_symbols.FALLTHROUGH.address(symbolizer)
        self.ambiguous_address = assumed_symbols.AMBIGUOUS_AUTOGRAD_OTHER.address(symbolizer)
        self._names: dict[tuple[KernelFunction, int], KernelName] = {}
        """By kernel and the address of its function that is known to run, 0 if none is."""
        self._functions: dict[tuple[int, int], tuple[str, ...]] = {}
        """Names of functions by the address of an entry and of its functor, 0 if the functor does not matter."""

    def registered(self, kernel: KernelFunction, name: KernelName) -> RegisteredKernel:
        """A kernel with its name and abilities."""
        return RegisteredKernel(
            function=name.function or None,
            valid=kernel.valid,
            boxed=kernel.boxed != 0,
            unboxed=kernel.unboxed != 0,
            sym_unboxed=kernel.sym_unboxed != 0,
            fallthrough=self.fallthrough(kernel),
            python=PythonPlace(name.file or None, name.line) if name.kind == "python" else None,
            aliases=name.aliases,
            words=kernel,
        )

    def parse_table(self, raw: bytes) -> tuple[KernelFunction, ...]:
        """The KernelFunctions of a whole table: a hundred entries, a few kernels. Equal ones are one object."""
        entries = [raw[start : start + self.size] for start in range(0, len(raw), self.size)]
        kernels = {words: self.parse(words, 0) for words in set(entries)}
        return tuple(map(kernels.__getitem__, entries))

    def fallthrough(self, kernel: KernelFunction) -> bool:
        """``isFallthrough()``: its boxed function is the marker, it is never called."""
        return kernel.boxed != 0 and kernel.boxed == self.fallthrough_address

    def ambiguous(self, kernel: KernelFunction) -> bool:
        """The kernel that reports "ambiguous autogradother"."""
        return kernel.boxed != 0 and kernel.boxed == self.ambiguous_address

    def name(self, kernel: KernelFunction, key: str = "", operator: str = "", entry: int = 0) -> KernelName:
        """The kernel's own function. ``key`` and ``operator`` help to choose among folded functions; ``entry`` is the
        one of its functions which is known to run.

        Never raises: what cannot be read or named is of kind "unknown".
        """
        name = self._names.get((kernel, entry))
        if not name:
            name = self._names[kernel, entry] = self._read_name(kernel, entry)
        if name.aliases and (key or operator):
            functions = (name.function, *name.aliases)
            best = best_function_name(functions, key, operator)
            if best != name.function:
                return KernelName(best, name.kind, tuple(function for function in functions if function != best))
        return name

    def _read_name(self, kernel: KernelFunction, entry: int) -> KernelName:
        """As ``name``, without a choice among folded functions."""
        if not kernel.valid:
            return KernelName("", "missing")
        if kernel.boxed == self.fallthrough_address:
            return KernelName("fallthrough", "fallthrough")
        if kernel.boxed == self.ambiguous_address:
            return KernelName("c10::ambiguous_autogradother_kernel", "ambiguous")
        entry = entry or kernel.unboxed or kernel.sym_unboxed or kernel.boxed
        python = self._python_name(kernel) if kernel.boxed == entry else None
        if python:
            return python
        functions = self._functions_at(entry, kernel.functor)
        if not functions:
            return KernelName(self._place(entry), "unknown")
        return KernelName(functions[0], "c++", functions[1:])

    def _functions_at(self, entry: int, functor: int) -> tuple[str, ...]:
        """Names of the functions behind all wrappers at ``entry``; the plain names there if none is a wrapper."""
        if (entry, 0) not in self._functions:
            names = [demangle(name) for name in self._symbolizer.names_at(entry)]
            targets = [target for target in map(kernel_target, names) if target]
            if not targets:
                targets = [plain_name(name) for name in names if not is_wrapper(name)] or names
            self._functions[entry, 0] = tuple(dict.fromkeys(targets))
        functions = self._functions[entry, 0]
        if FUNCTION_POINTER not in functions:
            return functions
        if (entry, functor) not in self._functions:
            pointed: tuple[str, ...] = ()
            with suppress(MemoryFault):  # a WrapFunctionIntoRuntimeFunctor_ has the function's address as only member
                pointer = self._memory.u64(functor + self._functor_size)
                plain = dict.fromkeys(plain_name(demangle(name)) for name in self._symbolizer.names_at(pointer))
                pointed = tuple(plain) or (self._place(pointer),)
            self._functions[entry, functor] = pointed
        return self._functions[entry, functor] or functions

    def _python_name(self, kernel: KernelFunction) -> KernelName | None:
        """The Python function of a ``PythonKernelHolder`` (torch/csrc/utils/python_dispatch.cpp), else None.

        Its first member is ``c10::SafePyObject func_``. The pointer counts only when it is a Python function.
        """
        if not any(assumed_symbols.PYTHON_KERNEL_CLASS in name for name in self._symbolizer.names_at(kernel.boxed)):
            return None
        try:
            callable_ = self._memory.u64(kernel.functor + self._python_function)
        except MemoryFault:
            return KernelName("a Python function that cannot be read", "python")
        source = self.python_source(callable_) if self.python_source else None
        if not source:
            return KernelName(f"the Python object at {callable_:#x}", "python")
        if source.file == "":  # None: a builtin function, a class, or another object without Python source
            return KernelName(f"{source.qualname}, a Python function whose file cannot be read", "python")
        return KernelName(source.qualname, "python", (), source.file or "", source.line)

    def _place(self, address: int) -> str:
        """``ops.so+0x1a2b0``: code without a symbol, by its offset in the file."""
        module = self._symbolizer.modules.find(address)
        return f"{module.name}+{address - module.base:#x}" if module else f"{address:#x}"


def kernel_parser(layout: Layout) -> Callable[[bytes, int], KernelFunction]:
    """Makes a KernelFunction of the bytes at an offset. Raises LayoutError.

    Versions before 1.12 have no sym_unboxed_kernel_func_; it reads as 0 then.
    """
    kernel, boxed = KernelFunctionStruct, BoxedKernel
    base = kernel.boxed_kernel_func_.field(layout).offset
    offsets = [base + member.field(layout).offset for member in (boxed.functor_, boxed.boxed_kernel_func_)]
    offsets.append(kernel.unboxed_kernel_func_.field(layout).offset)
    if kernel.sym_unboxed_kernel_func_.is_in(layout):
        offsets.append(kernel.sym_unboxed_kernel_func_.field(layout).offset)
    if offsets != [8 * index for index in range(len(offsets))]:
        raise LayoutError("the layout of c10::KernelFunction is not a known one")
    unpack = struct.Struct(f"<{len(offsets)}Q").unpack_from
    if len(offsets) == 4:
        return lambda raw, offset: KernelFunction(*unpack(raw, offset))
    return lambda raw, offset: KernelFunction(*(*unpack(raw, offset), 0))


_FUNCTOR_WRAPPERS = (
    assumed_symbols.UNBOXED_WRAPPER_TEXT,
    assumed_symbols.BOXED_FROM_UNBOXED_TEXT,
    *assumed_symbols.BOXED_FUNCTOR_TEXTS,
)
"""Beginnings of wrappers whose first template argument is a functor's class."""

_OPEN, _CLOSE = "<({[", ">)}]"
_PUNCTUATION = re.compile(r"operator[<>=-]+|->|[<({\[>)}\],]")
"""Brackets and commas, and the operators and arrows whose angle brackets are none."""

FUNCTION_POINTER = "(function pointer)"
"""The text that ``kernel_target`` gives for a wrapper around a pointer that only the functor object holds."""


def is_wrapper(demangled: str) -> bool:
    """True for the name of one of the dispatcher's kernel wrappers."""
    return any(wrapper in demangled for wrapper in (*_FUNCTOR_WRAPPERS, assumed_symbols.BOXED_FUNCTION_TEXT))


def kernel_target(demangled: str) -> str | None:
    """The function, functor or lambda behind a wrapper's demangled name; None when it is not a wrapper.

    FUNCTION_POINTER if the wrapper calls through a pointer that is not part of its type.
    """
    functors = (arguments[0] for wrapper in _FUNCTOR_WRAPPERS if (arguments := _arguments_of(demangled, wrapper)))
    functor = next(functors, None)
    if functor is None:
        arguments = _arguments_of(demangled, assumed_symbols.BOXED_FUNCTION_TEXT)
        return _function_name(arguments[0]) if arguments else None
    if functor.startswith(assumed_symbols.WRAPPED_STATICALLY):
        arguments = _arguments_of(functor, assumed_symbols.WRAPPED_FUNCTION_POINTER)
        return _function_name(arguments[1]) if len(arguments) > 1 else functor
    arguments = _arguments_of(functor, assumed_symbols.WRAPPED_AT_RUNTIME)
    if not arguments:
        return functor  # a class of its own
    is_pointer = "(*)(" in arguments[0] and arguments[0].endswith((")", ") noexcept"))
    return FUNCTION_POINTER if is_pointer else arguments[0]


def _arguments_of(text: str, opening: str) -> list[str]:
    """The template arguments behind the first ``opening``; [] without one."""
    start = text.find(opening)
    return [] if start < 0 else template_arguments(text, start + len(opening))


def template_arguments(text: str, start: int) -> list[str]:
    """The template arguments from ``start`` (just behind the ``<``) to the matching ``>``.

    Brackets of all kinds nest; the ``>`` of an ``operator>`` or ``->`` is not a bracket.
    """
    arguments: list[str] = []
    depth, first = 0, start
    for match in _PUNCTUATION.finditer(text, start):
        mark = match.group()
        if mark in _OPEN:
            depth += 1
        elif mark == ",":
            if depth == 0:
                arguments.append(text[first : match.start()].strip())
                first = match.end()
        elif mark in _CLOSE:
            if depth == 0:
                arguments.append(text[first : match.start()].strip())
                return arguments
            depth -= 1
    return []


def _function_name(argument: str) -> str:
    """The function of a template argument: ``ns::f<1>`` of ``&(void ns::f<1>(int))``, ``ns::f`` of ``&ns::f``."""
    name = argument.lstrip("&").strip()
    if name.startswith("(") and name.endswith(")") and not name.startswith("(anonymous namespace)"):
        name = plain_name(name[1:-1])
    return name


def plain_name(signature: str) -> str:
    """A demangled function without its return type, parameters and qualifiers."""
    # the beginning of the last parameter list; the end of the text when there is none
    start, end = len(signature), signature.rfind(")")
    depth = 0
    for position in range(end, -1, -1):
        depth += (signature[position] == ")") - (signature[position] == "(")
        if depth == 0:
            start = len(signature) if signature[position : end + 1] == "(anonymous namespace)" else position
            break
    name = signature[:start]
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        letter = name[position]
        depth += (letter in _CLOSE) - (letter in _OPEN)
        if letter == " " and depth == 0 and not name.startswith("operator", position - 8):
            return name[position + 1 :]
    return name


def best_function_name(functions: Sequence[str], key: str = "", operator: str = "") -> str:
    """The function, of several at one address, that names this key and operator best; the first if none does.

    Folded code has the names of all that were folded: ``wrapper_CPU__add``, ``wrapper_SparseCPU__add``. A name
    that has the key between underscores is better than one that merely contains it.
    """
    base = operator.rpartition("::")[2].rstrip("_")

    def score(function: str) -> tuple[bool, bool, bool]:
        last = function.rpartition("::")[2]
        return bool(key) and f"_{key}_" in last + "_", bool(base) and base in last, bool(key) and key in function

    return max(functions, key=score) if functions else ""
