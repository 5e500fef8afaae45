"""The event loops of a process: their tasks, and for each of them what it waits for and which other task that needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.tasks.awaited import TRIO, Awaitable, Awaited
from gdbext.diagnosis.report.thread_report import (
    AsyncTask,
    EventLoop,
    Frame,
    FrameKind,
    RunState,
    TaskState,
    is_users_file,
)
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread
from gdbext.diagnosis.report.wait_detail import OwnServer
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.named_waits import task_phrase
from gdbext.diagnosis.waits.snapshot import joined
from gdbext.diagnosis.waits.syscall_waits import seconds_text
from gdbext.engine.targets.system.linux import signal_name

if TYPE_CHECKING:
    from gdbext.cpython.tasks.loops import RunningLoop, RunningTask
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.diagnosis.waits.recognize import State
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot

_FROM_HERE = {
    *(Awaitable.TASK, Awaitable.LOCK, Awaitable.SEMAPHORE, Awaitable.CONDITION, Awaitable.EVENT, Awaitable.QUEUE),
    *(Awaitable.BARRIER, Awaitable.JOIN, Awaitable.LIMITER, Awaitable.CHANNEL, Awaitable.FUTURE, Awaitable.THREAD),
}
"""Objects of asyncio and trio that only code which runs in the process ends: also a bare future, if the loop has no
timer, descriptor or handler whose callback could complete it."""


def event_loops(process: ProcessSnapshot, users: Sequence[int]) -> dict[int, EventLoop]:
    """Thread id → the event loop that it runs. ``users``: tids with frames of asyncio, trio or greenlets."""
    python = process.python
    loops: dict[int, EventLoop] = {}
    for loop in python.loops():
        tid = python.tid_of_ident(loop.ident) if loop.ident else None
        if tid is None and not loop.ident and len(users) == 1:
            tid = users[0]  # a loop that is not written in Python, as uvloop's
        if tid is not None:
            loops[tid] = _event_loop(process, loop, tid)
    return loops


def own_server_states(
    process: ProcessSnapshot, states: Mapping[int, State | None], loops: Mapping[int, EventLoop]
) -> Iterator[tuple[int, State]]:
    """(thread id, new state) of a thread that waits for an answer of its own process which only the event loop that it
    blocks could give: that is the only loop, and each other thread waits for a thread, or for such an answer, too."""
    if len(loops) != 1:
        return
    ((tid, loop),) = loops.items()
    state = states.get(tid)
    wait = state.wait if state else None
    if not state or not wait or not loop.current or not wait.detail.peer or not wait.detail.peer.is_queued:
        return
    others = (thread for thread in process.threads if thread.tid != tid)
    if wait.timed or any(_may_accept(other, states.get(other.tid)) for other in others):
        return
    wait = wait._replace(
        owner=OwnerThread(tid),
        certainty=OwnerCertainty.RECORDED,
        evidence=(*wait.evidence, "no other thread accepts connections, and there is no other event loop"),
        detail=OwnServer(wait.detail.peer, wait.detail.children),
    )
    yield tid, state._replace(wait=wait)


def _may_accept(thread: ThreadSnapshot, state: State | None) -> bool:
    """True if the thread runs, or resumes by itself or by an event from outside, and so may accept a connection."""
    wait = state.wait if state else None
    if not state or not wait or not thread.syscall:
        return True
    call = thread.syscall.name
    if call in {"poll", "ppoll", "select", "pselect6", "io_uring_enter"} or call.startswith(("accept", "epoll_")):
        return True
    if state.state is RunState.IDLE:
        return call != "futex"
    asks = wait.kind is WaitKind.IO and wait.detail.peer is not None and wait.detail.peer.own
    return wait.timed or wait.being_released or wait.external or not (asks or wait.kind.traits.needs_thread)


def _event_loop(process: ProcessSnapshot, loop: RunningLoop, tid: int) -> EventLoop:
    """An event loop as it is reported, with its tasks; ``tid``: the thread that runs it."""
    assert process.python
    awaited = {task.address: process.python.awaited(loop, task) for task in loop.tasks if task.waiter}
    names = {task.address: _name(process, loop, task, tid) for task in loop.tasks}
    inside: dict[int, list[RunningTask]] = {}
    for task in loop.tasks:
        for entered in task.entered:
            # A task that is just entering has its __aexit__ on the stack already.
            if task.subject != entered or not task.waiter:
                inside.setdefault(entered, []).append(task)
    tasks = (_task(process, loop, task, awaited.get(task.address), names, inside, tid) for task in loop.tasks)
    # Signal handlers give no locks back; if they are not known, as in a core, they may do anything else.
    handled = process.procfs.handled_signals()
    locks = {Awaitable.TASK, Awaitable.LOCK, Awaitable.SEMAPHORE, Awaitable.LIMITER}
    no_handler_wakes = {row.kind for row in awaited.values()} <= locks or (handled is not None and not handled)
    ended = []
    for failed in loop.ended:
        raised = f", raised in {failed.raised_in}" if failed.raised_in else ""
        ended.append(f"the task {failed.name} failed with {failed.error}{raised}; its exception was never retrieved")
    return EventLoop(
        tuple(sorted(tasks, key=lambda task: task.name)),
        loop.address,
        loop.kind,
        tid,
        loop.ready,
        loop.watches_itself and no_handler_wakes,
        loop.kind.startswith(TRIO),
        tuple(ended),
    )


class _TaskName(NamedTuple):
    """``label``: the task in a sentence, ``reader``, or ``credit (train.py:12, Task-2)`` for a task that has no name of
    its own. ``place``: ``credit (train.py:12)``, the same for all tasks there; "" if unknown."""

    label: str
    place: str


def _name(process: ProcessSnapshot, loop: RunningLoop, task: RunningTask, tid: int) -> _TaskName:
    """The name of a task, by the innermost frame of the program's own code. If there is none, by the program's function
    that a thread runs for it, else by its own coroutine. ``tid``: the thread of the loop."""
    assert process.python
    own, name = task.outer, task.name or f"{task.address:#x}"
    frames: Sequence[Frame | PythonFrame] = task.frames
    if task.address == loop.current and own:
        thread = process.thread(tid)
        frames = thread.python if thread else ()  # its coroutine, and all frames that are further in
        outer = [(frame.function, frame.file) == (own.function, own.file) for frame in frames]
        frames = frames[: outer.index(True) + 1] if True in outer else ()
    users = next((frame for frame in frames if is_users_file(frame.file)), None)
    function, file, line = (own.function, own.file, own.line) if own else ("", "", None)
    if users:
        function, file, line = users.function, users.file, users.line
    job = None if users else process.python.thread_function(task)
    if job and job.file:
        function, file, line = job.qualname, job.file, job.line
    if not function:
        return _TaskName(name, "")
    place = f"{function} ({file.rpartition('/')[2]}:{line or '?'})"
    # asyncio calls a task without a name Task-1 (Lib/asyncio/tasks.py, _task_name_counter), trio and anyio by its
    # function.
    functions = (function, *(frame.function for frame in task.frames), own.function if own else "")
    generated = [name.endswith(f".{each.rpartition('.')[2]}") for each in functions]
    if task.name and not any(generated) and not task.name.startswith("Task-"):
        return _TaskName(name, place if users or job else "")  # a library's place says less than the name
    return _TaskName(place if generated[0] else f"{place[:-1]}, {name})", place)


def _task(
    process: ProcessSnapshot,
    loop: RunningLoop,
    task: RunningTask,
    awaited: Awaited | None,
    names: Mapping[int, _TaskName],
    inside: Mapping[int, Sequence[RunningTask]],
    loop_tid: int,
) -> AsyncTask:
    """The task's report. ``names``: task address → name; ``inside``: lock address → tasks in its ``async with``."""
    frames = tuple(
        Frame(level, FrameKind.PYTHON, None, frame.function, file=frame.file, line=frame.line)
        for level, frame in enumerate(task.frames)
    )
    name = task.name or f"task {task.address:#x}"
    label, place = names[task.address]
    row = AsyncTask(name, task.address, TaskState.READY, frames=frames, label=label, place=place)
    if task.address == loop.current:
        return row._replace(state=TaskState.RUNNING, frames=())
    if not awaited:
        return row
    recorded = awaited.holder in names
    holders = (awaited.holder,) if recorded else ()
    if not recorded and awaited.kind in (Awaitable.LOCK, Awaitable.SEMAPHORE, Awaitable.LIMITER):
        # A semaphore with several holders is free when any of them leaves, so only a single one is needed.
        users = inside.get(awaited.address, ())
        others = tuple(other.address for other in users if other.address != task.address)
        holders = others if len(users) <= 2 and len(others) == 1 else ()
    needed = holders or tuple(other for other in awaited.tasks if other in names)
    verb = "holds" if recorded else "seems to hold" if holders else ""
    runner = process.thread(loop_tid)
    named = task_phrase(runner, task.frames, len(names) == 1) if runner else ""
    return row._replace(
        state=TaskState.WAITING,
        awaits=named or _phrase(process, awaited, [names[other] for other in needed], verb),
        awaited_kind=awaited.kind.name,
        needs=() if awaited.first else needed,
        timed=awaited.timed,
        inferred=bool(holders) and not recorded,
        sleeps=awaited.kind is Awaitable.SLEEP,
        only_from_here=awaited.kind in _FROM_HERE,
    )


def _phrase(process: ProcessSnapshot, awaited: Awaited, needed: Sequence[_TaskName], held: str) -> str:
    """``waits for the task reader``. ``needed``: the tasks; ``held``: "holds" if they hold the object, else ""."""
    if awaited.kind is Awaitable.SLEEP:
        return f"sleeps ({seconds_text(awaited.delay)} s)" if awaited.delay is not None else "sleeps"
    tasks = _tasks_text(needed)
    if awaited.kind is Awaitable.TASK:
        first = "the first of " if awaited.first else ""
        return f"waits for {first}the task{'s' if len(needed) > 1 else ''} {tasks}" if needed else "waits for a task"
    if awaited.kind is Awaitable.PROCESS and awaited.pid is not None:
        if awaited.status is None:
            child = process.procfs.children().get(awaited.pid)
            return f"waits for process {child.label if child else awaited.pid} to exit"
        # The process has exited: asyncio waits for those that still have its pipes.
        status = awaited.status
        ending = f"killed by {signal_name(-status)}" if status < 0 else f"exit status {status}"
        pipes = " and ".join(f"fd {fd}{_other_end(process, fd)}" for fd in awaited.pipes[:3])
        exited = f"process {awaited.pid}, which has exited ({ending})"
        return f"waits for EOF on the pipes of {exited}{': ' if pipes else ''}{pipes}"
    if awaited.kind is Awaitable.DESCRIPTOR:
        return f"waits for fd {awaited.descriptor}{_other_end(process, awaited.descriptor)}"
    text = f"waits for {awaited.kind.value.format(f'{awaited.address:#x}', awaited.package)}"
    if awaited.kind is Awaitable.JOB:
        return text + job_clause(process, awaited)
    return f"{text}, which {tasks} {held}" if held else text


def _tasks_text(tasks: Sequence[_TaskName]) -> str:
    """``20 × fetch (app.py:7) and reader``: tasks at one place are counted, at most four places are named."""
    groups: dict[str, list[_TaskName]] = {}
    for task in tasks:
        groups.setdefault(task.place or task.label, []).append(task)
    largest = sorted(groups.values(), key=len, reverse=True)
    names = [group[0].label if len(group) == 1 else f"{len(group)} × {group[0].place}" for group in largest[:4]]
    rest = sum(map(len, largest[4:]))
    return joined([*names, *([f"{rest} more"] if rest else ())])


def job_clause(process: ProcessSnapshot, awaited: Awaited) -> str:
    """``, which thread 7 runs at train.py:8 (step)`` for the awaited job; what the workers do if it has not begun."""

    def at_line(tid: int | None) -> str:
        thread = process.thread(tid) if tid is not None else None
        frame = next((frame for frame in thread.python if frame.is_users), None) if thread else None
        return f" at {frame.file.rpartition('/')[2]}:{frame.line or '?'} ({frame.function})" if frame else ""

    jobs = {future: process.python.tid_of_ident(ident) for future, ident in process.python.running_jobs.items()}
    if awaited.address in jobs:
        return f", which thread {jobs[awaited.address] or '?'} runs{at_line(jobs[awaited.address])}"
    if not awaited.is_pending:
        return ""
    tids = [tid for tid in jobs.values() if tid is not None]
    if not tids:
        return ", which no worker has begun"
    runs = f"thread {tids[0]} runs another job" if len(tids) == 1 else f"{len(tids)} threads run other jobs"
    return f", which no worker has begun: {runs}{at_line(tids[0])}"


def _other_end(process: ProcessSnapshot, descriptor: int | None) -> str:
    """`` (pipe:[77]), …``: the file of an fd and its other end; "" if unknown."""
    if descriptor is None:
        return ""
    link = process.procfs.descriptor(descriptor)
    peer = process.procfs.peers.peer_of(link, call_writes=False)
    return ", ".join(filter(None, (f" ({link})" if link else "", peer.text if peer else "")))
