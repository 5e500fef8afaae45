"""The wants from PyTorch's headers: a table of C++ types, enumerations and constants.

Names are those of the layout documents. Where the right-hand side is "" the C++ expression is the name itself;
instantiations get a short name of our own (``.map``, ``.entry``) since their full C++ names change with every
standard library. Private members are measured with -fno-access-control.
"""

from __future__ import annotations

from gdbext.engine.layouts.measure.types.wants import Wants

HEADERS = (
    "ATen/FuncTorchTLS.h", "ATen/FunctionalTensorWrapper.h", "ATen/NestedTensorImpl.h", "ATen/PTThreadPool.h",
    "ATen/PythonTorchFunctionTLS.h", "ATen/SavedTensorHooks.h", "ATen/SparseCsrTensorImpl.h",
    "ATen/SparseTensorImpl.h", "ATen/ThreadLocalPythonObjects.h",
    "ATen/ThreadLocalState.h", "ATen/autocast_mode.h", "ATen/core/Dict.h", "ATen/core/Dimname.h",
    "ATen/core/Generator.h", "ATen/core/IListRef.h", "ATen/core/List.h", "ATen/core/NamedTensor.h",
    "ATen/core/PythonFallbackKernel.h", "ATen/core/QuantizerBase.h",
    "ATen/core/boxing/KernelFunction.h", "ATen/core/dispatch/Dispatcher.h", "ATen/core/dispatch/OperatorEntry.h",
    "ATen/core/function_schema.h", "ATen/core/ivalue.h", "ATen/core/interned_strings_class.h", "ATen/core/ivalue_inl.h",
    "ATen/core/jit_type.h",
    "ATen/core/PythonOpRegistrationTrampoline.h",
    "ATen/core/enum_tag.h", "ATen/functorch/BatchedTensorImpl.h", "ATen/functorch/DynamicLayer.h",
    "ATen/functorch/Interpreter.h", "ATen/functorch/TensorWrapper.h", "ATen/quantized/QTensorImpl.h",
    "ATen/quantized/Quantizer.h", "ATen/record_function.h",
    "c10/core/AutogradState.h", "c10/core/DispatchKey.h", "c10/core/DispatchKeySet.h", "c10/core/InferenceMode.h",
    "c10/core/QScheme.h",
    "c10/core/SafePyObject.h", "c10/core/StorageImpl.h", "c10/core/SymInt.h", "c10/core/TensorImpl.h",
    "c10/core/UndefinedTensorImpl.h", "c10/core/impl/LocalDispatchKeySet.h", "c10/core/impl/PyInterpreter.h",
    "c10/core/impl/PythonDispatcherTLS.h", "c10/core/impl/TorchDispatchModeTLS.h", "c10/core/thread_pool.h",
    "c10/util/ArrayRef.h", "c10/util/MaybeOwned.h", "c10/util/OptionalArrayRef.h", "c10/util/SmallVector.h",
    "c10/util/string_view.h",
    "torch/csrc/autograd/anomaly_mode.h",
    "torch/csrc/autograd/custom_function.h", "torch/csrc/autograd/engine.h", "torch/csrc/autograd/forward_grad.h",
    "torch/csrc/autograd/function.h", "torch/csrc/autograd/graph_task.h", "torch/csrc/autograd/saved_variable.h",
    "torch/csrc/autograd/variable.h",
)  # fmt: skip

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
    "at::Tensor", "at::Generator", "c10::Scalar", "c10::SymInt", "c10::ScalarType", "c10::Layout", "c10::MemoryFormat",
    "c10::Device", "c10::string_view", "int64_t", "double", "bool",
)  # fmt: skip
"""Optionals that operators take as arguments: ``optional<T>`` is ``std::optional<T>``, or the ``c10::optional<T>`` of
torch before 2.2."""

STRUCTS = {
    # the dispatcher
    "c10::Dispatcher": "",
    "c10::Dispatcher::OperatorDef": "",
    "c10::Dispatcher::Guard": "",
    "c10::Dispatcher::operatorLookupTable_": "gdbext::Lookup",
    "c10::Dispatcher::operatorLookupTable_.map": "gdbext::LookupMap",
    "c10::Dispatcher::operatorLookupTable_.entry": "gdbext::Entry<gdbext::LookupMap>",
    "std::_List_node<c10::Dispatcher::OperatorDef>": "",
    "c10::OperatorHandle": "",
    "c10::TypedOperatorHandle": "c10::TypedOperatorHandle<void()>",
    "c10::impl::OperatorEntry": "",
    "c10::impl::OperatorEntry::kernels_.map": "gdbext::Kernels",
    "c10::impl::OperatorEntry::kernels_.entry": "gdbext::Entry<gdbext::Kernels>",
    "c10::impl::OperatorEntry::kernels_.list": "gdbext::KernelList",
    "std::_List_node<c10::impl::AnnotatedKernel>": "",
    "c10::impl::OperatorEntry::CppSignatureWithDebug": "",
    "c10::impl::AnnotatedSchema": "",
    "c10::impl::AnnotatedKernel": "",
    "c10::KernelFunction": "",
    "c10::BoxedKernel": "",
    "c10::OperatorKernel": "",
    "c10::OperatorName": "",
    "c10::FunctionSchema": "",
    "c10::Argument": "",
    "c10::AliasInfo": "",
    "c10::Type": "",
    "c10::ListType": "",
    "c10::OptionalType": "",
    "c10::TupleType": "",
    "c10::DictType": "",
    "c10::FutureType": "",
    "c10::RRefType": "",
    "c10::VarType": "",
    "c10::NamedType": "",
    "c10::UnionType": "",
    "c10::QualifiedName": "",
    "c10::InternedStrings": "",
    "c10::InternedStrings::SymbolInfo": "",
    "c10::detail::ListImpl": "",
    "c10::DispatchKeyExtractor": "",
    "c10::DispatchKeySet": "",
    "c10::impl::PODLocalDispatchKeySet": "",
    "c10::impl::LocalDispatchKeySet": "",
    "c10::impl::ExcludeDispatchKeyGuard": "",
    "c10::impl::IncludeDispatchKeyGuard": "",
    # values and tensors
    "c10::intrusive_ptr_target": "",
    "c10::IValue": "",
    "c10::ivalue::ConstantString": "",
    "c10::Symbol": "",
    "c10::SymInt": "",
    "c10::Scalar": "",
    "c10::Device": "",
    "at::Tensor": "",
    "c10::TensorImpl": "",
    "c10::StorageImpl": "",
    "c10::Storage": "",
    "c10::DataPtr": "",
    "c10::impl::SizesAndStrides": "",
    "c10::ExtraMeta": "",
    "c10::SymbolicShapeMeta": "",
    "c10::VariableVersion": "",
    "c10::VariableVersion::VersionCounter": "",
    "c10::impl::PyObjectSlot": "",
    "c10::SafePyObject": "",
    "c10::impl::PyInterpreter": "",
    "c10::impl::PyInterpreterVTable": "",
    "c10::AutogradMetaInterface": "",
    "c10::BackendMeta": "",
    "caffe2::TypeMeta": "",
    "caffe2::detail::TypeMetaData": "",
    "at::functorch::BatchedTensorImpl": "",
    "at::functorch::TensorWrapper": "",
    "at::FunctionalTensorWrapper": "",
    "at::SparseTensorImpl": "",
    "at::SparseCsrTensorImpl": "",
    "at::native::NestedTensorImpl": "",
    "at::QTensorImpl": "",
    "at::Quantizer": "",
    "at::PerTensorAffineQuantizer": "",
    "at::PerChannelAffineQuantizer": "",
    "at::NamedTensorMeta": "",
    "at::Dimname": "",
    # arguments of operators
    "c10::ArrayRef": "c10::ArrayRef<int64_t>",
    "c10::OptionalArrayRef": "c10::OptionalArrayRef<int64_t>",
    "c10::IListRef": "c10::IListRef<at::Tensor>",
    "c10::List": "c10::List<at::Tensor>",
    "c10::SmallVector": "c10::SmallVector<int64_t, 5>",
    "c10::MaybeOwned": "c10::MaybeOwned<at::Tensor>",
    "c10::string_view": "",
    "at::Generator": "",
    **{f"optional<{inner}>": f"gdbext::Optional<{inner}>" for inner in _OPTIONALS},
    "c10::ivalue::Tuple": "",
    "c10::ivalue::TupleElements": "",
    "c10::ivalue::ComplexHolder": "",
    "c10::ivalue::Object": "",
    "c10::ivalue::EnumHolder": "",
    "c10::detail::DictImpl": "",
    "c10::detail::DictImpl::dict": "gdbext::Dict",
    "c10::detail::DictImpl::dict.entry": "gdbext::DictEntry",
    # autograd
    "torch::autograd::AutogradMeta": "",
    "torch::autograd::DifferentiableViewMeta": "",
    "torch::autograd::Node": "",
    "torch::autograd::Edge": "",
    "torch::autograd::AnomalyMetadata": "",
    "torch::autograd::GraphTask": "",
    "torch::autograd::ReadyQueue": "",
    "torch::autograd::NodeTask": "",
    "torch::autograd::Engine": "",
    "torch::autograd::Engine::ThreadPoolShared": "",
    "torch::autograd::InputBuffer": "",
    "torch::autograd::SavedVariable": "",
    "torch::autograd::ForwardGrad": "",
    "c10::ivalue::Future": "",
    "c10::ivalue::Await": "",
    # thread-local state
    "c10::AutogradState": "",
    "c10::InferenceMode": "",
    "c10::impl::PythonDispatcherTLS": "",
    "c10::impl::TorchDispatchModeTLS": "",
    "c10::impl::PyObject_TorchDispatchMode": "",
    "at::ThreadLocalState": "",
    "at::impl::ThreadLocalPythonObjects": "",
    "at::impl::PythonTorchFunctionTLS": "",
    "at::impl::SavedTensorDefaultHooksTLS": "",
    "at::RecordFunctionTLS": "",
    "at::RecordFunction": "",
    "at::functorch::DynamicLayer": "",
    "at::functorch::Interpreter": "",
    "at::functorch::GradInterpreterMeta": "",
    "at::functorch::JvpInterpreterMeta": "",
    "at::functorch::VmapInterpreterMeta": "",
    "at::functorch::FunctionalizeInterpreterMeta": "",
    "at::functorch::InterpreterMeta": "",
    # threads
    "c10::ThreadPool": "",
    "at::PTThreadPool": "",
    # the standard library, as this wheel's ABI has it
    "std::string": "",
    "std::vector": "std::vector<void*>",
    "std::list": "std::list<void*>",
    "std::deque": "std::deque<void*>",
    "std::shared_ptr": "std::shared_ptr<int>",
    "std::_Sp_counted_base": "std::_Sp_counted_base<__gnu_cxx::_S_atomic>",
    "std::unordered_set": "std::unordered_set<c10::Symbol>",
    "std::unordered_map": "std::unordered_map<std::string, void*>",
    "std::_Hash_node": "std::__detail::_Hash_node<std::pair<const std::string, void*>, true>",
    "std::mutex": "",
    "std::condition_variable": "",
    "std::function": "std::function<void()>",
    "std::thread": "",
    "std::type_info": "",
    "std::any": "",
}

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
    "autograd_dispatch_keyset", "autocast_dispatch_keyset", "default_included_set", "default_excluded_set",
    "autograd_dispatch_keyset_with_ADInplaceOrView", "python_ks", "sparse_ks", "sparse_csr_ks", "mkldnn_ks",
    "autogradother_backends", "after_autograd_keyset", "after_ADInplaceOrView_keyset", "after_func_keyset",
    "backend_bitset_mask", "inplace_or_view_ks", "autograd_cpu_ks", "autograd_other_ks", "autograd_nested",
    "functorch_transforms_ks", "functorch_batched_ks", "backend_functionality_keys",
)  # fmt: skip

CONSTANTS = {
    "num_functionality_keys": "c10::num_functionality_keys",
    "num_backends": "c10::num_backends",
    "num_per_backend_functionality_keys": "c10::numPerBackendFunctionalityKeys()",
    "num_runtime_entries": "c10::num_runtime_entries",
    "full_backend_mask": "c10::full_backend_mask",
    **{f"keyset.{name}": f"c10::{name}.repr_" for name in _KEYSETS},
}


def wants() -> Wants:
    """The table, with one guarded #include for each header."""
    includes = "\n".join(f"#if __has_include(<{h}>)\n#include <{h}>\n#endif" for h in HEADERS)
    return Wants(f"{includes}\n{_HELPERS}", STRUCTS, ENUMS, CONSTANTS)
