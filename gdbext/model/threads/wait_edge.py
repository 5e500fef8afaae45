"""WaitEdge: one thread waits for another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.model.threads.wait import Wait


class WaitEdge(Record):
    """Thread ``tid`` waits for something that thread ``owner`` holds, or owes it."""

    tid: int
    owner: int
    wait: Wait
