"""Who holds a Python lock that records no owner: by the ``with`` and ``try`` blocks of all threads, or by a fork."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.model.certainty import Certainty
from gdbext.model.threads.self_wait import SelfWait
from gdbext.model.threads.wait import Owner, Resource, Wait
from gdbext.waits.fork_evidence import fork_evidence
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.futex import FutexWait, futex_wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.waits.snapshot import ThreadSnapshot

_INTERRUPTIONS = (
    (FunctionTag.RUNS_SIGNAL_HANDLERS, SelfWait.SIGNAL),
    (FunctionTag.RUNS_WEAKREF_CALLBACKS, SelfWait.WEAKREF),
    (FunctionTag.RUNS_FINALIZERS, SelfWait.FINALIZER),
)
PARENTS_THREAD = Owner(0, gone=True)
"""A thread of the parent process, which nobody can name here."""


def with_owner(thread: ThreadSnapshot, futex: FutexWait, resource: Resource, evidence: str) -> Wait:
    """The wait for a lock that is taken, with its owner where one can be told."""
    python = thread.process.python
    found = (
        (python.inside_with(futex.address), "is inside a with statement of this lock"),
        (python.inside_try(futex.address, thread.tid), "has this lock at hand in a try block that may release it"),
    ) if python is not None else ()  # fmt: skip
    for tids, how in found:
        holder = _only_holder(thread, tids, futex.address)
        if holder is not None:
            seen = (evidence, f"thread {holder} {how}")
            reason = interruption(thread) if holder == thread.tid else None
            return Wait(resource, Owner(holder), Certainty.INFERRED, futex.timed, seen, self_wait=reason)
    forked = fork_evidence(thread.process) if len(thread.process.tids) == 1 else ()
    if forked:
        alone = "this process has one thread, and no frame of it holds the lock"
        return Wait(resource, PARENTS_THREAD, Certainty.INFERRED, futex.timed, (evidence, alone, *forked))
    return Wait(resource, timed=futex.timed, evidence=(evidence,))


def _only_holder(thread: ThreadSnapshot, tids: Sequence[int], address: int) -> int | None:
    """The only thread that can be the holder, None where there is not just one; another thread rather than itself."""
    inside = set(tids)
    holders = [tid for tid in inside - {thread.tid} if not _waits_for(thread, tid, address)]
    holders = holders or [tid for tid in inside if tid == thread.tid]
    return holders[0] if len(holders) == 1 else None


def _waits_for(thread: ThreadSnapshot, tid: int, address: int) -> bool:
    other = thread.process.thread(tid)
    futex = futex_wait(other.syscall) if other is not None else None
    return futex is not None and futex.address == address


def interruption(thread: ThreadSnapshot) -> SelfWait | None:
    """What interrupted the thread's own code, by the functions and Python frames on its stack."""
    if any(frame.function.rpartition(".")[2] == "__del__" for frame in thread.python):
        return SelfWait.FINALIZER
    found = next((reason for tag, reason in _INTERRUPTIONS if tag in thread.inner_tags), None)
    python = thread.process.python
    if found is None and python is not None and python.in_signal_handler(thread.tid):
        return SelfWait.SIGNAL  # without symbols, the function of C that calls handlers has no name
    return found
