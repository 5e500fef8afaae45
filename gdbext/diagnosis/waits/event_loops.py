"""The event loops of a process: their tasks, and for each of them what it waits for and which other task that needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.cpython.tasks.awaited import TRIO, Awaitable, Awaited
from gdbext.diagnosis.report.thread_report import AsyncTask, EventLoop, Frame, FrameKind, RunState, TaskState
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread
from gdbext.diagnosis.report.wait_detail import OwnServer
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.syscall_waits import span
from gdbext.engine.targets.system.linux import signal_name

if TYPE_CHECKING:
    from gdbext.cpython.tasks.loops import EndedTask, RunningLoop, RunningTask
    from gdbext.diagnosis.waits.recognise import State
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot

_HELD = (Awaitable.LOCK, Awaitable.SEMAPHORE, Awaitable.LIMITER)
_FROM_HERE = frozenset(
    {
        Awaitable.TASK,
        Awaitable.LOCK,
        Awaitable.SEMAPHORE,
        Awaitable.CONDITION,
        Awaitable.EVENT,
        Awaitable.QUEUE,
        Awaitable.BARRIER,
        Awaitable.JOIN,
        Awaitable.LIMITER,
        Awaitable.CHANNEL,
        Awaitable.FUTURE,
    }
)
"""Things of asyncio and trio that only code which runs in the process ends: a bare future, too, where the loop has no
timer, descriptor or handler whose callback could complete it."""
_LOCKS = frozenset({Awaitable.TASK, Awaitable.LOCK, Awaitable.SEMAPHORE, Awaitable.LIMITER})
"""Those that no program gives back in a signal's handler."""
_SHOWN_PIPES = 3
_NO_NAME = "Task-"
"""The beginning of the name that asyncio gives a task which has none (Lib/asyncio/tasks.py, _task_name_counter)."""


def event_loops(process: ProcessSnapshot, users: Sequence[int]) -> dict[int, EventLoop]:
    """Thread id → its loop. ``users``: the threads that are in asyncio."""
    python = process.python
    found: dict[int, EventLoop] = {}
    for loop in python.loops():
        tid = python.tid_of_ident(loop.ident) if loop.ident else None
        if tid is None and not loop.ident and len(users) == 1:
            tid = users[0]  # a loop that is not written in Python, as uvloop's
        if tid is not None:
            found[tid] = _loop(process, loop, tid)
    return found


_MAY_ACCEPT = frozenset(
    {
        "accept",
        "accept4",
        "poll",
        "ppoll",
        "select",
        "pselect6",
        "epoll_wait",
        "epoll_pwait",
        "epoll_pwait2",
        "io_uring_enter",
    }
)


def asks_itself(
    process: ProcessSnapshot, states: Mapping[int, State | None], loops: Mapping[int, EventLoop]
) -> Iterator[tuple[int, State]]:
    """The states of threads that wait for an answer of their own process, where only the event loop that they block
    could accept the connection: it is the only loop, and every other thread waits for a thread, or for an answer of the
    process itself, too."""
    for tid, loop in loops.items() if len(loops) == 1 else ():
        state = states.get(tid)
        wait = state.wait if state else None
        if not state or not wait or not loop.current or not wait.detail.peer or not wait.detail.peer.is_queued:
            continue
        others = [thread for thread in process.threads if thread.tid != tid]
        if wait.timed or any(_may_accept(each, states.get(each.tid)) for each in others):
            continue
        seen = "no other thread accepts connections, and there is no other event loop"
        detail = OwnServer(wait.detail.peer, wait.detail.children)
        evidence = (*wait.evidence, seen)
        mine, certainty = OwnerThread(tid), OwnerCertainty.RECORDED
        yield tid, state.with_wait(wait._replace(owner=mine, certainty=certainty, evidence=evidence, detail=detail))


def _may_accept(thread: ThreadSnapshot, state: State | None) -> bool:
    """The thread runs, or goes on by itself or by what comes from outside, and so may accept a connection then."""
    wait = state.wait if state else None
    if not state or not wait or not thread.syscall or thread.syscall.name in _MAY_ACCEPT:
        return True
    if state.state is RunState.IDLE:
        return thread.syscall.name != "futex"
    asks = wait.kind is WaitKind.IO and wait.detail.peer is not None and wait.detail.peer.own
    return wait.timed or wait.being_released or wait.external or not (asks or wait.kind.traits.needs_thread)


def _loop(process: ProcessSnapshot, loop: RunningLoop, tid: int) -> EventLoop:
    assert process.python
    awaited = {task.address: process.python.awaited(loop, task) for task in loop.tasks if task.waiter}
    names = {task.address: _label(task) for task in loop.tasks}
    inside: dict[int, list[RunningTask]] = {}
    for task in loop.tasks:
        for entered in task.entered:
            # A task that is just entering has its __aexit__ on the stack already.
            if task.subject != entered or not task.waiter:
                inside.setdefault(entered, []).append(task)
    tasks = tuple(_task(process, loop, task, awaited, names, inside) for task in loop.tasks)
    itself = loop.watches_itself and _no_handler_wakes(process, {each.kind for each in awaited.values()})
    by_name = tuple(sorted(tasks, key=lambda task: task.name))
    ended = tuple(map(_ended, loop.ended))
    is_trio = loop.kind.startswith(TRIO)
    return EventLoop(by_name, loop.address, loop.kind, tid, loop.ready, itself, is_trio, ended)


def _ended(task: EndedTask) -> str:
    raised = f", raised in {task.raised_in}" if task.raised_in else ""
    return f"the task {task.name} has ended with {task.error}{raised}"


def _no_handler_wakes(process: ProcessSnapshot, awaited: set[Awaitable]) -> bool:
    """No handler of a signal can do what the tasks wait for; where signals are not known, as in a core, only locks are
    out of their reach."""
    handled = process.procfs.handled_signals()
    return awaited <= _LOCKS or (handled is not None and not handled)


def _label(task: RunningTask) -> str:
    """``reader``; ``credit (train.py:12, Task-2)`` for a task without a name of its own, ``credit (train.py:12)`` for
    trio's ``__main__.credit``."""
    name = task.name or f"{task.address:#x}"
    is_function = task.outer is not None and name.endswith(f".{task.outer.function.rpartition('.')[2]}")
    if not task.outer or (task.name and not is_function and not task.name.startswith(_NO_NAME)):
        return name
    file = task.outer.file.rpartition("/")[2]
    return f"{task.outer.function} ({file}:{task.outer.line or '?'}{'' if is_function else f', {name}'})"


def _task(
    process: ProcessSnapshot,
    loop: RunningLoop,
    task: RunningTask,
    awaited: Mapping[int, Awaited],
    names: Mapping[int, str],
    inside: Mapping[int, Sequence[RunningTask]],
) -> AsyncTask:
    frames = tuple(
        Frame(level, FrameKind.PYTHON, None, frame.function, file=frame.file, line=frame.line)
        for level, frame in enumerate(task.frames)
    )
    name = task.name or f"task {task.address:#x}"
    if task.address == loop.current:
        return AsyncTask(name, task.address, TaskState.RUNNING, label=names[task.address])
    found = awaited.get(task.address)
    if not found:
        return AsyncTask(name, task.address, TaskState.READY, frames=frames, label=names[task.address])
    kept = (found.holder,) if found.holder in names else ()
    holders = kept or (_holders(inside.get(found.address, ()), task) if found.kind in _HELD else ())
    known = holders or tuple(each for each in found.tasks if each in names)
    text = _text(
        process, found, [names[each] for each in known], "holds" if kept else "seems to hold" if holders else ""
    )
    needs = () if found.first else known
    sleeps = found.kind is Awaitable.SLEEP
    return AsyncTask(
        name,
        task.address,
        TaskState.WAITING,
        text,
        needs,
        found.timed,
        frames,
        inferred=bool(holders) and not kept,
        sleeps=sleeps,
        label=names[task.address],
        only_from_here=found.kind in _FROM_HERE,
    )


def _holders(inside: Sequence[RunningTask], task: RunningTask) -> tuple[int, ...]:
    """The other task inside ``async with`` of the lock. A semaphore with several holders is free when any of them
    leaves."""
    others = tuple(other.address for other in inside if other.address != task.address) if len(inside) <= 2 else ()
    return others if len(others) == 1 else ()


def _text(process: ProcessSnapshot, found: Awaited, names: list[str], held: str) -> str:
    if found.kind is Awaitable.SLEEP:
        return f"sleeps ({span(found.delay)} s)" if found.delay is not None else "sleeps"
    if found.kind is Awaitable.TASK:
        tasks = f"{'the first of ' if found.first else ''}the task{'s' if len(names) > 1 else ''} {_some(names)}"
        return f"waits for {tasks if names else 'a task'}"
    if found.kind is Awaitable.PROCESS and found.pid is not None:
        return _process_text(process, found, found.pid)
    if found.kind is Awaitable.DESCRIPTOR:
        return f"waits for fd {found.descriptor}{_other_end(process, found.descriptor)}"
    text = f"waits for {found.kind.value.format(f'{found.address:#x}', found.package)}"
    if found.kind is Awaitable.JOB:
        return text + job_clause(process, found)
    return f"{text}, which {_some(names)} {held}" if held else text


def job_clause(process: ProcessSnapshot, found: Awaited) -> str:
    """The thread that runs the job, with the line at which it is; or what the workers do that have not begun it."""
    python = process.python
    jobs = {future: python.tid_of_ident(ident) for future, ident in python.running_jobs.items()}
    if found.address in jobs:
        return f", which thread {jobs[found.address] or '?'} runs{_at_line(process, jobs[found.address])}"
    if not found.is_pending:
        return ""
    others = [tid for tid in jobs.values() if tid is not None]
    if not others:
        return ", which no worker has begun"
    runs = f"thread {others[0]} runs another job" if len(others) == 1 else f"{len(others)} threads run other jobs"
    return f", which no worker has begun: {runs}{_at_line(process, others[0])}"


def _at_line(process: ProcessSnapshot, tid: int | None) -> str:
    """`` at train.py:8 (step)``: the innermost line of the program's own that the thread is at."""
    thread = process.thread(tid) if tid is not None else None
    frame = next((each for each in thread.python if each.is_users), None) if thread else None
    if not frame:
        return ""
    return f" at {frame.file.rpartition('/')[2]}:{frame.line or '?'} ({frame.function})"


def _process_text(process: ProcessSnapshot, found: Awaited, pid: int) -> str:
    """A process that has ended is not waited for, but those that still have its pipes."""
    child = process.procfs.children().get(pid)
    label = child.label if child else str(pid)
    if found.status is None:
        return f"waits for the end of process {label}"
    ended = f"process {pid}, which has ended ({_ending(found.status)})"
    pipes = " and ".join(f"fd {fd}{_other_end(process, fd)}" for fd in found.pipes[:_SHOWN_PIPES])
    return f"waits for the end of the pipes of {ended}{': ' if pipes else ''}{pipes}"


def _ending(status: int) -> str:
    """The end of a process as subprocess counts it: a signal is a negative number."""
    return f"killed by {signal_name(-status)}" if status < 0 else f"exit status {status}"


def _other_end(process: ProcessSnapshot, descriptor: int | None) -> str:
    if descriptor is None:
        return ""
    link = process.procfs.descriptor(descriptor)
    peer = process.procfs.peers.of(link, False)
    return ", ".join(filter(None, (f" ({link})" if link else "", peer.text if peer else "")))


def _some(names: list[str], limit: int = 4) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
