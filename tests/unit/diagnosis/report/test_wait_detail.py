"""What is known of a wait beside its owners: the members of each situation in JSON, and the one that they are of."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.device_wait import DeviceWait, DeviceWork
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_detail import (
    NO_DETAIL,
    AbsentWorkers,
    DeviceCall,
    OtherEnd,
    OtherRanks,
    Owned,
    Polled,
    RaisedError,
    Sleep,
    Unowned,
    WaitDetail,
)
from gdbext.diagnosis.report.wait_kind import Loss, LostThread, Resource, WaitKind
from gdbext.diagnosis.waits.pool_table import MissingWorkers, Pool
from gdbext.engine.targets.system.peer import Peer, PeerKind
from gdbext.render.json_reader import from_json
from gdbext.render.plain_json import plain

SOCKET = Peer(PeerKind.SOCKET, address="node0:29500")
DEVICE = DeviceCall(DeviceWait("cudaFree", DeviceWork.MEMORY))
LOST = LostThread(("loader",), Loss.ENDED)
MISSING = MissingWorkers(Pool("pool"), forked=True)


@pytest.mark.parametrize(
    ("detail", "members"),
    [
        (NO_DETAIL, []),
        (
            OtherRanks(CollectiveWait("barrier"), DEVICE, RaisedError("OSError(28)")),
            ["collective", "device", "handling"],
        ),
        (OtherRanks(CollectiveWait("wait"), OtherEnd(SOCKET)), ["collective", "peer"]),
        (DEVICE, ["device"]),
        (OtherEnd(SOCKET), ["peer"]),
        (Unowned(LOST, "train.py:8 (step)"), ["lost", "repeated_at"]),
        (Owned("train.py:8 (step)"), ["taken_at"]),
        (Unowned(lost_signal=True), ["lost_signal"]),
        (AbsentWorkers(MISSING, Unowned(lost_signal=True)), ["missing_workers", "lost_signal"]),
        (
            Sleep(Polled(SOCKET, LOST, "a lock"), "train.py:8 (step)", RaisedError("OSError(28)")),
            ["peer", "lost", "looks_for", "repeated_at", "handling"],
        ),
    ],
    ids=lambda it: type(it).__name__ if isinstance(it, WaitDetail) else "",
)
def test_a_wait_is_read_back_with_its_detail(detail: WaitDetail, members: list[str]) -> None:
    written = plain(Wait(Resource(WaitKind.CONDVAR, 0x10), detail=detail))
    assert [*written][7:] == members
    read = from_json(Wait, written, "it").detail
    assert (type(read), read) == (type(detail), detail)


def test_only_the_absence_of_a_detail_is_false() -> None:
    assert not NO_DETAIL
    assert all((OtherEnd(), Unowned(), Owned(), Sleep(), AbsentWorkers(), DeviceCall(), OtherRanks()))
