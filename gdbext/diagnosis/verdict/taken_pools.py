"""Pools of threads that are full: what their threads run and wait for, and whether that is the pool itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi.assumed_names import FUTURES_FILE
from gdbext.cpython.sync.full_pools import LIMITED_THREADS
from gdbext.cpython.tasks.awaited import Awaitable
from gdbext.diagnosis.verdict.clauses import listed, owner_clause
from gdbext.diagnosis.verdict.graph import TakenPool
from gdbext.engine.numbers import number
from gdbext.engine.vocabulary import counted, singular_or_plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gdbext.cpython.sync.full_pools import FullPool
    from gdbext.cpython.tasks.awaited import Awaited
    from gdbext.cpython.tasks.loops import RunningLoop
    from gdbext.cpython.wait_view import PythonWaitView
    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.diagnosis.report.wait import Wait
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot

_GROUPS = 5  # most groups of equal threads that a sentence names


def taken_pools(process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> tuple[TakenPool, ...]:
    """The full pools of the process, all of whose threads wait."""
    files = (FUTURES_FILE, *(row.file for row in LIMITED_THREADS))
    if not any(frame.file.endswith(files) for thread in threads for frame in thread.python_frames[-12:]):
        return ()
    reports = {thread.tid: thread for thread in threads}
    loops = process.python.loops() if any(thread.loop for thread in threads) else ()
    pools = (_taken(process, pool, reports, loops) for pool in process.python.full_pools(loops))
    return tuple(filter(None, pools))


def _taken(
    process: ProcessSnapshot, pool: FullPool, reports: Mapping[int, ThreadReport], loops: Sequence[RunningLoop]
) -> TakenPool | None:
    """The pool with what its threads wait for; None if one of them runs, or will run by itself."""
    groups: dict[tuple[str, str], list[str]] = {}  # (place, kind of wait) → what each of its threads waits for
    itself = True
    stuck_tasks = _tasks_waiting(process.python, pool, loops)
    for tid in pool.tids:
        thread = reports.get(tid)
        if not thread or not thread.wait or thread.wait.being_released:
            return None
        own = _own_wait(process, pool, thread.wait, tid, stuck_tasks, loops)
        itself = itself and bool(own)
        frame = thread.user_frame or next(iter(thread.python_frames), None)
        place = f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.line or '?'})" if frame else thread.label
        text = own or thread.wait.phrase + owner_clause(thread.wait, reports)
        groups.setdefault((place, own or thread.wait.kind.name), []).append(text)
    largest = sorted(groups.items(), key=lambda group: len(group[1]), reverse=True)
    texts = [_group_text(place, waits) for (place, _), waits in largest[:_GROUPS]]
    rest = sum(len(waits) for _, waits in largest[_GROUPS:])
    texts += [f"{rest} more"] if rest else []
    size, queued = len(pool.tids), len(pool.waiting)
    taken = f"All {size:,} worker threads of {pool.name} are" if size > 1 else f"The only thread of {pool.name} is"
    verb, one = singular_or_plural(queued, "waits", "wait"), "one" if size > 1 else "it"
    sentence = f"{taken} taken: {listed(texts, len(texts), '; ')}; {counted(queued, pool.unit)} {verb} for {one}."
    return TakenPool(sentence, pool.tids, itself)


def _group_text(place: str, waits: Sequence[str]) -> str:
    """``40 × report (app.py:7), each waits for …``; ``waits``: of the threads at that place."""
    if len(waits) == 1:
        return f"{place} {waits[0]}"
    if len(set(waits)) == 1:
        return f"{len(waits)} × {place}, each {waits[0]}"
    return f"{len(waits)} × {place}, one {waits[0]}, the others in the same way"


def _own_wait(
    process: ProcessSnapshot,
    pool: FullPool,
    wait: Wait,
    tid: int,
    stuck_tasks: set[int],
    loops: Sequence[RunningLoop],
) -> str:
    """The wait of a thread of the pool, in words, if only a thread of the pool can end it; else ""."""
    called = process.python.called_address(tid)  # its own time limit counts, not that of the library's futex
    port = number(called.rpartition(":")[2])
    if port is not None and process.procfs.peers.listens_on(port):
        return f"calls {called}, where this process itself listens"
    if wait.timed or wait.external:
        return ""
    if wait.address in pool.waiting:
        return "waits for a job that waits for one of these threads"
    if any(process.python.completing_task(wait.address, loop) in stuck_tasks for loop in loops):
        return "waits for a task that waits for one of these threads"
    return ""


def _tasks_waiting(python: PythonWaitView, pool: FullPool, loops: Sequence[RunningLoop]) -> set[int]:
    """Addresses of the tasks that wait for a thread of the pool, or for such a task; empty if a time limit of another
    task may cancel one of them: that task awaits it, or a future, as at the end of a task group."""
    stuck = set[int]()
    limited: list[Awaited] = []
    waiters: dict[int, list[int]] = {}  # address of a task → of the tasks that wait for it
    for loop in loops:
        for task in loop.tasks:
            awaited = python.awaited(loop, task) if task.waiter else None
            if awaited and awaited.timed:
                limited.append(awaited)
            elif awaited:
                if task.address in pool.waiting or (awaited.kind is Awaitable.JOB and awaited.address in pool.waiting):
                    stuck.add(task.address)
                for other in () if awaited.first else awaited.tasks:
                    waiters.setdefault(other, []).append(task.address)
    pending = list(stuck)
    while pending:
        reached = [task for task in waiters.get(pending.pop(), ()) if task not in stuck]
        stuck.update(reached)
        pending += reached
    may_cancel = any(each.kind is Awaitable.FUTURE or not stuck.isdisjoint(each.tasks) for each in limited)
    return set() if may_cancel else stuck
