"""Every C++ name that is assumed of torch: its purpose, the releases that have it, and what is lost without it.

The symbols are rows of assumed_symbols.json, grouped by the source files that define them (2.13.0 unless noted):
``assumed_symbols.SINGLETON`` is the row of that name. Release wheels carry a whole .symtab, so local symbols count,
too; distributions may strip it.
"""

from __future__ import annotations

import json
import os
from itertools import chain

from gdbext.torch.torch_symbol import NameKind, TorchSymbol

CPU, C10, PYTHON, CUDA = "libtorch_cpu.so", "libc10.so", "libtorch_python.so", "libtorch_cuda.so"
C10_CUDA = "libc10_cuda.so"
"""torch's libraries by the names of their files in a wheel."""


def _read_symbols() -> dict[str, TorchSymbol]:
    """The rows of assumed_symbols.json by their names."""
    folder = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - pathlib takes long to import
    with open(f"{folder}/assumed_symbols.json", encoding="utf-8") as stream:
        groups: dict[str, dict[str, dict[str, str]]] = json.load(stream)
    symbols = {}
    for name, row in chain.from_iterable(group.items() for group in groups.values()):
        symbols[name] = TorchSymbol(
            tuple(row["names"]),
            row["library"],
            row["purpose"],
            row["lost"],
            NameKind[row.get("kind", "SYMBOL")],
            row.get("first", "2.0.0"),
            row.get("last", ""),
            tuple(row.get("examples", ())),
            bool(row.get("unoptimized")),
        )
    return symbols


TORCH_SYMBOLS = _read_symbols()


def __getattr__(name: str) -> TorchSymbol:
    """The symbol in the row of that name, as an attribute of this module."""
    try:
        return TORCH_SYMBOLS[name]
    except KeyError:
        raise AttributeError(name) from None


# --- kernels and their wrappers: ATen/core/boxing/, VariableFallbackKernel.cpp ---

PYTHON_KERNEL_CLASS = "PythonKernelHolder"
"""The class of PYTHON_KERNEL, in the names of the wrappers around it (torch/csrc/utils/python_dispatch.cpp)."""
RUNTIME_FUNCTOR_CLASS = "31WrapFunctionIntoRuntimeFunctor_I"
"""The class in the mangled names of wrappers whose functor holds the kernel: a lambda, or a pointer to a function
(ATen/core/boxing/impl/WrapFunctionIntoRuntimeFunctor.h)."""
POINTER_FUNCTOR_CLASSES = tuple(RUNTIME_FUNCTOR_CLASS + pointer for pointer in ("PF", "PDoF"))
"""The same for a pointer to a function, also one that is noexcept (Itanium C++ ABI, 5.1.5.3)."""
KERNEL_MACHINERY = ("_ZN3c104impl", "_ZNK3c104impl", "_ZSt", "_ZNSt", "_ZN3c1025callUnboxedKernelFunction")
KERNEL_MACHINERY_PARTS = (
    "call_functor_with_args_from_stack",
    "wrap_kernel_functor_unboxed_",
    "make_boxed_from_unboxed_functor",
)
"""Beginnings, and parts, of the mangled names of the functions between a kernel's entry and its own function."""
UNBOXED_WRAPPER_TEXT = "c10::impl::wrap_kernel_functor_unboxed_<"
BOXED_FROM_UNBOXED_TEXT = "c10::impl::make_boxed_from_unboxed_functor<"
BOXED_FUNCTION_TEXT = "c10::BoxedKernel::make_boxed_function<"
BOXED_FUNCTOR_TEXTS = ("c10::BoxedKernel::makeFromFunctor<", "c10::BoxedKernel::make_boxed_functor<")
"""Texts in the demangled names of the wrappers before their template arguments."""
WRAPPED_FUNCTION_POINTER = "c10::CompileTimeFunctionPointer<"
WRAPPED_STATICALLY = "c10::impl::detail::WrapFunctionIntoFunctor_<"
WRAPPED_AT_RUNTIME = "c10::impl::detail::WrapFunctionIntoRuntimeFunctor_<"
"""Texts in the template arguments of those wrappers in place of the kernel's own function, demangled
(ATen/core/boxing/impl/WrapFunctionIntoFunctor.h)."""

# --- calls and registration: Dispatcher.h, build/aten/src/ATen/Operators_*.cpp, OperatorEntry.cpp ---

CREATE_HANDLE = r"_ZN2at4_ops\w*create_\w+_typed_handleE"
"""A pattern: the functions that initialize STATIC_HANDLE."""
STEP_CALLBACKS_FUNCTION = "at::getStepCallbacksUnlessEmpty"
"""STEP_CALLBACKS as debuggers take it: without its arguments."""
STEP_CALLBACKS_NAME = "getStepCallbacksUnlessEmpty"
"""Part of its name: a library that imports it calls operators."""
NEVER_RETURNING = (
    "_ZNK3c104impl13OperatorEntry11reportErrorE",
    "_ZN3c106detail14torchCheckFailE",
    "_ZN3c106detail23torchInternalAssertFailE",
    "__cxa_throw",
    "__cxa_rethrow",
    "__cxa_bad_cast",
    "_Unwind_Resume",
    "__stack_chk_fail",
    "__clang_call_terminate",
    "_ZSt9terminatev",
    "abort",
    *(f"_ZSt{length}__throw_" for length in (20, 19, 17, 24, 28, 21, 25)),
)
"""Beginnings of the mangled names of functions that code with an inlined dispatch calls and that do not return: the
code after such a call is entered from elsewhere."""
IMPORTS_OF_USERS = ("_ZN3c10", "_ZNK3c10", "aoti_torch_", "torch_library_")
"""Parts of the imports of a library that registers kernels or calls operators: C++ functions of c10, or the stable C
interface (torch/csrc/stable/c/shim.h)."""
REGISTER_SCHEMA_FUNCTION = "c10::impl::OperatorEntry::registerSchema"
"""REGISTER_SCHEMA as people write it."""
STRUCTURED = "structured_"
GENERATED_WRAPPERS = ("wrap_kernel_functor", "wrapper_", STRUCTURED)
"""Parts of the names of generated code between the table and a structured kernel."""
UNDEFINED_TENSOR = "c10::UndefinedTensorImpl"
"""The class of the undefined tensor, by its vtable (c10/core/UndefinedTensorImpl.cpp)."""

# --- functions that only generated and registered kernels have, by their demangled names ---

AUTOGRAD_FALLBACKS = (
    "autograd_fallback",
    "utogradNotImplementedFallback",
    "utograd_not_implemented_fallback",
)
VARIABLE_TYPE = "torch::autograd::VariableType::"
AUTOGRAD_KERNELS = (VARIABLE_TYPE, *AUTOGRAD_FALLBACKS)
"""Generated kernels and boxed fallbacks that record the call and redispatch below autograd
(tools/autograd/gen_variable_type.py, VariableFallbackKernel.cpp, autograd_not_implemented_fallback.cpp)."""
PASSING_KERNELS = (*AUTOGRAD_KERNELS, "torch::ADInplaceOrView::", "pythonTLSSnapshotFallback")
"""Kernels that redispatch with the very arguments that they were given (torchgen's ADInplaceOrViewType, from 1.12 on;
ATen/core/PythonFallbackKernel.cpp)."""
STABLE_KERNEL = "StableIValueBoxedKernel"
"""The kernel of operators that use the stable ABI (torch/csrc/shim_common.cpp, torch 2.7 to 2.15)."""
STABLE_BOXERS = ("torch::stable::detail::boxer_impl<", "torch::stable::detail::boxer<")
"""The templates whose ``boxed_fn`` an extension registers (torch/csrc/stable/library.h, 2.10 to 2.14)."""
BOXED_STACK_CHANGES = (
    "_ZN3c106IValue",
    "_ZN3c1013intrusive_ptr",
    "_ZN3c1020intrusive_ptr_target",
    "_ZNSt6vectorIN3c106IValue",
    "_ZN3c104impl12push_outputs",
    *(f"_ZN3c10{name}17release_resources" for name in ("10TensorImpl", "11StorageImpl")),
    "_Zn",
    "_Zd",
    "free",
    "cfree",
)
"""Beginnings of the mangled names of functions that the boxed function of an unboxed kernel calls once that has
returned, to replace arguments by results (torch::jit::drop, push_outputs; the last four have the heap's memory)."""
RAISING_KERNELS = {
    "at::impl::metaFallback": "no fake kernel (meta): PyTorch raises NotImplementedError here",
    "named_not_supported_kernel": "no support of named tensors: PyTorch raises an error here",
    "at::functorch::unsupported": "no vmap of this operator: PyTorch raises an error here",
    "at::functorch::vmapErrorFallback": "no vmap of this operator: PyTorch raises an error here",
    "at::unsupportedRandomOp": "no vmap of random operators: PyTorch raises an error here",
    "binary_cross_entropy_banned": "unsafe to autocast: PyTorch raises an error here",
}
"""Beginnings of kernels that only raise an error, and what that means: aten/src/ATen/core/MetaFallbackKernel.cpp (2.1
to 2.15), NamedRegistrations.cpp, functorch/BatchRulesDynamic.cpp, functorch/BatchRulesRandomness.cpp,
VmapModeRegistrations.cpp, autocast_mode.cpp."""
MISSING_AUTOGRAD = {
    "autograd_fallback": "no autograd kernel: the result has no gradient, and backward() through it warns (by default)",
    "basicAutogradNotImplementedFallback": "no autograd kernel: the result has no gradient, and backward() through it "
    "warns (by default)",
    "utogradNotImplementedFallback": "no autograd formula: backward() through the result raises an error",
    "utograd_not_implemented_fallback": "no autograd formula: backward() through the result raises an error",
}
"""Kernels that stand in for a missing formula and redispatch below autograd: VariableFallbackKernel.cpp (in 2.0 a
fallthrough) and torch/csrc/autograd/autograd_not_implemented_fallback.cpp."""
BATCH_LOOPS = (
    "batchedTensorForLoopFallback",
    "batchedTensorInplaceForLoopFallback",
    "batchedNestedTensorForLoopFallback",
)
"""vmap's kernels for operators without a batching rule (functorch/BatchedFallback.cpp)."""
VIEW_KERNELS = ("torch::ADInplaceOrView::", "utograd")
"""Kernels that redispatch below ADInplaceOrView (tools/autograd/gen_inplace_or_view_type.py)."""
KERNELS_BELOW_THEIR_KEY = {
    "torch::TraceType::": "records the trace",
    "at::native::negationFallback": "resolves the arguments",
    "at::native::conjugateFallback": "resolves the arguments",
    "at::conjugateFallback": "resolves the arguments",
    "at::zeroTensorFallback": "materializes the arguments",
    "zeroTensorFallback": "materializes the arguments",
    "conjugateFallback": "resolves the arguments",
    "pythonTLSSnapshotFallback": "saves a snapshot of the thread's state",
}
"""Functions that redispatch with everything below their own key, and what they did before."""
PYTHON_DISPATCHERS_CALL = "::python_dispatcher(c10::OperatorHandle"
"""The function that asks the Python dispatcher which kernel is meant, and calls that one for its key, whatever its
keyset is then: the highest one beside its own key where Python did not decide otherwise
(torch/csrc/PyInterpreter.cpp)."""
PYTHON_DISPATCHERS_FALLBACK = "pythonDispatcherFallback"
"""The kernel that ends in a virtual call of that function (aten/src/ATen/core/PythonFallbackKernel.cpp)."""

# --- the autograd engine, torch.distributed, torch.compile ---

UNNAMED_ENGINE_VARIABLES = ("_ZZNK5torch8autogradUlvE_clEvE3var", "_ZZNK5torch8autogradUlvE0_clEvE3var")
"""Thread-local variables in lambdas that an older compiler does not name after the variable that they are for."""
COLLECTIVE_PATTERN = (
    r"^_ZN4gloo\d|^_ZN4c10d(?:\d+\w*|4)Work\w*(?:4wait|11synchronize)E|^_ZN4c10d4Work4waitE"
    r"|^_ZN4c10d16ProcessGroup(?:Gloo|NCCL)(?:\d+\w*Work(?:NCCL)?)?(?:4wait|11synchronize|16monitoredBarrier)"
    r"|^_ZN4c10d5nccl28WorkNCCL(?:4wait|11synchronize)"
    r"|^_ZN4c10d7Reducer\d"
)
"""A pattern: any function of gloo, those that wait for the work of a process group, and the gradient reduction of
DistributedDataParallel (c10d::Reducer), which waits for futures of such work."""
KERNEL = "kernel"
"""The name of the function in every library that is compiled for Python (CppPythonBindingsCodeCache.entry_function)."""
