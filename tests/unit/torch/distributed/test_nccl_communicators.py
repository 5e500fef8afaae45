"""NCCL's communicators in a made memory, laid out as each measured release has them, and every way to be torn."""

from __future__ import annotations

import struct
from functools import partial

import pytest

from gdbext.engine.process.memory import Memory
from gdbext.tools.collectives import communicator_lines
from gdbext.torch.distributed.nccl_communicators import (
    Communicator,
    CommunicatorReader,
    NcclRelease,
    ProxyTransfer,
    TransferWait,
    release_of,
)
from support.fakes.fake_target import FakeTarget

RELEASES = ("2.20.5", "2.21.5", "2.26.2", "2.27.5", "2.30.7")
"""The oldest and the newest, and those whose structures differ in more than offsets."""
GROUP, BUCKETS, NODE, KEEPER, COMM, PROXY, FLAG = (0x10000000 * each for each in range(1, 8))
OPERATIONS, CONNECTIONS = 0x90000000, 0xA0000000
MARK, PAGE = 0x0280028002800280, 0x1000
FORMS = dict.fromkeys(("startMagic", "endMagic", "opCount", "abortFlag", "proxyState", "active", "next"), "<Q")
FORMS |= dict.fromkeys(("connection", "posted", "received", "flushed", "transmitted", "done"), "<Q")
FORMS |= {"pattern": "<B", "coll": "<B"}
RING, ALL_REDUCE, NET = 0, 4, 2


class Process:
    """The memory of a process with one group of one communicator, rank 1 of 4."""

    def __init__(self, version: str, **comm: int) -> None:
        found = release_of(version)
        assert found is not None
        self.release: NcclRelease = found
        self.regions: dict[int, bytearray] = {}
        self.words(GROUP, 40, {20: BUCKETS, 21: 1, 22: NODE, 23: 1})
        self.words(NODE, 12, {1: NODE + 24, 5: KEEPER})  # a short key's text is in the node itself
        self.words(KEEPER, 80, {33: COMM})
        self.words(FLAG, 1, {})
        marks = {"startMagic": MARK, "endMagic": MARK} if "startMagic" in found.structs["ncclComm"] else {}
        values = {"rank": 1, "nRanks": 4, "cudaDev": 3, "opCount": 41, "abortFlag": FLAG, "proxyState": PROXY}
        self.put("ncclComm", COMM, {**marks, **values, **comm})
        self.put("ncclProxyState", PROXY, {"refCount": 1, "abortFlag": FLAG}, size=4096)

    def words(self, address: int, count: int, values: dict[int, int]) -> None:
        raw = self.regions[address] = bytearray(max(8 * count, PAGE))
        for at, value in values.items():
            struct.pack_into("<Q", raw, 8 * at, value)

    def put(self, kind: str, address: int, values: dict[str, int], size: int = 0, at: int = 0) -> None:
        places = self.release.structs[kind]
        raw = self.regions.setdefault(address, bytearray(-(-(size or max(places.values()) + 8) // PAGE) * PAGE))
        for name, value in values.items():
            if name in places:
                struct.pack_into(FORMS.get(name, "<i"), raw, at + places[name], value)

    def operation(self, number: int, parts: list[dict[str, int]], following: int = 0, **values: int) -> None:
        """Operation ``number`` of the proxy's list; the first is made the active one."""
        address = OPERATIONS + number * 0x100000
        size = max(self.release.structs["ncclProxyArgs"].values()) + 8
        given = {"nsubs": len(parts), "pattern": RING, "coll": ALL_REDUCE, "state": 2, "next": following, **values}
        self.put("ncclProxyArgs", address, given, size=size)
        for index, part in enumerate(parts):
            connection = CONNECTIONS + number * 0x10000 + index * 0x1000
            way = {"send": part.pop("send"), "transport": part.pop("transport", NET)}
            self.put("ncclProxyConnection", connection, way)
            sub = {"connection": connection, "rank": 1, **part}
            self.put("ncclProxySubArgs", address, sub, size=size, at=index * self.release.sub_size)
        if number == 0:
            at = self.release.structs["ncclProxyState"]["progressState"]
            self.put("ncclProxyProgressState", PROXY, {"active": address}, at=at)

    def reader(self) -> CommunicatorReader:
        regions = {start: bytes(raw) for start, raw in self.regions.items()}
        return CommunicatorReader(Memory(FakeTarget(regions)), self.release)

    def found(self) -> Communicator:
        (found,) = self.reader().of_group(GROUP, 1, 4)
        return found


receiving = partial(dict, send=0, channelId=1, nsteps=8, peer=2)
sending = partial(dict, send=1, channelId=0, nsteps=8, peer=3)


@pytest.mark.parametrize("version", RELEASES)
def test_a_communicator_of_each_release(version: str) -> None:
    process = Process(version, asyncResult=6, initState=7, finalizeCalled=1)
    process.words(FLAG, 1, {0: 1})
    process.operation(0, [receiving(posted=3, received=1, transmitted=1, done=1), sending(posted=8, transmitted=8)])
    found = process.found()
    assert found[:7] == (COMM, version, 1, 4, 3, 41, True)
    assert (found.error, found.setup, found.finalized) == ("remote error", "in progress", True)
    receives, sends = found.transfers
    ends = (2, 3) if tuple(map(int, version.split("."))) >= (2, 23) else (None, None)
    assert receives == ProxyTransfer("all_reduce", False, "net", 1, ends[0], 8, 3, 1, 0, 1, 1, TransferWait.PEER)
    assert sends == ProxyTransfer("all_reduce", True, "net", 0, ends[1], 8, 8, 0, 0, 8, 0, TransferWait.PEER)


def test_the_peer_of_a_send_before_2_23_and_no_guess_at_other_releases() -> None:
    """``sub->peer`` is the operation's root there, which of a send or a recv is the other end."""
    assert [release_of(each) for each in ("2.27.4", "2.31.2", "")] == [None, None, None]
    process = Process("2.21.5")
    process.operation(0, [receiving(posted=3)], pattern=process.release.transfers[1], coll=7)
    (transfer,) = process.found().transfers
    assert (transfer.operation, transfer.peer) == ("recv", 2)


@pytest.mark.parametrize(
    ("part", "wait"),
    [
        (receiving(posted=3, received=1, transmitted=1, done=1), TransferWait.PEER),
        (receiving(posted=5, received=4, transmitted=3, done=2), TransferWait.DEVICE),
        (receiving(posted=5, received=4, transmitted=3, done=3), TransferWait.FLUSH),
        (receiving(posted=3, received=3, transmitted=3, done=3), TransferWait.PROXY),
        (sending(posted=4, transmitted=4, done=2), TransferWait.PEER),
        (sending(posted=4, transmitted=2, done=2), TransferWait.DEVICE),
        (sending(posted=2, transmitted=2, done=2), TransferWait.PROXY),
        (receiving(posted=3, transport=1), TransferWait.UNKNOWN),
    ],
)
def test_what_the_oldest_step_waits_for(part: dict[str, int], wait: TransferWait) -> None:
    process = Process("2.27.5")
    process.operation(0, [part])
    assert [each.waits_for for each in process.found().transfers] == [wait]


def test_what_is_done_or_not_begun() -> None:
    process = Process("2.27.5")
    process.operation(0, [sending(posted=8, transmitted=8, done=8)], following=OPERATIONS + 0x100000)
    process.operation(1, [sending(posted=77, done=99)], state=1)  # left of an earlier one
    (transfer,) = process.found().transfers
    assert (transfer.waits_for, transfer.posted, transfer.done) == (TransferWait.BEGIN, 0, 0)


def test_peers_of_another_communicator_are_not_named_and_words() -> None:
    process = Process("2.27.5")
    process.operation(0, [receiving(posted=3), receiving(posted=3, rank=2), receiving(posted=3, peer=4)])
    assert [each.peer for each in process.found().transfers] == [2, None, None]
    process.put("ncclProxyState", PROXY, {"refCount": 2})
    assert [each.peer for each in process.found().transfers] == [None, None, None]
    process = Process("2.27.5")
    process.operation(0, [receiving(posted=3, received=1, transmitted=1, done=1)])
    assert list(communicator_lines(process.found())) == [
        "  NCCL 2.27.5: rank 1 of 4 on cuda:3, 41 launches; no error",
        "    all_reduce, channel 1, receives from rank 2 over net, 8 steps: posted 3, received 1, transmitted 1, "
        "done 1; waits for rank 2 to send",
    ]


@pytest.mark.parametrize("version", ["2.20.5", "2.27.5"])
@pytest.mark.parametrize(
    "torn", [{"rank": 0}, {"nRanks": 5}, {"startMagic": 0, "abortFlag": 8}, {"endMagic": 1, "proxyState": 8}]
)
def test_what_is_no_communicator_of_the_group(version: str, torn: dict[str, int]) -> None:
    process = Process(version, **torn)
    assert process.reader().of_group(GROUP, 1, 4) == process.reader().of_group(0x33330000, 1, 4) == ()
    process.words(GROUP, 256, dict.fromkeys(range(256), GROUP))  # each word may be a table
    assert process.reader().of_group(GROUP, 1, 4) == ()


@pytest.mark.parametrize(
    "tear", [{"following": OPERATIONS}, {"nsubs": 65}, {"state": 9}, {"received": 2}, {}, {"following": 0xDEAD0000}]
)
def test_a_torn_proxy_costs_its_transfers_and_is_said(tear: dict[str, int]) -> None:
    """A cycle, too many parts, no state, backwards, no connection, a pointer to nowhere."""
    process = Process("2.27.5")
    process.operation(0, [receiving(posted=1, received=tear.get("received", 0))], **tear)
    if not tear:
        del process.regions[CONNECTIONS]
    reader = process.reader()
    (found,) = reader.of_group(GROUP, 1, 4)
    assert (found.rank, found.launches, found.transfers) == (1, 41, ())
    assert len(reader.problems) == 1
