"""Data: the bytes of a file, wherever they come from. A type for checking: nothing imports this file at run time."""

from __future__ import annotations

from typing import Protocol


class Data(Protocol):
    """What a file is made of: a mapped file, bytes that were read from the target, or what a recording has of a file.

    Slices and ``find`` only: whatever is read of a file can be written down by standing in for it. What a recording
    does not have raises SymbolFileError.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> bytes: ...

    def find(self, needle: bytes, start: int, end: int, /) -> int:
        """As bytes.find."""
