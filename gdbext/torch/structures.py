"""The structures of PyTorch that are read: dispatcher, tensors, autograd.

Each class has the name of a C++ class in the layout documents, and the members that are read; those that some release
lacks are checked with ``has`` first. ``cpp`` is the measured type (torch/measure), if it has another name. Sources:
c10/core/, ATen/core/, torch/csrc/autograd/ of 2.0 to 2.15, the files beside each group.
"""

from __future__ import annotations

from gdbext.engine.layouts.declarations import (
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    BitField,
    Flag,
    Inner,
    Link,
    Place,
    Struct,
)
from gdbext.torch.values.value_structures import SmallVector

# --- the dispatcher: ATen/core/dispatch/Dispatcher.h, OperatorEntry.h, ATen/core/boxing/KernelFunction.h --------------


class OperatorName(Struct, of="c10::OperatorName"):
    """``aten::add`` and its overload: two strings."""

    name = Place(required=True)
    overload_name = Place(required=True)


class BoxedKernel(Struct, of="c10::BoxedKernel"):
    """A functor, and the function that takes its arguments on a stack."""

    functor_ = U64(required=True)
    boxed_kernel_func_ = U64(required=True)


class KernelFunctionStruct(Struct, of="c10::KernelFunction"):
    boxed_kernel_func_ = Inner(lambda: BoxedKernel, required=True)
    unboxed_kernel_func_ = U64(required=True)
    sym_unboxed_kernel_func_ = U64()


class AnnotatedKernel(Struct, of="c10::impl::AnnotatedKernel"):
    kernel = Inner(lambda: KernelFunctionStruct)
    inferred_function_schema = U64()
    debug = Place()


class AnnotatedSchema(Struct, of="c10::impl::AnnotatedSchema"):
    """The schema is the first member."""

    debug = Place()


class DispatchKeyExtractor(Struct, of="c10::DispatchKeyExtractor"):
    """The arguments whose keys count for a call, and the keys that do not fall through."""

    dispatch_arg_indices_reverse_ = U64()
    nonFallthroughKeys_ = U64()
    nonFallthroughKeysPerBackend_ = Place()
    requiresBitsetPerBackend_ = U8()


class KernelMap(Struct, of="c10::impl::OperatorEntry::kernels_.map", cpp="gdbext::Kernels"):
    """The hash table of an operator's registrations (c10/util/flat_hash_map.h)."""

    num_slots_minus_one = U64()
    num_elements = U64()


class CppSignature(Struct, of="c10::impl::OperatorEntry::CppSignatureWithDebug"):
    """The C++ type of an operator's kernels: a ``std::type_index``, a pointer to a type_info (CppSignature.h,
    <typeindex>)."""

    signature = U64()


class OperatorEntry(Struct, of="c10::impl::OperatorEntry"):
    """An operator. ``schema_`` is an optional ``AnnotatedSchema``, the last two are optional ``CppSignature``."""

    name_ = Inner(lambda: OperatorName, required=True)
    schema_ = Place(required=True)
    dispatchTable_ = Place(required=True)
    dispatchKeyExtractor_ = Inner(lambda: DispatchKeyExtractor, required=True)
    kernels_ = Inner(lambda: KernelMap, required=True)
    is_observed_ = U8()
    cpp_signature_ = Place()
    sym_cpp_signature_ = Place()


class OperatorDef(Struct, of="c10::Dispatcher::OperatorDef"):
    op = Inner(lambda: OperatorEntry, required=True)


class OperatorNode(Struct, of="std::_List_node<c10::Dispatcher::OperatorDef>"):
    """A node of the list of operators: links to the next and the previous one, then the value."""

    _M_storage = Inner(lambda: OperatorDef)


class LookupTable(Struct, of="c10::Dispatcher::operatorLookupTable_", cpp="gdbext::Lookup"):
    """A c10::LeftRight: two copies of a table; readers use the foreground one (c10/util/LeftRight.h)."""

    _foregroundDataIndex = U8()
    _data = Place()


class LookupMap(Struct, of="c10::Dispatcher::operatorLookupTable_.map", cpp="gdbext::LookupMap"):
    num_elements = U64()


class DispatcherStruct(Struct, of="c10::Dispatcher"):
    """``guard_`` leads to the lock of registrations, ``mutex_`` is that lock (before 2.0)."""

    operators_ = Place(required=True)
    operatorLookupTable_ = Inner(lambda: LookupTable)
    backendFallbackKernels_ = Place(required=True)
    guard_ = U64()
    mutex_ = Place()


class OperatorHandle(Struct, of="c10::OperatorHandle"):
    operatorDef_ = U64(required=True)


class OperatorKernel(Struct, of="c10::OperatorKernel"):
    """The base of all functors."""


class SafePyObject(Struct, of="c10::SafePyObject"):
    data_ = U64()


# --- tensors: c10/core/TensorImpl.h, StorageImpl.h, impl/SizesAndStrides.h, ATen/core/NamedTensor.h; of ATen:
# SparseTensorImpl.h, SparseCsrTensorImpl.h, NestedTensorImpl.h, FunctionalTensorWrapper.h, quantized/QTensorImpl.h


class SizesAndStrides(Struct, of="c10::impl::SizesAndStrides"):
    """Up to five dimensions inline, more in a block of their own."""

    size_ = U64()
    inlineStorage_ = Place()
    outOfLineStorage_ = U64()


class PyObjectSlot(Struct, of="c10::impl::PyObjectSlot"):
    """The Python object of a tensor; in older versions its lowest bits say who owns it."""

    pyobj_ = U64()


class VersionCounter(Struct, of="c10::VariableVersion::VersionCounter"):
    version_ = U32()


class DataPtr(Struct, of="c10::DataPtr"):
    """The address of elements, and their device (two bytes: type and index)."""

    ptr_ = U64()
    device_ = Place()


class StorageImpl(Struct, of="c10::StorageImpl"):
    """The memory that tensors share. ``size_bytes_`` is a SymInt."""

    data_ptr_ = Inner(lambda: DataPtr)
    size_bytes_ = I64()


class SymbolicShapeMeta(Struct, of="c10::SymbolicShapeMeta"):
    sizes_ = Inner(lambda: SmallVector)
    strides_ = Inner(lambda: SmallVector)


class NamedTensorMeta(Struct, of="at::NamedTensorMeta"):
    """Names of dimensions; no release from 2.13 on has them."""

    names_ = Place()


class Dimname(Struct, of="at::Dimname"):
    type_ = U8()
    name_ = U32()


class ExtraMeta(Struct, of="c10::ExtraMeta"):
    symbolic_shape_meta_ = Link(lambda: SymbolicShapeMeta)
    named_tensor_meta_ = Link(lambda: NamedTensorMeta)
    fake_device_ = Place()


class TensorImpl(Struct, of="c10::TensorImpl"):
    """A tensor. ``device_opt_`` is an optional ``c10::Device``."""

    storage_ = U64()
    autograd_meta_ = Link(lambda: AutogradMeta)
    extra_meta_ = Link(lambda: ExtraMeta)
    version_counter_ = Link(lambda: VersionCounter)
    pyobj_slot_ = Inner(lambda: PyObjectSlot)
    sizes_and_strides_ = Inner(lambda: SizesAndStrides)
    storage_offset_ = I64()
    numel_ = I64()
    data_type_ = U16()
    device_opt_ = Place()
    key_set_ = U64()
    is_contiguous_ = BitField()
    is_channels_last_contiguous_ = BitField()
    is_channels_last_3d_contiguous_ = BitField()
    is_non_overlapping_and_dense_ = BitField()
    sizes_strides_policy_ = BitField()
    has_symbolic_sizes_strides_ = BitField()


class SparseTensor(Struct, of="at::SparseTensorImpl"):
    indices_ = U64()
    values_ = U64()


class SparseRowTensor(Struct, of="at::SparseCsrTensorImpl"):
    """A tensor that is compressed by rows, or by columns, as ``layout_`` says (ATen/SparseCsrTensorImpl.h)."""

    crow_indices_ = U64()
    col_indices_ = U64()
    values_ = U64()
    layout_ = U8()


class NestedTensor(Struct, of="at::native::NestedTensorImpl"):
    nested_sizes_ = U64()
    nested_strides_ = U64()
    storage_offsets_ = U64()


class BatchedTensor(Struct, of="at::functorch::BatchedTensorImpl"):
    value_ = U64()


class GradTensor(Struct, of="at::functorch::TensorWrapper"):
    value_ = U64()


class FunctionalTensor(Struct, of="at::FunctionalTensorWrapper"):
    value_ = U64()


class QuantizedTensor(Struct, of="at::QTensorImpl"):
    quantizer_ = U64()


class PerTensorQuantizer(Struct, of="at::PerTensorAffineQuantizer"):
    scale_ = F64()
    zero_point_ = I64()


class PerChannelQuantizer(Struct, of="at::PerChannelAffineQuantizer"):
    scales_ = U64()
    zero_points_ = U64()
    axis_ = I64()


# --- autograd: torch/csrc/autograd/variable.h, function.h, graph_task.h, engine.h, saved_variable.h -------------------


class Node(Struct, of="torch::autograd::Node"):
    """A node of the graph of backward. Hooks are vectors of pointers; ``retains_grad_hooks_`` is a hash table."""

    sequence_nr_ = U64()
    topological_nr_ = U64()
    thread_id_ = U64()
    anomaly_metadata_ = U64()
    next_edges_ = Place()
    pyobj_slot_ = Inner(lambda: PyObjectSlot)
    pre_hooks_ = Place()
    tensor_pre_hooks_ = Place()
    post_hooks_ = Place()
    retains_grad_hooks_ = Place()


class AnomalyMetadata(Struct, of="torch::autograd::AnomalyMetadata"):
    """The base of the class in which anomaly mode keeps the lines that made a node."""


class Edge(Struct, of="torch::autograd::Edge"):
    function = U64()
    input_nr = U32()


class AutogradMeta(Struct, of="torch::autograd::AutogradMeta"):
    grad_ = U64()
    grad_fn_ = U64()
    hooks_ = Place()
    post_acc_grad_hooks_ = U64()
    requires_grad_ = Flag()
    is_view_ = Flag()


class GraphTaskStruct(Struct, of="torch::autograd::GraphTask"):
    outstanding_tasks_ = U64()
    has_error_ = Flag()
    keep_graph_ = Flag()
    dependencies_ = Place()
    nodes_in_graph_ = Place()
    exec_info_ = Place()
    owner_ = I32()
    reentrant_depth_ = I32()
    cpu_ready_queue_ = U64()
    id_ = U64()


class ReadyQueue(Struct, of="torch::autograd::ReadyQueue"):
    heap_ = Place()


class NodeTask(Struct, of="torch::autograd::NodeTask"):
    """A task of a ReadyQueue; a null ``fn_`` only wakes a thread."""

    fn_ = U64()


class Engine(Struct, of="torch::autograd::Engine"):
    device_ready_queues_ = Place()


class SavedVariable(Struct, of="torch::autograd::SavedVariable"):
    data_ = U64()
    saved_version_ = U32()
    was_default_constructed_ = U8()
    saved_original_ = U8()
    hooks_ = U64()
