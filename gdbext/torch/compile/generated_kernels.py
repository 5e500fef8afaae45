"""The kernels that Inductor has generated in C++ and that are loaded: by the Python modules that call them.

torch/_inductor/codecache.py, ``PyCodeCache.modules``: the modules that Inductor wrote. Each has its kernels as globals
(``cpp_fused_add_relu_0``), built-in functions of libraries of their own, in which the C++ function is called "kernel".

The kernels that Inductor has generated for Triton, and the handles by which the device's driver launches them.

torch/_inductor/runtime/triton_heuristics.py (2.6 to 2.15): each is an object of a module that Inductor wrote, whose
launchers are there once it was called; before, nothing is loaded that could be launched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property

from gdbext.cpython.abi.python_structures import PyCFunctionObject, PyFunctionObject, PyMethodObject, PyModuleObject
from gdbext.cpython.threads.frame_variables import attributes, items
from gdbext.cpython.threads.runtime import PythonRuntime, module_global
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.record import Record, late_pattern
from gdbext.errors import BadData, GdbextError
from gdbext.torch.assumed_symbols import KERNEL
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.inductor_source import CPP, TRITON

MODULE_LIMIT = 500
_BUILTIN = "builtin_function_or_method"
_GLOBALS = 20_000
_METHOD = 8
"""Offset of ml_meth in PyMethodDef (Include/methodobject.h)."""
_FUSED = late_pattern(r"(?:cpp|triton)_(?:\w*?fused_|)(?P<operators>\w*?)_?\d*$")


class GeneratedKernel(Record):
    """A kernel. ``file`` is the Python module that calls it, ``library`` the path of its compiled code, ``source`` the
    C++ that this was made of, ``address`` that of its function."""

    name: str
    file: str
    library: str
    address: int

    @property
    def source(self) -> str:
        """Inductor keeps both under one name."""
        return f"{self.library.removesuffix('.so')}.cpp"


class GeneratedKernels:
    """Those of one process; ``problems`` says what could not be read."""

    def __init__(self, runtime: PythonRuntime, symbolizer: Symbolizer) -> None:
        self._runtime = runtime
        self._symbolizer = symbolizer
        self.problems: list[str] = []
        self.truncated: list[str] = []

    @cached_property
    def all(self) -> list[GeneratedKernel]:
        """Every kernel that is loaded, of at most 500 modules; empty where Inductor is not imported."""
        found: dict[int, GeneratedKernel] = {}
        try:
            modules = written_modules(self._runtime)
            if len(modules) > MODULE_LIMIT:
                self.truncated.append(f"{len(modules)} modules that Inductor wrote, truncated at {MODULE_LIMIT}")
            for module in modules[:MODULE_LIMIT]:
                for kernel in self._of_module(module):
                    found.setdefault(kernel.address, kernel)
        except GdbextError as error:
            self.problems.append(f"{names.CODE_CACHE}.{names.PY_CODE_CACHE}: {error.what}")
        return list(found.values())

    def _of_module(self, module: int) -> Iterator[GeneratedKernel]:
        runtime, namespace = self._runtime, _namespace(self._runtime, module)
        functions = []
        for key, value in runtime.dicts.items(namespace, _GLOBALS):
            if runtime.objects.type_of(value).name == _BUILTIN:
                name = runtime.objects.text(key, 400)
                if name.startswith((CPP, TRITON)):
                    functions.append((name, value))
        file = runtime.dicts.get(namespace, "__file__") if functions else None
        for name, function in functions:
            kernel = self._kernel(name, runtime.objects.text(file) if file else "", function)
            if kernel is not None:
                yield kernel

    def _kernel(self, name: str, file: str, function: int) -> GeneratedKernel | None:
        memory = self._runtime.memory
        method = PyCFunctionObject(self._runtime.space, function).m_ml
        module = self._symbolizer.modules.find(memory.u64(method + _METHOD))
        index = self._symbolizer.index(module) if module is not None else None
        symbol = index.exported(KERNEL) if index is not None else None
        if module is None or symbol is None:
            return None
        return GeneratedKernel(name, file, module.path, module.base + symbol.vaddr)


def written_modules(runtime: PythonRuntime) -> tuple[int, ...]:
    """The module objects that Inductor wrote. Raises BadData, MemoryFault."""
    for interpreter in runtime.interpreters():
        cache = module_global(runtime, interpreter, names.CODE_CACHE, names.PY_CODE_CACHE)
        if cache:
            modules = runtime.dicts.class_attribute(cache, names.WRITTEN_MODULES)
            if modules is None:
                raise BadData(f"it has no {names.WRITTEN_MODULES}")
            return runtime.objects.list_items(modules)
    return ()


def module_variables(runtime: PythonRuntime, module: int) -> Iterator[tuple[str, int]]:
    """The global variables of a module with their values. Raises BadData, MemoryFault."""
    for key, value in runtime.dicts.items(_namespace(runtime, module), _GLOBALS):
        yield runtime.objects.text(key, 400), value


def _namespace(runtime: PythonRuntime, module: int) -> int:
    """The dict of the module."""
    return PyModuleObject(runtime.space, module).md_dict


def fused_operators(kernel: str, operators: Collection[str]) -> tuple[str, ...]:
    """The operators in the name of a kernel, in its order, as far as they are ``operators``: "cpp_fused_add_relu_0"
    has add and relu; empty where the name has a piece that is none of them (a shortened or a hashed name)."""
    match = _FUSED.match(kernel)
    return _pieces(match["operators"].split("_"), operators) if match and match["operators"] else ()


def _pieces(words: list[str], operators: Collection[str]) -> tuple[str, ...]:
    """Longest names first, as "native_layer_norm" is not "native"."""
    if not words:
        return ()
    for length in range(len(words), 0, -1):
        first = "_".join(words[:length])
        if first in operators:
            rest = _pieces(words[length:], operators)
            if rest or length == len(words):
                return (first, *rest)
    return ()


LAUNCHING = (("cuLaunchKernel", 0), ("cuLaunchKernelEx", 1))
"""Functions of libcuda (cuda.h), and which of their arguments is the CUfunction."""


class TritonKernel(Record):
    """``handles`` are the CUfunctions of its launchers, one for each configuration that it was tuned to."""

    name: str
    handles: tuple[int, ...]


def triton_kernels(runtime: PythonRuntime) -> list[TritonKernel]:
    """Those that can be launched. Raises nothing: what cannot be read is not there."""
    found: dict[str, set[int]] = {}
    try:
        for module in written_modules(runtime)[:MODULE_LIMIT]:
            for name, value in module_variables(runtime, module):
                if name.startswith(TRITON) and runtime.objects.type_of(value).name in names.AUTOTUNERS:
                    found.setdefault(name, set()).update(_handles(runtime, value))
    except GdbextError:
        pass  # what was read until then
    return [TritonKernel(name, tuple(sorted(handles))) for name, handles in found.items() if handles]


def _handles(runtime: PythonRuntime, autotuner: int) -> Iterator[int]:
    for launcher in items(runtime, attributes(runtime, autotuner).get(names.LAUNCHERS, 0)):
        handle = _handle(runtime, launcher)
        if handle:
            yield handle


def _handle(runtime: PythonRuntime, launcher: int) -> int | None:
    """The CUfunction that a launcher launches; None where it cannot be read."""
    objects, space = runtime.objects, runtime.space
    try:
        if objects.type_of(launcher).name != "function":
            return None
        scope = PyFunctionObject(space, launcher).func_globals
        function, runner = (runtime.dicts.get(scope, name) for name in (names.LAUNCHED, names.RUNNER))
        if not function and runner and objects.type_of(runner).name == "method":
            owner = PyMethodObject(space, runner).im_self
            function = attributes(runtime, owner).get(names.LAUNCHED)
        return objects.integer(function) if function and objects.type_of(function).name == "int" else None
    except GdbextError:
        return None
