"""How the elements of each dtype are stored, and how a strided tensor is walked in pieces of bounded size.

Dtypes: c10/core/ScalarType.h and the headers in c10/util that define the types. Small floating-point formats
(torch/headeronly/util/Float8_*.h, Float4_e2m1fn_x2.h, 2.13.0) differ in their bias and in what their top codes mean:
IEEE's infinities and NaNs (e5m2), one NaN and no infinity (e4m3fn), one NaN in the place of minus zero (…fnuz), a NaN
at 0xFF and nothing but powers of two (e8m0fnu), neither (e2m1fn).
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple, Union

Number = Union[int, float, complex, bool]


class ElementType(NamedTuple):
    """One dtype as it is stored.

    ``kind`` is "bool", "int", "float", "complex" or "bits" (codes without a numeric meaning). ``size`` is in bytes and
    holds ``packed`` numbers.
    """

    dtype: str
    kind: str
    size: int
    packed: int = 1
    is_quantized: bool = False

    @property
    def numbers(self) -> int:
        """Numbers in one element of the tensor: float4_e2m1fn_x2 counts pairs as elements, quint4x2 single numbers."""
        return 1 if self.is_quantized else self.packed

    @property
    def shares_bytes(self) -> bool:
        """True if a stored unit of ``size`` bytes holds several elements of the tensor."""
        return self.packed != self.numbers

    def decode(self, raw: bytes) -> Sequence[Number]:
        """The numbers in ``raw``, in order. Quantized ones as they are stored."""
        if self.dtype in ARRAY_CODES:
            return _array(ARRAY_CODES[self.dtype], raw)
        if self.dtype in _TABLES:
            return list(map(code_values(self.dtype).__getitem__, raw))
        return _DECODERS[self.dtype](raw)


ARRAY_CODES = {
    "uint8": "B",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
    "qint8": "b",
    "quint8": "B",
    "qint32": "i",
    "bits8": "B",
    "bits16": "H",
    "bits1x8": "B",
    "bits2x4": "B",
    "bits4x2": "B",
    **{f"uint{width}": "B" for width in range(1, 8)},
    **{f"int{width}": "b" for width in range(1, 8)},
}
"""Type codes of the module array (and of numpy) for the dtypes that are stored as C types."""
_TABLES = {
    "float8_e5m2": (5, 2, 15),
    "float8_e4m3fn": (4, 3, 7),
    "float8_e5m2fnuz": (5, 2, 16),
    "float8_e4m3fnuz": (4, 3, 8),
    "float8_e8m0fnu": (8, 0, 127),
}
"""Bits of the exponent and of the mantissa, bias."""


def _array(code: str, raw: bytes) -> Sequence[Number]:
    """The little-endian numbers of ``raw``; ``code``: a type code of the module array."""
    numbers = array(code)
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _float16(raw: bytes) -> Sequence[Number]:
    return array("d", struct.unpack(f"<{len(raw) // 2}e", raw))


def _bfloat16(raw: bytes) -> Sequence[Number]:
    """Decode bfloat16, the upper half of a float32 each (torch/headeronly/util/BFloat16.h)."""
    wide = bytearray(2 * len(raw))
    wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
    return _array("f", bytes(wide))


def _complex(parts: Sequence[Number]) -> list[Number]:
    """The complex numbers whose real and imaginary parts alternate in ``parts``."""
    return list(map(complex, parts[0::2], parts[1::2]))


def _packed(raw: bytes, bits: int) -> list[int]:
    """The numbers of ``bits`` bits each in ``raw``, the low bits of a byte first."""
    mask, shifts = (1 << bits) - 1, range(0, 8, bits)
    return [byte >> shift & mask for byte in raw for shift in shifts]


_FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""e2m1: two bits of exponent with bias 1, one of mantissa; no infinity, no NaN (OCP Microscaling Formats 5.3.3)."""

_DECODERS: Mapping[str, Callable[[bytes], Sequence[Number]]] = {
    "bool": lambda raw: [byte != 0 for byte in raw],
    "float16": _float16,
    "bfloat16": _bfloat16,
    "complex32": lambda raw: _complex(_float16(raw)),
    "complex64": lambda raw: _complex(_array("f", raw)),
    "complex128": lambda raw: _complex(_array("d", raw)),
    "quint4x2": lambda raw: _packed(raw, 4),
    "quint2x4": lambda raw: _packed(raw, 2),
    "float4_e2m1fn_x2": lambda raw: [_FOUR_BITS[code] for code in _packed(raw, 4)],
}
_PACKED = {"quint4x2": 2, "quint2x4": 4, "float4_e2m1fn_x2": 2}


@cache
def code_values(dtype: str) -> tuple[float, ...]:
    """The value of each of the 256 codes of a float8 type."""
    exponent_bits, mantissa_bits, bias = _TABLES[dtype]

    def value(code: int) -> float:  # by the module's docstring: the formats differ in their top codes
        if dtype == "float8_e8m0fnu":
            return math.nan if code == 0xFF else math.ldexp(1.0, code - bias)
        sign = -1.0 if code & 0x80 else 1.0
        exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & (1 << mantissa_bits) - 1
        if dtype.endswith("fnuz"):
            if code == 0x80:
                return math.nan
        elif dtype.endswith("fn"):
            if code & 0x7F == 0x7F:
                return math.nan
        elif exponent == (1 << exponent_bits) - 1:
            return math.nan if mantissa else sign * math.inf
        if exponent == 0:
            return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
        return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)

    return tuple(map(value, range(256)))


def element_type(dtype: str, size: int) -> ElementType | None:
    """The storage of elements of ``dtype`` ("float32") with ``size`` bytes each; None for an unknown type."""
    if not any(dtype in table for table in (ARRAY_CODES, _TABLES, _DECODERS)):
        return None
    families = {"bool": "bool", "bits": "bits", "complex": "complex", "float": "float", "bfloat": "float"}
    kind = next((kind for start, kind in families.items() if dtype.startswith(start)), "int")
    return ElementType(dtype, kind, size, _PACKED.get(dtype, 1), dtype.startswith(("qint", "quint")))


_SPARSE = 16
"""Elements farther apart than this many times their size are read in smaller pieces."""
_PAGE = 4096


class Dimension(NamedTuple):
    """A size, its stride in elements, and how far one step goes in the tensor's own (row-major) order."""

    size: int
    stride: int
    weight: int


class Piece(NamedTuple):
    """Elements that are read together: ``offset`` is the first one's distance in memory from the tensor's first, in
    elements; ``position`` its position in row-major order."""

    offset: int
    position: int
    dimensions: tuple[Dimension, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return numel_of(self.dimensions)

    @property
    def span(self) -> int:
        """Elements in memory from the first to the last."""
        return span_of(self.dimensions)

    @property
    def is_dense(self) -> bool:
        """True if every element of the span belongs to the tensor, once, in memory order."""
        step = 1
        for dimension in reversed(self.dimensions):
            if dimension.stride != step:
                return False
            step *= dimension.size
        return True

    def offsets(self) -> list[int]:
        """The distance of each element from the first one, in elements."""
        offsets = [0]
        for size, stride, _ in self.dimensions:
            steps = range(0, size * stride, stride) if stride else [0] * size
            offsets = [offset + step for offset in offsets for step in steps]
        return offsets

    def position_of(self, number: int) -> int:
        """The position in the tensor's row-major order of the piece's element ``number``."""
        position = self.position
        for dimension in reversed(self.dimensions):
            number, index = divmod(number, dimension.size)
            position += index * dimension.weight
        return position


def numel_of(dimensions: Iterable[Dimension]) -> int:
    """Number of elements of these dimensions."""
    return math.prod(dimension.size for dimension in dimensions)


def span_of(dimensions: Sequence[Dimension]) -> int:
    """Elements in memory from the first to the last of a tensor that has elements."""
    return 1 + sum((dimension.size - 1) * dimension.stride for dimension in dimensions)


def dimensions_of(sizes: Sequence[int], strides: Sequence[int]) -> tuple[Dimension, ...]:
    """The dimensions of more than one element, outermost first; neighbors that share a stride are joined."""
    weight = 1
    innermost_first: list[Dimension] = []
    for size, stride in zip(reversed(sizes), reversed(strides)):
        if size != 1:
            inner = innermost_first[-1] if innermost_first else None
            if inner and (stride, weight) == (inner.stride * inner.size, inner.weight * inner.size):
                innermost_first[-1] = inner._replace(size=inner.size * size)
            else:
                innermost_first.append(Dimension(size, stride, weight))
        weight *= size
    return tuple(reversed(innermost_first))


def in_memory_order(dimensions: Sequence[Dimension]) -> tuple[tuple[Dimension, ...], int]:
    """(the dimensions without expanded ones (stride 0), the longest strides first; how often each of their elements
    counts, since all elements along an expanded dimension are the same)."""
    repeated = numel_of(dimension for dimension in dimensions if not dimension.stride)
    moving = (dimension for dimension in dimensions if dimension.stride)
    return tuple(sorted(moving, key=lambda dimension: -dimension.stride)), repeated


def pieces(dimensions: Sequence[Dimension], element: int, chunk: int) -> Iterator[Piece]:
    """Cut all elements into pieces, in the order of ``dimensions``. ``element``: bytes of an element; ``chunk``: bytes
    of memory that a piece may span."""
    # The innermost dimensions are read together, the first of them in parts; the outer ones are walked.
    first = len(dimensions)
    while first > 0:
        steps = _steps_at_once(dimensions[first - 1 :], element, chunk)
        if steps <= 1:
            break
        first -= 1
        if steps < dimensions[first].size:
            break
    outer, inner = dimensions[:first], tuple(dimensions[first:])
    for indices in product(*(range(dimension.size) for dimension in outer)):
        offset = sum(index * dimension.stride for index, dimension in zip(indices, outer))
        position = sum(index * dimension.weight for index, dimension in zip(indices, outer))
        if not inner:
            yield Piece(offset, position, ())
            continue
        head = inner[0]
        most = _steps_at_once(inner, element, chunk)
        for start in range(0, head.size, most):
            part = head._replace(size=min(most, head.size - start))
            yield Piece(offset + start * head.stride, position + start * head.weight, (part, *inner[1:]))


def _steps_at_once(dimensions: Sequence[Dimension], element: int, chunk: int) -> int:
    """Steps of the first dimension that are read at once, each with all of the others; at least 1."""
    outer, inside = dimensions[0], dimensions[1:]
    count, limit = numel_of(inside), chunk // element
    if not outer.stride:
        return max(1, limit // count)
    if outer.stride > _SPARSE * count and outer.stride * element > _PAGE:
        return 1
    return max(1, min((limit - span_of(inside)) // outer.stride + 1, limit // count))
