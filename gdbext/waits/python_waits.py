"""Waits for Python's own locks, and for what ``threading``, ``queue`` and ``concurrent.futures`` build on them.

All of them sleep in PyThread_acquire_lock_timed, on a semaphore without an owner. What it means, and who has to act,
is in the Python frames and objects (cpython/sync/python_wait.py). A plain Lock records no owner; a thread inside
``with lock:`` of that very lock and does not wait for it holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi import stdlib
from gdbext.model.certainty import Certainty
from gdbext.model.frame import Frame
from gdbext.model.pool import Pool
from gdbext.model.wait import Owner, Resource, Wait
from gdbext.model.wait_kind import WaitKind
from gdbext.waits.futex import FutexWait, futex_wait
from gdbext.waits.snapshot import ThreadSnapshot

if TYPE_CHECKING:
    from gdbext.cpython.sync.python_wait import PythonWait

_NEAR = 7
"""Frames between the kernel and PyThread_acquire_lock_timed."""

_KINDS = {
    "condition": (WaitKind.CONDVAR, "threading.Condition"),
    "event": (WaitKind.CONDVAR, "threading.Event"),
    "semaphore": (WaitKind.SEMAPHORE, "threading.Semaphore"),
    "barrier": (WaitKind.BARRIER, "threading.Barrier"),
    "queue": (WaitKind.QUEUE, "queue.Queue"),
    "simplequeue": (WaitKind.QUEUE, "queue.SimpleQueue"),
    "future": (WaitKind.CONDVAR, "concurrent.futures.Future"),
    "thread": (WaitKind.JOIN, ""),
    "shutdown": (WaitKind.JOIN, "all threads that are no daemons (the interpreter is shutting down)"),
    "rlock": (WaitKind.PYTHON_LOCK, "threading.RLock"),
    "lock": (WaitKind.PYTHON_LOCK, "threading.Lock"),
}
_SET_BY_HANDLERS = frozenset({"event", "condition", "simplequeue"})
"""Objects that programs set in signal handlers while their main thread waits for them."""

_WORKERS = {
    **stdlib.POOL_WORKERS,
    ("pin_memory.py", "_pin_memory_loop"): Pool.PIN_MEMORY,
    ("pin_memory.py", "do_one_step"): Pool.PIN_MEMORY,
    ("_monitor.py", "run"): Pool.TQDM,
}
"""(file, function) of the main functions of background threads → their pool."""
_WORKER_DEPTH = 5


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that sleeps on a lock made by Python, None for any other."""
    futex = futex_wait(thread.syscall)
    if futex is None or thread.first("python-lock", within=_NEAR) is None:
        return None
    python = thread.process.python
    found = python.wait(thread.tid, futex.address) if python is not None else None
    raw = thread.process.memory.try_read(futex.address, 4)
    free = raw is not None and any(raw)
    if found is None:
        return _plain_lock(thread, futex, futex.address, "", free)
    if found.kind in ("lock", "rlock", "import") or found.reacquiring:
        return _lock(thread, futex, found, free)
    kind, name = _KINDS.get(found.kind, (WaitKind.PYTHON_LOCK, found.kind))
    evidence = f"Python frame {found.frame.function}: {found.kind} at {found.address:#x}"
    if kind is WaitKind.JOIN:
        return _join(futex, found, name, evidence)
    if kind is WaitKind.CONDVAR and found.owner_tid is not None and not free:
        told = (evidence, f"thread {found.owner_tid} runs its job")
        return Wait(Resource(kind, found.address, name), Owner(found.owner_tid), Certainty.EXACT, futex.timed, told)
    by_handlers = found.kind in _SET_BY_HANDLERS
    return Wait(
        Resource(kind, found.address, name), timed=futex.timed, evidence=(evidence,), handover=free,
        set_by_handlers=by_handlers,
    )  # fmt: skip


def pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The Python pool whose idle worker this is, by its innermost Python frames; None for any other thread."""
    if thread.syscall is None or thread.dispatch:
        return None
    for frame in thread.python[:_WORKER_DEPTH]:
        pool = _WORKERS.get((frame.file.rpartition("/")[2], frame.function.rpartition(".")[2]))
        if pool is not None:
            return pool
        if not _only_waits(frame):
            return None
    return None


def _only_waits(frame: Frame) -> bool:
    """A frame of the standard library's own waiting."""
    return frame.file.rpartition("/")[2] in stdlib.WAITING_FILES


def _lock(thread: ThreadSnapshot, futex: FutexWait, found: PythonWait, free: bool) -> Wait:
    lock = found.lock
    address = lock.address if lock is not None else found.address
    recursive = found.kind == "rlock" or (lock is not None and lock.kind == "RLock")
    kind = "threading.RLock" if recursive else "threading.Lock"
    if found.kind == "import":
        address, kind = found.address, "import lock of a module"
    ident = found.owner_ident if found.owner_ident is not None else (lock.owner_ident if lock is not None else None)
    if ident is None:
        return _plain_lock(thread, futex, address, kind, free)
    resource = Resource(WaitKind.PYTHON_LOCK, address, kind)
    tid = found.owner_tid if found.owner_tid is not None else (lock.owner_tid if lock is not None else None)
    evidence = f"{kind} {address:#x} records its owner: thread ident {ident:#x}"
    if free:
        return Wait(resource, handover=True, evidence=(evidence, "it is free now"))
    if tid is None:
        return Wait(
            resource, Owner(ident, gone=True), Certainty.EXACT, futex.timed, (evidence, "no thread has that ident")
        )
    return Wait(resource, Owner(tid), Certainty.EXACT, futex.timed, (evidence,))


def _plain_lock(thread: ThreadSnapshot, futex: FutexWait, address: int, name: str, free: bool) -> Wait:
    resource = Resource(WaitKind.PYTHON_LOCK, address, name)
    evidence = f"semaphore {futex.address:#x} of a Python lock, which records no owner"
    if free:
        return Wait(resource, handover=True, evidence=(evidence, "it is free now"))
    python = thread.process.python
    inside = set(python.inside_with(futex.address)) if python is not None else set()
    holders = [tid for tid in inside - {thread.tid} if not _waits_for(thread, tid, futex.address)]
    holders = holders or [tid for tid in inside if tid == thread.tid]
    if len(holders) != 1:
        return Wait(resource, timed=futex.timed, evidence=(evidence,))
    seen = f"thread {holders[0]} is inside a with statement of this lock"
    return Wait(resource, Owner(holders[0]), Certainty.INFERRED, futex.timed, (evidence, seen))


def _waits_for(thread: ThreadSnapshot, tid: int, address: int) -> bool:
    other = thread.process.thread(tid)
    futex = futex_wait(other.syscall) if other is not None else None
    return futex is not None and futex.address == address


def _join(futex: FutexWait, found: PythonWait, name: str, evidence: str) -> Wait:
    if found.owner_tid is None:
        return Wait(
            Resource(WaitKind.JOIN, found.address, name or "a Python thread"), timed=futex.timed, evidence=(evidence,)
        )
    resource = Resource(WaitKind.JOIN, found.address, f"thread {found.owner_tid}")
    return Wait(resource, Owner(found.owner_tid), Certainty.EXACT, futex.timed, (evidence,))
