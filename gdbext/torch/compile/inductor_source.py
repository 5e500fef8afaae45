"""What Inductor's generated code says of its C++ kernels: their names, parameters, and what a line passes to them.

torch/_inductor/codegen/cpp.py and cpp_wrapper_cpu.py, 2.13.0: each kernel is a variable of the module that calls it,
``cpp_fused_add_0 = async_compile.cpp_pybinding([types], r'''… extern "C" void kernel(const float* in_ptr0, …)'''``.
Where the calling code is C++, too, it has ``cpp_fused_add_0((const float*)(arg0_1.data_ptr()), …);``.
"""

from __future__ import annotations

import re

from gdbext.torch.stack.cpp_signature import split_types

CPP, TRITON = "cpp_", "triton_"
"""How names of kernels begin (torch/_inductor/codegen/cpp.py, triton.py)."""
KERNEL = "kernel"
"""What the function is called in every library that is compiled for Python
(CppPythonBindingsCodeCache.entry_function)."""
KERNEL_MODULE = "PyInit_kernel"
"""Exported by these libraries (torch/_inductor/codecache.py)."""
COMPILED_MODULES = ("AOTInductorModelContainerCreate", "PyInit_inductor_entry_cpp")
"""Exported by libraries that have the calling code in C++, too; there the kernels have their own names."""
_CALL = re.compile(r"(?:^|[\s=])(cpp_\w+)\(([\w\s,.\[\]]*)\)")
_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "at::Half": "float16", "bfloat16": "bfloat16",
    "at::BFloat16": "bfloat16", "int64_t": "int64", "long": "int64", "int32_t": "int32", "int": "int32",
    "int16_t": "int16", "int8_t": "int8", "uint8_t": "uint8", "bool": "bool",
}  # fmt: skip
"""torch/_inductor/codegen/cpp_utils.py, DTYPE_TO_CPP, and what older versions write."""
_PASSED = re.compile(r"\([\w\s:*]+\)\((\w+)\.data_ptr\(\)\)$|(\w+)$")
_POINTER_OUT = re.compile(r"\bout_ptr\d+$")


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
    """What the C++ that calls a kernel passes to it: names of variables, "" for anything else; () where it calls it
    more than once, or does not."""
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
    """What is in there before the call does not matter to the kernel."""
    return _POINTER_OUT.search(parameter) is not None
