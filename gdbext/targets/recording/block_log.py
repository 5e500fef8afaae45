"""Which blocks of a long string of bytes were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.targets.recording.sparse_bytes import SparseBytes

if TYPE_CHECKING:
    from gdbext.formats.elf.data import Data

BLOCK_BITS = 6
"""64 bytes: symbols, strings and unwind rows are read here and there, and a page for each would be 20 times as much."""


class BlockLog:
    """Remembers ranges, rounded to blocks."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()

    def note(self, start: int, end: int) -> None:
        """The bytes from ``start`` to ``end`` were read."""
        if end - start <= 1 << BLOCK_BITS:
            self._blocks.add(start >> BLOCK_BITS)
            self._blocks.add((end - 1) >> BLOCK_BITS)
        else:
            self._blocks.update(range(start >> BLOCK_BITS, ((end - 1) >> BLOCK_BITS) + 1))

    def contents(self, data: Data) -> SparseBytes:
        """The blocks with what ``data`` has in them."""
        blocks = sorted(self._blocks)
        return SparseBytes.merged(
            (block << BLOCK_BITS, data[block << BLOCK_BITS : (block + 1) << BLOCK_BITS]) for block in blocks
        )
