"""The fields of a ``c10::TensorImpl`` and of what it points to, and the kinds of tensors by C++ class and key set.

Sources: c10/core/TensorImpl.h, StorageImpl.h, torch/csrc/autograd/variable.h and function.h, ATen/SparseTensorImpl.h,
SparseCsrTensorImpl.h, NestedTensorImpl.h, OpaqueTensorImpl.h, ATen/quantized/Quantizer.h, QTensorImpl.h, functorch's
and functionalization's wrappers, 2.13.0. A field that the layout lacks is unknown, and so is one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import BitField, Inner, Member, Space
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, GdbextError
from gdbext.torch import structures
from gdbext.torch.values.containers import optional_shape, vector_span
from gdbext.torch.values.cpp_objects import ClassNames, plain_class, strong_references
from gdbext.torch.values.value_structures import SmallVector
from gdbext.torch.values.value_text import GradFunction, Quantization, StorageReport, device_text


class TensorKind(NamedTuple):
    """How the tensors of a C++ class are stored."""

    layout: str = "strided"
    """The name in ``torch.layout``; "" if the tensor's member ``layout_`` says it."""
    unreadable: str = ""
    """The reason why there are no elements to read; "" if there are."""
    wrapped: tuple[Member[int], ...] = ()
    """Members that are the tensors of a wrapper."""
    parts: tuple[Member[int], ...] = ()
    """Members that are tensors and together are a sparse or nested tensor."""
    is_buffer: bool = False
    """The elements are the whole storage (a nested tensor)."""


WRAPPER = "it is a wrapper; the elements belong to the wrapped tensor"
_ROWS, _NESTED = structures.SparseRowTensor, structures.NestedTensor
_WRAPPERS = (structures.BatchedTensor, structures.GradTensor, structures.FunctionalTensor)
_CLASSES = {
    structures.SparseTensor.OF: TensorKind(
        "sparse_coo",
        "it is sparse; its elements are in its values tensor",
        parts=(structures.SparseTensor.indices_, structures.SparseTensor.values_),
    ),
    _ROWS.OF: TensorKind(
        "",
        "it is sparse; its elements are in its values tensor",
        parts=(_ROWS.crow_indices_, _ROWS.col_indices_, _ROWS.values_),
    ),
    _NESTED.OF: TensorKind(
        parts=(_NESTED.nested_sizes_, _NESTED.nested_strides_, _NESTED.storage_offsets_), is_buffer=True
    ),
    **{wrapper.OF: TensorKind(unreadable=WRAPPER, wrapped=(wrapper.value_,)) for wrapper in _WRAPPERS},
}
_UNREADABLE_KEYS = {
    "Meta": "a meta tensor has sizes but no elements",
    "Lazy": "a lazy tensor is computed only when its elements are needed",
    "ZeroTensor": "all its elements are zero and not stored",
    "MkldnnCPU": "its elements are in oneDNN's own format",
}


def kind_of(implementation: str, keys: Collection[str], device: str | None) -> TensorKind:
    """The kind of a tensor of a C++ class, with these keys, on this device (None: unknown)."""
    kind = _CLASSES.get(implementation, TensorKind())
    if kind.unreadable:
        return kind
    for key, why in _UNREADABLE_KEYS.items():
        if key in keys:
            return kind._replace(unreadable=why, layout="_mkldnn" if key == "MkldnnCPU" else kind.layout)
    if "OpaqueTensorImpl" in implementation:
        return kind._replace(unreadable="its elements are in its backend's own format")
    if device == "meta":
        return kind._replace(unreadable="a fake tensor has sizes but no elements")
    if device and device.partition(":")[0] != "cpu":
        return kind._replace(unreadable=f"its elements are in the memory of {device}")
    return kind


_SCHEMES = {
    "PerTensorAffineQuantizer": "per_tensor_affine",
    "PerChannelAffineQuantizer": "per_channel_affine",
    "PerChannelAffineFloatQParamsQuantizer": "per_channel_affine_float_qparams",
}
"""Names in Python (``torch.per_tensor_affine``) of the classes of quantizers."""
_MAX_UNREPRESENTABLE = -(1 << 62) - 1
"""c10/core/SymInt.h: a SymInt from here down is a pointer to a SymNodeImpl."""
_DIMENSIONS = 64
"""Dimensions of a tensor, at most."""
_STORAGE_LIMIT = 1 << 50
"""Bytes: no machine has a petabyte."""
_CONTIGUITY: Mapping[BitField, str] = {
    structures.TensorImpl.is_contiguous_: "contiguous",
    structures.TensorImpl.is_channels_last_contiguous_: "channels_last",
    structures.TensorImpl.is_channels_last_3d_contiguous_: "channels_last_3d",
    structures.TensorImpl.is_non_overlapping_and_dense_: "non-overlapping and dense",
}


class TensorFields:
    """Reads fields of tensors; ``address`` is a TensorImpl's. All methods raise MemoryFault."""

    def __init__(self, memory: Memory, layout: Layout, classes: ClassNames) -> None:
        """Prepare the reader. Raises LayoutError."""
        self._memory = memory
        self._layout = layout
        self._space = Space(memory, layout)
        self._classes = classes
        structures.TensorImpl.shape(layout)
        self._devices = {number: name for name, number in layout.renamed_enum("c10::DeviceType").items()}

    def tensor(self, address: int) -> structures.TensorImpl:
        return structures.TensorImpl(self._space, address)

    def version(self, address: int) -> int | None:
        """The version counter; None for an inference tensor."""
        counter = self.tensor(address).version_counter_
        return counter.version_ if counter.address else None

    def contiguity(self, address: int) -> tuple[str, ...]:
        """The memory formats that the tensor's flags name: ``contiguous``, ``channels_last`` …"""
        raw = self._memory.read(address, structures.TensorImpl.size(self._space))
        return tuple(name for flag, name in _CONTIGUITY.items() if flag.of(self._layout, raw))

    def python_object(self, address: int) -> int:
        """The tensor's PyObject*, 0 without one. In older releases its low bits are flags (which side owns it)."""
        return self.tensor(address).pyobj_slot_.pyobj_ & ~7

    def quantizer(self, address: int, values: Callable[[int], Any]) -> Quantization:
        """The quantizer of a QTensorImpl. ``values`` gives the numbers of the one-dimensional tensor at an address, for
        scales and zero points of channels. Raises BadData, LayoutError."""
        quantizer = structures.QuantizedTensor(self._space, address).quantizer_
        name = next((plain_class(name) for name in self._classes.of(quantizer)), "")
        scheme = _SCHEMES.get(name)
        if scheme is None:
            raise BadData(f"the quantizer at {quantizer:#x} is a {name or 'class without a name'}")
        if scheme == "per_tensor_affine":
            whole = structures.PerTensorQuantizer(self._space, quantizer)
            return Quantization(scheme, (whole.scale_,), (whole.zero_point_,), None)
        channels = structures.PerChannelQuantizer(self._space, quantizer)
        axis = channels.axis_
        if not 0 <= axis < _DIMENSIONS:
            raise BadData(f"the quantizer at {quantizer:#x} has axis {axis}")
        scales, zeros = values(channels.scales_), values(channels.zero_points_)
        if not isinstance(scales, list) or not isinstance(zeros, list):
            raise BadData(f"the quantizer at {quantizer:#x} has no list of scales and zero points")
        return Quantization(scheme, tuple(scales), tuple(zeros), axis)

    def dimension_names(self, address: int) -> tuple[int | None, ...] | None:
        """The ``c10::Symbol`` of each dimension's name, None for one without; None for a tensor without names.

        ATen/core/NamedTensor.h and Dimname.h; versions from 2.13 on have no named tensors. Raises LayoutError.
        """
        extra = self.tensor(address).extra_meta_
        if not extra.address or not extra.has(structures.ExtraMeta.named_tensor_meta_):
            return None
        if not extra.named_tensor_meta_.address:
            return None
        vector = extra.named_tensor_meta_.names_
        first, count = vector_span(self._memory, vector, structures.Dimname.size(self._space), _DIMENSIONS)
        names = structures.Dimname.array(self._space, first, count)
        return tuple(None if name.type_ else name.name_ for name in names)  # a wildcard's type is not 0

    def storage(self, address: int) -> StorageReport | None:
        """The tensor's storage; None without one. Raises BadData for an impossible one."""
        storage = self.tensor(address).storage_
        return self.storage_at(storage) if storage else None

    def storage_at(self, address: int) -> StorageReport:
        """The StorageImpl at ``address``. Raises BadData for an impossible one."""
        storage = structures.StorageImpl(self._space, address)
        data, size = storage.data_ptr_.ptr_, storage.size_bytes_
        if size <= _MAX_UNREPRESENTABLE:
            raise BadData(f"the size of the storage at {address:#x} is symbolic, or damaged")
        if not 0 <= size < _STORAGE_LIMIT:
            raise BadData(f"the storage at {address:#x} claims {size} bytes")
        device = self._device(storage.data_ptr_.device_)
        return StorageReport(address, data, size, device, strong_references(self._space, address))

    def requires_grad(self, address: int) -> bool:
        """The value of ``tensor.requires_grad``: set, or computed from tensors that require it."""
        meta = self.tensor(address).autograd_meta_
        return bool(meta.address) and (meta.requires_grad_ or bool(meta.grad_fn_))

    def is_view(self, address: int) -> bool:
        """True if autograd tracks it as a view of another tensor."""
        meta = self.tensor(address).autograd_meta_
        return bool(meta.address) and meta.is_view_

    def grad_node(self, address: int) -> int:
        """Address of the torch::autograd::Node that made it; 0 for a leaf."""
        meta = self.tensor(address).autograd_meta_
        return meta.grad_fn_ if meta.address else 0

    def grad(self, address: int) -> int:
        """Address of the TensorImpl of ``tensor.grad``; 0 without one."""
        meta = self.tensor(address).autograd_meta_
        return meta.grad_ if meta.address else 0

    def node(self, address: int) -> GradFunction:
        """Name and sequence number of the torch::autograd::Node at ``address``. Raises BadData if there is none."""
        names = self._classes.of(address)
        if not names:
            raise BadData(f"there is no autograd node at {address:#x}")
        sequence = None
        with suppress(GdbextError):
            sequence = structures.Node(self._space, address).sequence_nr_
        return GradFunction(plain_class(names[0]), sequence)

    def symbolic(self, address: int, member: Inner[SmallVector]) -> tuple[int | None, ...] | None:
        """Sizes or strides of a tensor with symbolic shape, by the ``member`` of SymbolicShapeMeta: None for each that
        is an expression. None for a tensor without symbolic shape."""
        extra = self.tensor(address).extra_meta_
        if not extra.address or not extra.symbolic_shape_meta_.address:
            return None
        vector = SmallVector(self._space, extra.symbolic_shape_meta_.place(member))
        count = vector.Size
        if count > _DIMENSIONS:
            raise BadData(f"the tensor at {address:#x} claims {count} dimensions")
        words = self._memory.words(vector.BeginX, count)
        numbers = (word - (1 << 64) if word >> 63 else word for word in words)
        return tuple(None if number <= _MAX_UNREPRESENTABLE else number for number in numbers)

    def fake_device(self, address: int) -> str | None:
        """The device of a fake tensor; None for others, and in releases in which only Python knows it."""
        extra = self.tensor(address).extra_meta_
        if not extra.address or not extra.has(structures.ExtraMeta.fake_device_):
            return None
        shape = optional_shape(self._layout, "c10::Device")
        if not self._memory.u8(extra.fake_device_ + shape.engaged):
            return None
        return self._device(extra.fake_device_ + shape.value)

    def device_at(self, address: int) -> str:
        """The c10::Device at ``address``: ``cuda:0``. Raises BadData for an unknown device type."""
        kind = self._memory.u8(address)
        if kind not in self._devices:
            raise BadData(f"there is no device type {kind}")
        return self._device(address)

    def _device(self, address: int) -> str:
        """The c10::Device at ``address`` (c10/core/Device.h: a byte for the type, one for the index)."""
        kind, index = self._memory.read(address, 2)
        return device_text(self._devices, kind, index)

    def tensor_member(self, address: int, member: Member[int]) -> int:
        """The TensorImpl of an ``at::Tensor`` member of a class derived from TensorImpl. Raises LayoutError."""
        return member.read(self._space, address + member.offset(self._space))
