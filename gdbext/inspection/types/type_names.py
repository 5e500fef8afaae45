"""Which C++ types of PyTorch have a summary. Debuggers ask for every value that they show, so this imports little."""

from __future__ import annotations

from gdbext.model.record import Record


class SummarizedType(Record):
    """A C++ class or enumeration by its qualified name; of a template, the name without arguments."""

    name: str
    is_template: bool = False
    has_children: bool = False
    """Something is shown inside of it, besides the summary."""


_TENSOR_CLASSES = (
    "c10::TensorImpl", "c10::UndefinedTensorImpl", "at::SparseTensorImpl", "at::SparseCsrTensorImpl",
    "at::QTensorImpl", "at::FunctionalTensorWrapper", "at::native::NestedTensorImpl",
    "at::functorch::BatchedTensorImpl", "at::functorch::TensorWrapper",
)  # fmt: skip

SUMMARIZED_TYPES = (
    SummarizedType("c10::DispatchKeySet"),
    SummarizedType("c10::DispatchKey"),
    SummarizedType("c10::OperatorName"),
    SummarizedType("c10::OperatorHandle", has_children=True),
    SummarizedType("c10::TypedOperatorHandle", is_template=True, has_children=True),
    SummarizedType("c10::KernelFunction", has_children=True),
    SummarizedType("c10::FunctionSchema"),
    SummarizedType("at::Tensor", has_children=True),
    SummarizedType("at::TensorBase", has_children=True),
    *(SummarizedType(name, has_children=True) for name in _TENSOR_CLASSES),
    SummarizedType("c10::Storage"),
    SummarizedType("c10::StorageImpl"),
    SummarizedType("c10::Scalar"),
    SummarizedType("c10::IValue", has_children=True),
    SummarizedType("c10::Device"),
    SummarizedType("c10::ScalarType"),
    SummarizedType("caffe2::TypeMeta"),
    SummarizedType("c10::SymInt"),
    SummarizedType("c10::ArrayRef", is_template=True, has_children=True),
    SummarizedType("c10::intrusive_ptr", is_template=True, has_children=True),
    SummarizedType("c10::SmallVector", is_template=True, has_children=True),
    SummarizedType("c10::SmallVectorImpl", is_template=True, has_children=True),
    SummarizedType("c10::Dict", is_template=True, has_children=True),
    SummarizedType("c10::List", is_template=True, has_children=True),
)

_BY_NAME = {each.name: each for each in SUMMARIZED_TYPES}
TENSOR_CLASSES = frozenset(_TENSOR_CLASSES)
"""c10::TensorImpl and the classes derived from it."""


def summarized_type(name: str) -> SummarizedType | None:
    """The type that a debugger calls ``name``, typedefs and qualifiers taken away; None for one without a summary."""
    base, bracket, _ = name.partition("<")
    found = _BY_NAME.get(base)
    return found if found is not None and found.is_template == bool(bracket) else None
