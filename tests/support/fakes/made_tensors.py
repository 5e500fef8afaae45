"""Tensors as reports have them, made by hand: for golden texts and documents."""

from __future__ import annotations

import math
from dataclasses import replace

from gdbext.tools.tensor.tensor_section import TensorSection
from gdbext.torch.stack import DispatchKeySet
from gdbext.torch.values.value_text import GradFunction, Histogram, Part, Quantization, Statistics, StorageReport

FLOATS = TensorSection(
    name_="self.weight",
    address=0x5560,
    implementation="c10::TensorImpl",
    python_type="Parameter",
    sizes=(2, 3),
    strides=(1, 2),
    storage_offset=0,
    dtype="float32",
    device="cpu",
    layout="strided",
    keyset=DispatchKeySet(0x9400010001, ("CPU", "ADInplaceOrView", "AutogradCPU", "AutocastCPU")),
    numel=6,
    requires_grad=True,
    is_leaf=False,
    is_view=True,
    grad_fn=GradFunction("MmBackward0", 7),
    grad="f32[2, 3] cpu",
    version=3,
    names=("N", None),
    contiguity=("non-overlapping and dense",),
    conjugate=False,
    negative=False,
    storage=StorageReport(0x7000, 0x8000, 24, "cpu", 2),
    quantization=None,
    wraps=(),
    parts=(),
    notes=(),
    statistics=Statistics(6, -1.5, math.inf, math.inf, math.nan, 1, 1, 2, first_nan=(0, 2), first_inf=(1, 1)),
    histogram=Histogram(-1.5, 4.0, (1, 0, 2, 9), sampled=True),
    values=[[-1.5, 0.0, math.nan], [0.0, math.inf, 4.0]],
    saved="weight.safetensors",
    problems=("grad: the memory is gone",),
)
"""With everything that a plain tensor can have."""

_UNKNOWN = (
    *("python_type", "strides", "storage_offset", "device", "numel", "requires_grad", "is_leaf", "is_view", "grad_fn"),
    *("grad", "version", "names", "storage", "statistics", "histogram", "saved"),
)
ODD = replace(
    FLOATS,
    **dict.fromkeys(_UNKNOWN),
    name_="0x55\x1b60",
    implementation="at::SparseTensorImpl",
    sizes=(4, None),
    dtype="quint8",
    layout="sparse_coo",
    keyset=DispatchKeySet(0x800001, ("SparseCPU",)),
    contiguity=(),
    conjugate=True,
    negative=True,
    quantization=Quantization("per_channel_affine", (0.5, 0.25), (1, 2), 1),
    wraps=(Part("inner", 0x6000, "c64[2] cpu", (2,)),),
    parts=(Part("values", 0x6100, "c64[1] cpu", (1,), Statistics(1, None, None, 1 - 2j, None, 0, 0, 0)),),
    notes=("nothing to read: it is sparse",),
    values=[1 - 2j],
    problems=(),
)
"""With what only odd ones have."""
