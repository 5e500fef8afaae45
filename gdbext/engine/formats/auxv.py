"""The auxiliary vector that the kernel gives a program (getauxval(3), elf.h)."""

from __future__ import annotations

import struct

AT_ENTRY = 9
AT_RANDOM = 25
AT_SYSINFO_EHDR = 33
"""Entries of the vector: where the program starts; 16 random bytes on the first stack; the vdso's ELF header."""


def parse_auxv(data: bytes) -> dict[int, int]:
    """An auxiliary vector of 64-bit pairs, up to AT_NULL (or to the end of what there is)."""
    entries: dict[int, int] = {}
    for key, value in struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]):
        if key == 0:
            break
        entries[key] = value
    return entries
