"""Waits for sem_t, which has no owner: any thread may post it."""

from __future__ import annotations

from gdbext.glibc.sync_objects import Semaphore
from gdbext.model.threads.child_process import listed
from gdbext.model.threads.wait import Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.futex import WAIT_BITSET, FutexWait, futex_wait
from gdbext.waits.snapshot import ThreadSnapshot

_NEAR = 5
_MOST_UNNAMED = 5
"""Functions of libc from sem_wait to the kernel: two more since 2.41, where cancellable calls have their own."""


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for a semaphore, None for any other."""
    futex = futex_wait(thread.syscall)
    if futex is None:
        return None
    if thread.first(FunctionTag.SEMAPHORE, within=_NEAR) is None and not _is_semaphore(thread, futex):
        return None
    external = futex.shared and thread.is_shared(futex.address)
    name = _shared_with(thread, futex.address) if external else thread.process.name_at(futex.address)
    evidence = f"semaphore {futex.address:#x}: a semaphore has no owner, any thread may post it"
    return Wait(
        Resource(WaitKind.SEMAPHORE, futex.address, name), timed=futex.timed, evidence=(evidence,),
        handover=_has_tokens(thread, futex.address), external=external,
    )  # fmt: skip


def _shared_with(thread: ThreadSnapshot, address: int) -> str:
    """Which other processes have it: who took it need not live any more."""
    name, process = "shared between processes", thread.process
    mapping = process.modules.mapping_at(address)
    sharers = process.outside.sharers(mapping) if process.outside is not None and mapping is not None else None
    if sharers is None:
        return name
    if not sharers:
        return f"{name}, but no other process that has it is alive: whoever took it has ended without releasing it"
    return f"{name}; of those, {listed(sharers)} {'is' if len(sharers) == 1 else 'are'} alive"


def _is_semaphore(thread: ThreadSnapshot, futex: FutexWait) -> bool:
    """sem_wait jumps to a local function, which has no name on a stripped libc. The semaphore itself shows it: it has
    no token and at least this waiter, and the futex expects that 0, called from outside of libc."""
    if futex.address % 8 or futex.command != WAIT_BITSET or futex.value or not _unnamed_in_libc(thread):
        return False
    semaphore = Semaphore.read(thread.process.memory, futex.address)
    return semaphore is not None and semaphore.is_waited_for


def _unnamed_in_libc(thread: ThreadSnapshot) -> bool:
    """The libc frames at the top of the stack have no names, and are few."""
    levels = thread.inner_libc_levels
    return 0 < len(levels) <= _MOST_UNNAMED and all(thread.stack.function(level) is None for level in levels)


def _has_tokens(thread: ThreadSnapshot, address: int) -> bool:
    semaphore = Semaphore.read(thread.process.memory, address)
    return semaphore is not None and semaphore.value != 0
