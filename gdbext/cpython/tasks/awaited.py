"""What a suspended task awaits: by the innermost of its coroutines and the object that this one is a method of.

Sources: Lib/asyncio/locks.py, queues.py, tasks.py, streams.py, selector_events.py, 3.8 to 3.13.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from gdbext.cpython.threads.namespaces import attributes, items
from gdbext.errors import GdbextError
from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.cpython.tasks.loops import RunningTask
    from gdbext.cpython.threads.runtime import PythonRuntime


class Awaitable(Enum):
    """The value is what it is called in a sentence; ``{}`` is its address."""

    TASK = "a task"
    LOCK = "the lock {} (asyncio.Lock)"
    SEMAPHORE = "the semaphore {} (asyncio.Semaphore)"
    CONDITION = "the condition {} (asyncio.Condition)"
    EVENT = "the event {} (asyncio.Event)"
    QUEUE = "the queue {} (asyncio.Queue)"
    SLEEP = "sleep"
    DESCRIPTOR = "a descriptor"
    FUTURE = "the future {}"


class Awaited(Record):
    """What it is. ``tasks`` are those that it consists of (a task, or all of a gather); ``timed``: it is given up."""

    kind: Awaitable
    address: int
    tasks: tuple[int, ...] = ()
    descriptor: int | None = None
    delay: float | None = None
    timed: bool = False


_BY_ATTRIBUTES = (
    (Awaitable.LOCK, ("_locked", "_waiters")),
    (Awaitable.CONDITION, ("_lock", "_waiters")),
    (Awaitable.SEMAPHORE, ("_value", "_waiters")),
    (Awaitable.EVENT, ("_value", "_waiters")),
    (Awaitable.QUEUE, ("_getters", "_putters")),
)
_TIMED = frozenset({("tasks.py", "wait_for"), ("timeouts.py", "__aenter__")})
_TASK_TYPES = frozenset({"_asyncio.Task", "Task", "_PyTask"})


def awaited_by(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """What a task waits for. Raises nothing."""
    timed = any(_call(frame.file, frame.function) in _TIMED for frame in task.frames)
    timed = timed or any(_type(runtime, each) == "Timeout" for each in task.entered)
    inner = _call(task.frames[0].file, task.frames[0].function) if task.frames else ("", "")
    awaited = task.waiter or task.awaited
    if _type(runtime, awaited) in _TASK_TYPES:
        return Awaited(Awaitable.TASK, awaited, (awaited,), timed=timed)
    children = items(runtime, attributes(runtime, awaited).get("_children", 0)) if awaited else ()
    if children:
        return Awaited(Awaitable.TASK, awaited, children, timed=timed)
    if inner == ("tasks.py", "sleep"):
        return Awaited(Awaitable.SLEEP, awaited, delay=task.delay, timed=True)
    descriptor = _descriptor(runtime, task, inner[0])
    if descriptor is not None:
        return Awaited(Awaitable.DESCRIPTOR, awaited, descriptor=descriptor, timed=timed)
    kind = _kind(runtime, task.subject, inner)
    return Awaited(kind, task.subject if kind is not Awaitable.FUTURE else awaited, timed=timed)


def _call(file: str, function: str) -> tuple[str, str]:
    return file.rpartition("/")[2], function.rpartition(".")[2]


def _kind(runtime: PythonRuntime, subject: int, inner: tuple[str, str]) -> Awaitable:
    if inner[0] not in ("locks.py", "queues.py") or not subject:
        return Awaitable.FUTURE
    own = attributes(runtime, subject)
    kind = next((kind for kind, names in _BY_ATTRIBUTES if all(each in own for each in names)), Awaitable.FUTURE)
    return Awaitable.EVENT if kind is Awaitable.SEMAPHORE and inner[1] == "wait" else kind


def _descriptor(runtime: PythonRuntime, task: RunningTask, file: str) -> int | None:
    """The descriptor of a socket or pipe that is read or written."""
    if file == "selector_events.py":
        return task.descriptor
    if file != "streams.py" or not task.subject:
        return None
    transport = attributes(runtime, task.subject).get("_transport", 0)
    own = attributes(runtime, transport) if transport else {}
    number = own.get("_sock_fd", own.get("_fileno", 0))
    try:
        return runtime.objects.integer(number) if number else None
    except GdbextError:
        return None


def _type(runtime: PythonRuntime, address: int) -> str:
    try:
        return runtime.objects.type_of(address).name if address else ""
    except GdbextError:
        return ""
