"""Waits for the GIL, and of free-threaded Pythons for object locks and for threads that stop the world.

A waiter waits 5 ms at a time and begins again, so its timeout means nothing. The address decides: take_gil has no
name in a stripped Python, and a thread may as well wait for something else under PyEval_RestoreThread.

Waits of free-threaded Pythons are known by what the thread is parked on. Lock objects are in python_waits.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.sync.locks import GilPart, GilState
from gdbext.cpython.sync.parking import ParkedOn
from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag

if TYPE_CHECKING:
    from gdbext.cpython.sync.parking import Parked
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot

_NEAR = 8
"""Frames between the kernel and PyEval_RestoreThread and its like."""
_BELOW_TAKE_GIL = {FunctionTag.CONDVAR, FunctionTag.MUTEX, FunctionTag.OFFERS_GIL}


def gil_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that wants the GIL (or has just offered it to another thread)."""
    futex = thread.futex
    if not futex:
        return None
    for gil in thread.process.gils:
        part = gil.part_at(futex.address)
        if part:
            return _by_address(thread, gil, part, futex.address)
    if not thread.process.gils and thread.first(FunctionTag.TAKES_GIL, within=_NEAR) is not None:
        return Wait(Resource(WaitKind.GIL, 0), evidence=("by the functions on its stack; the GIL could not be read",))
    return None


def is_of_two_moments(thread: ThreadSnapshot, wait: Wait | None) -> bool:
    """It sleeps in the wait for the GIL, and yet has its mutex: it woke up while memory was read."""
    if not wait or wait.kind is not WaitKind.GIL or not thread.syscall or not thread.own_tid:
        return False
    return any(gil.mutex_owner == thread.own_tid for gil in thread.process.gils)


def between_gil_waits(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that runs, but only to begin its next 5 ms: it is inside take_gil or below it."""
    level = thread.first(FunctionTag.TAKES_GIL, FunctionTag.OFFERS_GIL, within=_NEAR - 2)
    if level is None and not _in_the_loops_take_gil(thread):
        return None
    for gil in thread.process.gils:
        holder = _holder(thread, gil)
        if holder and holder[0] == thread.tid and not _waits_on_condition(thread, level):
            continue  # it has just taken it
        if holder and _uses(thread, gil):
            evidence = "it runs inside the function that takes the GIL, between two timed waits"
            return _held(gil, holder, evidence)
    return None


def _waits_on_condition(thread: ThreadSnapshot, level: int | None) -> bool:
    """A wait for the GIL's condition lies below the function that takes it: what the thread holds it has held for
    longer, and will never be given."""
    return thread.first(FunctionTag.CONDVAR, within=_NEAR if level is None else level) is not None


def _in_the_loops_take_gil(thread: ThreadSnapshot) -> bool:
    """The evaluation loop calls take_gil, which has no name in a stripped Python, and that only libc and the vdso."""
    level = thread.first(FunctionTag.EVAL_FUNCTIONS, within=5)
    if not level:
        return False
    if FunctionTag.CONDVAR not in thread.inner_tags:
        return False
    return all(not thread.stack.function(at) or thread.tags(at) <= _BELOW_TAKE_GIL for at in range(level))


def _uses(thread: ThreadSnapshot, gil: GilState) -> bool:
    """True if the thread wants this GIL: with several of them only an address can tell."""
    return len(thread.process.gils) == 1 or gil.mutex_owner == thread.own_tid


def _by_address(thread: ThreadSnapshot, gil: GilState, part: GilPart, address: int) -> Wait:
    resource = Resource(WaitKind.GIL, gil.address, f"interpreter {gil.interpreter}" if gil.interpreter else "")
    evidence = f"futex {address:#x} is in the GIL's {part.value} (GIL at {gil.address:#x})"
    if part in (GilPart.SWITCH_COND, GilPart.SWITCH_MUTEX):
        # It has dropped the GIL on request and lets another thread take it first (FORCE_SWITCHING).
        return Wait(resource, being_released=True, evidence=(evidence, "it has just offered the GIL to another thread"))
    if not gil.locked:
        return Wait(resource, being_released=True, evidence=(evidence, "the GIL is free"))
    holder = _holder(thread, gil)
    if holder:
        return _held(gil, holder, evidence)
    changing = thread.process.owner(gil.mutex_owner) if gil.mutex_owner is not None else None
    if isinstance(changing, OwnerThread):
        return Wait(resource, being_released=True, evidence=(evidence, f"thread {changing.tid} is just changing it"))
    state = f"its holder's thread state {gil.last_holder or 0:#x} belongs to no thread"
    return Wait(resource, evidence=(evidence, state))


def _holder(thread: ThreadSnapshot, gil: GilState) -> tuple[int, OwnerCertainty] | None:
    """The holder's tid and the certainty.

    While another thread has the GIL's mutex, its fields may be changing: the last holder still has it unless that
    thread is just taking it, so it is only inferred.
    """
    if not gil.locked:
        return None
    if gil.holder_tid is not None:
        return gil.holder_tid, OwnerCertainty.RECORDED
    python = thread.process.python
    last = python.tid_of_state(gil.last_holder) if gil.last_holder is not None else None
    changing = thread.process.owner(gil.mutex_owner) if gil.mutex_owner is not None else None
    if last is None or not changing or changing == OwnerThread(last):
        return None
    return last, OwnerCertainty.INFERRED


def _held(gil: GilState, holder: tuple[int, OwnerCertainty], evidence: str) -> Wait:
    resource = Resource(WaitKind.GIL, gil.address, f"interpreter {gil.interpreter}" if gil.interpreter else "")
    tid, certainty = holder
    state = f"the GIL is locked, its last holder is the thread state {gil.last_holder or 0:#x} of thread {tid}"
    return Wait(resource, OwnerThread(tid), certainty, timed=True, evidence=(evidence, state))


def parking_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that is parked on anything but a lock object."""
    futex = thread.futex
    parked = thread.process.python.parked(thread.tid, futex.address) if futex else None
    if not futex or not parked:
        return None
    evidence = f"futex {futex.address:#x} is the semaphore of a thread that is parked on {parked.kind.value}"
    if parked.kind is ParkedOn.OBJECT:
        return _for_object(parked, evidence)
    return _for_world(parked, evidence)


def between_parkings(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that stops the world: it looks every millisecond whether the others have stopped."""
    parked = thread.process.python.stopping(thread.tid)
    return _for_world(parked, "it has asked all other threads to stop") if parked else None


def _for_object(parked: Parked, evidence: str) -> Wait:
    resource = Resource(WaitKind.OBJECT_LOCK, parked.address, parked.type_name)
    if not parked.owners:
        return Wait(resource, evidence=(evidence, "no thread is in a critical section of it"))
    why = f"thread {parked.owners[0]} is in a critical section of it"
    return Wait(resource, OwnerThread(parked.owners[0]), OwnerCertainty.RECORDED, evidence=(evidence, why))


def _for_world(parked: Parked, evidence: str) -> Wait:
    pauses = parked.kind is ParkedOn.PAUSE
    whom = "all other threads, to stop the world" if pauses else "the thread that stops the world"
    resource = Resource(WaitKind.STOP_THE_WORLD, parked.address, whom)
    owners = tuple(map(OwnerThread, parked.owners))
    if not owners:
        return Wait(resource, evidence=(evidence,))
    if pauses:
        why = f"not stopped: {', '.join(str(owner.tid) for owner in owners)}"
    else:
        why = f"thread {owners[0].tid} has asked for it"
    return Wait(resource, owners[0], OwnerCertainty.RECORDED, evidence=(evidence, why), others=owners[1:])
