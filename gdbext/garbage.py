"""Garbage collection in processes that are ours alone: scripts/dispatch, and the debugger that it starts."""

from __future__ import annotations

import gc

_OBJECTS = 100_000
"""New objects between collections. A report makes many and leaves hardly any in circles; collecting at every 700, as
Python does by default, was 4 % of its time."""


def collect_seldom() -> None:
    """For the whole process, so not for one in which a user types."""
    gc.set_threshold(_OBJECTS)
