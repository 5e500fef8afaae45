"""Waits for Python's own locks, and for what ``threading``, ``queue`` and ``concurrent.futures`` build on them.

All of them sleep in PyThread_acquire_lock_timed, on a semaphore without an owner. What it means, and who has to act,
is in the Python frames and objects (cpython/sync/python_wait.py). A plain Lock records no owner; a thread inside
``with lock:`` of that very lock and does not wait for it holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi.waitable import Waitable
from gdbext.model.certainty import Certainty
from gdbext.model.record import Record
from gdbext.model.threads.self_wait import SelfWait
from gdbext.model.threads.wait import Owner, Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.function_tag import FunctionTag
from gdbext.waits.futex import FutexWait, futex_wait
from gdbext.waits.python import lock_owners, worker_processes
from gdbext.waits.snapshot import ThreadSnapshot

if TYPE_CHECKING:
    from gdbext.cpython.sync.python_wait import PythonWait

_NEAR = 7
"""Frames between the kernel and PyThread_acquire_lock_timed."""


class _Meaning(Record):
    kind: WaitKind
    name: str = ""
    set_by_handlers: bool = False


_MEANINGS = {
    Waitable.LOCK: _Meaning(WaitKind.PYTHON_LOCK, "threading.Lock"),
    Waitable.RLOCK: _Meaning(WaitKind.PYTHON_LOCK, "threading.RLock"),
    Waitable.IMPORT: _Meaning(WaitKind.PYTHON_LOCK, "import lock of a module"),
    Waitable.CONDITION: _Meaning(WaitKind.CONDVAR, "threading.Condition", set_by_handlers=True),
    Waitable.EVENT: _Meaning(WaitKind.CONDVAR, "threading.Event", set_by_handlers=True),
    Waitable.SEMAPHORE: _Meaning(WaitKind.SEMAPHORE, "threading.Semaphore"),
    Waitable.BARRIER: _Meaning(WaitKind.BARRIER, "threading.Barrier"),
    Waitable.QUEUE: _Meaning(WaitKind.QUEUE, "queue.Queue"),
    Waitable.SIMPLE_QUEUE: _Meaning(WaitKind.QUEUE, "queue.SimpleQueue", set_by_handlers=True),
    Waitable.FUTURE: _Meaning(WaitKind.CONDVAR, "concurrent.futures.Future"),
    Waitable.POOL_RESULT: _Meaning(WaitKind.CONDVAR, "a result of multiprocessing.Pool"),
    Waitable.THREAD: _Meaning(WaitKind.JOIN),
    Waitable.SHUTDOWN: _Meaning(WaitKind.JOIN, "all threads that are not daemons (the interpreter is shutting down)"),
}
"""Every Waitable, and the wait for it."""


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that sleeps on a lock made by Python, None for any other."""
    futex = futex_wait(thread.syscall)
    if futex is None or thread.first(FunctionTag.PYTHON_LOCK, within=_NEAR) is None:
        return None
    python = thread.process.python
    found = python.wait(thread.tid, futex.address) if python is not None else None
    raw = thread.process.memory.try_read(futex.address, 4)
    free = raw is not None and any(raw)
    if found is None:
        return _plain_lock(thread, futex, futex.address, "", free)
    meaning = _MEANINGS[found.kind]
    if meaning.kind is WaitKind.PYTHON_LOCK or found.reacquiring:
        return _lock(thread, futex, found, free)
    evidence = f"Python frame {found.frame.function}: {found.kind.value} at {found.address:#x}"
    if meaning.kind is WaitKind.JOIN:
        return _join(thread.tid, futex, found, meaning.name, evidence)
    if found.pids and not free:
        return worker_processes.for_result(thread, found, meaning.name, futex.timed, evidence)
    name = ": ".join(filter(None, (meaning.name, found.lacks)))
    resource = Resource(meaning.kind, found.address, name)
    inside = python.inside_object(found.address) if python is not None and meaning.kind is WaitKind.SEMAPHORE else ()
    if len(inside) == 1 and not free:
        seen = f"thread {inside[0]} is inside a with statement of it"
        return Wait(resource, Owner(inside[0]), Certainty.INFERRED, futex.timed, (evidence, seen))
    if found.kind is Waitable.FUTURE and found.owner_tid is not None and not free:
        job = f"thread {found.owner_tid} runs its job"
        return Wait(resource, Owner(found.owner_tid), Certainty.EXACT, futex.timed, (evidence, job))
    if found.exhausted and not free:
        return _in_exhausted_pool(thread, found, resource, futex, evidence)
    may_be_owed = python is not None and found.kind is Waitable.FUTURE and not free
    loop = python.loop_owing(found.address) if python is not None and may_be_owed else None
    if loop is not None:
        return _from_loop(thread, loop, resource, futex, evidence)
    return Wait(
        resource, timed=futex.timed, evidence=(evidence,), handover=free, set_by_handlers=meaning.set_by_handlers,
        expects=found.awaited,
    )


def _in_exhausted_pool(
    thread: ThreadSnapshot, found: PythonWait, resource: Resource, futex: FutexWait, evidence: str
) -> Wait:
    """Each worker of the pool waits for a job that no worker is left to run."""
    why = f"its job is pending, and each of the {len(found.exhausted)} workers of the pool waits for such a job"
    others = [tid for tid in found.exhausted if tid != thread.tid]
    if not others:
        mine = Owner(thread.tid)
        return Wait(resource, mine, Certainty.VERIFIED, futex.timed, (evidence, why), self_wait=SelfWait.POOL)
    owners = tuple(map(Owner, others))
    return Wait(resource, owners[0], Certainty.VERIFIED, futex.timed, (evidence, why), others=owners[1:])


def _from_loop(thread: ThreadSnapshot, loop: int, resource: Resource, futex: FutexWait, evidence: str) -> Wait:
    """The event loop of thread ``loop`` has to complete the future."""
    own = loop == thread.tid
    owed = f"a callback or a task of the event loop of {'this very thread' if own else f'thread {loop}'} completes it"
    self_wait = SelfWait.EVENT_LOOP if own else None
    return Wait(resource, Owner(loop), Certainty.EXACT, futex.timed, (evidence, owed), self_wait=self_wait)


def _lock(thread: ThreadSnapshot, futex: FutexWait, found: PythonWait, free: bool) -> Wait:
    lock = found.lock
    address = lock.address if lock is not None and found.kind is not Waitable.IMPORT else found.address
    name = _MEANINGS[_lock_kind(found)].name
    ident = found.owner_ident if found.owner_ident is not None else (lock.owner_ident if lock is not None else None)
    if ident is None:
        return _plain_lock(thread, futex, address, name, free)
    resource = Resource(WaitKind.PYTHON_LOCK, address, name)
    tid = found.owner_tid if found.owner_tid is not None else (lock.owner_tid if lock is not None else None)
    evidence = f"{name} {address:#x} records its owner: thread ident {ident:#x}"
    if free:
        return Wait(resource, handover=True, evidence=(evidence, "it is free now"))
    if tid is None:
        owner, why = Owner(ident, gone=True), (evidence, "no thread has that ident")
        return Wait(resource, owner, Certainty.EXACT, futex.timed, why)
    return Wait(resource, Owner(tid), Certainty.EXACT, futex.timed, (evidence,))


def _lock_kind(found: PythonWait) -> Waitable:
    """The kind of lock behind the wait, also where a condition takes its lock back."""
    if found.kind is Waitable.IMPORT:
        return found.kind
    recursive = found.kind is Waitable.RLOCK or (found.lock is not None and found.lock.kind is Waitable.RLOCK)
    return Waitable.RLOCK if recursive else Waitable.LOCK


def _plain_lock(thread: ThreadSnapshot, futex: FutexWait, address: int, name: str, free: bool) -> Wait:
    resource = Resource(WaitKind.PYTHON_LOCK, address, name)
    evidence = f"semaphore {futex.address:#x} of a Python lock, which records no owner"
    if free:
        return Wait(resource, handover=True, evidence=(evidence, "it is free now"))
    return lock_owners.with_owner(thread, futex, resource, evidence)


def _join(tid: int, futex: FutexWait, found: PythonWait, name: str, evidence: str) -> Wait:
    if found.owner_tid is None:
        resource = Resource(WaitKind.JOIN, found.address, name or "a Python thread")
        owners = tuple(Owner(each) for each in found.awaited if each != tid)
        if not owners:
            return Wait(resource, timed=futex.timed, evidence=(evidence,))
        return Wait(resource, owners[0], Certainty.EXACT, futex.timed, (evidence,), others=owners[1:])
    resource = Resource(WaitKind.JOIN, found.address, f"thread {found.owner_tid}")
    return Wait(resource, Owner(found.owner_tid), Certainty.EXACT, futex.timed, (evidence,))
