"""The lines of many machines, within a bound that none of them can use up for the others."""

from __future__ import annotations

_OVERHEAD = 64
"""Bytes that a line costs besides its own, about."""


class FairShares:
    """Lines by the channel that they came through: at most ``of_one`` bytes of one and ``of_all`` of all together. When
    that is too much, the sender that has said most loses all of its lines; so one that says little keeps them, whatever
    others say."""

    def __init__(self, of_one: int, of_all: int) -> None:
        self._of_one, self._left = of_one, of_all
        self._lines: dict[str, list[tuple[str, bytes]]] = {}
        self._sizes: dict[str, int] = {}
        self.too_large: set[str] = set()

    def add(self, sender: str, line: bytes, stream: str = "") -> None:
        """A line of that sender; ``stream`` tells several of its streams apart."""
        if sender in self.too_large:
            return
        size = len(line) + _OVERHEAD
        self._lines.setdefault(sender, []).append((stream, line))
        self._sizes[sender] = self._sizes.get(sender, 0) + size
        self._left -= size
        if self._sizes[sender] > self._of_one:
            self._drop(sender)
        while self._left < 0:
            self._drop(max(self._sizes, key=lambda name: self._sizes[name]))

    def _drop(self, sender: str) -> None:
        self._left += self._sizes.pop(sender)
        del self._lines[sender]
        self.too_large.add(sender)

    def senders(self) -> list[str]:
        """All that have said something."""
        return [*self._lines, *self.too_large]

    def lines(self, sender: str, stream: str = "") -> list[bytes]:
        """Its lines on that stream; none of a sender that said too much."""
        return [line for where, line in self._lines.get(sender, ()) if where == stream]
