"""Progress: what one thread did between several samples of a process."""

from __future__ import annotations

from enum import Enum

from gdbext.model.record import Record


class Progress(Enum):
    """The value is the word of the JSON report."""

    MOVED = "moved"
    SAME_PLACE = "same-place"
    """It was at one place each time, but did something in between: it may have moved and come back."""
    SPINNING = "spinning"
    """It used the processor without leaving one place."""
    STUCK = "stuck"
    """Nothing that is measured changed: it stands still."""
    NEW = "new"
    """It was not there at first."""
    ENDED = "ended"


class ThreadProgress(Record):
    """The progress of one thread."""

    tid: int
    progress: Progress
    moved: tuple[str, ...] = ()
    """What changed between the samples; for people."""
    place: str = ""
    """The function in which a thread spins, with its library."""
