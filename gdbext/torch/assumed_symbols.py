"""Every C++ name that is assumed of torch: what it is for, where it was seen, and what is lost without it.

Whoever needs such a name refers to a member of this table. Release wheels carry a whole .symtab, so local symbols
count, too; distributions may strip it. Sources are those of 2.13.0 unless noted.
"""

from __future__ import annotations

from gdbext.torch.torch_symbol import ANY_LIBRARY, NameKind, TorchSymbol

CPU, C10, PYTHON, CUDA = "libtorch_cpu.so", "libc10.so", "libtorch_python.so", "libtorch_cuda.so"
C10_CUDA = "libc10_cuda.so"
"""torch's libraries by the names of their files in a wheel."""

_BEGINNING, _FUNCTION = NameKind.BEGINNING, NameKind.FUNCTION
_OPERATORS = "operators, their tables, keysets"
_KERNELS = "what kind of kernel a table entry is"
_STACK = "dispatch calls on stacks"
_BREAKS = "dispatch-break and dispatch-trace"
_WAITS = "what a thread of such a pool waits for"
_IDLE = "idle workers distinguished from busy ones"

# --- the dispatcher: aten/src/ATen/core/dispatch/Dispatcher.h, Dispatcher.cpp ---

SINGLETON = TorchSymbol(
    ("_ZZN3c1010Dispatcher13realSingletonEvE10_singleton",),
    CPU,
    "the dispatcher itself, a static variable",
    _OPERATORS + ", unless an exported reference leads there",
)
SINGLETON_GUARD = TorchSymbol(
    ("_ZGVZN3c1010Dispatcher13realSingletonEvE10_singleton",),
    CPU,
    "tells whether the dispatcher was constructed",
    "the reason given for a process that is still loading torch",
)
SINGLETON_REFERENCE = TorchSymbol(
    ("_ZZN3c1010Dispatcher9singletonEvE1s",),
    ANY_LIBRARY,
    "a reference to the dispatcher, exported by every library that uses it",
    _OPERATORS + ", where libtorch_cpu is stripped",
)
INTERNED_STRINGS = TorchSymbol(
    ("_ZZN3c10L13globalStringsEvE1s",),
    CPU,
    "the texts of interned symbols (ATen/core/interned_strings.cpp)",
    "names of aliases and of symbols in schemas",
)

INTRAOP_THREADS = TorchSymbol(
    ("_ZN2at12_GLOBAL__N_111num_threadsE",),
    CPU,
    "the number of torch.set_num_threads() (ATen/ParallelOpenMP.cpp)",
    "the setting num_threads, and that as a reason why a process is slow",
)

# --- kernels: ATen/core/boxing/BoxedKernel.h, VariableFallbackKernel.cpp ---

_MARKER_ARGUMENTS = "EPNS_14OperatorKernelERKNS_14OperatorHandleENS_14DispatchKeySetEPSt6vectorINS_6IValueESaIS7_EE"
FALLTHROUGH = TorchSymbol(
    (f"_ZN3c1018fallthrough_kernel{_MARKER_ARGUMENTS}",), CPU, "the kernel that stands for fallthrough", _KERNELS
)
AMBIGUOUS_AUTOGRAD_OTHER = TorchSymbol(
    (f"_ZN3c1030ambiguous_autogradother_kernel{_MARKER_ARGUMENTS}",),
    CPU,
    "the kernel that reports an ambiguity",
    _KERNELS,
)
PYTHON_KERNEL = TorchSymbol(
    ("_ZN5torch4impl8dispatch18PythonKernelHolderclE",),
    PYTHON,
    "calls a kernel that is a Python function",
    "the Python functions behind kernels",
    _BEGINNING,
    examples=(
        "_ZN5torch4impl8dispatch18PythonKernelHolderclERKN3c1014OperatorHandleENS3_14DispatchKeySetEPSt6vectorI"
        "NS3_6IValueESaIS9_EE",
    ),
)
PYTHON_KERNEL_CLASS = "PythonKernelHolder"
"""Its class, in the names of the wrappers around it (torch/csrc/utils/python_dispatch.cpp)."""
RUNTIME_FUNCTOR_CLASS = "31WrapFunctionIntoRuntimeFunctor_I"
"""The class in the mangled names of wrappers whose functor holds the kernel: a lambda, or a pointer to a function
(ATen/core/boxing/impl/WrapFunctionIntoRuntimeFunctor.h)."""
POINTER_FUNCTOR_CLASSES = tuple(RUNTIME_FUNCTOR_CLASS + pointer for pointer in ("PF", "PDoF"))
"""The same of those that hold a pointer, also one that is noexcept (Itanium C++ ABI, 5.1.5.3)."""

# --- wrappers of kernels: ATen/core/boxing/KernelFunction_impl.h, BoxedKernel_impl.h, impl/boxing.h ---

UNBOXED_WRAPPER = TorchSymbol(
    ("_ZN3c104impl28wrap_kernel_functor_unboxed_I",),
    CPU,
    "the unboxed entry of a kernel",
    _STACK + ", names of kernels",
    _BEGINNING,
    examples=(
        "_ZN3c104impl28wrap_kernel_functor_unboxed_INS0_6detail31WrapFunctionIntoRuntimeFunctor_IPFbvEbNS_4guts8"
        "typelist8typelistIJEEEEES4_E4callEPNS_14OperatorKernelENS_14DispatchKeySetE",
    ),
)
BOXED_FROM_UNBOXED = TorchSymbol(
    ("_ZN3c104impl31make_boxed_from_unboxed_functorI",),
    CPU,
    "the boxed entry of an unboxed kernel",
    _STACK + ", names of kernels, " + _BREAKS + " of boxed calls",
    _BEGINNING,
    examples=(
        "_ZN3c104impl31make_boxed_from_unboxed_functorINS0_6detail31WrapFunctionIntoRuntimeFunctor_IPFbvEbNS_4guts"
        "8typelist8typelistIJEEEEELb0EE4callEPNS_14OperatorKernelERKNS_14OperatorHandleENS_14DispatchKeySetEPSt6"
        "vectorINS_6IValueESaISJ_EE",
    ),
)
BOXED_FUNCTION = TorchSymbol(
    ("_ZN3c1011BoxedKernel19make_boxed_functionI",),
    CPU,
    "the entry of a boxed kernel that is a function",
    _STACK + ", names of kernels",
    _BEGINNING,
    examples=(
        "_ZN3c1011BoxedKernel19make_boxed_functionIXadL_ZN5torch4lazy18ltc_eager_fallbackERKNS_14OperatorHandleE"
        "PSt6vectorINS_6IValueESaIS8_EEEEEEvPNS_14OperatorKernelES6_NS_14DispatchKeySetESB_",
    ),
)
BOXED_FUNCTOR = TorchSymbol(
    (
        "_ZZN3c1011BoxedKernel15makeFromFunctorI",  # a lambda, up to 2.13
        "_ZN3c1011BoxedKernel18make_boxed_functorI",
    ),  # 2.15
    PYTHON,
    "the entry of a boxed kernel that is an object",
    _STACK + ", names of kernels",
    _BEGINNING,
    examples=(
        "_ZZN3c1011BoxedKernel15makeFromFunctorIN5torch4impl8dispatch18PythonKernelHolderEEES0_St10unique_ptrIT_"
        "St14default_deleteIS7_EEENUlPNS_14OperatorKernelERKNS_14OperatorHandleENS_14DispatchKeySetEPSt6vectorIN"
        "S_6IValueESaISI_EEE_4_FUNESC_SF_SG_SL_",
        "_ZN3c1011BoxedKernel18make_boxed_functorIN5torch4impl8dispatch18PythonKernelHolderEEEvPNS_14OperatorKer"
        "nelERKNS_14OperatorHandleENS_14DispatchKeySetEPSt6vectorINS_6IValueESaISD_EE",
    ),
)
BOXED_WRAPPER = TorchSymbol(
    ("_ZN3c104impl18BoxedKernelWrapperI",),
    CPU,
    "boxes the arguments for a kernel that is boxed only",
    _STACK + ", " + _BREAKS + " of boxed kernels",
    _BEGINNING,
    examples=(
        "_ZN3c104impl18BoxedKernelWrapperIFbvEvE4callERKNS_11BoxedKernelERKNS_14OperatorHandleENS_14DispatchKeySetE",
    ),
)
KERNEL_FUNCTION = TorchSymbol(
    ("_ZNK3c1014KernelFunction",),
    CPU,
    "calls the kernel of a table entry",
    _STACK,
    _BEGINNING,
    examples=("_ZNK3c1014KernelFunction22_equalsBoxedAndUnboxedERKS0_",),
)
UNBOXED_CALL = TorchSymbol(
    ("_ZN3c1025callUnboxedKernelFunctionI",),
    CPU,
    "calls an unboxed kernel",
    _STACK,
    _BEGINNING,
    examples=(
        "_ZN3c1025callUnboxedKernelFunctionIN2at6TensorEJRKS2_lSt8optionalINS_6SymIntEES7_S6_EEET_PvPNS_14Operator"
        "KernelENS_14DispatchKeySetEDpOT0_",
    ),
)
BOXED_CALL = TorchSymbol(
    ("_ZNK3c1011BoxedKernel9callBoxedE",),
    CPU,
    "calls a boxed kernel",
    _STACK,
    _BEGINNING,
    first="2.13.0",
    last="2.13.0",
    unoptimised=True,
)
KERNEL_MACHINERY = ("_ZN3c104impl", "_ZNK3c104impl", "_ZSt", "_ZNSt", "_ZN3c1025callUnboxedKernelFunction")
KERNEL_MACHINERY_PARTS = (
    "call_functor_with_args_from_stack",
    "wrap_kernel_functor_unboxed_",
    "make_boxed_from_unboxed_functor",
)
"""Beginnings, and parts, of the mangled names of what stands between a kernel's entry and its own function."""
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

# --- calls: Dispatcher.h, build/aten/src/ATen/Operators_*.cpp ---

OPERATOR_STRUCT = TorchSymbol(
    ("_ZN2at4_ops",),
    CPU,
    "at::_ops::NAME::call and ::redispatch: the dispatcher inlined for one operator",
    _STACK + ", " + _BREAKS,
    _BEGINNING,
    examples=("_ZN2at4_ops2mm4callERKNS_6TensorES4_",),
)
STATIC_HANDLE = TorchSymbol(
    ("_ZZN2at4_ops",),
    CPU,
    "the static OperatorHandle inside such a function, named ...E2op",
    "exact operators on stacks",
    _BEGINNING,
    examples=("_ZZN2at4_ops2mm4callERKNS_6TensorES4_E2op",),
)
CREATE_HANDLE = r"_ZN2at4_ops\w*create_\w+_typed_handleE"
"""A pattern: what initialises that handle."""
DISPATCHER_CALL_BOXED = TorchSymbol(
    ("_ZNK3c1010Dispatcher9callBoxed",),
    CPU,
    "the boxed call",
    _STACK,
    _BEGINNING,
    examples=(
        "_ZNK3c1010Dispatcher9callBoxedERKNS_14OperatorHandleEPSt6vectorINS_6IValueESaIS5_EE",
        "_ZNK3c1010Dispatcher9callBoxedERKNS_14OperatorHandleEPSt6vectorINS_6IValueESaIS5_EE.isra.0",
    ),
)
DISPATCHER_CALL_BOXED_FOR_KEY = TorchSymbol(
    ("_ZNK3c1010Dispatcher23callBoxedForDispatchKey",),
    CPU,
    "the boxed call of one key's kernel",
    _STACK,
    _BEGINNING,
    first="2.13.0",
    last="2.13.0",
    unoptimised=True,
)
DISPATCHER_REDISPATCH_BOXED = TorchSymbol(
    ("_ZNK3c1010Dispatcher15redispatchBoxed",),
    CPU,
    "the boxed redispatch",
    _STACK,
    _BEGINNING,
    first="2.13.0",
    last="2.13.0",
    unoptimised=True,
)
DISPATCHER_CALL = TorchSymbol(
    ("_ZNK3c1010Dispatcher4callI",),
    CPU,
    "the unboxed call, where it is not inlined",
    _STACK,
    _BEGINNING,
    first="2.13.0",
    last="2.13.0",
    unoptimised=True,
)
DISPATCHER_REDISPATCH = TorchSymbol(
    ("_ZNK3c1010Dispatcher10redispatchI",),
    CPU,
    "the unboxed redispatch, where it is not inlined",
    _STACK,
    _BEGINNING,
    examples=(
        "_ZNK3c1010Dispatcher10redispatchIN2at6TensorEJRKS3_lSt8optionalINS_6SymIntEES8_S7_EEET_RKNS_19Typed"
        "OperatorHandleIFS9_DpT0_EEENS_14DispatchKeySetESC_.isra.0",
    ),
)
SLOW_PATH = TorchSymbol(
    ("_ZN3c1010Dispatcher27callWithDispatchKeySlowPathI",),
    CPU,
    "the call while RecordFunction callbacks are active",
    _STACK + ", " + _BREAKS + " of profiled calls",
    _BEGINNING,
    examples=(
        "_ZN3c1010Dispatcher27callWithDispatchKeySlowPathIbJEEET_RKNS_19TypedOperatorHandleIFS2_DpT0_EEERN2at13St"
        "epCallbacksENS_14DispatchKeySetERKNS_14KernelFunctionES5_",
    ),
)
HANDLE_CALL_BOXED = TorchSymbol(
    ("_ZNK3c1014OperatorHandle9callBoxedE",),
    CPU,
    "the boxed call of a handle",
    _STACK,
    _BEGINNING,
    examples=("_ZNK3c1014OperatorHandle9callBoxedEPSt6vectorINS_6IValueESaIS2_EE",),
)
HANDLE_CALL_BOXED_FOR_KEY = TorchSymbol(
    ("_ZNK3c1014OperatorHandle23callBoxedForDispatchKeyE",),
    CPU,
    "the boxed call of one key's kernel",
    _STACK,
    _BEGINNING,
    first="2.6.0",
    last="2.15.0",
    unoptimised=True,
)
HANDLE_REDISPATCH_BOXED = TorchSymbol(
    ("_ZNK3c1014OperatorHandle15redispatchBoxedE",),
    CPU,
    "the boxed redispatch of a handle",
    _STACK,
    _BEGINNING,
    first="2.1.0",
    examples=("_ZNK3c1014OperatorHandle15redispatchBoxedENS_14DispatchKeySetEPSt6vectorINS_6IValueESaIS3_EE",),
)
TYPED_HANDLE = TorchSymbol(
    ("_ZNK3c1019TypedOperatorHandleI",),
    CPU,
    "call and redispatch of a typed handle",
    _STACK,
    _BEGINNING,
    first="2.13.0",
    last="2.13.0",
    unoptimised=True,
)
LOOKUP = TorchSymbol(
    ("_ZNK3c104impl13OperatorEntry6lookupE",),
    CPU,
    "looks the kernel of a keyset up (OperatorEntry.h)",
    _STACK + ", " + _BREAKS,
    _BEGINNING,
    examples=("_ZNK3c104impl13OperatorEntry6lookupENS_14DispatchKeySetE",),
)
KERNEL_FOR_KEY = TorchSymbol(
    ("_ZNK3c104impl13OperatorEntry20kernelForDispatchKeyE",),
    CPU,
    "gives callBoxedForDispatchKey the kernel of a key (OperatorEntry.cpp)",
    _STACK,
    _BEGINNING,
    examples=("_ZNK3c104impl13OperatorEntry20kernelForDispatchKeyENS_11DispatchKeyE",),
)
FIND_SCHEMA = TorchSymbol(
    ("_ZN3c1010Dispatcher10findSchemaE", "_ZN3c1010Dispatcher17findSchemaOrThrowE"),
    CPU,
    "finds an operator by its name",
    "the stage of a thread that is entering an operator",
    _BEGINNING,
    examples=("_ZN3c1010Dispatcher10findSchemaERKNS_12OperatorNameE",),
)
REAL_SINGLETON = TorchSymbol(
    ("_ZN3c1010Dispatcher13realSingletonE",),
    CPU,
    "constructs the dispatcher",
    "the stage of a thread that is entering an operator",
    _BEGINNING,
    examples=("_ZN3c1010Dispatcher13realSingletonEv",),
)
STEP_CALLBACKS = TorchSymbol(
    ("_ZN2at27getStepCallbacksUnlessEmptyENS_11RecordScopeE",),
    CPU,
    "asked once by every call and callBoxed (ATen/record_function.cpp)",
    "calls distinguished from redispatches in inlined code, " + _BREAKS + " of all operators",
)
STEP_CALLBACKS_FUNCTION = "at::getStepCallbacksUnlessEmpty"
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
    "_ZSt20__throw_",
    "_ZSt19__throw_",
    "_ZSt17__throw_",
    "_ZSt24__throw_",
    "_ZSt28__throw_",
    "_ZSt21__throw_",
    "_ZSt25__throw_",
)
"""Beginnings of the mangled names of functions that code with an inlined dispatch calls and that do not come back: what
stands behind such a call is entered from elsewhere."""
"""The same as debuggers take it: without its arguments."""
STEP_CALLBACKS_NAME = "getStepCallbacksUnlessEmpty"
"""Part of its name: a library that imports it calls operators."""

IMPORTS_OF_USERS = ("_ZN3c10", "_ZNK3c10", "aoti_torch_", "torch_library_")
"""Parts of what a library imports that registers kernels or calls operators: C++ functions of c10, or the stable C
interface (torch/csrc/stable/c/shim.h)."""

# --- registration: ATen/core/dispatch/OperatorEntry.cpp ---

REGISTER_SCHEMA = TorchSymbol(
    ("_ZN3c104impl13OperatorEntry14registerSchemaE",),
    CPU,
    "called when an operator is defined",
    "dispatch-break on operators that are defined later",
    _BEGINNING,
    examples=(
        "_ZN3c104impl13OperatorEntry14registerSchemaEONS_14FunctionSchemaEONSt7__cxx1112basic_stringIcSt11char_"
        "traitsIcESaIcEEESt6vectorIN5torch10headeronly3TagESaISE_EE",
    ),
)
REGISTER_SCHEMA_FUNCTION = "c10::impl::OperatorEntry::registerSchema"
"""The same as people write it."""
REGISTER_KERNEL = TorchSymbol(
    ("_ZN3c104impl13OperatorEntry14registerKernelE",),
    CPU,
    "called when a kernel is registered",
    "dispatch-break on kernels that are registered later",
    _BEGINNING,
    examples=(
        "_ZN3c104impl13OperatorEntry14registerKernelERKNS_10DispatcherESt8optionalINS_11DispatchKeyEENS_14KernelFun"
        "ctionES5_INS0_12CppSignatureEESt10unique_ptrINS_14FunctionSchemaESt14default_deleteISC_EENSt7__cxx1112ba"
        "sic_stringIcSt11char_traitsIcESaIcEEE",
    ),
)
DEREGISTER_KERNEL = TorchSymbol(
    ("_ZN3c104impl13OperatorEntry17deregisterKernel_E",),
    CPU,
    "called when a kernel goes and uncovers another",
    "dispatch-break on kernels that are uncovered later",
    _BEGINNING,
    examples=(
        "_ZN3c104impl13OperatorEntry17deregisterKernel_ERKNS_10DispatcherESt8optionalINS_11DispatchKeyEESt14_List_i"
        "teratorINS0_15AnnotatedKernelEE",
    ),
)
UPDATE_FALLBACK = TorchSymbol(
    ("_ZN3c104impl13OperatorEntry14updateFallbackE",),
    CPU,
    "called when a backend fallback is registered",
    "dispatch-break on fallbacks that are registered later",
    _BEGINNING,
    examples=("_ZN3c104impl13OperatorEntry14updateFallbackERKNS_10DispatcherENS_11DispatchKeyE",),
)
COMPUTE_ENTRY = TorchSymbol(
    ("_ZNK3c104impl13OperatorEntry34computeDispatchTableEntryWithDebugERKNS_10DispatcherENS_11DispatchKeyE",),
    CPU,
    "computes a table entry",
    "dispatch-break register",
)
REPORT_ERROR = TorchSymbol(
    ("c10::impl::OperatorEntry::reportError", "at::impl::metaFallback"),
    CPU,
    "raises the error of a missing kernel",
    "a missing kernel as the cause of an uncaught error",
    _FUNCTION,
    examples=("_ZNK3c104impl13OperatorEntry11reportErrorENS_11DispatchKeyE",),
)

# --- structured kernels: torchgen's RegisterCPU.cpp and its like ---

STRUCTURED_META = TorchSymbol(
    ("_ZN2at4meta",),
    CPU,
    "at::meta::structured_NAME::meta: computes the shapes",
    _BREAKS + " of meta functions",
    _BEGINNING,
    examples=("_ZN2at4meta13structured_mm4metaERKNS_6TensorES4_",),
)
STRUCTURED_IMPL = TorchSymbol(
    ("_ZN2at6native",),
    CPU,
    "at::native::structured_FUNCTION::impl: computes the result",
    _BREAKS + " of implementations",
    _BEGINNING,
    examples=("_ZN2at6native21structured_mm_out_cpu4implERKNS_6TensorES4_S4_",),
)
STRUCTURED = "structured_"
GENERATED_WRAPPERS = ("wrap_kernel_functor", "wrapper_", STRUCTURED)
"""Parts of the names of generated code between the table and a structured kernel."""

# --- thread-local state ---

_STATE = "in dispatch-tls"
KEYSETS = TorchSymbol(
    ("_ZN3c104impl26raw_local_dispatch_key_setE",),
    C10,
    "included and excluded keys (LocalDispatchKeySet.cpp)",
    f"included and excluded keys and autocast {_STATE}",
)
AUTOGRAD_STATE = TorchSymbol(
    ("_ZN3c1012_GLOBAL__N_118autograd_state_tlsE",),
    C10,
    "grad mode, inference mode (c10/core/AutogradState.cpp)",
    f"grad mode, inference mode and forward AD {_STATE}",
)
PYTHON_DISPATCHER = TorchSymbol(
    (
        "_ZN3c104implL21pythonDispatcherStateE",  # static, 2.10 and later
        "_ZN3c104impl21pythonDispatcherStateE",
    ),  # up to 2.6
    C10,
    "the Python dispatcher (PythonDispatcherTLS.cpp)",
    f"the Python dispatcher {_STATE}",
)
DISPATCH_MODES = TorchSymbol(
    (
        "_ZN3c104implL22torchDispatchModeStateE",  # static, 2.10 and later
        "_ZN3c104impl22torchDispatchModeStateE",
    ),  # up to 2.6
    C10,
    "the stack of __torch_dispatch__ modes (TorchDispatchModeTLS.cpp)",
    f"Python modes {_STATE}",
)
AUTOCAST_DTYPE = TorchSymbol(
    ("_ZN2at8autocast12_GLOBAL__N_114autocast_dtypeE",),
    CPU,
    "the types that autocast casts to (ATen/autocast_mode.cpp)",
    f"types of autocast {_STATE}",
    first="2.4.0",
)
AUTOCAST_CACHE = TorchSymbol(
    ("_ZN2at8autocast12_GLOBAL__N_113cache_enabledE",),
    CPU,
    "whether autocast keeps casted weights",
    f"the cache of autocast {_STATE}",
)
AUTOCAST_NESTING = TorchSymbol(
    ("_ZN2at8autocast12_GLOBAL__N_17nestingE",), CPU, "how deep autocast is nested", f"the nesting of autocast {_STATE}"
)
SEQUENCE_NUMBER = TorchSymbol(
    ("_ZN2at15sequence_number12_GLOBAL__N_112sequence_nr_E",),
    CPU,
    "the next autograd node's number (SequenceNumber.cpp)",
    f"the sequence number {_STATE}",
)
FUNCTORCH = TorchSymbol(
    ("_ZN2at9functorch12_GLOBAL__N_113kFuncTorchTLSE",),
    CPU,
    "functorch's state (ATen/FuncTorchTLS.cpp)",
    f"functorch's layers {_STATE}",
)
FUNCTORCH_VTABLE = TorchSymbol(
    ("_ZTVN2at9functorch12FuncTorchTLSE",),
    CPU,
    "proves functorch's state (ATen/functorch/DynamicLayer.cpp)",
    f"functorch's layers {_STATE}",
)
TORCH_FUNCTION = TorchSymbol(
    ("_ZN2at4implL24pythonTorchFunctionStateE",),
    CPU,
    "the stack of __torch_function__ modes (PythonTorchFunctionTLS.cpp)",
    f"__torch_function__ {_STATE}",
)
UNDEFINED_TENSOR = "c10::UndefinedTensorImpl"
"""The class of the undefined tensor, by its vtable (c10/core/UndefinedTensorImpl.cpp)."""

BACKEND_NAME = TorchSymbol(
    ("_ZN3c10L24privateuse1_backend_nameE",),
    C10,
    "the name that the process gave the backend PrivateUse1 (DeviceType.cpp)",
    "the own name of a renamed backend",
    first="2.0.0",
)
BACKEND_IS_NAMED = TorchSymbol(
    ("_ZN3c10L28privateuse1_backend_name_setE",),
    C10,
    "whether the process named the backend PrivateUse1 (DeviceType.cpp)",
    "the own name of a renamed backend",
    first="2.0.0",
)

# --- functions that only generated and registered kernels have, by their demangled names ---

AUTOGRAD_KERNELS = (
    "torch::autograd::VariableType::",
    "autograd_fallback",
    "utogradNotImplementedFallback",
    "utograd_not_implemented_fallback",
)
"""Kernels that record the call and redispatch below autograd (tools/autograd/gen_variable_type.py,
VariableFallbackKernel.cpp, torch/csrc/autograd/autograd_not_implemented_fallback.cpp)."""
STABLE_KERNEL = "StableIValueBoxedKernel"
"""The kernel of operators that use the stable ABI (torch/csrc/shim_common.cpp, torch 2.7 to 2.15)."""
STABLE_HANDLES = ("aoti_torch_delete", "aoti_torch_new", "torch_delete_", "torch_new_", "torch_list_", "_Zn", "_Zd")
"""Functions by which an extension that uses it makes and deletes what it returns (torch/csrc/stable/c/shim.h; the last
two are operator new and delete)."""
VIEW_KERNELS = ("torch::ADInplaceOrView::", "utograd")
"""Kernels that redispatch below ADInplaceOrView (tools/autograd/gen_inplace_or_view_type.py)."""
KERNELS_BELOW_THEIR_KEY = {
    "torch::TraceType::": "tracing",
    "at::native::negationFallback": "the resolved arguments",
    "at::native::conjugateFallback": "the resolved arguments",
    "at::conjugateFallback": "the resolved arguments",
    "at::zeroTensorFallback": "the materialised arguments",
    "zeroTensorFallback": "the materialised arguments",
    "conjugateFallback": "the resolved arguments",
    "pythonTLSSnapshotFallback": "a snapshot of the thread's state",
}
"""Functions that redispatch with everything below their own key, and what they did before."""
PYTHON_DISPATCHERS_CALL = "::python_dispatcher(c10::OperatorHandle"
"""The function that asks the Python dispatcher which kernel is meant, and calls that one for its key, whatever its
keyset is then: the highest one beside its own key where Python did not decide otherwise
(torch/csrc/PyInterpreter.cpp)."""
PYTHON_DISPATCHERS_FALLBACK = "pythonDispatcherFallback"
"""The kernel that ends in a virtual call of that function (aten/src/ATen/core/PythonFallbackKernel.cpp)."""

# --- the autograd engine: torch/csrc/autograd/engine.cpp, ATen/record_function.cpp ---

EVALUATING_NODE = TorchSymbol(
    ("_ZZNK5torch8autogradL27tls_current_evaluating_nodeMUlvE_clEvE3var",),
    CPU,
    "the node that a thread runs",
    "the running node in dispatch-autograd and dispatch-bt",
    first="2.7.0",
)
GRAPH_TASK = TorchSymbol(
    ("_ZZNK5torch8autogradL22tls_current_graph_taskMUlvE_clEvE3var",),
    CPU,
    "the backward pass that a thread takes part in",
    "graph tasks in dispatch-autograd",
    first="2.7.0",
)
EVALUATING_NODE_ACCESS = TorchSymbol(
    ("_ZN5torch8autogradL27tls_current_evaluating_nodeE",),
    CPU,
    "the function that returns where the running node is kept",
    "the running node, where the variable itself has no name of its own",
)
GRAPH_TASK_ACCESS = TorchSymbol(
    ("_ZN5torch8autogradL22tls_current_graph_taskE",),
    CPU,
    "the function that returns where the graph task is kept",
    "graph tasks, where the variable itself has no name of its own",
)
UNNAMED_ENGINE_VARIABLES = ("_ZZNK5torch8autogradUlvE_clEvE3var", "_ZZNK5torch8autogradUlvE0_clEvE3var")
"""Thread-local variables in lambdas that an older compiler does not name after the variable that they are for."""
PYTHON_ENGINE = TorchSymbol(
    ("_ZZN5torch8autograd6python12PythonEngine17get_python_engineEvE6engine",),
    PYTHON,
    "the engine of a program with Python",
    "the queues of devices in dispatch-autograd",
)
RECORD_FUNCTION_THREAD = TorchSymbol(
    ("_ZN2at12_GLOBAL__N_118current_thread_id_E",),
    CPU,
    "RecordFunction's own number of a thread",
    "which thread made a node",
)

CALL_CHECKS = TorchSymbol(
    (
        "_ZN5torch6dynamo12_GLOBAL__N_1L18assert_size_strideEP7_objectS3_",
        "_ZN5torch6dynamo12_GLOBAL__N_1L18assert_size_strideEP7_objectPKS3_l",
        "_ZN5torch6dynamo12_GLOBAL__N_1L26assert_size_stride_groupedEP7_objectPKS3_l",
    ),
    PYTHON,
    "code that Inductor wrote checks its arguments",
    "dispatch-break for kernels that are not loaded yet",
    first="2.6.0",
)

# --- functions that give a wait its meaning: torch/csrc/autograd, torch/csrc/distributed, c10/core/thread_pool.cpp ---

AUTOGRAD_POP = TorchSymbol(
    ("torch::autograd::ReadyQueue::pop",),
    CPU,
    "a worker of the autograd engine waits for work",
    _WAITS,
    _FUNCTION,
    examples=("_ZN5torch8autograd10ReadyQueue3popEv",),
)
AUTOGRAD_THREAD = TorchSymbol(
    (
        "torch::autograd::Engine::thread_init",
        "torch::autograd::python::PythonEngine::thread_init",
        "torch::autograd::Engine::reentrant_thread_init",
    ),
    CPU,
    "main function of the engine's workers",
    "workers of the autograd engine, and that they are missing after fork",
    _FUNCTION,
    examples=("_ZN5torch8autograd6Engine11thread_initEiRKSt10shared_ptrINS0_10ReadyQueueEEb",),
)
AUTOGRAD_MAIN = TorchSymbol(
    ("torch::autograd::Engine::thread_main",),
    CPU,
    "loop of the engine's workers",
    _IDLE,
    _FUNCTION,
    examples=("_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE",),
)
AUTOGRAD_EXECUTE = TorchSymbol(
    (
        "torch::autograd::Engine::execute",
        "torch::autograd::Engine::execute_with_graph_task",
        "torch::autograd::python::PythonEngine::execute",
    ),
    CPU,
    "waits for the end of a backward pass",
    "threads that wait for the autograd engine",
    _FUNCTION,
    examples=("_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_",),
)
AUTOGRAD_EVALUATE = TorchSymbol(
    ("torch::autograd::Engine::evaluate_function",),
    CPU,
    "runs a node of the graph",
    _IDLE,
    _FUNCTION,
    examples=(
        "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBuffe"
        "rERKS2_INS0_10ReadyQueueEE",
    ),
)
FUTURE_WAIT = TorchSymbol(
    ("c10::ivalue::Future::wait", "torch::jit::InterpreterState::run"),
    CPU,
    "waits for a future or a forked task",
    "threads that wait for a future",
    _FUNCTION,
    examples=("_ZN3c106ivalue6Future4waitEv", "_ZN5torch3jit16InterpreterState3runERSt6vectorIN3c106IValueESaIS4_EE"),
)
POOL_LOOP = TorchSymbol(
    ("c10::ThreadPool::main_loop",),
    C10,
    "main function of c10's pool",
    _WAITS,
    _FUNCTION,
    examples=("_ZN3c1010ThreadPool9main_loopEm",),
)
POOL_WAIT = TorchSymbol(
    ("c10::ThreadPool::waitWorkComplete",),
    C10,
    "waits for c10's pool",
    "threads that wait for the pool",
    _FUNCTION,
    examples=("_ZN3c1010ThreadPool16waitWorkCompleteEv",),
)
GLOO_LOOP = TorchSymbol(
    ("gloo::transport::tcp::Loop::run",),
    CPU,
    "gloo's event loop",
    _WAITS,
    _FUNCTION,
    examples=("_ZN4gloo9transport3tcp4Loop3runEv",),
)
GLOO_QUEUE = TorchSymbol(
    ("c10d::ProcessGroupGloo::runLoop",),
    CPU,
    "main function of a gloo group's workers",
    _WAITS,
    _FUNCTION,
    examples=("_ZN4c10d16ProcessGroupGloo7runLoopEi",),
)
STORE_WAIT = TorchSymbol(
    (
        "c10d::TCPStore::wait",
        "c10d::TCPStore::get",
        "c10d::TCPStore::waitForWorkers",
        "c10d::TCPStore::doWait",
        "c10d::TCPStore::doGet",
        "c10d::FileStore::wait",
        "c10d::FileStore::get",
        "c10d::HashStore::wait",
        "c10d::HashStore::get",
        "c10d::PrefixStore::wait",
        "c10d::PrefixStore::get",
    ),
    CPU,
    "waits for a key of a store",
    "threads that wait for other ranks through a store",
    _FUNCTION,
    examples=("_ZN4c10d8TCPStore14waitForWorkersEv",),
)
STORE_DAEMON = TorchSymbol(
    (
        "c10d::detail::TCPStoreMasterDaemon::run",
        "c10d::detail::LibUVStoreDaemon::run",
        "c10d::detail::TCPStoreWorkerDaemon::run",
    ),
    CPU,
    "main function of a store's server",
    _WAITS,
    _FUNCTION,
    first="2.1.0",
    examples=("_ZN4c10d6detail20TCPStoreMasterDaemon3runEv",),
)
NCCL_WATCHDOG = TorchSymbol(
    (
        "c10d::ProcessGroupNCCL::ncclCommWatchdog",
        "c10d::ProcessGroupNCCL::heartbeatMonitor",
        "c10d::ProcessGroupNCCL::Watchdog::run",
        "c10d::ProcessGroupNCCL::HeartbeatMonitor::runLoop",
        "c10d::ProcessGroupNCCL::workCleanupLoop",
        "c10d::ProcessGroupNCCL::watchdogHandler",
        "c10d::nccl2::ProcessGroupNCCL::timeoutWatchdog",
    ),
    CUDA,
    "main functions of NCCL's watchdogs",
    _WAITS,
    _FUNCTION,
    examples=("_ZN4c10d16ProcessGroupNCCL8Watchdog3runEv", "_ZN4c10d16ProcessGroupNCCL16ncclCommWatchdogEv"),
)
_ALLOCATOR = "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator"
_ALLOCATOR_MANGLED = "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator"
_CONTEXT = "RKSt10shared_ptrINS_15GatheredContextEE"
_DEVICE_CALLS = "why PyTorch waits for a device"
ALLOCATOR_EVENTS = TorchSymbol(
    (f"{_ALLOCATOR}::synchronize_and_free_events",),
    C10_CUDA,
    "the caching allocator waits for the events of blocks that other streams used",
    _DEVICE_CALLS,
    _FUNCTION,
    first="2.6.0",
    examples=(
        f"{_ALLOCATOR_MANGLED}27synchronize_and_free_eventsE{_CONTEXT}PNS2_12_GLOBAL__N_111PrivatePoolE",
        f"{_ALLOCATOR_MANGLED}27synchronize_and_free_eventsE{_CONTEXT}",
    ),
)
ALLOCATOR_RELEASE = TorchSymbol(
    (f"{_ALLOCATOR}::release_cached_blocks", f"{_ALLOCATOR}::release_available_cached_blocks"),
    C10_CUDA,
    "the caching allocator gives its cached memory back",
    _DEVICE_CALLS,
    _FUNCTION,
    examples=(
        f"{_ALLOCATOR_MANGLED}21release_cached_blocksE{_CONTEXT}St4pairIyyE",
        f"{_ALLOCATOR_MANGLED}21release_cached_blocksE{_CONTEXT}",
    ),
)
ALLOCATOR_BLOCK = TorchSymbol(
    (f"{_ALLOCATOR}::alloc_block",),
    C10_CUDA,
    "the caching allocator asks the driver for memory",
    _DEVICE_CALLS,
    _FUNCTION,
    examples=(
        f"{_ALLOCATOR_MANGLED}11alloc_blockERNS2_12_GLOBAL__N_111AllocParamsEb{_CONTEXT}"
        "RSt11unique_lockISt15recursive_mutexE",
    ),
)
GRAPH_REPLAY = TorchSymbol(
    ("at::cuda::CUDAGraph::replay",),
    CUDA,
    "a CUDA graph is replayed",
    _DEVICE_CALLS,
    _FUNCTION,
    examples=("_ZN2at4cuda9CUDAGraph6replayEv",),
)
GRAPH_CAPTURE = TorchSymbol(
    ("at::cuda::CUDAGraph::capture_begin", "at::cuda::CUDAGraph::capture_end"),
    CUDA,
    "the capture of a CUDA graph begins or ends",
    _DEVICE_CALLS,
    _FUNCTION,
    examples=("_ZN2at4cuda9CUDAGraph11capture_endEv",),
)
RPC_POOL = TorchSymbol(
    (
        "torch::distributed::rpc::RpcAgent::retryExpiredRpcs",
        "torch::distributed::rpc::TensorPipeAgent::pollTimeoutRpcs",
    ),
    CPU,
    "loops of the RPC agent",
    _WAITS,
    _FUNCTION,
    examples=("_ZN5torch11distributed3rpc8RpcAgent16retryExpiredRpcsEv",),
)
COLLECTIVE = TorchSymbol(
    ("c10d::Work::wait", "c10d::Work::synchronize"),
    CPU,
    "waits for a collective",
    "threads that wait for a collective",
    _FUNCTION,
    examples=("_ZN4c10d4Work4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE",),
)
COLLECTIVE_PATTERN = (
    r"^_ZN4gloo\d|^_ZN4c10d(?:\d+\w*|4)Work\w*(?:4wait|11synchronize)E|^_ZN4c10d4Work4waitE"
    r"|^_ZN4c10d16ProcessGroup(?:Gloo|NCCL)(?:\d+\w*Work(?:NCCL)?)?(?:4wait|11synchronize|16monitoredBarrier)"
    r"|^_ZN4c10d5nccl28WorkNCCL(?:4wait|11synchronize)"
    r"|^_ZN4c10d7Reducer\d"
)
"""A pattern: any function of gloo, what waits for the work of a process group, and the gradient reduction of
DistributedDataParallel (c10d::Reducer), which waits for futures of such work."""

# --- torch.distributed: torch/csrc/distributed/rpc/rpc_agent.h, c10d/FlightRecorder.hpp ---

RPC_AGENT = TorchSymbol(
    ("_ZN5torch11distributed3rpc8RpcAgent16currentRpcAgent_E",),
    CPU,
    "the agent of torch.distributed.rpc",
    "which rank an RPC is to be answered by",
)

FLIGHT_RECORDER = TorchSymbol(
    ("_ZZN4c10d14FlightRecorderIN3c105EventEE3getEvE8instance",),
    CPU,
    "the flight recorder of gloo's collectives",
    "sizes, lines and ages of pending collectives of gloo",
    first="2.8.0",
)
FLIGHT_RECORDER_OF_NCCL = TorchSymbol(
    (
        "_ZZN4c10d14FlightRecorderIN2at4cuda9CUDAEventEE3getEvE8instance",
        "_ZZN4c10d14FlightRecorderIN3c104cuda9CUDAEventEE3getEvE8instance",
    ),
    CUDA,
    "the flight recorder of NCCL's collectives",
    "pending collectives of NCCL",
    first="2.8.0",
)
FLIGHT_RECORDERS_OF_HOOKS = TorchSymbol(
    ("_ZZN4c10d17getFlightRecorderERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEE8registry",),
    CPU,
    "the flight recorders of backends that do not record themselves",
    "pending collectives of NCCL",
    first="2.15.0",
)

TORCH_SYMBOLS = {name: value for name, value in list(globals().items()) if isinstance(value, TorchSymbol)}
"""All of them by the names of their members."""

KERNEL = "kernel"
"""The name of the function in every library that is compiled for Python
(CppPythonBindingsCodeCache.entry_function)."""
