"""The quantiser of a quantised tensor: ATen/quantized/Quantizer.h, QTensorImpl.h, 2.13.0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gdbext.errors import BadData
from gdbext.layouts.layout import Layout
from gdbext.model.tensor_parts import Quantization
from gdbext.process.memory import Memory
from gdbext.torch.tensors.vtables import ClassNames, plain_class

_SCHEMES = {
    "PerTensorAffineQuantizer": "per_tensor_affine",
    "PerChannelAffineQuantizer": "per_channel_affine",
    "PerChannelAffineFloatQParamsQuantizer": "per_channel_affine_float_qparams",
}
_CHANNELS = "at::PerChannelAffineQuantizer"
_WHOLE = "at::PerTensorAffineQuantizer"

ReadValues = Callable[[int], Any]
"""The numbers of the one-dimensional tensor at an address."""


class QuantizerReader:
    """Reads quantisers."""

    def __init__(self, memory: Memory, layout: Layout, classes: ClassNames, values: ReadValues) -> None:
        self._memory = memory
        self._layout = layout
        self._classes = classes
        self._values = values

    def read(self, tensor: int) -> Quantization:
        """Of the QTensorImpl at ``tensor``. Raises BadData, MemoryFault, LayoutError."""
        quantizer = self._memory.u64(tensor + self._at("at::QTensorImpl", "quantizer_"))
        name = next((plain_class(each) for each in self._classes.of(quantizer)), "")
        scheme = _SCHEMES.get(name)
        if scheme is None:
            raise BadData(f"the quantiser at {quantizer:#x} is a {name or 'class without a name'}")
        if scheme == "per_tensor_affine":
            scale = self._memory.read(quantizer + self._at(_WHOLE, "scale_"), 8)
            zero = self._memory.i64(quantizer + self._at(_WHOLE, "zero_point_"))
            return Quantization(scheme, (_double(scale),), (zero,), None)
        axis = self._memory.i64(quantizer + self._at(_CHANNELS, "axis_"))
        if not 0 <= axis < 64:
            raise BadData(f"the quantiser at {quantizer:#x} has axis {axis}")
        return Quantization(scheme, self._numbers(quantizer, "scales_"), self._numbers(quantizer, "zero_points_"), axis)

    def _numbers(self, quantizer: int, member: str) -> Sequence[float]:
        found = self._values(self._memory.u64(quantizer + self._at(_CHANNELS, member)))
        if not isinstance(found, list):
            raise BadData(f"the quantiser at {quantizer:#x} has no list of {member.rstrip('_')}")
        return tuple(found)

    def _at(self, struct: str, member: str) -> int:
        return self._layout.struct(struct).offset(member)


def _double(raw: bytes) -> float:
    import struct

    value: float = struct.unpack("<d", raw)[0]
    return value
