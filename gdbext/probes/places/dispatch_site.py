"""A place in a library's code at which a dispatch can be seen by a probe, and what is known there."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.model.record import Record

EVENTS = tuple(DispatchEvent)
NOWHERE = ""


class DispatchSite(Record):
    """``offset`` is the place in the file; the registers are those that hold things when it is reached.

    ``entry`` holds the OperatorEntry*, NOWHERE where the place belongs to one operator; ``keyset`` holds the keyset.
    The address of the function's return address is that in ``base`` plus ``slot``. ``shared``: no single operator owns
    the function.
    """

    offset: int
    event: DispatchEvent
    entry: str
    keyset: str
    base: str
    slot: int
    shared: bool = False

    def packed(self, registers: Sequence[str]) -> tuple[int, int]:
        """Two numbers, of 64 and 32 bits, for a file. ``registers``: all that there are, in an order that stays."""
        numbers = [registers.index(name) + 1 if name else 0 for name in (self.entry, self.keyset, self.base)]
        value = self.offset | EVENTS.index(self.event) << 40 | self.shared << 43
        for place, number in enumerate(numbers):
            value |= number << 44 + 6 * place
        return value, self.slot & 0xFFFFFFFF

    @classmethod
    def unpacked(cls, value: int, slot: int, registers: Sequence[str]) -> DispatchSite:
        """The counterpart of packed(). Raises IndexError for damaged numbers."""
        entry, keyset, base = (
            registers[number - 1] if number else NOWHERE
            for number in (value >> 44 + 6 * place & 63 for place in range(3))
        )
        slot -= slot >> 31 << 32
        return cls(value & (1 << 40) - 1, EVENTS[value >> 40 & 3], entry, keyset, base, slot, bool(value >> 43 & 1))
