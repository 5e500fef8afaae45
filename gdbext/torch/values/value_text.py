"""Values as PyTorch prints them: numbers, types, devices, literals; and the facts that describe a tensor.

Types are names of ``c10::ScalarType`` as Python writes them, with the usual short forms. Literals: operator<< of
c10::IValue (ATen/core/ivalue.cpp, 2.13.0).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gdbext.engine.vocabulary import Hexadecimal, Inline, Internal, Sparse


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


_PYTHON_NAMES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""Python's names that are not the lower-case ones (torch/csrc/utils/tensor_dtypes.cpp, c10/core/ScalarType.h)."""

_SHORT = {
    "bool": "b8",
    "bfloat16": "bf16",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "complex32": "c32",
    "complex64": "c64",
    "complex128": "c128",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2fnuz": "f8e5m2fnuz",
    "float8_e8m0fnu": "f8e8m0fnu",
    "float4_e2m1fn_x2": "f4e2m1fnx2",
}
"""Abbreviations of types, as torch/utils/_dtype_abbrs.py has them."""


def python_name(scalar_type: str) -> str:
    """Python's name of a ``c10::ScalarType``: "float32" of ``Float``."""
    return _PYTHON_NAMES.get(scalar_type, scalar_type.lower())


def short_name(dtype: str) -> str:
    """The usual abbreviation of a dtype: "f32" of ``float32``; the name itself if it has none."""
    return _SHORT.get(dtype, dtype)


def device_text(names: Mapping[int, str], kind: int, index: int) -> str:
    """A ``c10::Device`` as ``str(torch.device)``: "cpu", "cuda:0". ``names`` are those of ``c10::DeviceType``, ``kind``
    is one, ``index`` is a byte: 0xff (-1) means no index."""
    name = names.get(kind, f"device type {kind}")
    name = "privateuseone" if name == "PrivateUse1" else name.lower()
    return name if index == 0xFF else f"{name}:{index}"


def double_text(value: float) -> str:
    """A float default in a schema as the JIT prints it: ``1.`` for whole numbers below 1e10, else 17 significant
    digits."""
    if math.isfinite(value) and abs(value) < 1e10 and value == int(value) and not 0 < abs(value) < 2.3e-308:
        sign = "-" if value == 0 and math.copysign(1.0, value) < 0 else ""
        return f"{sign}{int(value)}."
    return f"{value:.17g}"


def quoted(text: str) -> str:
    """A string literal as PyTorch prints one (c10::printQuotedString, c10/util/StringUtil.h)."""
    escapes = dict(zip("\\'\"\a\b\f\n\r\t\v", "\\'\"abfnrtv"))

    def escaped(letter: str) -> str:
        """A character of a literal: an escape sequence, or the octal escapes of its bytes if it is not ASCII."""
        if letter in escapes:
            return "\\" + escapes[letter]
        is_plain = " " <= letter <= "~"
        return letter if is_plain else "".join(f"\\{byte:03o}" for byte in letter.encode("utf-8", "surrogateescape"))

    return '"' + "".join(map(escaped, text)) + '"'


class Histogram(NamedTuple):
    """The number of finite elements in each of several equal intervals from the lowest to the highest element."""

    low: float
    high: float
    counts: tuple[int, ...]
    sampled: bool = False
    """Counted over a part of the elements only."""

    @property
    def total(self) -> int:
        """Number of elements that were counted."""
        return sum(self.counts)


class Statistics(NamedTuple):
    """Statistics of all elements; NaNs are counted and take no part in the rest, infinities do.

    ``min`` and ``max`` are None for complex numbers and where there is no number, ``std`` (with Bessel's
    correction, as ``torch.std``) for fewer than two.
    """

    numel: Internal[int]
    min: float | None
    max: float | None
    mean: complex | None
    std: float | None
    nan: int
    inf: int
    zeros: int
    subnormals: int = 0
    """Floating-point numbers nearer to zero than the smallest normal one: processors take many times longer for each
    (torch.set_flush_denormal)."""
    first_nan: tuple[int, ...] | None = None
    """Its index, in row-major order the first."""
    first_inf: tuple[int, ...] | None = None
    sampled: bool = False
    """True if only a part of the elements was read."""
    finite: Internal[tuple[float, float] | None] = None
    """The lowest and the highest finite number; None where there is none, and for complex numbers."""

    @staticmethod
    def json_nullable() -> bool:
        """Each member may be null: NO_STATISTICS."""
        return True


_NOTHING: Any = None
NO_STATISTICS = Statistics(0, None, None, None, None, *[_NOTHING] * 7)
"""Those of a tensor without elements that can be read: null in JSON."""


class GradFunction(NamedTuple):
    """The autograd node that made a tensor."""

    name: str
    sequence_nr: int | None


class Quantization(NamedTuple):
    """How a quantized tensor's numbers are read: (stored - zero_point) * scale; one of each, or one per channel."""

    scheme: str
    scale: Sequence[float]
    zero_point: Sequence[float]
    axis: int | None


class Part(NamedTuple):
    """A tensor that another one holds: what a wrapper wraps, the indices and values of a sparse one."""

    name: str
    address: Hexadecimal
    short: str
    sizes: tuple[int, ...] | None
    statistics: Inline[Statistics | None] = None
    values: Sparse[Any] = None
    """Nested lists, where they are few."""


class StorageReport(NamedTuple):
    """The memory of a tensor."""

    address: Hexadecimal
    """The address of the StorageImpl in memory."""
    data: Hexadecimal
    size: int
    """The size of the storage, in bytes."""
    device: str | None
    shared_by: int | None
    """Number of references to it."""


def statistics_text(statistics: Statistics) -> str:
    """One line: ``min 0.1, max 3, mean 1.2, std 0.5, 1 NaN``."""
    numbers = [("min", statistics.min), ("max", statistics.max), ("mean", statistics.mean), ("std", statistics.std)]
    counts = [
        ("NaN", statistics.nan),
        ("Inf", statistics.inf),
        ("zero" if statistics.zeros == 1 else "zeros", statistics.zeros),
        ("subnormal" if statistics.subnormals == 1 else "subnormals", statistics.subnormals),
    ]
    parts = [f"{name} {number_text(value)}" for name, value in numbers if value is not None]
    parts += [f"{count} {name}" for name, count in counts if count]
    return ", ".join(parts) + (" (sampled)" if statistics.sampled else "")
