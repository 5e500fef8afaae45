"""The kernels that Inductor has generated and that are loaded, and what its code says about their parameters and calls.

torch/_inductor/codecache.py, ``PyCodeCache.modules``: the modules that Inductor wrote. Each has its kernels as globals
(``cpp_fused_add_relu_0``), built-in functions of libraries of their own, in which the C++ function is called "kernel".

Kernels for Triton: torch/_inductor/runtime/triton_heuristics.py (2.6 to 2.15): each is an object of such a module,
whose launchers are there once it was called; before, nothing is loaded that could be launched.

Generated code: torch/_inductor/codegen/cpp.py and cpp_wrapper_cpu.py, 2.13.0: each kernel is a variable of the module
that calls it, ``cpp_fused_add_0 = async_compile.cpp_pybinding([types], r'''… extern "C" void kernel(const float*
in_ptr0, …)''')``. If the calling code is C++, too, it has ``cpp_fused_add_0((const float*)(arg0_1.data_ptr()), …);``.

Signatures of the C functions that AOTInductor's code calls come from the headers that come with PyTorch:
torch/csrc/inductor/aoti_torch/c/shim.h and generated/c_shim_*.h, 2.13.0: extern "C", so that symbols say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from gdbext.cpython.objects.py_ref import PyRef, PyVariables
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import KERNEL
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.stack.roles import split_types

MODULE_LIMIT = 500
_MOST_GLOBALS = 20_000


class GeneratedKernel(NamedTuple):
    """A kernel. ``file`` is the Python module that calls it, ``library`` the path of its compiled code, ``source`` the
    path of its C++, ``address`` where its function is."""

    name: str
    file: str
    library: str
    address: int

    @property
    def source(self) -> str:
        """Inductor keeps the library and its source under one name."""
        return f"{self.library.removesuffix('.so')}.cpp"


class GeneratedKernels:
    """The kernels of one process, by Inductor's ``PyCodeCache``; ``problems`` says what could not be read."""

    def __init__(self, code_cache: PyRef, symbolizer: Symbolizer) -> None:
        """``code_cache``: the global variables of the module ``names.CODE_CACHE``."""
        self._cache = code_cache[names.PY_CODE_CACHE]
        self._symbolizer = symbolizer
        self.problems: list[str] = []
        self.truncated: list[str] = []

    @cached_property
    def all(self) -> list[GeneratedKernel]:
        """Every kernel that is loaded, of at most 500 modules; [] if Inductor is not imported."""
        kernels: dict[int, GeneratedKernel] = {}
        try:
            modules = self._cache[names.WRITTEN_MODULES].elements().checked() if not self._cache.is_absent else ()
            if len(modules) > MODULE_LIMIT:
                self.truncated.append(f"{len(modules)} modules that Inductor wrote, truncated at {MODULE_LIMIT}")
            for module in modules[:MODULE_LIMIT]:
                for kernel in self._kernels_in(module.variables(_MOST_GLOBALS).checked()):
                    kernels.setdefault(kernel.address, kernel)
        except GdbextError as error:
            self.problems.append(f"{names.CODE_CACHE}.{names.PY_CODE_CACHE}: {error.what}")
        return list(kernels.values())

    def _kernels_in(self, module: PyVariables) -> Iterator[GeneratedKernel]:
        """The kernels among the global variables of a module that Inductor wrote."""
        file = module["__file__"].str()
        for name, value in module.items():
            code = value.c_function if name.startswith((CPP, TRITON)) else 0
            library = self._symbolizer.modules.find(code) if code else None
            index = self._symbolizer.index(library) if library else None
            symbol = index.exported(KERNEL) if index else None
            if library and symbol:
                yield GeneratedKernel(name, file, library.path, library.base + symbol.vaddr)

    def triton_kernels(self) -> list[TritonKernel]:
        """The kernels for Triton that can be launched, as far as they can be read."""
        kernels: dict[str, set[int]] = {}
        for module in self._cache[names.WRITTEN_MODULES].elements(MODULE_LIMIT):
            for name, value in module.variables(_MOST_GLOBALS).items():
                if name.startswith(TRITON) and value.type in names.AUTOTUNERS:
                    # the CUfunction of each launcher, as far as that can be read
                    scopes = (launcher["__globals__"] for launcher in value[names.LAUNCHERS].elements(32))
                    for scope in scopes:
                        launched = scope[names.LAUNCHED] or scope[names.RUNNER]["__self__"][names.LAUNCHED]
                        kernels.setdefault(name, set()).update(filter(None, [launched.int()]))
        return [TritonKernel(name, tuple(sorted(handles))) for name, handles in kernels.items() if handles]


def fused_operators(kernel: str, operators: Collection[str]) -> tuple[str, ...]:
    """Those of ``operators`` that a kernel's name consists of, in its order: ("add", "relu") of "cpp_fused_add_relu_0";
    () if a piece of the name is none of them (a shortened or a hashed name)."""

    def pieces(words: list[str]) -> tuple[str, ...]:
        """The operators whose names the words make; longest names first, as "native_layer_norm" is not "native"."""
        for length in range(len(words), 0, -1):
            first = "_".join(words[:length])
            if first in operators:
                rest = pieces(words[length:])
                if rest or length == len(words):
                    return (first, *rest)
        return ()

    match = re.match(r"(?:cpp|triton)_(?:\w*?fused_|)(?P<operators>\w*?)_?\d*$", kernel)
    return pieces(match["operators"].split("_")) if match and match["operators"] else ()


LAUNCHING = (("cuLaunchKernel", 0), ("cuLaunchKernelEx", 1))
"""Functions of libcuda (cuda.h), and which of their arguments is the CUfunction."""


class TritonKernel(NamedTuple):
    """A kernel; ``handles`` are the CUfunctions of its launchers, one for each configuration that it was tuned to."""

    name: str
    handles: tuple[int, ...]


HEADERS = ("c/shim.h", "generated/c_shim_cpu.h", "generated/c_shim_aten.h", "c/shim_cpu.h")
"""The headers below torch/include/torch/csrc/inductor/aoti_torch that declare shims."""
PREFIX = "aoti_torch_"
TENSOR = "AtenTensorHandle"
"""The type of a pointer to an at::Tensor."""


class Parameter(NamedTuple):
    """``type`` as the header writes it, without spaces at its ends: "AtenTensorHandle*"."""

    type: str
    name: str

    @property
    def is_result(self) -> bool:
        """The function writes a tensor there."""
        return self.type == f"{TENSOR}*" and self.name.startswith("ret")


def shim_signatures(headers: Iterable[str]) -> dict[str, tuple[Parameter, ...]]:
    """Name of a function → its parameters, of those that the texts of headers declare."""
    signatures: dict[str, tuple[Parameter, ...]] = {}
    for text in headers:
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        for name, inside in re.findall(r"AOTITorchError\s+(aoti_torch_\w+)\(([^)]*)\)", code):
            matches = [re.match(r"(.*?)\s*(\w+)$", part.strip()) for part in inside.split(",") if part.strip()]
            if None not in matches:
                signatures[name] = tuple(
                    Parameter(" ".join(match.group(1).split()), match.group(2)) for match in matches if match
                )
    return signatures


CPP, TRITON = "cpp_", "triton_"
"""Beginnings of the names of kernels (torch/_inductor/codegen/cpp.py, triton.py)."""
KERNEL_MODULE = "PyInit_kernel"
"""Exported by these libraries (torch/_inductor/codecache.py)."""
COMPILED_MODULES = ("AOTInductorModelContainerCreate", "PyInit_inductor_entry_cpp")
"""Exported by libraries that have the calling code in C++, too; there the kernels have their own names."""
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "at::Half": "float16",
    "bfloat16": "bfloat16",
    "at::BFloat16": "bfloat16",
    "int64_t": "int64",
    "long": "int64",
    "int32_t": "int32",
    "int": "int32",
    "int16_t": "int16",
    "int8_t": "int8",
    "uint8_t": "uint8",
    "bool": "bool",
}
"""torch/_inductor/codegen/cpp_utils.py, DTYPE_TO_CPP, and what older versions write."""


LAUNCHER = "call"
"""The function in which a module that Inductor wrote launches its kernels (torch/_inductor/codegen/wrapper.py)."""


def launched_before(lines: Sequence[str], line: int, most: int = 3) -> tuple[tuple[str, int], ...]:
    """(kernel, line) of the last launches before a line of ``call``, the latest first, by its text; () if a line before
    it may lead elsewhere. ``lines`` are without the blanks around them."""
    launches: list[tuple[str, int]] = []
    for number in range(min(line - 1, len(lines)), 0, -1):
        text = lines[number - 1]
        if text.startswith("def "):
            return tuple(launches[:most])
        if re.match(r"(?:if|elif|else|for|while|try|except|finally|class|match)\b", text):
            break
        launch = re.match(r"(?:(triton_\w+)\.run|(extern_kernels\.\w+))\(", text)
        if launch:
            launches.append((launch.group(1) or launch.group(2), number))
    return ()


def called_kernel(line: str) -> tuple[str, tuple[str, ...]] | None:
    """(kernel, arguments as they are written) of a line that calls a kernel of the C++ backend; None for another."""
    call = re.search(r"(?:^|[\s=])(cpp_\w+)\(([\w\s,.\[\]]*)\)", line)
    return (call.group(1), tuple(word.strip() for word in call.group(2).split(",") if word.strip())) if call else None


def kernel_parameters(source: str, kernel: str) -> tuple[str, ...]:
    """The C++ parameters of a kernel (``const float* in_ptr0``); () if the text does not have them."""
    start = source.find(f"{kernel} = async_compile.cpp_pybinding(")
    if start < 0:
        return ()
    declared = re.compile(r"""extern "C"\s+void\s+kernel\(([^)]*)\)""").search(source, start)
    after = start + len(f"{kernel} = async_compile.")
    if not declared or "async_compile." in source[after : declared.start()]:
        return ()
    return _split(declared.group(1))


def cpp_parameters(source: str, kernel: str) -> tuple[str, ...]:
    """The C++ parameters of a kernel that has its own name in the C++ that calls it; () if the text has none."""
    declared = re.search(rf"""extern "C"\s+void\s+{re.escape(kernel)}\(([^)]*)\)""", source)
    return _split(declared.group(1)) if declared else ()


def cpp_arguments(source: str, kernel: str) -> tuple[str, ...]:
    """The arguments that C++ code passes to a kernel: names of variables, "" for anything else; () if the code calls it
    more than once, or not at all."""
    calls = re.findall(rf"^\s*{re.escape(kernel)}\((.*)\);\s*$", source, re.MULTILINE)
    if len(calls) != 1:
        return ()
    variable = r"\([\w\s:*]+\)\((\w+)\.data_ptr\(\)\)$|(\w+)$"
    matches = (re.match(variable, argument.strip()) for argument in split_types(calls[0]))
    return tuple((match.group(1) or match.group(2)) if match else "" for match in matches)


def _split(parameters: str) -> tuple[str, ...]:
    """The parameters between commas, with single spaces."""
    return tuple(" ".join(parameter.split()) for parameter in parameters.split(",") if parameter.strip())


def pointed_dtype(parameter: str) -> str:
    """The dtype of the elements that a pointer parameter points to; "" for types that are not known."""
    return _DTYPES.get(parameter.removeprefix("const ").partition("*")[0].strip(), "") if "*" in parameter else ""


def is_only_written(parameter: str) -> bool:
    """The kernel writes to that parameter and does not read what was there before."""
    return bool(re.search(r"\bout_ptr\d+$", parameter))
