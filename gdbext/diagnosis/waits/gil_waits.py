"""Waits for the GIL, and of free-threaded Pythons for object locks and for threads that stop the world.
A waiter waits 5 ms at a time and begins again, so its timeout means nothing. The address decides: take_gil has no
name in a stripped Python, and a thread may as well wait for something else under PyEval_RestoreThread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.sync.locks import GilPart, GilState
from gdbext.cpython.sync.parking import ParkedOn
from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import wait_for_threads

if TYPE_CHECKING:
    from gdbext.cpython.sync.parking import Parked
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot

_NEAR = 8
"""Frames between the kernel and PyEval_RestoreThread and its like."""


def gil_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that wants the GIL (or has just offered it to another thread)."""
    futex = thread.futex
    if not futex:
        return None
    gil, part = next(((gil, part) for gil in thread.process.gils if (part := gil.part_at(futex.address))), (None, None))
    if not gil or not part:
        if thread.process.gils or thread.first(FunctionTag.TAKES_GIL, within=_NEAR) is None:
            return None
        return Wait(Resource(WaitKind.GIL, 0), evidence=("by the functions on its stack; the GIL could not be read",))
    evidence = f"futex {futex.address:#x} is in the GIL's {part.value} (GIL at {gil.address:#x})"
    holder = _holder(thread, gil)
    if part in (GilPart.SWITCH_COND, GilPart.SWITCH_MUTEX):
        # It has dropped the GIL on request and lets another thread take it first (FORCE_SWITCHING).
        why = "it has just offered the GIL to another thread"
    elif not gil.locked:
        why = "the GIL is free"
    elif holder:
        return _held_gil_wait(gil, holder, evidence)
    else:
        changing = thread.process.owner(gil.mutex_owner) if gil.mutex_owner is not None else None
        if not isinstance(changing, OwnerThread):
            state = f"its holder's thread state {gil.last_holder or 0:#x} belongs to no thread"
            return Wait(_gil_resource(gil), evidence=(evidence, state))
        why = f"thread {changing.tid} is just changing it"
    return Wait(_gil_resource(gil), being_released=True, evidence=(evidence, why))


def is_of_two_moments(thread: ThreadSnapshot, wait: Wait | None) -> bool:
    """The thread sleeps in the wait for the GIL, and yet has its mutex: it woke up while memory was read."""
    if not wait or wait.kind is not WaitKind.GIL or not thread.syscall or not thread.own_tid:
        return False
    return any(gil.mutex_owner == thread.own_tid for gil in thread.process.gils)


def between_gil_waits(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that runs, but only to begin its next 5 ms: it is inside take_gil or below it."""
    level = thread.first(FunctionTag.TAKES_GIL, FunctionTag.OFFERS_GIL, within=_NEAR - 2)
    if level is None:
        # The evaluation loop calls take_gil, which has no name in a stripped Python and calls only libc and vdso.
        loop = thread.first(FunctionTag.EVAL_FUNCTIONS, within=5)
        below_take_gil = {FunctionTag.CONDVAR, FunctionTag.MUTEX, FunctionTag.OFFERS_GIL}
        if not loop or FunctionTag.CONDVAR not in thread.inner_tags:
            return None
        if not all(not thread.stack.function(at) or thread.tags(at) <= below_take_gil for at in range(loop)):
            return None
    # Inside a wait for the GIL's condition: a GIL that the thread holds then, it has held before.
    on_condition = thread.first(FunctionTag.CONDVAR, within=_NEAR if level is None else level) is not None
    gils = thread.process.gils
    for gil in gils:
        holder = _holder(thread, gil)
        has_just_taken_it = holder is not None and holder[0] == thread.tid and not on_condition
        is_wanted = len(gils) == 1 or gil.mutex_owner == thread.own_tid  # several: only an address tells
        if holder and is_wanted and not has_just_taken_it:
            return _held_gil_wait(
                gil, holder, "it runs inside the function that takes the GIL, between two timed waits"
            )
    return None


def _holder(thread: ThreadSnapshot, gil: GilState) -> tuple[int, OwnerCertainty] | None:
    """(the holder's tid, the certainty): RECORDED while the GIL's fields are at rest. While a thread has the GIL's
    mutex it may be changing them, so the last holder is INFERRED, unless that very thread has the mutex."""
    if not gil.locked:
        return None
    if gil.holder_tid is not None:
        return gil.holder_tid, OwnerCertainty.RECORDED
    last = thread.process.python.tid_of_state(gil.last_holder) if gil.last_holder is not None else None
    mutex_holder = thread.process.owner(gil.mutex_owner) if gil.mutex_owner is not None else None
    if last is None or not mutex_holder or mutex_holder == OwnerThread(last):
        return None
    return last, OwnerCertainty.INFERRED


def _gil_resource(gil: GilState) -> Resource:
    return Resource(WaitKind.GIL, gil.address, f"interpreter {gil.interpreter}" if gil.interpreter else "")


def _held_gil_wait(gil: GilState, holder: tuple[int, OwnerCertainty], evidence: str) -> Wait:
    tid, certainty = holder
    state = f"the GIL is locked, its last holder is the thread state {gil.last_holder or 0:#x} of thread {tid}"
    return Wait(_gil_resource(gil), OwnerThread(tid), certainty, timed=True, evidence=(evidence, state))


def parking_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread of a free-threaded Python that is parked on anything but a lock object."""
    futex = thread.futex
    parked = thread.process.python.parked(thread.tid, futex.address) if futex else None
    if not futex or not parked:
        return None
    evidence = f"futex {futex.address:#x} is the semaphore of a thread that is parked on {parked.kind.value}"
    if parked.kind is not ParkedOn.OBJECT:
        return _world_wait(parked, evidence)
    why = "no thread is in a critical section of it"
    if parked.owners:
        why = f"thread {parked.owners[0]} is in a critical section of it"
    resource = Resource(WaitKind.OBJECT_LOCK, parked.address, parked.type_name)
    return wait_for_threads(resource, parked.owners[:1], OwnerCertainty.RECORDED, evidence, why)


def between_parkings(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that stops the world: it checks every millisecond whether the others have stopped."""
    parked = thread.process.python.stopping(thread.tid)
    return _world_wait(parked, "it has asked all other threads to stop") if parked else None


def _world_wait(parked: Parked, evidence: str) -> Wait:
    owners = parked.owners
    if parked.kind is ParkedOn.PAUSE:
        name, why = "all other threads, to stop the world", f"not stopped: {', '.join(map(str, owners))}"
    else:
        name, why = "the thread that stops the world", f"thread {owners[0]} has asked for it" if owners else ""
    resource = Resource(WaitKind.STOP_THE_WORLD, parked.address, name)
    return wait_for_threads(resource, owners, OwnerCertainty.RECORDED, evidence, *((why,) if owners else ()))
