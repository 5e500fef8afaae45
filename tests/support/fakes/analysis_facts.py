"""Short ways to write down threads and steps for the tests of the analysis."""

from __future__ import annotations

from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, VanishedThread, Wait
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.torch.stack import DispatchEvent, DispatchFrame, DispatchKeySet, DispatchStage, Kernel


def wait(kind, owner=None, address=0x1000, gone=False, certainty=None, others=(), **more):
    known = None if owner is None else VanishedThread(owner) if gone else OwnerThread(owner)
    certainty = certainty or (OwnerCertainty.RECORDED if known else OwnerCertainty.UNKNOWN)
    return Wait(
        Resource(WaitKind(kind), address, more.pop("name", "")),
        known,
        certainty,
        others=tuple(OwnerThread(tid) for tid in others),
        **more,
    )


def thread(tid, waits=None, dispatch=(), state=None, **more):
    state = state or (RunState.WAITING if waits else RunState.RUNNING)
    return ThreadReport(tid, wait=waits, dispatch=tuple(dispatch), state=state, **more)


def step(op, level=0, bits=None, key="CPU", event="call", kernel="k", stage=DispatchStage.IN_KERNEL):
    keyset = DispatchKeySet(bits, (f"K{bits:x}",)) if bits is not None else None
    entry = Kernel(kernel) if kernel else None
    return DispatchFrame(level, DispatchEvent(event), op, "", keyset, key, None, entry, stage, OwnerCertainty.RECORDED)
