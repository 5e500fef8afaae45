"""Which run of gdbext a recording is of."""

from __future__ import annotations

from gdbext.model.record import Record


class RecordedRun(Record):
    """What a recording says of itself."""

    taken: str
    """When it was made: ISO 8601, in UTC."""
    version: str
    """The version of gdbext that made it."""
    command: str
    """The command that was given, with its arguments."""
