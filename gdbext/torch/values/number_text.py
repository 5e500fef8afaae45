"""Numbers of tensors as text."""

from __future__ import annotations

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
