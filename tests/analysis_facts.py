"""Short ways to write down threads and steps for the tests of the analysis."""

from __future__ import annotations

from gdbext.analysis.facts import KernelFact, KeysetFact, Owner, Resource, Step, ThreadFacts, Wait


def wait(kind, owner=None, address=0x1000, state="alive", certainty=None, others=(), **more):
    known = Owner(owner, state) if owner is not None else None
    certainty = certainty or ("recorded" if known else "unknown")
    return Wait(Resource(kind, address, more.pop("name", "")), known, certainty,
                others=tuple(Owner(tid) for tid in others), **more)  # fmt: skip


def thread(tid, waits=None, dispatch=(), state=None, **more):
    state = state or ("waiting" if waits else "running")
    return ThreadFacts(tid, wait=waits, dispatch=tuple(dispatch), state=state, **more)


def step(op, level=0, bits=None, key="CPU", event="call", kernel="k", stage="in-kernel"):
    keyset = KeysetFact(bits, (f"K{bits:x}",)) if bits is not None else None
    return Step(level, event, op, "", keyset, key, None, KernelFact(kernel) if kernel else None, stage, "exact")
