"""What kinds of tensors there are, by C++ class and key set: where their elements are, if anywhere.

Sources: ATen/SparseTensorImpl.h, SparseCsrTensorImpl.h, NestedTensorImpl.h, OpaqueTensorImpl.h, functorch's and
functionalization's wrappers, 2.13.0.
"""

from __future__ import annotations

from collections.abc import Collection

from gdbext.model.record import Record


class TensorKind(Record):
    """``unreadable`` says why there are no elements to read, "" where there are.

    ``wrapped`` and ``parts`` are members of its class that are tensors: those of a wrapper, and those that together are
    a sparse or nested tensor. ``layout`` is that of ``torch.layout``; "" where the tensor keeps it (``layout_``).
    """

    layout: str = "strided"
    unreadable: str = ""
    wrapped: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    is_buffer: bool = False
    """Its elements are all that is in its storage."""


WRAPPER = "it is a wrapper; the elements are those of what it wraps"
_DENSE = TensorKind()
_WRAPPER = TensorKind(unreadable=WRAPPER, wrapped=("value_",))
_CLASSES = {
    "at::SparseTensorImpl": TensorKind(
        "sparse_coo", "it is sparse; the elements are those of its values", parts=("indices_", "values_")
    ),
    "at::SparseCsrTensorImpl": TensorKind(
        "", "it is sparse; the elements are those of its values", parts=("crow_indices_", "col_indices_", "values_")
    ),
    "at::native::NestedTensorImpl": TensorKind(
        parts=("nested_sizes_", "nested_strides_", "storage_offsets_"), is_buffer=True
    ),
    "at::functorch::BatchedTensorImpl": _WRAPPER,
    "at::functorch::TensorWrapper": _WRAPPER,
    "at::FunctionalTensorWrapper": _WRAPPER,
}
_KEYS = {
    "Meta": "a meta tensor has sizes and no elements",
    "Lazy": "a lazy tensor has elements only when something asks for them",
    "ZeroTensor": "all its elements are zeros, and none is stored",
    "MkldnnCPU": "its elements are in a format of oneDNN's own",
}


def kind_of(implementation: str, keys: Collection[str], device: str | None) -> TensorKind:
    """The kind of a tensor of a C++ class, with these keys, on this device (None: unknown)."""
    kind = _CLASSES.get(implementation, _DENSE)
    if kind.unreadable:
        return kind
    for key, why in _KEYS.items():
        if key in keys:
            return kind._replace(unreadable=why, layout="_mkldnn" if key == "MkldnnCPU" else kind.layout)
    if "OpaqueTensorImpl" in implementation:
        return kind._replace(unreadable="its elements are in a format of its backend's own")
    if device == "meta":
        return kind._replace(unreadable="a fake tensor has sizes and no elements")
    if device is not None and device.partition(":")[0] != "cpu":
        return kind._replace(unreadable=f"its elements are in the memory of {device}")
    return kind
