"""The object that a suspended task awaits: by the innermost of its coroutines and the object that this one is a method
of.

Sources: Lib/asyncio/locks.py, queues.py, tasks.py, taskgroups.py, futures.py, streams.py, selector_events.py and
base_subprocess.py, 3.8 to 3.15; trio 0.22 to 0.35, trio/_core/{_run,_parking_lot,_io_epoll}.py and
trio/{_sync,_channel,_timeouts,_threads}.py: what a task of trio waits for is told by the function above
``wait_task_rescheduled``.
"""

from __future__ import annotations

import math

from gdbext.cpython.abi.python_structures import FutureObj
from gdbext.cpython.objects.object_items import set_items
from gdbext.cpython.threads.frame_variables import attributes, closure_of, items, local_of
from gdbext.engine.record import Enum, Record
from gdbext.errors import GdbextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.cpython.tasks.loops import RunningTask
    from gdbext.cpython.threads.runtime import PythonRuntime


class Awaitable(Enum):
    """The value is what it is called in a sentence; the first ``{}`` is its address, the second the package whose it
    is."""

    TASK = "a task"
    LOCK = "the lock {} ({}.Lock)"
    SEMAPHORE = "the semaphore {} ({}.Semaphore)"
    CONDITION = "the condition {} ({}.Condition)"
    EVENT = "the event {} ({}.Event)"
    QUEUE = "the queue {} ({}.Queue)"
    SLEEP = "sleep"
    DESCRIPTOR = "a descriptor"
    BARRIER = "the barrier {} ({}.Barrier)"
    PROCESS = "the end of a process"
    EXECUTOR = "the end of the default executor's jobs"
    JOIN = "all tasks of the queue {} ({}.Queue) to be done"
    JOB = "the job {} (concurrent.futures.Future)"
    LIMITER = "the limiter {} ({}.CapacityLimiter)"
    CHANNEL = "the memory channel {} ({})"
    THREAD = "a function that a thread runs"
    CANCEL = "being cancelled"
    SWITCH = "its hub to switch to it"
    FUTURE = "the future {}"


class Awaited(Record):
    """An object that is awaited. ``tasks`` are those that it consists of (a task, or all of a gather), ``first``: the
    first of them ends it; ``timed``: it is given up."""

    kind: Awaitable
    address: int
    tasks: tuple[int, ...] = ()
    descriptor: int | None = None
    delay: float | None = None
    timed: bool = False
    first: bool = False
    pid: int | None = None
    status: int | None = None
    """The exit status of a process that has ended; None for one of which asyncio knows no end."""
    package: str = "asyncio"
    holder: int = 0
    """The task that has it, where the object itself keeps that; 0 where it does not."""
    pipes: tuple[int, ...] = ()
    """Descriptors of that process's pipes that are still open here."""
    is_pending: bool = False
    """No worker has begun the job (concurrent.futures.Future._state)."""


_BY_ATTRIBUTES = (
    (Awaitable.LOCK, ("_locked", "_waiters")),
    (Awaitable.CONDITION, ("_lock", "_waiters")),
    (Awaitable.SEMAPHORE, ("_value", "_waiters")),
    (Awaitable.EVENT, ("_value", "_waiters")),
    (Awaitable.QUEUE, ("_getters", "_putters")),
)
_PROCESS_WAITS = {("base_subprocess.py", "_wait"): "_pid", ("subprocess.py", "wait"): "pid"}
"""Functions that wait for the end of a process, and the attribute of ``self`` with its id."""
_TIMED = frozenset({("tasks.py", "wait_for"), ("timeouts.py", "__aenter__")})
_KEEPERS = frozenset(
    {
        "shield.<locals>._outer_done_callback",
        "shield.<locals>._clear_awaited_by_callback",
        "_chain_future.<locals>._call_check_cancel",
    }
)
"""Callbacks of a future that have in their closure what will complete it."""
_TASK_TYPES = frozenset({"_asyncio.Task", "Task", "_PyTask"})


def awaited_by(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """The object that a task waits for. Raises nothing."""
    found = _awaited(runtime, task)
    timed = found.timed or any(_call(frame.file, frame.function) in _TIMED for frame in task.frames)
    return found._replace(timed=timed or any(type_name(runtime, each) == "Timeout" for each in task.entered))


def _awaited(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    inner = _call(task.frames[0].file, task.frames[0].function) if task.frames else ("", "")
    awaited = task.waiter or task.awaited
    if _is_task(runtime, awaited):
        return Awaited(Awaitable.TASK, awaited, (awaited,))
    children = items(runtime, attributes(runtime, awaited).get("_children", 0)) if awaited else ()
    if children:
        return Awaited(Awaitable.TASK, awaited, children)
    if inner == ("tasks.py", "sleep"):
        return Awaited(Awaitable.SLEEP, awaited, delay=_number(runtime, task.variables.get("delay", 0)), timed=True)
    found = _by_frame(runtime, task, inner, awaited) or _by_callback(runtime, awaited, task.address)
    if found is not None:
        return found
    kind = _kind(runtime, task.subject, inner)
    return Awaited(kind, task.subject if kind is not Awaitable.FUTURE else awaited)


def _by_frame(runtime: PythonRuntime, task: RunningTask, inner: tuple[str, str], awaited: int) -> Awaited | None:
    """The object by the variables of the function of asyncio that waits."""
    own = task.variables
    if inner == ("tasks.py", "_wait"):
        waited = _tasks_of(runtime, own.get("fs", 0))
        first = len(waited) > 1 and not _is_text(runtime, own.get("return_when", 0), "ALL_COMPLETED")
        timed = _number(runtime, own.get("timeout", 0)) is not None
        return Awaited(Awaitable.TASK, awaited, waited, first=first, timed=timed) if waited else None
    if inner == ("tasks.py", "wait_for") and _is_task(runtime, own.get("fut", 0)):
        return Awaited(Awaitable.TASK, awaited, (own["fut"],))
    if inner[0] == "taskgroups.py":
        waited = _tasks_of(runtime, attributes(runtime, task.subject).get("_tasks", 0))
        return Awaited(Awaitable.TASK, awaited, waited) if waited else None
    if inner in _PROCESS_WAITS:
        return _process(runtime, task.subject, _PROCESS_WAITS[inner], awaited)
    descriptor = _descriptor(runtime, task, inner[0])
    if descriptor is not None:
        return Awaited(Awaitable.DESCRIPTOR, awaited, descriptor=descriptor)
    if inner == ("base_events.py", "shutdown_default_executor"):
        return Awaited(Awaitable.EXECUTOR, awaited)
    outer = task.frames[1:] if inner[0] == "locks.py" else ()
    barrier = next((frame for frame in outer if frame.function.startswith("Barrier.")), None)
    if barrier is not None:
        return Awaited(Awaitable.BARRIER, local_of(runtime, barrier, "self"))
    if outer and _call(outer[0].file, outer[0].function) == ("queues.py", "join"):
        return Awaited(Awaitable.JOIN, local_of(runtime, outer[0], "self"))
    return None


def _process(runtime: PythonRuntime, subject: int, attribute: str, awaited: int) -> Awaited:
    """A wait for a process, which may have ended: since 3.11 asyncio waits until its pipes are closed, too
    (BaseSubprocessTransport._try_finish of Lib/asyncio/base_subprocess.py)."""
    own = attributes(runtime, subject)
    transport = attributes(runtime, own["_transport"]) if "_transport" in own else own
    status, pid = _number(runtime, transport.get("_returncode", 0)), _number(runtime, own.get(attribute, 0))
    pipes = []
    for protocol in items(runtime, transport.get("_pipes", 0)):
        pipe = attributes(runtime, attributes(runtime, protocol).get("pipe", 0))
        number = _number(runtime, pipe.get("_fileno", 0))
        if number is not None:
            pipes.append(int(number))
    known = None if status is None else int(status)
    return Awaited(Awaitable.PROCESS, awaited, pid=int(pid) if pid else None, status=known, pipes=tuple(pipes))


def _by_callback(runtime: PythonRuntime, future: int, own: int) -> Awaited | None:
    """The object by what the function that was first added to a future's callbacks has in its closure: shield() keeps
    the task there, wrap_future() the job of an executor."""
    if type_name(runtime, future) != "_asyncio.Future":
        return None
    try:
        callback = FutureObj(runtime.space, future).fut_callback0
    except GdbextError:
        return None
    function = runtime.functions.source(callback)
    if function is None or function.qualname not in _KEEPERS:
        return None
    for each in closure_of(runtime, callback):
        if _is_task(runtime, each) and each != own:
            return Awaited(Awaitable.TASK, future, (each,))
        kept = attributes(runtime, each)
        if "_condition" in kept:
            return Awaited(Awaitable.JOB, each, is_pending=_is_text(runtime, kept.get("_state", 0), "PENDING"))
    return None


def _is_task(runtime: PythonRuntime, address: int) -> bool:
    return type_name(runtime, address) in _TASK_TYPES


def _tasks_of(runtime: PythonRuntime, container: int) -> tuple[int, ...]:
    """The tasks in a set."""
    try:
        found = set_items(runtime, container) if container else []
    except GdbextError:
        return ()
    return tuple(each for each in found if _is_task(runtime, each))


def _is_text(runtime: PythonRuntime, address: int, text: str) -> bool:
    try:
        return bool(address) and runtime.objects.text_equals(address, text)
    except GdbextError:
        return False


def _number(runtime: PythonRuntime, address: int) -> float | None:
    try:
        return runtime.objects.number(address) if address else None
    except GdbextError:
        return None


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
    number = task.variables.get("fd", 0) if file == "selector_events.py" else 0
    if file == "streams.py" and task.subject:
        transport = attributes(runtime, task.subject).get("_transport", 0)
        own = attributes(runtime, transport) if transport else {}
        number = own.get("_sock_fd", own.get("_fileno", 0))
    try:
        return runtime.objects.integer(number) if number else None
    except GdbextError:
        return None


def type_name(runtime: PythonRuntime, address: int) -> str:
    """The name of an object's type; "" for no object, and for what cannot be read."""
    try:
        return runtime.objects.type_of(address).name if address else ""
    except GdbextError:
        return ""


TRIO = "trio"
_TASKS = 10_000
_SCOPES = 64


def trio_awaited(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """The object that a task waits for. Raises nothing."""
    inner = _call(task.frames[0].file, task.frames[0].function)
    found = _by_trio_call(runtime, task, inner)
    return found._replace(package=TRIO, timed=found.timed or _has_deadline(runtime, task.address))


def _by_trio_call(runtime: PythonRuntime, task: RunningTask, inner: tuple[str, str]) -> Awaited:
    file = inner[0]
    if inner == ("_run.py", "_nested_child_finished"):
        children = task_members(runtime, attributes(runtime, task.subject).get("_children", 0))
        return Awaited(Awaitable.TASK, task.subject, tuple(children))
    if file == "_channel.py":
        return Awaited(Awaitable.CHANNEL, attributes(runtime, task.subject).get("_state", 0) or task.subject)
    if file == "_timeouts.py":
        return _trio_sleep(runtime, task)
    if inner == ("_sync.py", "wait"):
        return Awaited(Awaitable.EVENT, task.subject)
    if file == "_io_epoll.py":
        return Awaited(Awaitable.DESCRIPTOR, 0, descriptor=runtime.objects.known_integer(task.variables.get("fd", 0)))
    if inner == ("_threads.py", "to_thread_run_sync"):
        return Awaited(Awaitable.THREAD, task.variables.get("sync_fn", 0))
    if (
        inner == ("_parking_lot.py", "park")
        and len(task.frames) > 1
        and _call(task.frames[1].file, task.frames[1].function)[0] == "_sync.py"
    ):
        return _parked(runtime, local_of(runtime, task.frames[1], "self"))
    return Awaited(Awaitable.FUTURE, task.subject or task.address)


def _trio_sleep(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """A sleep until a time is a wait for a deadline; one for ever for being cancelled."""
    calls = [(_call(frame.file, frame.function)[1], frame) for frame in task.frames[:3]]
    if any(name == "sleep_until" for name, _ in calls):
        frame = next((frame for name, frame in calls if name == "sleep"), None)
        delay = runtime.objects.known_number(local_of(runtime, frame, "seconds")) if frame is not None else None
        return Awaited(Awaitable.SLEEP, 0, delay=delay, timed=True)
    return Awaited(Awaitable.CANCEL, 0)


def _parked(runtime: PythonRuntime, address: int) -> Awaited:
    """The object in whose parking lot the task is, and the task that has it where it keeps that."""
    own = attributes(runtime, address)
    if "_owner" in own:
        owner = own["_owner"] if type_name(runtime, own["_owner"]) == "Task" else 0
        return Awaited(Awaitable.LOCK, address, holder=owner)
    if "_borrowers" in own:
        holders = task_members(runtime, own["_borrowers"])
        return Awaited(Awaitable.LIMITER, address, holder=holders[0] if len(holders) == 1 else 0)
    kind = Awaitable.CONDITION if "_lock" in own else Awaitable.SEMAPHORE
    return Awaited(kind, address)


def _has_deadline(runtime: PythonRuntime, task: int) -> bool:
    """A cancel scope around it has a time at which it ends."""
    status = attributes(runtime, task).get("_cancel_status", 0)
    for _ in range(_SCOPES):
        own = attributes(runtime, status)
        if not own:
            return False
        scope = attributes(runtime, own.get("_scope", 0))
        deadline = runtime.objects.known_number(scope.get("_registered_deadline", 0))
        if deadline is not None and math.isfinite(deadline):
            return True
        status = own.get("_parent", 0)
    return False


def task_members(runtime: PythonRuntime, address: int) -> list[int]:
    """The tasks in a set, deleted entries left out; none where it cannot be read."""
    try:
        found = set_items(runtime, address)[:_TASKS] if address else []
    except GdbextError:
        return []
    return [each for each in dict.fromkeys(found) if type_name(runtime, each) == "Task"]
