"""Names of ``c10::ScalarType`` and ``c10::Device`` as Python writes them, and the usual short forms of dtypes.

Numbers of tensors as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number_text(value: Any) -> str:
    """A number with six significant digits, as PyTorch prints tensors; integers whole."""
    if isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, complex):
        return f"{value.real:.6g}{value.imag:+.6g}j"
    return f"{value:.6g}"


def nested_text(values: Any) -> str:
    """Nested lists of numbers on one line."""
    if isinstance(values, list):
        return f"[{', '.join(map(nested_text, values))}]"
    return number_text(values)


_PYTHON = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16",
    "Float": "float32", "Double": "float64", "ComplexHalf": "complex32", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}  # fmt: skip
"""Names of Python that are not the lower-case one (torch/csrc/utils/tensor_dtypes.cpp, c10/core/ScalarType.h)."""

_SHORT = {
    "bool": "b8", "bfloat16": "bf16", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "float16": "f16", "float32": "f32", "float64": "f64",
    "complex32": "c32", "complex64": "c64", "complex128": "c128", "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2", "float8_e4m3fnuz": "f8e4m3fnuz", "float8_e5m2fnuz": "f8e5m2fnuz",
    "float8_e8m0fnu": "f8e8m0fnu", "float4_e2m1fn_x2": "f4e2m1fnx2",
}  # fmt: skip
"""Abbreviations of types, as torch/utils/_dtype_abbrs.py has them."""


def python_name(scalar_type: str) -> str:
    """``Float`` to "float32", as in ``torch.float32``."""
    return _PYTHON.get(scalar_type, scalar_type.lower())


def short_name(dtype: str) -> str:
    """``float32`` to "f32"; the name itself where there is no usual short form."""
    return _SHORT.get(dtype, dtype)


def device_text(names: Mapping[int, str], kind: int, index: int) -> str:
    """A ``c10::Device`` as ``str(torch.device)``: "cpu", "cuda:0". ``index`` is its byte; -1 (0xff) is not an index."""
    name = names.get(kind, f"device type {kind}")
    name = "privateuseone" if name == "PrivateUse1" else name.lower()
    return name if index == 0xFF else f"{name}:{index}"
