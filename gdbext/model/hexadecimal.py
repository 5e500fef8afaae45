"""Hexadecimal: a number that reports write as 0x7f00."""

from __future__ import annotations


class Hexadecimal(int):
    """An address or a set of bits; the type alone tells ``render.json`` from a number that counts something."""
