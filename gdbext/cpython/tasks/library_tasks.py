"""Tasks of trio: the runner's own set of them, and what each of them waits for.

``run`` of trio/_core/_run.py, and ``unrolled_run`` while a task runs, have the runner in a variable. The runner has
all tasks, those that are due (``runq``) and the deadlines; a task has its coroutine, its nursery and its cancel scopes.
Most of these are classes with slots. A task that waits is suspended below ``wait_task_rescheduled``
(trio/_core/_traps.py), and the function above it, with its ``self``, says in what.

Source: trio 0.22 to 0.35, trio/_core/{_run,_traps,_parking_lot,_io_epoll}.py and trio/{_sync,_channel,_timeouts,
_threads}.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gdbext.cpython.objects.object_items import deque_items, set_items
from gdbext.cpython.tasks.awaited import Awaitable, Awaited
from gdbext.cpython.tasks.loops import RunningLoop, RunningTask, coroutine_chain, entered_objects, running_frame
from gdbext.cpython.threads.frame_variables import attributes, local_of, locals_of
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

TRIO = "trio"
_RUN, _TRAPS = "/trio/_core/_run.py", "/trio/_core/_traps.py"
_LOOPS = ("run", "unrolled_run")
_SYSTEM = "/trio/_core/"
"""Tasks whose coroutine is a function in there are trio's own."""
_TASKS = 10_000
_SCOPES = 64


def trio_loops(runtime: PythonRuntime) -> list[RunningLoop]:
    """The runners of trio that run in a thread. Raises nothing; what cannot be read is left out."""
    found = []
    try:
        for state in runtime.thread_states():
            frames = runtime.frames.stack(state).frames
            frame = next((each for each in frames if is_runner(each)), None)
            runner = local_of(runtime, frame, "runner") if frame is not None else 0
            if runner:
                found.append(_loop(runtime, state, frames, runner))
    except GdbextError:
        pass  # the runners that were read until then
    return found


def is_runner(frame: PythonFrame) -> bool:
    """It is the loop of trio."""
    return frame.file.endswith(_RUN) and frame.function.rpartition(".")[2] in _LOOPS


def _loop(runtime: PythonRuntime, state: ThreadState, frames: list[PythonFrame], runner: int) -> RunningLoop:
    own = attributes(runtime, runner)
    stack = {frame.address for frame in frames}
    tasks, current = [], 0
    for address in _members(runtime, own.get("tasks", 0)):
        found = _task(runtime, address, runner, stack)
        if found is not None and (found.outer is None or _SYSTEM not in found.outer.file):
            tasks.append(found)
            if found.outer is not None and found.outer.address in stack:
                current = address
    queue = own.get("runq", 0)
    return RunningLoop(
        runner,
        f"{TRIO}.run",
        state.ident,
        queue,
        _due(runtime, queue),
        current,
        tuple(tasks),
        _only_itself(runtime, own),
    )


def _members(runtime: PythonRuntime, address: int) -> list[int]:
    """The tasks in a set, deleted entries left out; none where it cannot be read."""
    try:
        found = set_items(runtime, address)[:_TASKS] if address else []
    except GdbextError:
        return []
    return [each for each in dict.fromkeys(found) if _is_task(runtime, each)]


def _is_task(runtime: PythonRuntime, address: int) -> bool:
    try:
        return bool(address) and runtime.objects.type_of(address).name == "Task"
    except GdbextError:
        return False


def _due(runtime: PythonRuntime, queue: int) -> int | None:
    try:
        return deque_items(runtime, queue, 0)[0] if queue else None
    except GdbextError:
        return None


def _only_itself(runtime: PythonRuntime, runner: Mapping[str, int]) -> bool:
    """Only the process itself can wake the loop: there is no deadline, and the one descriptor that it watches is that
    of ``TrioToken.run_sync_soon``."""
    active = attributes(runtime, runner.get("deadlines", 0)).get("_active", 0)
    watched = attributes(runtime, runner.get("io_manager", 0)).get("_registered", 0)
    try:
        count = runtime.objects.integer(active) if active else None
        return count == 0 and bool(watched) and sum(1 for _ in runtime.dicts.items(watched)) == 1
    except GdbextError:
        return False


def _task(runtime: PythonRuntime, address: int, runner: int, stack: set[int]) -> RunningTask | None:
    """A task that is not done."""
    own = attributes(runtime, address)
    coroutine = own.get("coro", 0)
    outer = running_frame(runtime, coroutine) if coroutine else None
    if not coroutine or outer is None:
        return None
    runs = outer.address in stack
    frames = [] if runs else [each for each in coroutine_chain(runtime, coroutine)[0] if not each.file.endswith(_TRAPS)]
    scheduled = _type(runtime, own.get("_next_send_fn", 0)) not in ("", "NoneType")
    variables = _locals(runtime, frames[0]) if frames else {}
    entered = tuple(dict.fromkeys(each for frame in frames for each in entered_objects(runtime, frame)))
    waiter = 0 if scheduled or runs or not frames else address
    name = runtime.objects.known_text(own.get("name", 0))
    return RunningTask(address, name, runner, tuple(frames), waiter, 0, variables, entered, outer)


def trio_awaited(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """The object that a task waits for. Raises nothing."""
    inner = _call(task.frames[0])
    found = _by_call(runtime, task, inner)
    return found._replace(package=TRIO, timed=found.timed or _has_deadline(runtime, task.address))


def _by_call(runtime: PythonRuntime, task: RunningTask, inner: tuple[str, str]) -> Awaited:
    file = inner[0]
    if inner == ("_run.py", "_nested_child_finished"):
        children = _members(runtime, attributes(runtime, task.subject).get("_children", 0))
        return Awaited(Awaitable.TASK, task.subject, tuple(children))
    if file == "_channel.py":
        return Awaited(Awaitable.CHANNEL, attributes(runtime, task.subject).get("_state", 0) or task.subject)
    if file == "_timeouts.py":
        return _sleep(runtime, task)
    if inner == ("_sync.py", "wait"):
        return Awaited(Awaitable.EVENT, task.subject)
    if file == "_io_epoll.py":
        return Awaited(Awaitable.DESCRIPTOR, 0, descriptor=runtime.objects.known_integer(task.variables.get("fd", 0)))
    if inner == ("_threads.py", "to_thread_run_sync"):
        return Awaited(Awaitable.THREAD, task.variables.get("sync_fn", 0))
    if inner == ("_parking_lot.py", "park") and len(task.frames) > 1 and _call(task.frames[1])[0] == "_sync.py":
        return _parked(runtime, local_of(runtime, task.frames[1], "self"))
    return Awaited(Awaitable.FUTURE, task.subject or task.address)


def _sleep(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """A sleep until a time is a wait for a deadline; one for ever for being cancelled."""
    calls = [(_call(frame)[1], frame) for frame in task.frames[:3]]
    if any(name == "sleep_until" for name, _ in calls):
        frame = next((frame for name, frame in calls if name == "sleep"), None)
        delay = runtime.objects.known_number(local_of(runtime, frame, "seconds")) if frame is not None else None
        return Awaited(Awaitable.SLEEP, 0, delay=delay, timed=True)
    return Awaited(Awaitable.CANCEL, 0)


def _parked(runtime: PythonRuntime, address: int) -> Awaited:
    """The object in whose parking lot the task is, and the task that has it where it keeps that."""
    own = attributes(runtime, address)
    if "_owner" in own:
        return Awaited(Awaitable.LOCK, address, holder=own["_owner"] if _is_task(runtime, own["_owner"]) else 0)
    if "_borrowers" in own:
        holders = _members(runtime, own["_borrowers"])
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


def _call(frame: PythonFrame) -> tuple[str, str]:
    return frame.file.rpartition("/")[2], frame.function.rpartition(".")[2]


def _locals(runtime: PythonRuntime, frame: PythonFrame) -> Mapping[str, int]:
    try:
        return locals_of(runtime, frame)
    except GdbextError:
        return {}


def _type(runtime: PythonRuntime, address: int) -> str:
    try:
        return runtime.objects.type_of(address).name if address else ""
    except GdbextError:
        return ""
