"""Waits of pthread_join and pthread_barrier_wait for other threads."""

from __future__ import annotations

from gdbext.glibc.pthread import EXITING, JOINABLE, join_state_word, thread_id_word
from gdbext.glibc.sync_objects import BARRIER_WORD, Barrier
from gdbext.model.certainty import Certainty
from gdbext.model.threads.wait import Owner, Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.futex import TID_MASK, FutexWait, futex_wait
from gdbext.waits.snapshot import ThreadSnapshot

_NEAR_JOIN = 5
_NEAR_BARRIER = 4


def join(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread for the end of another, None for any other wait.

    pthread_join sleeps on a word of struct pthread of the thread it waits for, which the kernel clears at its end. The
    word's address proves it, so that no name is needed (pthread_join jumps to a local function).
    """
    futex = futex_wait(thread.syscall)
    if futex is None:
        return None
    found = _by_thread_id(thread, futex) or _by_join_state(thread, futex)
    if found is None:
        named = thread.first(FunctionTag.JOIN, within=_NEAR_JOIN) is not None
        return Wait(Resource(WaitKind.JOIN, futex.address, "a thread"), timed=futex.timed) if named else None
    owner, word = found
    resource = Resource(WaitKind.JOIN, futex.address, f"thread {owner.tid}")
    evidence = f"the futex {futex.address:#x} is the {word} of thread {owner.tid}"
    return Wait(resource, owner, Certainty.EXACT, futex.timed, (evidence,))


def _by_thread_id(thread: ThreadSnapshot, futex: FutexWait) -> tuple[Owner, str] | None:
    owner = thread.process.owner(futex.value & TID_MASK)
    other = thread.process.thread(owner.tid) if owner is not None else None
    if owner is None or other is None:
        return None
    is_end = thread_id_word(other.process.memory, other.thread_pointer) == futex.address
    return (owner, "tid word") if is_end else None


def _by_join_state(thread: ThreadSnapshot, futex: FutexWait) -> tuple[Owner, str] | None:
    if futex.value not in (JOINABLE, EXITING):
        return None
    for other in thread.process.threads:
        if join_state_word(other.process.memory, other.thread_pointer) == futex.address:
            return Owner(other.tid), "join state"
    return None


def barrier(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread at a pthread_barrier_t, which does not name those that are late; None for any other."""
    futex = futex_wait(thread.syscall)
    if futex is None or thread.first(FunctionTag.BARRIER, within=_NEAR_BARRIER) is None:
        return None
    address = futex.address - BARRIER_WORD
    found, name = Barrier.read(thread.process.memory, address), thread.process.name_at(address)
    text = f"{found.arrived} of {found.expected} threads have arrived" if found is not None else ""
    return Wait(Resource(WaitKind.BARRIER, address, ", ".join(filter(None, (name, text)))), timed=futex.timed)
