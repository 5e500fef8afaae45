"""The registry of recognizers (ThreadSnapshot → Wait or None), the state of each thread, what it holds, and the chain
of waits from the main thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, Wait
from gdbext.diagnosis.report.wait_detail import IdleWorker, Owned, Unowned
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.diagnosis.waits import (
    forked_pools,
    glibc_waits,
    named_waits,
    pool_workers,
    python_waits,
    syscall_waits,
    torch_waits,
)
from gdbext.diagnosis.waits.polling import is_at_prompt, line_of_loop, polled_sleep, with_question
from gdbext.diagnosis.waits.pool_table import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Optional

    from gdbext.cpython.sync.locks import GilState
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot

    Recognizer = Callable[[ThreadSnapshot], Optional[Wait]]
    PoolRecognizer = Callable[[ThreadSnapshot], Optional[Pool]]


def held_resources(waits: Iterable[Wait | None], gils: Sequence[GilState]) -> dict[int, tuple[Resource, ...]]:
    """Thread id → what the thread holds as far as that is known: GILs, and what others wait for it to release."""
    held: dict[int, dict[tuple[WaitKind, int], Resource]] = {}
    for gil in gils:
        if gil.holder_tid is not None:
            held.setdefault(gil.holder_tid, {})[WaitKind.GIL, gil.address] = python_waits.gil_resource(gil)
    for wait in waits:
        if not wait or wait.being_released or not wait.kind.traits.relation.is_possession:
            continue
        for tid in wait.owner_tids:
            held.setdefault(tid, {}).setdefault((wait.kind, wait.resource.address), wait.resource)
    return {tid: tuple(resources.values()) for tid, resources in held.items()}


GIL_RECOGNIZERS: tuple[Recognizer, ...] = (
    python_waits.gil_wait,  # by the address of the futex, which no other recognizer would know for the GIL's
    python_waits.parking_wait,  # the same, of a build without a GIL
)
RECOGNIZERS: tuple[Recognizer, ...] = (
    pool_workers.openmp_wait,  # its runtime waits by its own system calls: the module of the innermost frame decides
    glibc_waits.static_initializer_wait,  # by __cxa_guard_acquire, below which libc may be seen
    glibc_waits.mutex_wait,  # a lock with an owner says more than "inside a collective" below …
    glibc_waits.libc_lock_wait,  # locks that are no mutexes, by the functions of libc above them
    glibc_waits.destroyed_mutex_wait,  # a mutex by name that is none any more
    glibc_waits.unidentified_lock_wait,
    glibc_waits.rwlock_wait,
    torch_waits.torch_wait,  # … and that says more than the condition variable below it
    python_waits.python_object_wait,  # threading's objects, which are semaphores to glibc
    glibc_waits.condvar_wait,  # what glibc's objects say by themselves
    glibc_waits.semaphore_wait,
    glibc_waits.join_wait,
    glibc_waits.barrier_wait,
    glibc_waits.once_wait,  # by its value alone where it has no name, so that the others come first
    torch_waits.unnamed_driver_wait,  # the library alone tells, and more than the system call does
    syscall_waits.syscall_wait,  # anything but a futex: the system call says what for
    syscall_waits.unknown_futex_wait,
)
"""The recognizers, after GIL_RECOGNIZERS and the add-ons', for a thread in a system call; those that prove most come
first, and the first answer counts."""

POOLS: tuple[PoolRecognizer, ...] = (
    pool_workers.native_pool_of,
    pool_workers.openmp_pool_of,
    pool_workers.python_pool_of,
    pool_workers.spinning_pool_of,
)
"""The recognizers of idle workers inside a system call; they come before all recognizers of waits."""

SPINNING: tuple[Recognizer, ...] = (
    python_waits.repeated_gil_wait,
    python_waits.stop_the_world_wait,
    torch_waits.polling_wait,
    named_waits.polling_wait,
    syscall_waits.repeated_sleep,
    syscall_waits.yielding_wait,
    syscall_waits.uninterruptible_wait,
    forked_pools.spinning_wait,
)
"""Waits of threads that are in no system call."""


class State(NamedTuple):
    """What a thread does, what it waits for, and the pool whose idle worker it is."""

    state: RunState
    wait: Wait | None = None
    pool: Pool | None = None


def state_of(thread: ThreadSnapshot) -> State:
    """The state of a thread: running, idle, or what it waits for."""
    if thread.syscall:
        state = _state_in_call(thread)
    elif pool := pool_workers.openmp_pool_of(thread) or pool_workers.spinning_pool_of(thread):
        state = State(RunState.IDLE, _idle_wait(f"{pool.name} (spinning)"), pool)
    elif wait := _first_wait(SPINNING, thread) or _first_wait(thread.process.added_recognizers, thread):
        state = State(RunState.WAITING, _with_checked_owner(thread, wait))
    else:
        state = State(RunState.RUNNING)
    if not thread.kernel_side:
        return state
    return State(*syscall_waits.with_kernel_side(thread, state.state, state.wait), state.pool)


def _idle_wait(name: str, address: int = 0) -> Wait:
    """The wait of an idle worker of a pool, on the futex at ``address`` or on something else (0)."""
    return Wait(Resource(WaitKind.WORKER_POOL, address, name), detail=IdleWorker(lacks_work=True))


def _state_in_call(thread: ThreadSnapshot) -> State:
    """The state of a thread in a system call; its wait with the user, processes or workers that would end it."""
    pool = next(filter(None, (pool_of(thread) for pool_of in POOLS)), None)
    if pool:
        address = thread.syscall.arguments[0] if thread.syscall and thread.syscall.name == "futex" else 0
        return State(RunState.IDLE, _idle_wait(pool.name, address), pool)
    wait = wait_of(thread)
    if not wait:
        return State(RunState.RUNNING)
    if wait.kind is WaitKind.IO:  # perhaps at a prompt
        question, is_answerable = with_question(thread, wait)
        if is_answerable is False or (question.detail.about_question and thread.dispatch):
            return State(RunState.WAITING, question)
        if is_answerable or is_at_prompt(thread, wait):
            return State(RunState.IDLE, question)
    wait = torch_waits.with_child_processes(thread, wait)
    return State(RunState.WAITING, named_waits.with_name(thread, pool_workers.with_lost_workers(thread, wait)))


def wait_of(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread inside a system call, None if no recognizer knows it."""
    wait = _first_wait(GIL_RECOGNIZERS, thread) or _first_wait(thread.process.added_recognizers, thread)
    wait = wait or _first_wait(RECOGNIZERS, thread)
    return _with_checked_owner(thread, wait) if wait else None


def _with_checked_owner(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait, INFERRED if the thread is its own owner and its frames do not contain the object, too: otherwise one
    damaged register, the address of the futex, would prove a self-deadlock."""
    if wait.owner != OwnerThread(thread.tid) or wait.certainty is not OwnerCertainty.RECORDED:
        return wait
    futex = thread.futex
    if thread.syscall and (not futex or thread.has_pointer_to(futex.address)):
        return wait
    doubt = "it runs: only the functions on its stack tell what it waits for"
    if thread.syscall and futex:
        doubt = f"{futex.address:#x} is in no frame of the thread, only in the register of the system call"
    return wait._replace(certainty=OwnerCertainty.INFERRED, evidence=(*wait.evidence, doubt))


def _first_wait(recognizers: Iterable[Recognizer], thread: ThreadSnapshot) -> Wait | None:
    """The answer of the first recognizer that knows the thread's wait."""
    return next(filter(None, (recognize(thread) for recognize in recognizers)), None)


_MOST_OFF_CHAIN = 8
"""Threads outside of the main thread's chain whose waits are examined."""
_ENDED_BY_USERS = (WaitKind.QUEUE, WaitKind.CONDVAR, WaitKind.SEMAPHORE, WaitKind.BARRIER, WaitKind.PYTHON_LOCK)


def follow_main_thread(process: ProcessSnapshot, states: Mapping[int, State | None]) -> dict[int, State | None]:
    """The states by tid, with likely wakers added to the waits on the chain that begins at the main thread, about which
    users ask. Python's objects do not record which thread will act on them, or what a sleeping loop waits for, but both
    often follow from what frames can reach. That costs time and proves nothing, so it is done for 12 threads of the
    chain and few others, and no deadlock is concluded from it."""
    result = dict(states)
    queue = [process.pid]
    chain: set[int] = set()
    while queue and len(chain) < 12:
        tid = queue.pop(0)
        thread, state = process.thread(tid), result.get(tid)
        if tid in chain or not thread or not state or not state.wait or state.state is RunState.IDLE:
            continue
        chain.add(tid)
        wait = _with_wakers(thread, state.wait, result)
        result[tid] = state._replace(wait=wait)
        queue += wait.owner_tids or wait.detail.expects
    waiting = [
        (thread, state, state.wait)
        for thread in process.threads
        if thread.tid not in chain
        and (state := result.get(thread.tid))
        and state.wait
        and state.state is RunState.WAITING
    ]
    # A loop that repeats a timed wait does not end by itself, and may be the one that matters.
    timed = [row for row in waiting if row[2].timed and any(frame.is_users for frame in row[0].python)]
    for thread, state, wait in timed[:_MOST_OFF_CHAIN]:
        result[thread.tid] = state._replace(wait=_with_loop(thread, wait))

    # No thread is known to end these waits: the one that should may be missing.
    unowned = [row for row in waiting if not (row[2].timed or row[2].owners or row[2].detail.lost)]
    for thread, state, wait in [row for row in unowned if row[2].kind in _ENDED_BY_USERS][:_MOST_OFF_CHAIN]:
        explained = _with_wakers(thread, wait, result)
        if explained.detail.lost:
            result[thread.tid] = state._replace(wait=explained)
    return result


def _with_loop(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """A timed wait with the loop that repeats it, and with what the loop tests in between."""
    if wait.detail.named:
        return wait
    if wait.kind is WaitKind.SLEEP:
        return polled_sleep(thread, wait)
    line = line_of_loop(thread, wait)
    detail = wait.detail or (Owned() if wait.owners else Unowned())
    return wait.with_detail(detail.in_loop(line)) if line else wait


def _with_wakers(thread: ThreadSnapshot, wait: Wait, states: Mapping[int, State | None]) -> Wait:
    """The wait with the threads that may end it: users of the object that do not wait for it themselves."""
    if wait.timed:
        wait = _with_loop(thread, wait)
    python, address = thread.process.python, wait.resource.address
    if wait.kind not in _ENDED_BY_USERS or wait.owners or wait.being_released or not python:
        return wait
    detail = wait.detail.unowned

    def waits_for_it(tid: int) -> bool:
        state = states.get(tid)
        return bool(state and state.wait and state.wait.resource.address == address)

    users = python.users_of(address)
    expects = detail.expects or tuple(tid for tid in users if tid != thread.tid and not waits_for_it(tid))
    return wait.with_detail(wait.detail.with_wakers(python_waits.with_possible_wakers(thread, wait, detail, expects)))
