"""Short ways to write down threads and steps for the tests of the analysis."""

from __future__ import annotations

from gdbext.model.facts import DispatchFrame, DispatchKeySet, Kernel, Owner, Resource, ThreadReport, Wait


def wait(kind, owner=None, address=0x1000, state="alive", certainty=None, others=(), **more):
    known = Owner(owner, state) if owner is not None else None
    certainty = certainty or ("recorded" if known else "unknown")
    return Wait(Resource(kind, address, more.pop("name", "")), known, certainty,
                others=tuple(Owner(tid) for tid in others), **more)  # fmt: skip


def thread(tid, waits=None, dispatch=(), state=None, **more):
    state = state or ("waiting" if waits else "running")
    return ThreadReport(tid, wait=waits, dispatch=tuple(dispatch), state=state, **more)


def step(op, level=0, bits=None, key="CPU", event="call", kernel="k", stage="in-kernel"):
    keyset = DispatchKeySet(bits, (f"K{bits:x}",)) if bits is not None else None
    return DispatchFrame(level, event, op, "", keyset, key, None, Kernel(kernel) if kernel else None, stage, "exact")
