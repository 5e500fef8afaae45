"""Reads in Inductor's generated code the names and parameters of its C++ kernels, and what a line passes to them.

torch/_inductor/codegen/cpp.py and cpp_wrapper_cpu.py, 2.13.0: each kernel is a variable of the module that calls it,
``cpp_fused_add_0 = async_compile.cpp_pybinding([types], r'''… extern "C" void kernel(const float* in_ptr0, …)'''``.
Where the calling code is C++, too, it has ``cpp_fused_add_0((const float*)(arg0_1.data_ptr()), …);``.

Signatures of the C functions that AOTInductor's code calls, from the headers that come with PyTorch.

torch/csrc/inductor/aoti_torch/c/shim.h and generated/c_shim_*.h, 2.13.0: extern "C", so that symbols say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gdbext.engine.record import Record, late_pattern
from gdbext.torch.stack.kernel_match import split_types

HEADERS = ("c/shim.h", "generated/c_shim_cpu.h", "generated/c_shim_aten.h", "c/shim_cpu.h")
"""The headers below torch/include/torch/csrc/inductor/aoti_torch that declare shims."""
PREFIX = "aoti_torch_"
TENSOR = "AtenTensorHandle"
"""The type of a pointer to an at::Tensor."""
_FUNCTION = late_pattern(r"AOTITorchError\s+(aoti_torch_\w+)\(([^)]*)\)")
_COMMENT = late_pattern(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PARAMETER = late_pattern(r"(.*?)\s*(\w+)$")


class Parameter(Record):
    """``type`` as the header writes it, without spaces at its ends: "AtenTensorHandle*"."""

    type: str
    name: str

    @property
    def is_result(self) -> bool:
        """The function writes a tensor there."""
        return self.type == f"{TENSOR}*" and self.name.startswith("ret")


def shim_signatures(headers: Iterable[str]) -> dict[str, tuple[Parameter, ...]]:
    """Function → parameters, of the texts of headers."""
    found: dict[str, tuple[Parameter, ...]] = {}
    for text in headers:
        for name, inside in _FUNCTION.findall(_COMMENT.sub("", text)):
            parameters = [_PARAMETER.match(each.strip()) for each in inside.split(",") if each.strip()]
            if None not in parameters:
                found[name] = tuple(
                    Parameter(" ".join(each.group(1).split()), each.group(2)) for each in parameters if each is not None
                )
    return found


CPP, TRITON = "cpp_", "triton_"
"""Beginnings of the names of kernels (torch/_inductor/codegen/cpp.py, triton.py)."""
KERNEL_MODULE = "PyInit_kernel"
"""Exported by these libraries (torch/_inductor/codecache.py)."""
COMPILED_MODULES = ("AOTInductorModelContainerCreate", "PyInit_inductor_entry_cpp")
"""Exported by libraries that have the calling code in C++, too; there the kernels have their own names."""
_CALL = late_pattern(r"(?:^|[\s=])(cpp_\w+)\(([\w\s,.\[\]]*)\)")
_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "at::Half": "float16", "bfloat16": "bfloat16",
    "at::BFloat16": "bfloat16", "int64_t": "int64", "long": "int64", "int32_t": "int32", "int": "int32",
    "int16_t": "int16", "int8_t": "int8", "uint8_t": "uint8", "bool": "bool",
}  # fmt: skip
"""torch/_inductor/codegen/cpp_utils.py, DTYPE_TO_CPP, and what older versions write."""
_PASSED = late_pattern(r"\([\w\s:*]+\)\((\w+)\.data_ptr\(\)\)$|(\w+)$")
_POINTER_OUT = late_pattern(r"\bout_ptr\d+$")


def called_kernel(line: str) -> tuple[str, tuple[str, ...]] | None:
    """(kernel, arguments as they are written) of a line that calls a kernel of the C++ backend; None for another."""
    found = _CALL.search(line)
    if found is None:
        return None
    return found.group(1), tuple(word.strip() for word in found.group(2).split(",") if word.strip())


def kernel_parameters(source: str, kernel: str) -> tuple[str, ...]:
    """The C++ parameters of a kernel (``const float* in_ptr0``); () where the text does not have them."""
    start = source.find(f"{kernel} = async_compile.cpp_pybinding(")
    if start < 0:
        return ()
    found = re.compile(r"""extern "C"\s+void\s+kernel\(([^)]*)\)""").search(source, start)
    if found is None or "async_compile." in source[start + len(kernel) + 3 + len("async_compile.") : found.start()]:
        return ()
    return _split(found.group(1))


def cpp_parameters(source: str, kernel: str) -> tuple[str, ...]:
    """The C++ parameters of a kernel that has its own name in the C++ that calls it; () where the text has none."""
    found = re.search(rf"""extern "C"\s+void\s+{re.escape(kernel)}\(([^)]*)\)""", source)
    return _split(found.group(1)) if found is not None else ()


def cpp_arguments(source: str, kernel: str) -> tuple[str, ...]:
    """Arguments that the C++ which calls a kernel passes to it: names of variables, "" for anything else; () where it
    calls it more than once, or does not."""
    calls = re.findall(rf"^\s*{re.escape(kernel)}\((.*)\);\s*$", source, re.MULTILINE)
    if len(calls) != 1:
        return ()
    names = (_PASSED.match(each.strip()) for each in split_types(calls[0]))
    return tuple((found.group(1) or found.group(2)) if found is not None else "" for found in names)


def _split(parameters: str) -> tuple[str, ...]:
    return tuple(" ".join(each.split()) for each in parameters.split(",") if each.strip())


def pointed_dtype(parameter: str) -> str:
    """The dtype of the elements that a pointer parameter points to; "" for types that are not known."""
    return _DTYPES.get(parameter.removeprefix("const ").partition("*")[0].strip(), "") if "*" in parameter else ""


def is_only_written(parameter: str) -> bool:
    """True if what is in there before the call does not matter to the kernel."""
    return _POINTER_OUT.search(parameter) is not None
