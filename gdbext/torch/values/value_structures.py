"""The structures of PyTorch's values, types and schemas, and the containers of the standard library.

As in torch/structures.py, each class has the name of a C++ class as the layout documents have it and the members that
are read; ``cpp`` is the type that is measured, if it has another name. Sources: ATen/core/ivalue.h, List.h, Dict.h,
IListRef.h, jit_type.h, function_schema.h, c10/core/Scalar.h, c10/util/ of 2.0 to 2.15, and libstdc++.
"""

from __future__ import annotations

from gdbext.engine.layouts.declarations import I64, U32, U64, BitField, Flag, Inner, Place, Struct

# --- the standard library ---------------------------------------------------------------------------------------------


class Deque(Struct, of="std::deque", cpp="std::deque<void*>"):
    """Blocks of 512 bytes, and a table of them (bits/stl_deque.h)."""

    first = U64("_M_impl._M_start._M_cur")
    block_end = U64("_M_impl._M_start._M_last")
    block = U64("_M_impl._M_start._M_node")
    end = U64("_M_impl._M_finish._M_cur")


class List(Struct, of="std::list", cpp="std::list<void*>"):
    """A ring; of the old ABI without its length."""

    length = U64("_M_impl._M_node._M_size")


class String(Struct, of="std::string"):
    """A text; of the old ABI its length is in front of the characters."""

    data = U64("_M_dataplus._M_p", required=True)
    length = U64("_M_string_length")


class UnorderedMap(Struct, of="std::unordered_map", cpp="std::unordered_map<std::string, void*>"):
    """A hash table: its elements are one list."""

    elements = Place("_M_h._M_element_count")
    first = Place("_M_h._M_before_begin")


class UnorderedSet(Struct, of="std::unordered_set", cpp="std::unordered_set<c10::Symbol>"):
    elements = U64("_M_h._M_element_count")
    first = U64("_M_h._M_before_begin._M_nxt")


class StdMutex(Struct, of="std::mutex"):
    """A mutex, which is a pthread_mutex_t."""


class StringView(Struct, of="c10::string_view"):
    """Address and length of characters: c10's own before 2.6 (c10/util/string_view.h), then libstdc++'s."""

    begin_ = U64()
    _M_str = U64()


class OptionalArrayRef(Struct, of="c10::OptionalArrayRef", cpp="c10::OptionalArrayRef<int64_t>"):
    """An ArrayRef that may be missing (c10/util/OptionalArrayRef.h)."""


class Optional(Struct, of="optional<bool>", cpp="gdbext::Optional<bool>"):
    """A value that may be missing: ``std::optional``, or c10's own of torch before 2.2 (c10/util/Optional.h)."""

    storage_ = Place()
    init_ = Flag()
    value_of = Place("_M_payload")
    is_engaged = Flag("_M_payload._M_engaged")


class ArrayRef(Struct, of="c10::ArrayRef", cpp="c10::ArrayRef<int64_t>"):
    Data = Place()
    Length = Place()


class SmallVector(Struct, of="c10::SmallVector", cpp="c10::SmallVector<int64_t, 5>"):
    """The beginning of one, which is alike for any number of inline elements (c10/util/SmallVector.h)."""

    BeginX = U64()
    Size = U32()


# --- boxed values: ATen/core/ivalue.h, ivalue_inl.h, List.h, Dict.h, c10/core/Scalar.h --------------------------------


class IValue(Struct, of="c10::IValue"):
    payload = Place()
    tag = U32()


class ConstantString(Struct, of="c10::ivalue::ConstantString"):
    str_ = Place()


class ComplexHolder(Struct, of="c10::ivalue::ComplexHolder"):
    val = Place()


class TupleElements(Struct, of="c10::ivalue::TupleElements"):
    """Up to three values inline, ``inlineSize_`` of them, or more in a vector."""

    inlineSize_ = U64()
    elementsVector_ = Place()
    elementsInline_ = Place()


class BoxedTuple(Struct, of="c10::ivalue::Tuple"):
    elements_ = Inner(lambda: TupleElements)


class ListImpl(Struct, of="c10::detail::ListImpl"):
    list = Place()


class DictTable(Struct, of="c10::detail::DictImpl::dict", cpp="gdbext::Dict"):
    """The hash table of a Dict, whose entries are a ring (c10/util/order_preserving_flat_hash_map.h)."""

    num_elements = U64()
    sentinel = U64()


class DictEntry(Struct, of="c10::detail::DictImpl::dict.entry", cpp="gdbext::DictEntry"):
    """An entry of that table: its neighbours, then key and value."""

    prev = U64()
    next = U64()
    pair = Place("value")


class DictImpl(Struct, of="c10::detail::DictImpl"):
    dict = Inner(lambda: DictTable)


class Scalar(Struct, of="c10::Scalar"):
    tag = U32()
    v = Place()


class ListReference(Struct, of="c10::IListRef", cpp="c10::IListRef<at::Tensor>"):
    """An ArrayRef, or the address of a List; ``tag_`` says which."""

    payload_ = Place()
    tag_ = U32()


class ReferenceCounted(Struct, of="c10::intrusive_ptr_target"):
    """The counts of references to an object: two words up to 2.2, two halves of words, one word since 2.10."""

    combined_refcount_ = U64()
    refcount_ = BitField()
    weakcount_ = BitField()


# --- types and schemas: ATen/core/jit_type.h, function_schema.h, alias_info.h, interned_strings_class.h ---------------


class Type(Struct, of="c10::Type"):
    """A type; ``kind_`` is a c10::TypeKind."""

    kind_ = U32()


class ListType(Struct, of="c10::ListType"):
    elem = U64()


class OptionalType(Struct, of="c10::OptionalType"):
    contained_ = U64()


class FutureType(Struct, of="c10::FutureType"):
    """A future of a type; an AwaitType has its element there, too."""

    elem = U64()


class RRefType(Struct, of="c10::RRefType"):
    elem = U64()


class TupleType(Struct, of="c10::TupleType"):
    elements_ = Place()
    schema_ = U64()


class DictType(Struct, of="c10::DictType"):
    """A dictionary: the types of its keys and of its values."""

    types = Place()


class UnionType(Struct, of="c10::UnionType"):
    types_ = Place()


class VarType(Struct, of="c10::VarType"):
    name_ = Place()


class NamedType(Struct, of="c10::NamedType"):
    name_ = Place()


class QualifiedName(Struct, of="c10::QualifiedName"):
    qualifiedName_ = Place()


class FunctionSchema(Struct, of="c10::FunctionSchema"):
    """An operator's arguments and results; its name is in front of them."""

    arguments_ = Place()
    returns_ = Place()
    is_vararg_ = Flag()
    is_varret_ = Flag()


class ArgumentStruct(Struct, of="c10::Argument"):
    """An argument, or a result. ``N_`` and ``default_value_`` are optional."""

    name_ = Place()
    real_type_ = U64()
    N_ = Place()
    default_value_ = Place()
    alias_info_ = U64()
    kwarg_only_ = Flag()


class AliasInfo(Struct, of="c10::AliasInfo"):
    """The names of the memory that an argument shares, before and after the call."""

    beforeSets_ = Inner(lambda: UnorderedSet)
    afterSets_ = Inner(lambda: UnorderedSet)
    containedTypes_ = Place()
    isWrite_ = Flag()


class InternedStrings(Struct, of="c10::InternedStrings"):
    sym_to_info_ = Place()


class SymbolInfo(Struct, of="c10::InternedStrings::SymbolInfo"):
    unqual_name = Place()


# --- the memory of threads: c10/core/AutogradState.h, ATen/functorch/, c10/core/impl/ --------------------------------


class AutogradState(Struct, of="c10::AutogradState"):
    """The switches of autograd of a thread; 2.0 spells one of them otherwise."""

    grad_mode_ = BitField()
    inference_mode_ = BitField()
    fw_grad_mode_ = BitField()
    multithreading_enabled_ = BitField()
    mulithreading_enabled_ = BitField()
    view_replay_enabled_ = BitField()


class TransformStruct(Struct, of="at::functorch::Interpreter"):
    type_ = U32()
    level_ = I64()


class DynamicLayer(Struct, of="at::functorch::DynamicLayer"):
    interpreter_ = Inner(lambda: TransformStruct)


class DispatchModes(Struct, of="c10::impl::TorchDispatchModeTLS"):
    """The modes of Python dispatch of a thread: a stack of the user's, and an array of optional ones of PyTorch's."""

    stack_ = Place()
    infra_modes_ = Place()


class FunctionModes(Struct, of="at::impl::PythonTorchFunctionTLS"):
    """The modes of ``__torch_function__`` of a thread, and whether they are disabled."""

    disabled_state_ = U32()
    stack_ = Place()


class ThreadPool(Struct, of="c10::ThreadPool"):
    threads_ = Place()


class RecordFunctionTls(Struct, of="at::RecordFunctionTLS"):
    sorted_tls_callbacks_ = Place()


class SavedTensorHooks(Struct, of="at::impl::SavedTensorDefaultHooksTLS"):
    """The hooks for saved tensors of one thread: ``stack`` is a deque, ``disabled_error_message`` optional."""

    stack = Place()
    disabled_error_message = Place()
