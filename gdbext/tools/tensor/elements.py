"""Walks a strided tensor in pieces of bounded size: which bytes to read, and where in them the elements are.

How the elements of each dtype are stored: c10/core/ScalarType.h and the headers in c10/util that define the types.

Small floating-point formats (torch/headeronly/util/Float8_*.h, Float4_e2m1fn_x2.h, 2.13.0) differ in their bias and in
what their top codes mean: IEEE's infinities and NaNs (e5m2), one NaN and no infinity (e4m3fn), one NaN in the place of
minus zero (…fnuz), a NaN at 0xFF and nothing but powers of two (e8m0fnu), neither (e2m1fn).
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        """Numbers that one element of the tensor stands for: float4_e2m1fn_x2 counts pairs, quint4x2 numbers."""
        return 1 if self.is_quantized else self.packed

    def decode(self, raw: bytes) -> Sequence[Number]:
        """The numbers in ``raw``, in order; an array where they are many. Quantised ones as they are stored."""
        code = _ARRAYS.get(self.dtype)
        if code is not None:
            return _array(code, raw)
        if self.dtype in _TABLES:
            return list(map(code_values(self.dtype).__getitem__, raw))
        return _DECODERS[self.dtype](raw)


_ARRAYS = {
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
_TABLES = {
    "float8_e5m2": (5, 2, 15),
    "float8_e4m3fn": (4, 3, 7),
    "float8_e5m2fnuz": (5, 2, 16),
    "float8_e4m3fnuz": (4, 3, 8),
    "float8_e8m0fnu": (8, 0, 127),
}
"""Bits of the exponent and of the mantissa, bias."""


def _array(code: str, raw: bytes) -> Sequence[Number]:
    found = array(code)
    found.frombytes(raw)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def _halves(raw: bytes) -> Sequence[Number]:
    return array("d", struct.unpack(f"<{len(raw) // 2}e", raw))


def _bfloat16(raw: bytes) -> Sequence[Number]:
    """The upper half of a float32 each (torch/headeronly/util/BFloat16.h)."""
    wide = bytearray(2 * len(raw))
    wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
    return _array("f", bytes(wide))


def _pairs(parts: Sequence[Number]) -> list[Number]:
    return list(map(complex, parts[0::2], parts[1::2]))


def _nibbles(raw: bytes) -> list[int]:
    """Two numbers a byte, the low bits first."""
    return [part for byte in raw for part in (byte & 15, byte >> 4)]


def _quarters(raw: bytes) -> list[int]:
    return [byte >> shift & 3 for byte in raw for shift in (0, 2, 4, 6)]


_FOUR_BITS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""e2m1: two bits of exponent with bias 1, one of mantissa; no infinity, no NaN (OCP Microscaling Formats 5.3.3)."""

_DECODERS: Mapping[str, Callable[[bytes], Sequence[Number]]] = {
    "bool": lambda raw: [byte != 0 for byte in raw],
    "float16": _halves,
    "bfloat16": _bfloat16,
    "complex32": lambda raw: _pairs(_halves(raw)),
    "complex64": lambda raw: _pairs(_array("f", raw)),
    "complex128": lambda raw: _pairs(_array("d", raw)),
    "quint4x2": _nibbles,
    "quint2x4": _quarters,
    "float4_e2m1fn_x2": lambda raw: [_FOUR_BITS[code] for code in _nibbles(raw)],
}
_PACKED = {"quint4x2": 2, "quint2x4": 4, "float4_e2m1fn_x2": 2}


@cache
def code_values(dtype: str) -> tuple[float, ...]:
    """The value of each of the 256 codes of a float8 type."""
    return tuple(_small_float(dtype, code) for code in range(256))


def _small_float(dtype: str, code: int) -> float:
    exponent_bits, mantissa_bits, bias = _TABLES[dtype]
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


def element_type(dtype: str, size: int) -> ElementType | None:
    """The storage of elements of ``dtype`` (as in ``torch.float32``: "float32") with ``size`` bytes each; None for a
    type that this does not know."""
    if dtype not in _ARRAYS and dtype not in _TABLES and dtype not in _DECODERS:
        return None
    return ElementType(dtype, _kind(dtype), size, _PACKED.get(dtype, 1), dtype.startswith(("qint", "quint")))


def _kind(dtype: str) -> str:
    if dtype == "bool":
        return "bool"
    if dtype.startswith("bits"):
        return "bits"
    if dtype.startswith("complex"):
        return "complex"
    return "float" if dtype.startswith(("float", "bfloat")) else "int"


CHUNK = 1 << 22
"""Bytes read at once, at most."""
_SPARSE = 16
"""Elements farther apart than this many times their size are read in smaller pieces."""
_PAGE = 4096


class Dimension(NamedTuple):
    """A size, its stride in elements, and how far one step goes in the tensor's own (row-major) order."""

    size: int
    stride: int
    weight: int


class Piece(NamedTuple):
    """Elements that are read together: ``offset`` is the first one's distance from the tensor's first, in elements;
    ``position`` its place in row-major order."""

    offset: int
    position: int
    dimensions: tuple[Dimension, ...]

    @property
    def elements(self) -> int:
        """Number of elements in all."""
        total = 1
        for each in self.dimensions:
            total *= each.size
        return total

    @property
    def span(self) -> int:
        """Elements in memory from the first to the last."""
        return span_of(self.dimensions)

    @property
    def is_dense(self) -> bool:
        """Every element of the span belongs to the tensor, once, in memory order."""
        step = 1
        for each in reversed(self.dimensions):
            if each.stride != step:
                return False
            step *= each.size
        return True

    def offsets(self) -> list[int]:
        """Offsets of each element, from the first one."""
        found = [0]
        for each in self.dimensions:
            steps = range(0, each.size * each.stride, each.stride) if each.stride else [0] * each.size
            found = [offset + step for offset in found for step in steps]
        return found

    def position_of(self, number: int) -> int:
        """The place in row-major order of the piece's element ``number``."""
        position = self.position
        for each in reversed(self.dimensions):
            number, index = divmod(number, each.size)
            position += index * each.weight
        return position


def span_of(dimensions: Sequence[Dimension]) -> int:
    """Elements in memory from the first to the last of a tensor that has elements."""
    return 1 + sum((each.size - 1) * each.stride for each in dimensions)


def dimensions_of(sizes: Sequence[int], strides: Sequence[int]) -> tuple[Dimension, ...]:
    """Those with more than one element, outermost first, joined where they make one."""
    weight = 1
    found: list[Dimension] = []
    for size, stride in zip(reversed(sizes), reversed(strides)):
        here = Dimension(size, stride, weight)
        weight *= size
        if size == 1:
            continue
        inner = found[-1] if found else None
        if inner and (here.stride, here.weight) == (inner.stride * inner.size, inner.weight * inner.size):
            found[-1] = Dimension(inner.size * size, inner.stride, inner.weight)
        else:
            found.append(here)
    return tuple(reversed(found))


def in_memory_order(dimensions: Sequence[Dimension]) -> tuple[tuple[Dimension, ...], int]:
    """The dimensions with the longest strides first, and how often each of their elements counts: those of an expanded
    dimension (stride 0) are the same one."""
    repeated = 1
    for each in dimensions:
        repeated *= each.size if each.stride == 0 else 1
    moving = (each for each in dimensions if each.stride)
    return tuple(sorted(moving, key=lambda each: -each.stride)), repeated


def pieces(dimensions: Sequence[Dimension], element: int, chunk: int = CHUNK) -> Iterator[Piece]:
    """All elements, in the order of ``dimensions``. ``element`` is the size of one in bytes."""
    outer, inner = _split(dimensions, element, chunk)
    for steps in product(*(range(each.size) for each in outer)):
        offset = sum(step * each.stride for step, each in zip(steps, outer))
        position = sum(step * each.weight for step, each in zip(steps, outer))
        if not inner:
            yield Piece(offset, position, ())
            continue
        first = inner[0]
        most = _together(first, span_of(inner[1:]), Piece(0, 0, tuple(inner[1:])).elements, element, chunk)
        for start in range(0, first.size, most):
            part = first._replace(size=min(most, first.size - start))
            yield Piece(offset + start * first.stride, position + start * first.weight, (part, *inner[1:]))


def _split(
    dimensions: Sequence[Dimension], element: int, chunk: int
) -> tuple[tuple[Dimension, ...], tuple[Dimension, ...]]:
    """The dimensions that are walked, and those that are read together; of the latter the first one in parts."""
    first = len(dimensions)
    while first > 0:
        inside = dimensions[first:]
        size = dimensions[first - 1].size
        if _together(dimensions[first - 1], span_of(inside), Piece(0, 0, tuple(inside)).elements, element, chunk) <= 1:
            break
        first -= 1
        if _together(dimensions[first], span_of(inside), Piece(0, 0, tuple(inside)).elements, element, chunk) < size:
            break
    return tuple(dimensions[:first]), tuple(dimensions[first:])


def _together(outer: Dimension, span: int, count: int, element: int, chunk: int) -> int:
    """Number of steps of ``outer`` that are read at once, when what is inside it spans ``span`` elements in memory."""
    limit = chunk // element
    if not outer.stride:
        return max(1, limit // count)
    if outer.stride > _SPARSE * count and outer.stride * element > _PAGE:
        return 1
    return max(1, min((limit - span) // outer.stride + 1, limit // count))
