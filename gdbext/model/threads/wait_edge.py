"""WaitEdge: one thread waits for another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdbext.model.threads.wait import Wait


@dataclass(frozen=True)
class WaitEdge:
    """Thread ``tid`` waits for something that thread ``owner`` holds, or owes it."""

    tid: int
    owner: int
    wait: Wait
