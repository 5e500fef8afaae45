"""Waits for the GIL: by the address of its condition variable, or by the functions under which they happen.

A waiter waits 5 ms at a time and begins again, so its timeout means nothing. The address decides: take_gil has no
name in a stripped Python, and a thread may as well wait for something else under PyEval_RestoreThread.
"""

from __future__ import annotations

from gdbext.analysis.facts import Owner, Resource, Wait
from gdbext.analysis.futex import futex_wait
from gdbext.analysis.look import ThreadLook
from gdbext.cpython.gil import GilState

_NEAR = 8
"""Frames between the kernel and PyEval_RestoreThread and its like."""


def classify(thread: ThreadLook) -> Wait | None:
    """The wait of a thread that wants the GIL (or has just offered it to another thread)."""
    futex = futex_wait(thread.syscall)
    if futex is None:
        return None
    for gil in thread.process.gils:
        role = gil.role_of(futex.address)
        if role is not None:
            return _by_address(thread, gil, role, futex.address)
    if not thread.process.gils and thread.first("gil", within=_NEAR) is not None:
        return Wait(Resource("gil", 0), evidence=("by the functions on its stack; the GIL could not be read",))
    return None


def _by_address(thread: ThreadLook, gil: GilState, role: str, address: int) -> Wait:
    resource = Resource("gil", gil.address, f"interpreter {gil.interpreter}" if gil.interpreter else "")
    evidence = f"futex {address:#x} is in the GIL's {role} (GIL at {gil.address:#x})"
    if role in ("switch_cond", "switch_mutex"):
        # It has dropped the GIL on request and lets another thread take it first (FORCE_SWITCHING).
        return Wait(resource, handover=True, evidence=(evidence, "it has just offered the GIL to another thread"))
    if gil.mutex_owner is not None:
        changing = thread.process.owner(gil.mutex_owner)
        if changing is not None and changing.state == "alive":
            return Wait(resource, handover=True, evidence=(evidence, f"thread {changing.tid} is just changing it"))
    if not gil.locked:
        return Wait(resource, handover=True, evidence=(evidence, "the GIL is free"))
    if gil.holder is None:
        return Wait(resource, evidence=(evidence, "it is locked, and its holder is not recorded"))
    if gil.holder_tid is None:
        return Wait(resource, evidence=(evidence, f"its holder's thread state {gil.holder:#x} belongs to no thread"))
    told = f"the GIL is locked, its last holder is the thread state {gil.holder:#x} of thread {gil.holder_tid}"
    return Wait(resource, Owner(gil.holder_tid), "recorded", timed=True, evidence=(evidence, told))
