"""The object that a suspended task awaits, by the innermost of its coroutines and the ``self`` of that coroutine (of a
task of trio: the function above ``wait_task_rescheduled``).

Sources: asyncio of 3.8 to 3.15; trio 0.22 to 0.35, trio/_core/{_run,_parking_lot,_io_epoll}.py and
trio/{_sync,_channel,_timeouts,_threads}.py.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi.python_structures import FutureObj
from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.sync.full_pools import LIMITED_THREADS
from gdbext.cpython.threads.frame_variables import PyStack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gdbext.cpython.tasks.loops import RunningTask
    from gdbext.cpython.threads.runtime import PythonRuntime


class Awaitable(Enum):
    """The kind of object that a task awaits. The value completes "waits for …"; the first ``{}`` is the object's
    address, the second its package."""

    TASK = "a task"
    LOCK = "the lock {} ({}.Lock)"
    SEMAPHORE = "the semaphore {} ({}.Semaphore)"
    CONDITION = "the condition {} ({}.Condition)"
    EVENT = "the event {} ({}.Event)"
    QUEUE = "the queue {} ({}.Queue)"
    SLEEP = "sleep"
    DESCRIPTOR = "an fd"
    BARRIER = "the barrier {} ({}.Barrier)"
    PROCESS = "a process to exit"
    EXECUTOR = "the default executor's jobs to finish"
    JOIN = "all tasks of the queue {} ({}.Queue) to be done"
    JOB = "the job {} (concurrent.futures.Future)"
    LIMITER = "the limiter {} ({}.CapacityLimiter)"
    CHANNEL = "the memory channel {} ({})"
    THREAD = "a function that runs in a thread"
    CANCEL = "cancellation"
    SWITCH = "its hub to switch to it"
    FUTURE = "the future {}"


class Awaited(NamedTuple):
    """An object that is awaited. ``tasks``: addresses of the tasks that complete it (a task, or all of a gather);
    ``first``: the first of them to end completes it; ``descriptor``: the fd; ``delay``: seconds of a sleep; ``timed``:
    the wait has a time limit; ``pid``: of the process that is to exit."""

    kind: Awaitable
    address: int
    tasks: tuple[int, ...] = ()
    descriptor: int | None = None
    delay: float | None = None
    timed: bool = False
    first: bool = False
    pid: int | None = None
    status: int | None = None  # exit status of the process; None if asyncio has not reaped it
    package: str = "asyncio"
    holder: int = 0  # address of the task that holds it, 0 if the object does not record that
    pipes: tuple[int, ...] = ()  # fds of that process's pipes that are still open here
    is_pending: bool = False  # no worker has begun the job (concurrent.futures.Future._state)


_LONGEST = 32  # most characters of the name of a state
_BY_ATTRIBUTES = (
    (Awaitable.LOCK, ("_locked", "_waiters")),
    (Awaitable.CONDITION, ("_lock", "_waiters")),
    (Awaitable.SEMAPHORE, ("_value", "_waiters")),
    (Awaitable.EVENT, ("_value", "_waiters")),
    (Awaitable.QUEUE, ("_getters", "_putters")),
)
_PROCESS_WAITS = {("base_subprocess.py", "_wait"): "_pid", ("subprocess.py", "wait"): "pid"}
"""(file, function) that waits for a process to exit → the attribute of its ``self`` with the pid."""
_TIMED = frozenset({("tasks.py", "wait_for"), ("timeouts.py", "__aenter__")})
_KEEPERS = (
    *("shield.<locals>._outer_done_callback", "shield.<locals>._clear_awaited_by_callback"),
    "_chain_future.<locals>._call_check_cancel",
)
"""Callbacks of a future that have the task or job that will complete it in their closure."""
_TASK_TYPES = frozenset({"_asyncio.Task", "Task", "_PyTask"})


def awaited_by(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """The object that a task of asyncio waits for. Raises nothing."""
    awaited = _awaited(runtime, task)
    timed = awaited.timed or any(frame.call in _TIMED for frame in task.frames)
    return awaited._replace(timed=timed or any(_is_limit(PyRef(runtime, each)) for each in task.entered))


def _is_limit(manager: PyRef) -> bool:
    """True for a context manager that ends its block after some time: asyncio's Timeout, a cancel scope of anyio with a
    deadline."""
    deadline = manager.attributes()["_deadline"].float()
    return manager.type == "Timeout" or (deadline is not None and math.isfinite(deadline))


def _awaited(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """``awaited_by`` without the time limits that outer coroutines set. Raises nothing."""
    inner = task.frames[0].call if task.frames else ("", "")
    awaited, subject = PyRef(runtime, task.waiter or task.awaited), task.variables["self"]
    if _is_task(awaited):
        return Awaited(Awaitable.TASK, awaited.address, (awaited.address,))
    children = awaited.attributes()["_children"].parts()
    if children:
        return Awaited(Awaitable.TASK, awaited.address, _addresses(children))
    if inner == ("tasks.py", "sleep"):
        return Awaited(Awaitable.SLEEP, awaited.address, delay=task.variables["delay"].float(), timed=True)
    answer = _asyncio_object(runtime, task, inner, awaited.address) or _callback_object(awaited, task.address)
    if answer:
        return answer
    if inner[0] in ("locks.py", "queues.py") and subject:
        own = subject.attributes()
        for kind, names in _BY_ATTRIBUTES:
            if all(name in own for name in names):
                is_event = kind is Awaitable.SEMAPHORE and inner[1] == "wait"  # both have the same attributes
                return Awaited(Awaitable.EVENT if is_event else kind, subject.address)
    return Awaited(Awaitable.FUTURE, awaited.address)


def _addresses(values: Iterable[PyRef]) -> tuple[int, ...]:
    return tuple(value.address for value in values)


def _asyncio_object(runtime: PythonRuntime, task: RunningTask, inner: tuple[str, str], awaited: int) -> Awaited | None:
    """The object according to the variables of ``inner``, the (file, function) of asyncio that waits for the future at
    ``awaited``; None if that function is not known."""
    own, subject, stack = task.variables, task.variables["self"], PyStack(runtime, task.frames)
    if inner == ("tasks.py", "_wait"):
        waited = _tasks_of(own["fs"])
        first = len(waited) > 1 and own["return_when"].str(_LONGEST) != "ALL_COMPLETED"
        timed = own["timeout"].float() is not None
        return Awaited(Awaitable.TASK, awaited, waited, first=first, timed=timed) if waited else None
    if inner == ("tasks.py", "wait_for") and _is_task(own["fut"]):
        return Awaited(Awaitable.TASK, awaited, (own["fut"].address,))
    if inner[0] == "taskgroups.py":
        waited = _tasks_of(subject.attributes()["_tasks"])
        return Awaited(Awaitable.TASK, awaited, waited) if waited else None
    if inner in _PROCESS_WAITS:
        return _process(subject, _PROCESS_WAITS[inner], awaited)
    descriptor = own["fd"].int() if inner[0] == "selector_events.py" else None
    if inner[0] == "streams.py":
        transport = subject.attributes()["_transport"].attributes()
        descriptor = (transport["_sock_fd"] or transport["_fileno"]).int()
    if descriptor is not None:
        return Awaited(Awaitable.DESCRIPTOR, awaited, descriptor=descriptor)
    if inner == ("base_events.py", "shutdown_default_executor"):
        return Awaited(Awaitable.EXECUTOR, awaited)
    outer = task.frames[1:] if inner[0] == "locks.py" else ()
    for row in LIMITED_THREADS:
        if outer and row.acquires == outer[0].name and outer[0].file.endswith(row.file):
            return Awaited(Awaitable.LIMITER, stack.locals(outer[0])["self"].address, package=row.package)
        if row.runs == inner[1] and task.frames[0].file.endswith(row.file):
            return Awaited(Awaitable.THREAD, awaited)
    barrier = next((frame for frame in outer if frame.function.startswith("Barrier.")), None)
    if barrier:
        return Awaited(Awaitable.BARRIER, stack.locals(barrier)["self"].address)
    if outer and outer[0].call == ("queues.py", "join"):
        return Awaited(Awaitable.JOIN, stack.locals(outer[0])["self"].address)
    return None


def _process(subject: PyRef, attribute: str, awaited: int) -> Awaited:
    """A wait for the process whose pid is the ``attribute`` of ``subject``. It may have exited: since 3.11 asyncio also
    waits until its pipes are closed (BaseSubprocessTransport._try_finish of Lib/asyncio/base_subprocess.py)."""
    own = subject.attributes()
    transport = own["_transport"].attributes() if "_transport" in own else own
    protocols = (protocol.attributes() for protocol in transport["_pipes"].parts())
    fds = (protocol["pipe"].attributes()["_fileno"].int() for protocol in protocols)
    pipes = tuple(fd for fd in fds if fd is not None)
    status, pid = transport["_returncode"].int(), own[attribute].int()
    return Awaited(Awaitable.PROCESS, awaited, pid=pid or None, status=status, pipes=pipes)


def _callback_object(future: PyRef, own: int) -> Awaited | None:
    """The task or job that completes a future, from the closure of its first callback: shield() keeps the task there,
    wrap_future() the executor's job. None for other callbacks. ``own``: address of the task that waits."""
    if future.type != "_asyncio.Future":
        return None
    callback = future.at(lambda python, at: FutureObj(python.space, at).fut_callback0)
    function = callback.function
    if not function or function.qualname not in _KEEPERS:
        return None
    for value in callback.closure:
        if _is_task(value) and value.address != own:
            return Awaited(Awaitable.TASK, future.address, (value.address,))
        fields = value.attributes()
        if "_condition" in fields:
            return Awaited(Awaitable.JOB, value.address, is_pending=fields["_state"].str(_LONGEST) == "PENDING")
    return None


def _is_task(value: PyRef) -> bool:
    return value.type in _TASK_TYPES


def _tasks_of(container: PyRef) -> tuple[int, ...]:
    """Addresses of the tasks in a set."""
    return _addresses(filter(_is_task, container))


TRIO = "trio"


def trio_awaited(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """The object that a task of trio waits for. Raises nothing."""
    awaited = _trio_object(runtime, task)
    return awaited._replace(package=TRIO, timed=awaited.timed or _has_deadline(PyRef(runtime, task.address)))


def _trio_object(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """``trio_awaited`` without the deadlines of cancel scopes: by the (file, function) that waits."""
    inner = task.frames[0].call
    file, subject, stack = inner[0], task.variables["self"], PyStack(runtime, task.frames)
    if inner == ("_run.py", "_nested_child_finished"):
        children = task_members(subject.attributes()["_children"])
        return Awaited(Awaitable.TASK, task.subject, _addresses(children))
    if file == "_channel.py":
        return Awaited(Awaitable.CHANNEL, (subject.attributes()["_state"] or subject).address)
    if file == "_timeouts.py":
        if not any(frame.name == "sleep_until" for frame in stack[:3]):
            return Awaited(Awaitable.CANCEL, 0)  # sleep_forever()
        delays = (stack.locals(frame)["seconds"].float() for frame in stack[:3] if frame.name == "sleep")
        return Awaited(Awaitable.SLEEP, 0, delay=next(delays, None), timed=True)
    if inner == ("_sync.py", "wait"):
        return Awaited(Awaitable.EVENT, task.subject)
    if file == "_io_epoll.py":
        return Awaited(Awaitable.DESCRIPTOR, 0, descriptor=task.variables["fd"].int())
    if inner == ("_threads.py", "to_thread_run_sync"):
        return Awaited(Awaitable.THREAD, task.variables["sync_fn"].address)
    if inner == ("_parking_lot.py", "park") and len(task.frames) > 1 and task.frames[1].call[0] == "_sync.py":
        return _parking_object(stack.locals(task.frames[1])["self"])
    return Awaited(Awaitable.FUTURE, task.subject or task.address)


def _parking_object(value: PyRef) -> Awaited:
    """The wait for a lock, limiter, condition or semaphore of trio, by its attributes, with the task that holds it."""
    own = value.attributes()
    if "_owner" in own:
        holder = own["_owner"].address if own["_owner"].type == "Task" else 0
        return Awaited(Awaitable.LOCK, value.address, holder=holder)
    if "_borrowers" in own:
        holders = task_members(own["_borrowers"])
        return Awaited(Awaitable.LIMITER, value.address, holder=holders[0].address if len(holders) == 1 else 0)
    return Awaited(Awaitable.CONDITION if "_lock" in own else Awaitable.SEMAPHORE, value.address)


def _has_deadline(task: PyRef) -> bool:
    """True if a cancel scope around the task of trio has a deadline."""
    status = task.attributes()["_cancel_status"].attributes()
    for _ in range(64):  # most scopes that are followed
        deadline = status["_scope"].attributes()["_registered_deadline"].float()
        if deadline is not None and math.isfinite(deadline):
            return True
        status = status["_parent"].attributes()
    return False


def task_members(container: PyRef) -> list[PyRef]:
    """The tasks of trio in a set, without deleted entries; none if it cannot be read."""
    return [value for value in dict.fromkeys(container.elements(10_000)) if value.type == "Task"]
