"""The registry of recognisers, and the state of a thread that they add up to.

A recogniser takes a ThreadSnapshot and gives the Wait, or None where the thread waits for something else. A new one is
a function in the file of its family and a line in RECOGNISERS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from gdbext.model.record import Record
from gdbext.model.threads.pool import Pool
from gdbext.model.threads.thread_report import RunState
from gdbext.model.threads.wait import Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits import syscall_waits
from gdbext.waits.native import (
    condvar_waits,
    join_waits,
    libc_locks,
    mutex_waits,
    once,
    rwlock_waits,
    semaphore_waits,
    static_init,
)
from gdbext.waits.python import gil_waits, parking_waits, python_pools, python_waits
from gdbext.waits.python.prompt import is_at_prompt
from gdbext.waits.snapshot import ThreadSnapshot
from gdbext.waits.torch import dataloader, openmp, torch_pools, torch_waits

Recogniser = Callable[[ThreadSnapshot], Optional[Wait]]
PoolRecogniser = Callable[[ThreadSnapshot], Optional[Pool]]

RECOGNISERS: tuple[Recogniser, ...] = (
    gil_waits.classify,  # by the address of the futex, which no other recogniser would know for the GIL's
    parking_waits.classify,  # the same, of a build without a GIL
    openmp.classify,  # its runtime waits by its own system calls: the module of the innermost frame decides
    static_init.classify,  # by __cxa_guard_acquire, below which libc may be seen
    mutex_waits.classify,  # a lock with an owner says more than "inside a collective" below …
    libc_locks.classify,  # locks that are no mutexes, by the functions of libc above them
    mutex_waits.destroyed,  # a mutex by name that is none any more
    libc_locks.unidentified,
    rwlock_waits.classify,
    torch_waits.classify,  # … and that says more than the condition variable below it
    python_waits.classify,  # threading's objects, which are semaphores to glibc
    condvar_waits.classify,  # what glibc's objects say by themselves
    semaphore_waits.classify,
    join_waits.join,
    join_waits.barrier,
    once.classify,  # by its value alone where it has no name, so that the others come first
    syscall_waits.classify,  # anything but a futex: the system call says what for
    syscall_waits.unknown_futex,
)
"""What a thread inside a system call waits for; the first that answers is right, those that prove most come first."""

POOLS: tuple[PoolRecogniser, ...] = (torch_pools.pool_of, openmp.pool_of, python_pools.pool_of)
"""Whose idle worker a thread inside a system call is, before anybody asks what it waits for."""

SPINNING: tuple[Recogniser, ...] = (
    gil_waits.between_waits,
    parking_waits.between_waits,
    torch_waits.spinning_device,
    torch_waits.polling_store,
    syscall_waits.uninterruptible,
)
"""Waits of threads that are in no system call."""


class State(Record):
    """What a thread does, what it waits for, and the pool whose idle worker it is."""

    state: RunState
    wait: Wait | None = None
    pool: Pool | None = None


def state_of(thread: ThreadSnapshot) -> State:
    """What the thread does."""
    if thread.syscall is None:
        return _outside_of_the_kernel(thread)
    pool = next((pool for pool in (pool_of(thread) for pool_of in POOLS) if pool is not None), None)
    if pool is not None:
        address = thread.syscall.arguments[0] if thread.syscall.name == "futex" else 0
        return State(RunState.IDLE, Wait(Resource(WaitKind.WORKER_POOL, address, pool.value)), pool)
    wait = wait_of(thread)
    if wait is None:
        return State(RunState.RUNNING)
    if is_at_prompt(thread, wait):
        return State(RunState.IDLE, wait)
    return State(RunState.WAITING, dataloader.for_workers(thread, wait))


def wait_of(thread: ThreadSnapshot) -> Wait | None:
    """What a thread inside a system call waits for."""
    return _first(RECOGNISERS, thread)


def _outside_of_the_kernel(thread: ThreadSnapshot) -> State:
    if openmp.is_idle_worker(thread):
        spinning = Resource(WaitKind.WORKER_POOL, 0, f"{Pool.OPENMP.value} (spinning)")
        return State(RunState.IDLE, Wait(spinning), Pool.OPENMP)
    wait = _first(SPINNING, thread)
    return State(RunState.WAITING, wait) if wait is not None else State(RunState.RUNNING)


def _first(recognisers: tuple[Recogniser, ...], thread: ThreadSnapshot) -> Wait | None:
    for recognise in recognisers:
        wait = recognise(thread)
        if wait is not None:
            return wait
    return None
