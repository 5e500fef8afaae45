"""Waits of free-threaded Pythons: for the lock of an object, and for threads that stop the world or have to stop.

They are known by what the thread is parked on. Lock objects are in python_waits.py.
"""

from __future__ import annotations

from gdbext.cpython.sync.parking import Parked, ParkedOn
from gdbext.model.certainty import Certainty
from gdbext.model.threads.wait import Owner, Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.waits.futex import futex_wait
from gdbext.waits.snapshot import ThreadSnapshot

_NAMES = {
    ParkedOn.PAUSE: "all other threads, to stop the world",
    ParkedOn.RESUMPTION: "the thread that stops the world",
}


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that is parked on anything but a lock object."""
    futex, python = futex_wait(thread.syscall), thread.process.python
    if futex is None or python is None:
        return None
    parked = python.parked(thread.tid, futex.address)
    if parked is None:
        return None
    evidence = f"futex {futex.address:#x} is the semaphore of a thread that is parked on {parked.kind.value}"
    if parked.kind is ParkedOn.OBJECT:
        return _for_object(parked, evidence)
    return _for_world(parked, evidence)


def between_waits(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that stops the world: it looks every millisecond whether the others have stopped."""
    python = thread.process.python
    parked = python.stopping(thread.tid) if python is not None else None
    return None if parked is None else _for_world(parked, "it has asked all other threads to stop")


def _for_object(parked: Parked, evidence: str) -> Wait:
    resource = Resource(WaitKind.OBJECT_LOCK, parked.address, parked.type_name)
    if not parked.owners:
        return Wait(resource, evidence=(evidence, "no thread is in a critical section of it"))
    why = f"thread {parked.owners[0]} is in a critical section of it"
    return Wait(resource, Owner(parked.owners[0]), Certainty.EXACT, evidence=(evidence, why))


def _for_world(parked: Parked, evidence: str) -> Wait:
    resource = Resource(WaitKind.STOP_THE_WORLD, parked.address, _NAMES[parked.kind])
    owners = tuple(map(Owner, parked.owners))
    if not owners:
        return Wait(resource, evidence=(evidence,))
    if parked.kind is ParkedOn.PAUSE:
        why = f"not stopped: {', '.join(str(owner.tid) for owner in owners)}"
    else:
        why = f"thread {owners[0].tid} has asked for it"
    return Wait(resource, owners[0], Certainty.EXACT, evidence=(evidence, why), others=owners[1:])
