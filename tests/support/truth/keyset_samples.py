"""Keysets that no one chose, for tests of their names."""

from __future__ import annotations

import random

from gdbext.torch.values.key_names import KeyNames


def random_bits(keys: KeyNames, count: int) -> list[int]:
    """Dense sets, sparse sets and near-real sets (a few functionalities, one or two backends)."""
    source = random.Random(20260)
    full = keys.known_bits
    found = []
    for number in range(count):
        bits = source.getrandbits(64) & full
        if number % 3:
            bits &= source.getrandbits(64)
        if number % 3 == 2:
            bits &= source.getrandbits(64) & source.getrandbits(64)
        found.append(bits)
    return found
