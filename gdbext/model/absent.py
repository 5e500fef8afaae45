"""Absent: what stands where something could not be read."""

from __future__ import annotations

from gdbext.model.record import Record


class Absent(Record):
    """A value that could not be read, and why. False, so that ``value or default`` works on it."""

    reason: str

    def __bool__(self) -> bool:
        return False
