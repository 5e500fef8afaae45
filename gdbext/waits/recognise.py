"""The state of a thread and what it waits for: all recognisers, from those that prove most to those that say least."""

from __future__ import annotations

from typing import NamedTuple

from gdbext.model.pool import Pool
from gdbext.model.thread import RunState
from gdbext.model.wait import Resource, Wait
from gdbext.model.wait_kind import WaitKind
from gdbext.waits import (
    dataloader,
    gil_waits,
    glibc_waits,
    openmp,
    python_waits,
    static_init,
    syscall_waits,
    torch_waits,
)
from gdbext.waits.futex import futex_wait
from gdbext.waits.snapshot import ThreadSnapshot

_RECOGNISERS = (
    gil_waits.classify,
    openmp.classify,
    static_init.classify,
    glibc_waits.locks,
    torch_waits.classify,
    python_waits.classify,
    glibc_waits.others,
    syscall_waits.classify,
)
"""Locks proper come before the meaning that PyTorch's frames give: a mutex with an owner says more than "inside a
collective"; a condition variable below a collective says less."""
_PROMPTS = ("/_pyrepl/", "/prompt_toolkit/", "/ipykernel/kernelapp.py")
"""Sources of prompts written in Python: that of Python 3.13, IPython's, and a notebook's kernel between two cells."""
_LOOPS = ("/selectors.py", "/asyncio/base_events.py", "/asyncio/runners.py", "/asyncio/unix_events.py", "/asyncio.py")
"""Event loops that such a prompt may wait in (the last one is tornado's)."""
_PROMPT = 24
"""Frames between the kernel and the function that reads the interpreter's prompt."""


class State(NamedTuple):
    """What a thread does, what it waits for, and the pool whose idle worker it is."""

    state: RunState
    wait: Wait | None = None
    pool: Pool | None = None


def state_of(thread: ThreadSnapshot) -> State:
    """What the thread does."""
    if thread.syscall is None:
        return _outside_of_the_kernel(thread)
    pool = torch_waits.pool_of(thread) or (Pool.OPENMP if openmp.is_idle_worker(thread) else None)
    pool = pool or python_waits.pool_of(thread)
    if pool is not None:
        address = thread.syscall.arguments[0] if thread.syscall.name == "futex" else 0
        return State(RunState.IDLE, Wait(Resource(WaitKind.WORKER_POOL, address, pool.value)), pool)
    wait = wait_of(thread)
    if wait is not None and _reads_prompt(thread, wait):
        return State(RunState.IDLE, wait)
    if wait is None:
        return State(RunState.RUNNING)
    return State(RunState.WAITING, dataloader.for_workers(thread, wait))


def wait_of(thread: ThreadSnapshot) -> Wait | None:
    """What a thread inside a system call waits for; an unidentified futex where nothing else is known."""
    for recognise in _RECOGNISERS:
        wait = recognise(thread)
        if wait is not None:
            return wait
    futex = futex_wait(thread.syscall)
    if futex is None:
        return None
    evidence = f"futex {futex.address:#x} waited for with value {futex.value:#x}; no known function is above it"
    name = thread.process.name_at(futex.address)
    external = futex.shared and thread.is_shared(futex.address)
    return Wait(
        Resource(WaitKind.FUTEX, futex.address, name), timed=futex.timed, evidence=(evidence,), external=external
    )


def _outside_of_the_kernel(thread: ThreadSnapshot) -> State:
    if openmp.is_idle_worker(thread):
        spinning = Resource(WaitKind.WORKER_POOL, 0, f"{Pool.OPENMP.value} (spinning)")
        return State(RunState.IDLE, Wait(spinning), Pool.OPENMP)
    gil = gil_waits.between_waits(thread)
    if gil is not None:
        return State(RunState.WAITING, gil)
    device = torch_waits.spinning_device(thread)
    if device is not None:
        return State(RunState.WAITING, device)
    if thread.kernel_state == "D":
        uninterruptible = Resource(WaitKind.IO, 0, "the kernel (uninterruptible sleep)")
        return State(RunState.WAITING, Wait(uninterruptible, evidence=("the kernel's state of the thread is D",)))
    return State(RunState.RUNNING)


def _reads_prompt(thread: ThreadSnapshot, wait: Wait) -> bool:
    """The interpreter waits for its user: at its prompt, or for standard input outside of the dispatcher."""
    if wait.kind is not WaitKind.IO or thread.dispatch:
        return False
    if thread.first("prompt", within=_PROMPT) is not None or _is_python_prompt(thread):
        return True
    return thread.syscall is not None and thread.syscall.name == "read" and thread.syscall.arguments[0] == 0


def _is_python_prompt(thread: ThreadSnapshot) -> bool:
    """Between the wait and the prompt's code is nothing but an event loop: no user code runs."""
    for frame in thread.python:
        if any(part in frame.file for part in _PROMPTS):
            return True
        if not frame.file.endswith(_LOOPS):
            return False
    return False
