"""The chain of waits that begins at the main thread: what each of them waits for, as far as anything tells it.

Its wait is what a user comes for. Python's objects do not record who will put into a queue or set an event, and a loop
that sleeps does not say what for; both can often be told from what the frames have at hand. That costs time and proves
nothing, so it is done along this one chain only, and no deadlock is concluded from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gdbext.model.threads.thread_report import RunState
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.python import polling

if TYPE_CHECKING:
    from gdbext.model.threads.wait import Wait
    from gdbext.waits.recognise import State
    from gdbext.waits.snapshot import ProcessSnapshot, ThreadSnapshot

_LONGEST = 12
"""Threads of a chain that are followed."""
_ENDED_BY_USERS = (WaitKind.QUEUE, WaitKind.CONDVAR, WaitKind.SEMAPHORE, WaitKind.BARRIER, WaitKind.PYTHON_LOCK)


def explain(process: ProcessSnapshot, states: Mapping[int, State | None]) -> dict[int, State | None]:
    """The states, those along the main thread's chain with what more can be told of their waits."""
    found = dict(states)
    waiting = [process.pid]
    seen: set[int] = set()
    while waiting and len(seen) < _LONGEST:
        tid = waiting.pop(0)
        thread, state = process.thread(tid), found.get(tid)
        if tid in seen or thread is None or state is None or state.wait is None or state.state is RunState.IDLE:
            continue
        seen.add(tid)
        wait = _explained(thread, state.wait, found)
        found[tid] = state._replace(wait=wait)
        waiting += [owner.tid for owner in wait.owners if not owner.gone] or wait.expects
    return found


def _explained(thread: ThreadSnapshot, wait: Wait, states: Mapping[int, State | None]) -> Wait:
    if wait.kind is WaitKind.SLEEP:
        return polling.explained(thread, wait)
    if wait.kind not in _ENDED_BY_USERS or wait.owners or wait.handover or thread.process.python is None:
        return wait
    users = thread.process.python.users_of(wait.resource.address)
    return wait._replace(expects=tuple(_others(thread.tid, wait, users, states)))


def _others(tid: int, wait: Wait, users: Iterable[int], states: Mapping[int, State | None]) -> Iterable[int]:
    """Users of the object that do not wait for it themselves."""
    for user in users:
        state = states.get(user)
        theirs = state.wait if state is not None else None
        if user != tid and (theirs is None or theirs.resource.address != wait.resource.address):
            yield user
