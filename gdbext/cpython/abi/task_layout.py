"""Where Task and Future of the C module _asyncio keep what is read of them, 3.8 to 3.13; later ones publish it
(cpython/tasks/task_lists.py).

FutureObj and TaskObj (Modules/_asynciomodule.c) are in no header; the offsets are those of the debug information of
CPython 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1 and 3.13.0 for 64 bits. tp_basicsize tells whether they fit.
"""

from __future__ import annotations

from gdbext.model.record import Record


class TaskLayout(Record):
    """Offsets in bytes; ``task_size`` is that of the type."""

    task_size: int
    waiter: int
    coroutine: int
    name: int
    state: int
    """``enum fut_state``: 0 pending, 1 cancelled, 2 finished."""


TASK_LAYOUTS = {
    (3, 8): TaskLayout(144, 104, 112, 120, 72),
    (3, 9): TaskLayout(184, 144, 152, 160, 80),
    (3, 10): TaskLayout(192, 152, 160, 168, 88),
    (3, 11): TaskLayout(176, 128, 136, 144, 88),
    (3, 12): TaskLayout(176, 128, 136, 144, 88),
    (3, 13): TaskLayout(144, 112, 120, 128, 96),
}
FUTURE_LOOP, FUTURE_CALLBACK = 16, 24
"""The loop of a FutureObj or TaskObj, and the callback that was added first."""
FUTURE_ITERATOR_FUTURE = 16
"""The future of a FutureIter, which stands on the stack of a coroutine that awaits it (futureiterobject)."""

DEQUE_SIZE, DEQUE_LEFT, DEQUE_LEFT_INDEX = 16, 24, 40
BLOCK_ITEMS, BLOCK_DATA, BLOCK_RIGHT = 64, 8, 8 + 64 * 8
"""ob_size, leftblock and leftindex of dequeobject; BLOCKLEN, data and rightlink of its blocks
(Modules/_collectionsmodule.c, the same from 3.8 to 3.14)."""
