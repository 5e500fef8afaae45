"""The wants from PyTorch's headers: a table of C++ types, enumerations and constants.

Names are those of the layout documents. Where the right-hand side is "" the C++ expression is the name itself;
instantiations get a short name of our own (``.map``, ``.entry``) since their full C++ names change with every
standard library. Private members are measured with -fno-access-control.

The wants of PyTorch's headers for its settings: a table of its own, in a translation unit of its own.

Some of these headers need CUDA's, which nobody needs to have: they get stand-ins. Where they do not compile, all of
this is absent, and the rest of the layout is not. Measured with -fno-access-control.

Where the nodes of autograd keep the tensors that they saved: the members of each generated class, measured.

torch/csrc/autograd/generated/Functions.h (tools/autograd/templates/Functions.h of PyTorch) declares them; every wheel
has it.

The wants from CPython's headers, 3.8 to 3.15, the internal ones included (-DPy_BUILD_CORE).

A type that a version lacks does not compile there and is recorded as absent: that is how versions differ here.
Some structures are private to a .c file; they are declared below as that file has them (source named at each),
compiled with the rest, and checked in the tests against the debug information of real interpreters.
"""

from __future__ import annotations

import re
from pathlib import Path

from gdbext.cpython.abi import python_structures
from gdbext.engine.layouts.declarations import wanted
from gdbext.torch import structures
from gdbext.torch.measure.wants import Wants
from gdbext.torch.state import setting_structures
from gdbext.torch.values import value_structures

HEADERS = (
    "ATen/FuncTorchTLS.h",
    "ATen/FunctionalTensorWrapper.h",
    "ATen/NestedTensorImpl.h",
    "ATen/PTThreadPool.h",
    "ATen/PythonTorchFunctionTLS.h",
    "ATen/SavedTensorHooks.h",
    "ATen/SparseCsrTensorImpl.h",
    "ATen/SparseTensorImpl.h",
    "ATen/ThreadLocalPythonObjects.h",
    "ATen/ThreadLocalState.h",
    "ATen/autocast_mode.h",
    "ATen/core/Dict.h",
    "ATen/core/Dimname.h",
    "ATen/core/Generator.h",
    "ATen/core/IListRef.h",
    "ATen/core/List.h",
    "ATen/core/NamedTensor.h",
    "ATen/core/PythonFallbackKernel.h",
    "ATen/core/QuantizerBase.h",
    "ATen/core/boxing/KernelFunction.h",
    "ATen/core/dispatch/Dispatcher.h",
    "ATen/core/dispatch/OperatorEntry.h",
    "ATen/core/function_schema.h",
    "ATen/core/ivalue.h",
    "ATen/core/interned_strings_class.h",
    "ATen/core/ivalue_inl.h",
    "ATen/core/jit_type.h",
    "ATen/core/PythonOpRegistrationTrampoline.h",
    "ATen/core/enum_tag.h",
    "ATen/functorch/BatchedTensorImpl.h",
    "ATen/functorch/DynamicLayer.h",
    "ATen/functorch/Interpreter.h",
    "ATen/functorch/TensorWrapper.h",
    "ATen/quantized/QTensorImpl.h",
    "ATen/quantized/Quantizer.h",
    "ATen/record_function.h",
    "c10/core/AutogradState.h",
    "c10/core/DispatchKey.h",
    "c10/core/DispatchKeySet.h",
    "c10/core/InferenceMode.h",
    "c10/core/QScheme.h",
    "c10/core/SafePyObject.h",
    "c10/core/StorageImpl.h",
    "c10/core/SymInt.h",
    "c10/core/TensorImpl.h",
    "c10/core/UndefinedTensorImpl.h",
    "c10/core/impl/LocalDispatchKeySet.h",
    "c10/core/impl/PyInterpreter.h",
    "c10/core/impl/PythonDispatcherTLS.h",
    "c10/core/impl/TorchDispatchModeTLS.h",
    "c10/core/thread_pool.h",
    "c10/util/ArrayRef.h",
    "c10/util/MaybeOwned.h",
    "c10/util/OptionalArrayRef.h",
    "c10/util/SmallVector.h",
    "c10/util/string_view.h",
    "torch/csrc/autograd/anomaly_mode.h",
    "torch/csrc/autograd/custom_function.h",
    "torch/csrc/autograd/engine.h",
    "torch/csrc/autograd/forward_grad.h",
    "torch/csrc/autograd/function.h",
    "torch/csrc/autograd/graph_task.h",
    "torch/csrc/autograd/saved_variable.h",
    "torch/csrc/autograd/variable.h",
)

# Helpers that name a type behind a private member whatever it is called in this version.
_HELPERS = """
#include <any>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>
namespace gdbext {
using Lookup = decltype(c10::Dispatcher::operatorLookupTable_);
template <class T> struct Inner;
template <template <class...> class W, class T, class... R> struct Inner<W<T, R...>> { using type = T; };
template <class K, class V, class... R> struct Inner<ska::flat_hash_map<K, V, R...>> { using type = V; };
using LookupMap = Inner<Lookup>::type;
using Kernels = decltype(c10::impl::OperatorEntry::kernels_);
template <class M> using Entry = ska::detailv3::sherwood_v3_entry<typename M::value_type>;
using KernelList = Inner<Kernels>::type;
template <class W, class T> struct Rebind;
template <template <class> class W, class A, class T> struct Rebind<W<A>, T> { using type = W<T>; };
template <class T> using Optional = typename Rebind<decltype(c10::TensorImpl::device_opt_), T>::type;
using Dict = decltype(c10::detail::DictImpl::dict);
using DictEntry = ska_ordered::detailv3::sherwood_v3_entry<Dict::value_type>;
}
"""

_OPTIONALS = (
    "at::Tensor",
    "at::Generator",
    "c10::Scalar",
    "c10::SymInt",
    "c10::ScalarType",
    "c10::Layout",
    "c10::MemoryFormat",
    "c10::Device",
    "c10::string_view",
    "int64_t",
    "double",
)
"""Optionals that operators take as arguments: ``optional<T>`` is ``std::optional<T>``, or the ``c10::optional<T>`` of
torch before 2.2."""

_BEYOND = {
    **dict.fromkeys(
        (
            "c10::Dispatcher::Guard",
            "std::_List_node<c10::impl::AnnotatedKernel>",
            "c10::impl::OperatorEntry::CppSignatureWithDebug",
            "c10::DispatchKeySet",
            "c10::impl::PODLocalDispatchKeySet",
            "c10::impl::LocalDispatchKeySet",
            "c10::impl::ExcludeDispatchKeyGuard",
            "c10::impl::IncludeDispatchKeyGuard",
            "c10::Symbol",
            "c10::SymInt",
            "c10::Device",
            "at::Tensor",
            "c10::Storage",
            "c10::VariableVersion",
            "c10::impl::PyInterpreter",
            "c10::impl::PyInterpreterVTable",
            "c10::AutogradMetaInterface",
            "c10::BackendMeta",
            "caffe2::TypeMeta",
            "caffe2::detail::TypeMetaData",
            "at::Quantizer",
            "at::Generator",
            "c10::ivalue::Object",
            "c10::ivalue::EnumHolder",
            "torch::autograd::DifferentiableViewMeta",
            "torch::autograd::Engine::ThreadPoolShared",
            "torch::autograd::InputBuffer",
            "torch::autograd::ForwardGrad",
            "c10::ivalue::Future",
            "c10::ivalue::Await",
            "c10::InferenceMode",
            "c10::impl::PythonDispatcherTLS",
            "c10::impl::PyObject_TorchDispatchMode",
            "at::ThreadLocalState",
            "at::impl::ThreadLocalPythonObjects",
            "at::RecordFunction",
            "at::functorch::GradInterpreterMeta",
            "at::functorch::JvpInterpreterMeta",
            "at::functorch::VmapInterpreterMeta",
            "at::functorch::FunctionalizeInterpreterMeta",
            "at::functorch::InterpreterMeta",
            "at::PTThreadPool",
            "std::condition_variable",
            "std::thread",
            "std::type_info",
            "std::any",
        ),
        "",
    ),
    "c10::Dispatcher::operatorLookupTable_.entry": "gdbext::Entry<gdbext::LookupMap>",
    "c10::TypedOperatorHandle": "c10::TypedOperatorHandle<void()>",
    "c10::impl::OperatorEntry::kernels_.entry": "gdbext::Entry<gdbext::Kernels>",
    "c10::impl::OperatorEntry::kernels_.list": "gdbext::KernelList",
    "c10::List": "c10::List<at::Tensor>",
    "c10::MaybeOwned": "c10::MaybeOwned<at::Tensor>",
    "std::vector": "std::vector<void*>",
    "std::shared_ptr": "std::shared_ptr<int>",
    "std::_Sp_counted_base": "std::_Sp_counted_base<__gnu_cxx::_S_atomic>",
    "std::_Hash_node": "std::__detail::_Hash_node<std::pair<const std::string, void*>, true>",
    "std::function": "std::function<void()>",
    **{f"optional<{inner}>": f"gdbext::Optional<{inner}>" for inner in _OPTIONALS},
}
"""Types that are measured besides those that readers declare: optionals, whose names are put together, and what has no
reader at present."""

ENUMS = {
    "c10::DispatchKey": "",
    "c10::BackendComponent": "",
    "c10::ScalarType": "",
    "c10::DeviceType": "",
    "c10::Layout": "",
    "c10::MemoryFormat": "",
    "c10::QScheme": "",
    "c10::Scalar::Tag": "",
    "c10::IListRefTag": "",
    "c10::TypeKind": "",
    "c10::IValue::Tag": "",
    "c10::AliasAnalysisKind": "",
    "c10::impl::TorchDispatchModeKey": "",
    "at::RecordScope": "",
    "at::Tag": "",
    "at::functorch::TransformType": "",
    "at::functorch::RandomnessType": "",
    "torch::autograd::CreationMeta": "",
}

_KEYSETS = (
    "autograd_dispatch_keyset",
    "autocast_dispatch_keyset",
    "default_included_set",
    "default_excluded_set",
    "autograd_dispatch_keyset_with_ADInplaceOrView",
    "python_ks",
    "sparse_ks",
    "sparse_csr_ks",
    "mkldnn_ks",
    "autogradother_backends",
    "after_autograd_keyset",
    "after_ADInplaceOrView_keyset",
    "after_func_keyset",
    "backend_bitset_mask",
    "inplace_or_view_ks",
    "autograd_cpu_ks",
    "autograd_other_ks",
    "autograd_nested",
    "functorch_transforms_ks",
    "functorch_batched_ks",
    "backend_functionality_keys",
)

CONSTANTS = {
    "num_functionality_keys": "c10::num_functionality_keys",
    "num_backends": "c10::num_backends",
    "num_per_backend_functionality_keys": "c10::numPerBackendFunctionalityKeys()",
    "num_runtime_entries": "c10::num_runtime_entries",
    "full_backend_mask": "c10::full_backend_mask",
    **{f"keyset.{name}": f"c10::{name}.repr_" for name in _KEYSETS},
}


def torch_wants() -> Wants:
    """The wants from PyTorch's own headers, with one guarded #include for each."""
    includes = "\n".join(map(_include, HEADERS))
    declared = wanted(structures, value_structures)
    return Wants(f"{includes}\n{_HELPERS}", {**_BEYOND, **declared}, ENUMS, CONSTANTS)


_SETTING_HEADERS = (
    "ATen/CPUGeneratorImpl.h",
    "ATen/Context.h",
    "ATen/record_function.h",
    "c10/core/AllocatorConfig.h",
    "c10/core/CachingDeviceAllocator.h",
    "c10/util/ThreadLocalDebugInfo.h",
    "torch/csrc/profiler/orchestration/observer.h",
)
_OF_CUDA = ("ATen/cuda/CUDAGeneratorImpl.h", "c10/cuda/CUDAAllocatorConfig.h")
_CUDA_BUILD = "c10/cuda/impl/cuda_cmake_macros.h"
"""Only wheels for CUDA have it, and every header of c10/cuda needs it."""

_SETTING_ENUMS = {
    "at::Float32MatmulPrecision": "",
    "at::Float32Backend": "",
    "at::Float32Op": "",
    "at::Float32Precision": "",
    "at::LinalgBackend": "",
    "at::BlasBackend": "",
    "at::CuBLASReductionOption": "",
    "torch::profiler::impl::ProfilerState": "",
}

# Enough of CUDA's headers for classes that hold its objects by pointer, and for inline functions that copy.
_CUDA = """#pragma once
#include <stddef.h>
typedef int cudaError_t;
typedef int cudaError;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
enum { cudaSuccess = 0, cudaErrorNotReady = 600 };
enum cudaMemcpyKind { cudaMemcpyHostToHost = 0 };
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaStreamGetPriority(cudaStream_t, int*);
cudaError_t cudaDeviceGetStreamPriorityRange(int*, int*);
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal = 0 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1,
                               cudaStreamCaptureStatusInvalidated = 2 };
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus*, unsigned long long*);
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
"""
_CUDA_HEADERS = ("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h")


def write_settings_stubs(folder: Path) -> None:
    """Write what stands for CUDA's headers into ``folder``, which the compiler searches last."""
    folder.mkdir(parents=True, exist_ok=True)
    for header in _CUDA_HEADERS:
        (folder / header).write_text(_CUDA)


def settings_wants() -> Wants:
    """The wants from the headers of its settings."""
    includes = [_include(header) for header in _SETTING_HEADERS]
    of_cuda = "\n".join(map(_include, _OF_CUDA))
    includes.append(f"#if __has_include(<{_CUDA_BUILD}>)\n{of_cuda}\n#endif")
    return Wants("\n".join(includes), wanted(setting_structures), _SETTING_ENUMS)


def _include(header: str) -> str:
    return f"#if __has_include(<{header}>)\n#include <{header}>\n#endif"


HEADER = "torch/csrc/autograd/generated/Functions.h"
_NAMESPACE = "torch::autograd::generated"
_CLASS = re.compile(r"^struct TORCH_API (\w+) : public \w+ \{(.*?)^\};", re.S | re.M)
_MEMBER = re.compile(r"^  (SavedVariable|std::vector<SavedVariable>) (\w+);", re.M)
_LIST = "[]"
"""The suffix of the name of a member that is a vector."""
_PYTHON_HEADER = "torch/csrc/autograd/python_function.h"
_PYTHON_MEMBERS = {"THPFunction.saved_variables[]": "__builtin_offsetof(THPFunction, saved_variables)"}
"""Members that a torch.autograd.Function saves."""


def saved_member_wants(header: str) -> Wants:
    """One constant for each member of the header's classes."""
    includes = f"#include <{HEADER}>\n#include <{_PYTHON_HEADER}>\n"
    return Wants(includes, {}, {}, {**members(header), **_PYTHON_MEMBERS})


def members(header: str) -> dict[str, str]:
    """ "Class.member" to the C++ expression of its offset; of a vector "Class.member[]"."""
    found = {}
    for declared in _CLASS.finditer(header):
        for member in _MEMBER.finditer(declared[2]):
            suffix = _LIST if member[1] != "SavedVariable" else ""
            expression = f"__builtin_offsetof({_NAMESPACE}::{declared[1]}, {member[2]})"
            found[f"{declared[1]}.{member[2]}{suffix}"] = expression
    return found


_PYTHON_HEADERS = (
    "frameobject.h",
    "internal/pycore_runtime.h",
    "internal/pycore_interp.h",
    "internal/pycore_pystate.h",
    "internal/pycore_gil.h",
    "internal/pycore_ceval.h",
    "internal/pycore_ceval_state.h",
    "internal/pycore_frame.h",
    "internal/pycore_code.h",
    "internal/pycore_dict.h",
    "internal/pycore_lock.h",
    "internal/pycore_parking_lot.h",
    "internal/pycore_moduleobject.h",
    "internal/pycore_pythread.h",
    "internal/pycore_tstate.h",
    "internal/pycore_genobject.h",
    "internal/pycore_typeobject.h",
    "internal/pycore_unicodeobject.h",
)

# Until 3.10 these were in .c files or headers that are not installed.
_DECLARATIONS = """
#include <pthread.h>
#include <semaphore.h>
#if PY_VERSION_HEX < 0x030B0000
/* Objects/dict-common.h, 3.8 to 3.10 */
typedef struct { Py_hash_t me_hash; PyObject *me_key; PyObject *me_value; } PyDictKeyEntry;
struct _dictkeysobject {
  Py_ssize_t dk_refcnt; Py_ssize_t dk_size; void *dk_lookup; Py_ssize_t dk_usable; Py_ssize_t dk_nentries;
  char dk_indices[];
};
/* Objects/moduleobject.c, 3.8 and 3.9; internal/pycore_moduleobject.h in 3.10 */
#if PY_VERSION_HEX < 0x030A0000
typedef struct {
  PyObject_HEAD
  PyObject *md_dict; struct PyModuleDef *md_def; void *md_state; PyObject *md_weaklist; PyObject *md_name;
} PyModuleObject;
#endif
#endif
/* Modules/_threadmodule.c, up to 3.13 */
#if PY_VERSION_HEX < 0x030E0000
typedef struct {
  PyObject_HEAD
  PyThread_type_lock lock_lock; PyObject *in_weakreflist; char locked;
} gdbext_lock;
typedef struct {
  PyObject_HEAD
  PyThread_type_lock rlock_lock; unsigned long rlock_owner; unsigned long rlock_count; PyObject *in_weakreflist;
} gdbext_rlock;
#endif
/* Python/thread_pthread.h, without POSIX semaphores; with them a lock is a sem_t */
typedef struct { char locked; pthread_cond_t lock_released; pthread_mutex_t mut; } gdbext_pthread_lock;
"""

_BEYOND_PYTHON = {
    **dict.fromkeys(
        (
            "_PyThreadStateImpl",
            "_Py_DebugOffsets",
            "_PyCFrame",
            "_PyStackChunk",
            "PyByteArrayObject",
            "PyDictUnicodeEntry",
            "PyMethodDef",
            "PyGenObject",
            "PyAsyncGenObject",
            "PyMutex",
            "_PyRawMutex",
            "_PyRecursiveMutex",
            "_PyOnceFlag",
            "_PyRWMutex",
            "PyEvent",
            "pthread_mutex_t",
            "pthread_cond_t",
            "sem_t",
        ),
        "",
    ),
    "_gilstate_runtime_state": "struct _gilstate_runtime_state",
    "_ceval_runtime_state": "struct _ceval_runtime_state",
    "_ceval_state": "struct _ceval_state",
    "_pending_calls": "struct _pending_calls",
    "pthread_lock": "gdbext_pthread_lock",
}

_PYTHON_ENUMS = {
    "_frameowner": "enum _frameowner",
    "_framestate": "enum _framestate",
    "PyFrameState": "PyFrameState",
    "_PyStatus_type": "__typeof__(((PyStatus*)0)->_type)",
}

_FLAGS = (
    "CO_OPTIMIZED",
    "CO_NEWLOCALS",
    "CO_VARARGS",
    "CO_VARKEYWORDS",
    "CO_GENERATOR",
    "CO_COROUTINE",
    "CO_ASYNC_GENERATOR",
    "CO_FAST_LOCAL",
    "CO_FAST_CELL",
    "CO_FAST_FREE",
    "CO_FAST_HIDDEN",
    "Py_TPFLAGS_LONG_SUBCLASS",
    "Py_TPFLAGS_LIST_SUBCLASS",
    "Py_TPFLAGS_TUPLE_SUBCLASS",
    "Py_TPFLAGS_BYTES_SUBCLASS",
    "Py_TPFLAGS_UNICODE_SUBCLASS",
    "Py_TPFLAGS_DICT_SUBCLASS",
    "Py_TPFLAGS_TYPE_SUBCLASS",
    "Py_TPFLAGS_MANAGED_DICT",
    "Py_TPFLAGS_INLINE_VALUES",
    "DICT_KEYS_GENERAL",
    "DICT_KEYS_UNICODE",
    "DICT_KEYS_SPLIT",
    "PyLong_SHIFT",
    "_PyLong_NON_SIZE_BITS",
    "_PyLong_SIGN_MASK",
    "Py_MONITORING_MAJOR",
    "WAITING_FOR_GIL",
    "_Py_THREAD_DETACHED",
    "_Py_THREAD_ATTACHED",
    "_Py_THREAD_SUSPENDED",
    "_Py_THREAD_GC",
    "_Py_LOCKED",
    "_Py_HAS_PARKED",
    "MANAGED_DICT_OFFSET",
    "MANAGED_WEAKREF_OFFSET",
    "FRAME_SPECIALS_SIZE",
    "Py_GIL_DISABLED",
)

_PYTHON_CONSTANTS = {
    "PY_VERSION_HEX": "",
    "sizeof_codeunit": "sizeof(_Py_CODEUNIT)",
    "sizeof_pyobject": "sizeof(PyObject)",
    **dict.fromkeys(_FLAGS, ""),
}


def cpython_wants() -> Wants:
    """The wants from CPython's headers."""
    includes = "\n".join(map(_include, _PYTHON_HEADERS))
    return Wants(
        f"#include <Python.h>\n{includes}\n{_DECLARATIONS}",
        {**_BEYOND_PYTHON, **wanted(python_structures)},
        _PYTHON_ENUMS,
        _PYTHON_CONSTANTS,
        cplusplus=False,
    )
