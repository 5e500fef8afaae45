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
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.layouts.declarations import Space
from gdbext.errors import LayoutError, MemoryFault
from gdbext.torch import assumed_symbols
from gdbext.torch.memoized import memoized
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
    """A ``c10::KernelFunction``: the addresses of its functor object and of its functions; 0 for each that it lacks."""

    functor: int
    boxed: int
    unboxed: int
    sym_unboxed: int
    """The unboxed function if that takes ``c10::SymInt``."""

    @property
    def valid(self) -> bool:
        """True if a kernel is registered: every one has a boxed function (``isValid()``)."""
        return self.boxed != 0

    @property
    def boxed_only(self) -> bool:
        """True if it has no unboxed function."""
        return not self.unboxed and not self.sym_unboxed

    @property
    def same_code(self) -> tuple[int, int, int]:
        """The addresses of the three functions, which ``_equalsBoxedAndUnboxed`` compares."""
        return (self.boxed, self.unboxed, self.sym_unboxed)


class KernelName(NamedTuple):
    """The name of a kernel."""

    function: str
    kind: str = "c++"
    """"c++", "python", "fallthrough", "ambiguous", "missing" or "unknown"."""
    aliases: tuple[str, ...] = ()
    """Other functions whose code the linker folded into the same address."""
    file: str = ""
    """The file of a Python function; the C++ source is not in a release build."""
    line: int | None = None

    @property
    def text(self) -> str:
        """The function for people, with the file and line of one in Python: ``my_mm at model.py:8``."""
        line = "" if self.line is None else f":{self.line}"
        return f"{self.function} at {self.file}{line}" if self.file else self.function


UNNAMED = KernelName("")


class PythonPlace(NamedTuple):
    """The place where a kernel written in Python is defined; unknown parts are None."""

    file: str | None
    line: int | None


class RegisteredKernel(NamedTuple):
    """A ``c10::KernelFunction`` for reports: what can call it."""

    function: str | None
    """Its name; None if there is no kernel."""
    valid: bool
    """There is a kernel."""
    boxed: bool
    """It can be called with a stack of IValues."""
    unboxed: bool
    """It can be called with C++ arguments."""
    sym_unboxed: bool
    """It can be called with C++ arguments, ``c10::SymInt`` among them."""
    fallthrough: bool
    """The dispatcher skips it."""
    python: Sparse[PythonPlace | None] = None
    """None for a kernel written in C++."""
    aliases: Explained[Sparse[tuple[str, ...]]] = ()
    """Other functions whose code the linker folded into the same address."""
    words: Internal[KernelFunction] = KernelFunction(functor=0, boxed=0, unboxed=0, sym_unboxed=0)


class KernelFacts:
    """The members of ``kernel`` as attributes of the record that has it, as in its JSON object."""

    kernel: RegisteredKernel
    function = property(attrgetter("kernel.function"))
    valid = property(attrgetter("kernel.valid"))
    boxed = property(attrgetter("kernel.boxed"))
    unboxed = property(attrgetter("kernel.unboxed"))
    sym_unboxed = property(attrgetter("kernel.sym_unboxed"))
    fallthrough = property(attrgetter("kernel.fallthrough"))


class KernelReader:
    """Reads and names kernels."""

    def __init__(
        self, memory: Memory, layout: Layout, symbolizer: Symbolizer, python_source: PythonSource | None = None
    ) -> None:
        """``python_source`` returns the Python function at an address; None leaves kernels in Python without names."""
        self._memory = memory
        self._symbolizer = symbolizer
        self.python_source = python_source
        space = Space(memory, layout)
        self.size = KernelFunctionStruct.size(space)
        self.parse = kernel_parser(layout)
        self._functor_size = OperatorKernel.size(space)
        self._python_function = self._functor_size + SafePyObject.data_.offset(space)
        self.fallthrough_address = assumed_symbols.FALLTHROUGH.address(symbolizer)
        self.ambiguous_address = assumed_symbols.AMBIGUOUS_AUTOGRAD_OTHER.address(symbolizer)

    def registered(self, kernel: KernelFunction, name: KernelName) -> RegisteredKernel:
        """The report of a kernel with this name."""
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
        """The kernels of a whole dispatch table by its bytes: a hundred entries, a few kernels, so equal ones are one
        object."""
        entries = [raw[start : start + self.size] for start in range(0, len(raw), self.size)]
        kernels = {words: self.parse(words, 0) for words in set(entries)}
        return tuple(map(kernels.__getitem__, entries))

    def fallthrough(self, kernel: KernelFunction) -> bool:
        """True for the marker that the dispatcher skips (``isFallthrough()``)."""
        return kernel.boxed != 0 and kernel.boxed == self.fallthrough_address

    def ambiguous(self, kernel: KernelFunction) -> bool:
        """True for the kernel that raises "ambiguous autogradother"."""
        return kernel.boxed != 0 and kernel.boxed == self.ambiguous_address

    def name(self, kernel: KernelFunction, key: str = "", operator: str = "", entry: int = 0) -> KernelName:
        """The name of the kernel's own function, behind its wrappers; of kind "unknown" if it cannot be read, so that
        nothing is raised. ``key`` and ``operator`` choose among folded functions; ``entry`` is the address of the one
        of the kernel's functions that runs, 0 if none does."""
        name = self._read_name(kernel, entry)
        if name.aliases and (key or operator):
            functions = (name.function, *name.aliases)
            best = best_function_name(functions, key, operator)
            if best != name.function:
                return KernelName(best, name.kind, tuple(function for function in functions if function != best))
        return name

    @memoized
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
        """Names of the functions behind the wrappers at ``entry``, which are called with that functor; the names at
        ``entry`` if none is a wrapper."""
        functions = self._wrapped_at(entry)
        if FUNCTION_POINTER in functions:
            with suppress(MemoryFault):  # a WrapFunctionIntoRuntimeFunctor_ has the function's address as only member
                pointer = self._memory.u64(functor + self._functor_size)
                plain = dict.fromkeys(plain_name(demangle(name)) for name in self._symbolizer.names_at(pointer))
                return tuple(plain) or (self._place(pointer),)
        if any(name.endswith(assumed_symbols.STABLE_KERNEL) for name in functions):
            with suppress(MemoryFault):  # its first member is ``void (*fn_)(StableIValue*, uint64_t, uint64_t)``
                pointer = self._memory.u64(functor + self._functor_size)
                names = dict.fromkeys(stable_target(demangle(name)) for name in self._symbolizer.names_at(pointer))
                return tuple(names) or (self._place(pointer),)
        return functions

    @memoized
    def _wrapped_at(self, entry: int) -> tuple[str, ...]:
        """As ``_functions_at``, but FUNCTION_POINTER for a function that only the functor tells."""
        names = [demangle(name) for name in self._symbolizer.names_at(entry)]
        targets = [target for target in map(kernel_target, names) if target]
        if not targets:
            targets = [plain_name(name) for name in names if not is_wrapper(name)] or names
        return tuple(dict.fromkeys(targets))

    def _python_name(self, kernel: KernelFunction) -> KernelName | None:
        """The name of the Python function if the kernel is a ``PythonKernelHolder``, whose first member is
        ``c10::SafePyObject func_`` (torch/csrc/utils/python_dispatch.cpp); None for any other kernel."""
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
    """A function that takes bytes and an offset in them, and returns the KernelFunction there. Raises LayoutError for a
    layout that is not known. Versions before 1.12 have no sym_unboxed_kernel_func_: it is 0 then."""
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
    """The name of the function, functor or lambda that a wrapper with that demangled name calls: FUNCTION_POINTER if
    only the functor object holds its address; None if the name is not a wrapper's."""
    wrapped = (_arguments_of(demangled, wrapper) for wrapper in _FUNCTOR_WRAPPERS)
    functor = next((arguments[0] for arguments in wrapped if arguments), None)
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


def stable_target(demangled: str) -> str:
    """The kernel behind a function with the stable ABI: the last argument of the template whose ``boxed_fn`` it is
    (TORCH_BOX of torch/csrc/stable/library.h), else the function itself, which an extension wrote by hand."""
    boxers = (_arguments_of(demangled, template) for template in assumed_symbols.STABLE_BOXERS)
    arguments = next(filter(None, boxers), None)
    return _function_name(arguments[-1]) if arguments else plain_name(demangled)


def _arguments_of(text: str, opening: str) -> list[str]:
    """The template arguments behind the first ``opening`` (a template's name and ``<``) in ``text``; [] without one."""
    start = text.find(opening)
    return [] if start < 0 else template_arguments(text, start + len(opening))


def template_arguments(text: str, start: int) -> list[str]:
    """The template arguments in ``text`` from ``start`` (just behind the ``<``) to the matching ``>``; [] without one.
    Brackets of all kinds nest; the ``>`` of an ``operator>`` or ``->`` is not a bracket."""
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
    """The one of ``functions`` at one address whose name fits the key and operator best; the first if none does. The
    linker folds equal code (``wrapper_CPU__add``, ``wrapper_SparseCPU__add``) into one address."""
    base = operator.rpartition("::")[2].rstrip("_")

    def score(function: str) -> tuple[bool, bool, bool]:
        """(the key is between underscores, the operator is in the last part, the key is anywhere)."""
        last = function.rpartition("::")[2]
        return bool(key) and f"_{key}_" in last + "_", bool(base) and base in last, bool(key) and key in function

    return max(functions, key=score) if functions else ""
