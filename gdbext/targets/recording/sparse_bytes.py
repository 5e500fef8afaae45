"""A long string of bytes of which only pieces are known: memory, a file, an array."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

LIMIT = 1 << 64
"""No piece ends behind this."""


class SparseBytes:
    """Pieces with their places, ascending and apart from each other."""

    def __init__(self, starts: Sequence[int], pieces: Sequence[bytes]) -> None:
        self.starts = starts
        self.pieces = pieces

    @classmethod
    def merged(cls, pieces: Iterable[tuple[int, bytes]]) -> SparseBytes:
        """From pieces in any order. Where they overlap they are taken to agree; those that touch become one."""
        starts: list[int] = []
        joined: list[list[bytes]] = []
        end = -1
        for start, piece in sorted(pieces, key=lambda each: each[0]):
            if start > end:
                starts.append(start)
                joined.append([piece])
                end = start + len(piece)
            elif start + len(piece) > end:
                joined[-1].append(piece[end - start :])
                end = start + len(piece)
        return cls(starts, [b"".join(parts) for parts in joined])

    def __len__(self) -> int:
        """How many bytes are known."""
        return sum(map(len, self.pieces))

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Start and contents of each piece."""
        return zip(self.starts, self.pieces)

    def read(self, start: int, size: int) -> bytes | None:
        """Exactly ``size`` bytes; None where any of them is unknown."""
        index = bisect_right(self.starts, start) - 1
        if index < 0:
            return None
        piece = self.pieces[index]
        at = start - self.starts[index]
        return piece[at : at + size] if at + size <= len(piece) else None

    def gap(self, start: int, size: int) -> int:
        """The first place from ``start`` on that is unknown; only for a range that ``read`` does not have."""
        index = bisect_right(self.starts, start) - 1
        if index >= 0:
            start = max(start, min(start + size, self.starts[index] + len(self.pieces[index])))
        return start
