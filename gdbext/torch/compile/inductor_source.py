"""What Inductor's generated Python says of its C++ kernels: their names, parameters, and what a line passes to them.

torch/_inductor/codegen/cpp.py and cpp_wrapper_cpu.py, 2.13.0: each kernel is a variable of the module that calls it,
``cpp_fused_add_0 = async_compile.cpp_pybinding([types], r'''… extern "C" void kernel(const float* in_ptr0, …)'''``.
"""

from __future__ import annotations

import re

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
    return tuple(" ".join(each.split()) for each in found.group(1).split(",") if each.strip())


def is_only_written(parameter: str) -> bool:
    """What is in there before the call does not matter to the kernel."""
    return _POINTER_OUT.search(parameter) is not None
