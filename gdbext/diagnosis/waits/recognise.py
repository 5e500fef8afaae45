"""The registry of recognisers, the state of each thread, what it holds, and the chain of waits from the main thread.

A recogniser takes a ThreadSnapshot and gives the Wait, or None where the thread waits for something else. A new one is
a function in the file of its family and a line in RECOGNISERS. Those of other packages (add_ons.py)
come behind what is proven of the GIL and before all others, for only they know what their own objects are.

A thread holds the GIL and everything that others wait for it to release, as far as that is known.

The main thread's wait is what a user asks about, so the chain that begins there is followed further. Python's objects
do not record who will put into a queue or set an event, and a loop that sleeps does not say what for; both can often be
told from what the frames have at hand. That costs time and proves nothing, so it is done along this one chain only, and
no deadlock is concluded from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, Wait
from gdbext.diagnosis.report.wait_detail import Owned, Unowned
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits import (
    gil_waits,
    kernel_waits,
    mutex_waits,
    pool_workers,
    pthread_waits,
    python_waits,
    syscall_waits,
    torch_waits,
)
from gdbext.diagnosis.waits.polling import is_at_prompt, line_of_loop, polled_sleep, with_question
from gdbext.diagnosis.waits.pool_table import OPENMP, Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Optional

    from gdbext.cpython.sync.locks import GilState
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot

    Recogniser = Callable[[ThreadSnapshot], Optional[Wait]]
    PoolRecogniser = Callable[[ThreadSnapshot], Optional[Pool]]


def held_resources(waits: Iterable[Wait | None], gils: Sequence[GilState]) -> dict[int, tuple[Resource, ...]]:
    """Thread id → what the thread holds, each resource once."""
    held: dict[int, dict[tuple[WaitKind, int], Resource]] = {}
    for gil in gils:
        if gil.holder_tid is not None:
            name = f"interpreter {gil.interpreter}" if gil.interpreter else ""
            held.setdefault(gil.holder_tid, {})[WaitKind.GIL, gil.address] = Resource(WaitKind.GIL, gil.address, name)
    for wait in waits:
        if not wait or wait.being_released or not wait.kind.traits.relation.is_possession:
            continue
        for tid in wait.owner_tids:
            held.setdefault(tid, {}).setdefault((wait.kind, wait.resource.address), wait.resource)
    return {tid: tuple(resources.values()) for tid, resources in held.items()}


GIL_RECOGNISERS: tuple[Recogniser, ...] = (
    gil_waits.gil_wait,  # by the address of the futex, which no other recogniser would know for the GIL's
    gil_waits.parking_wait,  # the same, of a build without a GIL
)
RECOGNISERS: tuple[Recogniser, ...] = (
    *GIL_RECOGNISERS,
    pool_workers.openmp_wait,  # its runtime waits by its own system calls: the module of the innermost frame decides
    mutex_waits.static_initialiser_wait,  # by __cxa_guard_acquire, below which libc may be seen
    mutex_waits.mutex_wait,  # a lock with an owner says more than "inside a collective" below …
    mutex_waits.libc_lock_wait,  # locks that are no mutexes, by the functions of libc above them
    mutex_waits.destroyed,  # a mutex by name that is none any more
    mutex_waits.unidentified,
    pthread_waits.rwlock_wait,
    torch_waits.classify,  # … and that says more than the condition variable below it
    python_waits.classify,  # threading's objects, which are semaphores to glibc
    pthread_waits.condvar_wait,  # what glibc's objects say by themselves
    pthread_waits.semaphore_wait,
    pthread_waits.join,
    pthread_waits.barrier,
    pthread_waits.once_wait,  # by its value alone where it has no name, so that the others come first
    torch_waits.driver_without_name,  # the library alone tells, and more than the system call does
    syscall_waits.classify,  # anything but a futex: the system call says what for
    syscall_waits.unknown_futex,
)
"""The recognisers for a thread inside a system call; the first that answers is right, those that prove most come
first."""

POOLS: tuple[PoolRecogniser, ...] = (
    pool_workers.native_pool_of,
    pool_workers.openmp_pool_of,
    pool_workers.python_pool_of,
    pool_workers.spinning_pool_of,
)
"""The recognisers of idle workers inside a system call, before anybody asks what they wait for."""

SPINNING: tuple[Recogniser, ...] = (
    gil_waits.between_gil_waits,
    gil_waits.between_parkings,
    torch_waits.spinning_device,
    torch_waits.polling_store,
    syscall_waits.between_sleeps,
    syscall_waits.uninterruptible,
)
"""Waits of threads that are in no system call."""


class State(NamedTuple):
    """The state of a thread: what it does, what it waits for, and the pool whose idle worker it is."""

    state: RunState
    wait: Wait | None = None
    pool: Pool | None = None

    def with_wait(self, wait: Wait) -> State:
        """The state of a thread of whose wait more was found out."""
        return self._replace(wait=wait)


def state_of(thread: ThreadSnapshot) -> State:
    """Return the state of a thread: running, idle, or what it waits for."""
    state = _recognised(thread)
    for complete in COMPLETIONS:
        state = complete(thread, state)
    return state


def _recognised(thread: ThreadSnapshot) -> State:
    if not thread.syscall:
        return _outside_of_the_kernel(thread)
    pool = next((pool for pool in (pool_of(thread) for pool_of in POOLS) if pool), None)
    if pool:
        address = thread.syscall.arguments[0] if thread.syscall.name == "futex" else 0
        return State(RunState.IDLE, Wait(Resource(WaitKind.WORKER_POOL, address, pool.name)), pool)
    wait = wait_of(thread)
    return State(RunState.WAITING, wait) if wait else State(RunState.RUNNING)


def _at_prompt(thread: ThreadSnapshot, wait: Wait) -> State | None:
    """The state of a thread that waits for somebody to type, None for any other."""
    asked, is_heard = with_question(thread, wait)
    if is_heard is False or (asked.detail.about_question and thread.dispatch):
        return State(RunState.WAITING, asked)
    return State(RunState.IDLE, asked) if is_heard or is_at_prompt(thread, wait) else None


def _with_helpers(thread: ThreadSnapshot, state: State) -> State:
    """Of a wait inside a system call: the person, the processes or the workers that would end it."""
    wait = state.wait
    if not thread.syscall or not wait or state.state is not RunState.WAITING:
        return state
    asked = _at_prompt(thread, wait) if wait.kind is WaitKind.IO else None
    return asked or State(state.state, pool_workers.for_lost_workers(thread, torch_waits.for_processes(thread, wait)))


def _with_kernel_side(thread: ThreadSnapshot, state: State) -> State:
    if not thread.kernel_side:
        return state
    return State(*kernel_waits.explained(thread, state.state, state.wait), state.pool)


def wait_of(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside a system call."""
    wait = _first(GIL_RECOGNISERS, thread) or _first(_added(thread), thread)
    wait = wait or _first(RECOGNISERS[len(GIL_RECOGNISERS) :], thread)
    return _with_witness(thread, wait) if wait else None


def _with_witness(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """A thread that waits for itself is recorded only where its frames have the object, too: one damaged register, the
    address of the futex, would be enough else."""
    if wait.owner != OwnerThread(thread.tid) or wait.certainty is not OwnerCertainty.RECORDED:
        return wait
    futex = thread.futex
    if not thread.syscall:
        doubt = "it runs: only the functions on its stack tell what it waits for"
    elif not futex or thread.has_at_hand(futex.address):
        return wait
    else:
        doubt = f"{futex.address:#x} is in no frame of the thread but in the register of the system call"
    return wait._replace(certainty=OwnerCertainty.INFERRED, evidence=(*wait.evidence, doubt))


def _added(thread: ThreadSnapshot) -> Sequence[Recogniser]:
    """The recognisers of other packages."""
    return thread.process.add_ons.recognisers if thread.process.add_ons is not None else ()


def _outside_of_the_kernel(thread: ThreadSnapshot) -> State:
    pool = OPENMP if pool_workers.is_idle_worker(thread) else pool_workers.spinning_pool_of(thread)
    if pool:
        return State(RunState.IDLE, Wait(Resource(WaitKind.WORKER_POOL, 0, f"{pool.name} (spinning)")), pool)
    wait = _first(SPINNING, thread) or _first(_added(thread), thread)
    return State(RunState.WAITING, _with_witness(thread, wait)) if wait else State(RunState.RUNNING)


def _first(recognisers: Sequence[Recogniser], thread: ThreadSnapshot) -> Wait | None:
    for recognise in recognisers:
        wait = recognise(thread)
        if wait:
            return wait
    return None


COMPLETIONS: tuple[Callable[[ThreadSnapshot, State], State], ...] = (_with_helpers, _with_kernel_side)
"""What completes the state that is recognised, in this order."""
_LONGEST = 12
"""Threads of a chain that are followed."""
_ASIDE = 8
"""Further threads of which it is asked whether somebody is missing."""
_ENDED_BY_USERS = (WaitKind.QUEUE, WaitKind.CONDVAR, WaitKind.SEMAPHORE, WaitKind.BARRIER, WaitKind.PYTHON_LOCK)


def follow_main_thread(process: ProcessSnapshot, states: Mapping[int, State | None]) -> dict[int, State | None]:
    """The states, those along the main thread's chain with what more can be told of their waits."""
    found = dict(states)
    waiting = [process.pid]
    seen: set[int] = set()
    while waiting and len(seen) < _LONGEST:
        tid = waiting.pop(0)
        thread, state = process.thread(tid), found.get(tid)
        if tid in seen or not thread or not state or not state.wait or state.state is RunState.IDLE:
            continue
        seen.add(tid)
        wait = _explained(thread, state.wait, found)
        found[tid] = state.with_wait(wait)
        waiting += wait.owner_tids or wait.detail.expects
    _repeat_timed(process, found, seen)
    for tid in [tid for tid, state in found.items() if tid not in seen and _may_miss_somebody(state)][:_ASIDE]:
        thread, state = process.thread(tid), found[tid]
        if thread and state and state.wait:
            explained = _explained(thread, state.wait, found)
            found[tid] = state.with_wait(explained) if explained.detail.lost else state
    return found


def _repeat_timed(process: ProcessSnapshot, states: dict[int, State | None], seen: Collection[int]) -> None:
    """Add to the timed waits of a few threads off the chain the loops that repeat them: such a thread does not go on
    by itself, and may be the one that matters."""
    timed = [thread for thread in process.threads if thread.tid not in seen and _is_timed(states.get(thread.tid))]
    for thread in [thread for thread in timed if any(frame.is_users for frame in thread.python)][:_ASIDE]:
        state = states[thread.tid]
        if state and state.wait:
            states[thread.tid] = state.with_wait(_polled(thread, state.wait))


def _polled(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """A timed wait with the loop that repeats it, and what that looks at in between."""
    if wait.kind is WaitKind.SLEEP:
        return polled_sleep(thread, wait)
    line = line_of_loop(thread, wait)
    known = wait.detail or (Owned() if wait.owners else Unowned())
    return wait.with_detail(known.in_loop(line)) if line else wait


def _is_timed(state: State | None) -> bool:
    return state is not None and state.wait is not None and state.state is RunState.WAITING and state.wait.timed


def _may_miss_somebody(state: State | None) -> bool:
    """A thread off the main thread's chain waits for what nobody is known to give."""
    wait = state.wait if state and state.state is RunState.WAITING else None
    if not wait or wait.timed or wait.owners or wait.detail.lost:
        return False
    return wait.kind in _ENDED_BY_USERS


def _explained(thread: ThreadSnapshot, wait: Wait, states: Mapping[int, State | None]) -> Wait:
    if wait.timed:
        wait = _polled(thread, wait)
    if wait.kind not in _ENDED_BY_USERS or wait.owners or wait.being_released or not thread.process.python:
        return wait
    known = wait.detail.unowned
    users = thread.process.python.users_of(wait.resource.address)
    expects = known.expects or tuple(_others(thread.tid, wait, users, states))
    return wait.with_detail(wait.detail.with_enders(python_waits.who_ends(thread, wait, known, expects)))


def _others(tid: int, wait: Wait, users: Iterable[int], states: Mapping[int, State | None]) -> Iterable[int]:
    """Users of the object that do not wait for it themselves."""
    for user in users:
        state = states.get(user)
        theirs = state.wait if state else None
        if user != tid and (not theirs or theirs.resource.address != wait.resource.address):
            yield user
