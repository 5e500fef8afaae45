"""Which run of gdbext a recording is of."""

from __future__ import annotations

from typing import NamedTuple


class RecordedRun(NamedTuple):
    """What a recording says of itself."""

    taken: str
    """When it was made: ISO 8601, in UTC."""
    version: str
    """The version of gdbext that made it."""
    command: str
    """The command that was given, with its arguments."""
