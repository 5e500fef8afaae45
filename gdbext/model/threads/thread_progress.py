"""Progress: what one thread did between several samples of a process."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Progress(Enum):
    """The value is the word of the JSON report."""

    MOVED = "moved"
    SPINNING = "spinning"
    """It used the processor without leaving one place."""
    STUCK = "stuck"
    NEW = "new"
    """It was not there at first."""
    ENDED = "ended"


class ThreadProgress(NamedTuple):
    """The progress of one thread."""

    tid: int
    progress: Progress
