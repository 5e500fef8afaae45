"""Short ways to write down threads and steps for the tests of the analysis."""

from __future__ import annotations

from gdbext.model.certainty import Certainty
from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.model.dispatch.dispatch_frame import DispatchFrame, DispatchKeySet, DispatchStage, Kernel
from gdbext.model.threads.thread_report import RunState, ThreadReport
from gdbext.model.threads.wait import Owner, Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind


def wait(kind, owner=None, address=0x1000, gone=False, certainty=None, others=(), **more):
    known = Owner(owner, gone=gone) if owner is not None else None
    certainty = certainty or (Certainty.EXACT if known else Certainty.UNKNOWN)
    return Wait(Resource(WaitKind(kind), address, more.pop("name", "")), known, certainty,
                others=tuple(Owner(tid) for tid in others), **more)  # fmt: skip


def thread(tid, waits=None, dispatch=(), state=None, **more):
    state = state or (RunState.WAITING if waits else RunState.RUNNING)
    return ThreadReport(tid, wait=waits, dispatch=tuple(dispatch), state=state, **more)


def step(op, level=0, bits=None, key="CPU", event="call", kernel="k", stage=DispatchStage.IN_KERNEL):
    keyset = DispatchKeySet(bits, (f"K{bits:x}",)) if bits is not None else None
    entry = Kernel(kernel) if kernel else None
    return DispatchFrame(level, DispatchEvent(event), op, "", keyset, key, None, entry, stage, Certainty.EXACT)
