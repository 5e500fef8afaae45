"""EventLoop: a loop of asyncio with its tasks, each with what it awaits."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.model.threads.frame import Frame


class TaskState(Enum):
    """What a task does; the value is the word of the JSON report."""

    RUNNING = "running"
    """It runs, or blocks the loop in a call that does not await."""
    READY = "ready"
    WAITING = "waiting"


class AsyncTask(Record):
    """One task that is not done."""

    name: str
    address: int
    state: TaskState
    awaits: str = ""
    """What it waits for: ``the lock 0x7f00 (asyncio.Lock), which reader seems to hold``; for people."""
    needs: tuple[int, ...] = ()
    """Addresses of the tasks that it waits for: it awaits them, or the lock that they hold."""
    inferred: bool = False
    """Whom it needs is concluded from the blocks that those tasks are in."""
    timed: bool = False
    """It gives up after some time."""
    frames: tuple[Frame, ...] = ()
    """Its coroutines, innermost first; empty for one that runs, whose frames are on the thread's stack."""


class EventLoop(Record):
    """One loop. ``kind`` is its type, ``ready`` how many callbacks are due, None where that is not known."""

    address: int
    kind: str
    tid: int | None
    ready: int | None
    tasks: tuple[AsyncTask, ...]

    @property
    def current(self) -> AsyncTask | None:
        """The task that runs, None while the loop waits for events."""
        return next((task for task in self.tasks if task.state is TaskState.RUNNING), None)
