"""Elements of every dtype against their definitions, and against Python's own conversions where it has them."""

from __future__ import annotations

import math
import struct

import pytest

from gdbext.tools.tensor.elements import code_values, element_type


def decoded(dtype: str, size: int, raw: bytes) -> list[object]:
    found = element_type(dtype, size)
    assert found is not None
    return list(found.decode(raw))


@pytest.mark.parametrize(
    ("dtype", "values", "nans"),
    [
        ("float8_e4m3fn", {0x7E: 448.0, 0x01: 2.0**-9, 0x80: -0.0}, {0x7F, 0xFF}),
        ("float8_e5m2", {0x7B: 57344.0, 0x7C: math.inf, 0xFC: -math.inf}, {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}),
        ("float8_e4m3fnuz", {0x7F: 240.0}, {0x80}),
        ("float8_e5m2fnuz", {0x7F: 57344.0, 0x01: 2.0**-17}, {0x80}),
        ("float8_e8m0fnu", {0: 2.0**-127, 0xFE: 2.0**127}, {0xFF}),
    ],
)
def test_codes_of_small_floats(dtype: str, values: dict[int, float], nans: set[int]) -> None:
    """The largest and smallest numbers as the Open Compute Project's and ONNX's tables give them."""
    assert decoded(dtype, 1, bytes(values)) == [*values.values()]
    assert {code for code, value in enumerate(code_values(dtype)) if value != value} == nans


def test_other_elements() -> None:
    halves = b"".join(struct.pack("<f", value)[2:] for value in (1.0, -2.5, math.inf))
    assert decoded("bfloat16", 2, halves) == [1.0, -2.5, math.inf]
    assert decoded("float16", 2, struct.pack("<2e", 0.5, -7)) == [0.5, -7.0]
    assert decoded("complex32", 4, struct.pack("<2e", 1, -2)) == [1 - 2j]
    assert decoded("complex64", 8, struct.pack("<4f", 1, 2, 3, 4)) == [1 + 2j, 3 + 4j]
    assert decoded("float4_e2m1fn_x2", 1, b"\x2f\x81") == [-6.0, 1.0, 0.5, -0.0]
    assert decoded("quint4x2", 1, b"\x2f") == [15, 2]
    assert decoded("quint2x4", 1, b"\xe4") == [0, 1, 2, 3]
    assert element_type("float6_e3m2", 1) is None
