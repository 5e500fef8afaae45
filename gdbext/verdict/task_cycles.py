"""Cycles among the tasks of an event loop: each waits for the next, and so none will ever go on. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdbext.model.threads.event_loop import AsyncTask, EventLoop

MAX_CYCLES = 8
"""More cycles of one loop are not listed."""


def task_cycles(loop: EventLoop) -> Iterator[list[AsyncTask]]:
    """The cycles, each once. A task that gives up after some time ends a cycle by itself, and is in none."""
    known = {task.address: task for task in loop.tasks if not task.timed}
    done: set[int] = set()
    found = 0
    for start in known:
        cycle = _cycle_from(start, known, done)
        if cycle:
            yield cycle
            found += 1
        if found >= MAX_CYCLES:
            return


def _cycle_from(start: int, known: dict[int, AsyncTask], done: set[int]) -> list[AsyncTask]:
    """The first cycle that a walk from ``start`` finds; ``done`` are tasks from which all was walked already."""
    path: list[int] = []
    on_path: set[int] = set()
    work: list[tuple[int, bool]] = [(start, False)]
    while work:
        address, left = work.pop()
        if left:
            on_path.discard(path.pop())
            done.add(address)
            continue
        if address in on_path:
            done.update(path)
            return [known[each] for each in path[path.index(address) :]]
        if address in done or address not in known:
            continue
        path.append(address)
        on_path.add(address)
        work.append((address, True))
        work += [(each, False) for each in known[address].needs]
    return []
