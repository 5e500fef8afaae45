"""NCCL's communicators in host memory: how far each came, and at which peer and channel its proxy's transfers stand.

Source: NCCL's src/include/comm.h (``ncclComm``) and proxy.h, src/transport/net.cc (which counter of a transfer follows
which), src/proxy.cc (``sub->peer``, which was the operation's root before 2.23), 2.20 to 2.30. Where members lie is
data of each release (engine/layouts/data, nccl.json); of another release nothing is said.

torch's ``NCCLComm`` keeps the communicator; where in it is not needed: of what a ProcessGroupNCCL's hash tables point
to, that is a communicator which has NCCL's two marks at its ends and is the group's rank of the group's size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.layouts import store
from gdbext.engine.layouts.declarations import I32, U8, U32, U64, Flag, OffsetShapes, Place, Space, Struct
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, GdbextError

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Count, Hexadecimal

_MARK = 0x0280028002800280
"""NCCL_MAGIC of comm.h, at both ends since 2.21."""
_RESULTS = (
    "",
    "unhandled CUDA error",
    "system error",
    "internal error",
    "invalid argument",
    "invalid usage",
    "remote error",
    "in progress",
    "timeout",
)
"""``ncclResult_t`` (nccl.h), its values in words."""
_OPERATIONS = (
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "send_recv",
    "send",
    "recv",
    "all_to_all",
    "scatter",
    "gather",
)
"""``ncclFunc_t`` (nccl_common.h), the last three since 2.28."""
_TRANSPORTS = ("p2p", "shm", "net", "collnet")
_NETWORK = 2
_WAITS, _GOES_ON = 1, 2
"""``ncclProxyOpState`` of an operation: ready, in progress."""
_MOST_RANKS, _MOST_DEVICES, _MOST_STEPS = 1 << 24, 1 << 12, 1 << 31
_MOST_OPERATIONS, _MOST_TRANSFERS = 1024, 256
_GROUP, _NODE, _KEEPER = 256, 12, 80
"""Words of a process group, of a node of a hash table, and of torch's NCCLComm, among which pointers are looked for."""
_MOST_NODES, _MOST_BUCKETS, _MOST_CANDIDATES = 64, 1 << 16, 4096
_LOWEST, _PAGE = 0x10000, 0x1000


class CommStruct(Struct, of="ncclComm", cpp=""):
    """A communicator of NCCL, one rank's."""

    startMagic = U64()
    rank = I32()
    nRanks = I32()
    cudaDev = I32()
    opCount = U64()
    asyncResult = U32()
    abortFlag = U64()
    proxyState = U64()
    initState = U32()
    finalizeCalled = Flag()
    endMagic = U64()


class ProxyStruct(Struct, of="ncclProxyState", cpp=""):
    """The state that its proxy's threads share."""

    refCount = I32()
    abortFlag = U64()
    asyncResult = U32()
    progressState = Place()


class ProgressStruct(Struct, of="ncclProxyProgressState", cpp=""):
    """The list of operations that the progress thread works on."""

    active = U64()


class OperationStruct(Struct, of="ncclProxyArgs", cpp=""):
    """One of them, with its transfers in front."""

    nsubs = I32()
    pattern = U8()
    coll = U8()
    state = U32()
    next = U64()


class TransferStruct(Struct, of="ncclProxySubArgs", cpp=""):
    """The part of an operation that one channel has with one peer."""

    connection = U64()
    channelId = I32()
    nsteps = I32()
    peer = I32()
    rank = I32()
    posted = U64()
    received = U64()
    flushed = U64()
    transmitted = U64()
    done = U64()


class ConnectionStruct(Struct, of="ncclProxyConnection", cpp=""):
    """The connection that a transfer goes over."""

    send = I32()
    transport = I32()


class TransferWait(Enum):
    """The thing that the oldest step of a transfer waits for."""

    BEGIN = "begin"
    """The progress thread has not begun it."""
    PEER = "peer"
    """The network: data from the peer, or that the peer takes what was sent."""
    DEVICE = "device"
    """The process's own device: it has not written what is to be sent, or not taken what has come."""
    FLUSH = "flush"
    """The device's memory: what has come is not seen to be there yet."""
    PROXY = "proxy"
    """The progress thread, which has not posted the next step."""
    UNKNOWN = "unknown"
    """Not a network's transfer: its counters mean other things."""


class ProxyTransfer(NamedTuple):
    """One transfer that is not done. The numbers are steps, of which ``steps`` are to be done."""

    operation: str
    """``all_reduce``; "" where it is not known."""
    is_send: bool
    transport: str
    """``net``, ``shm``, ``p2p``, ``collnet``; "" where it is another."""
    channel: int
    peer: Count | None
    """The other end's rank in the communicator; None where that is not kept, or not of this communicator."""
    steps: int
    posted: int
    received: int
    flushed: int
    transmitted: int
    done: int
    waits_for: TransferWait


class Communicator(NamedTuple):
    """One communicator of this process. What is None could not be read."""

    address: Hexadecimal
    version: str
    """The release of NCCL, as its library says it."""
    rank: int
    size: int
    device: int
    launches: int
    """Kernels that were launched for it; whether they ran is not known."""
    aborted: bool | None
    error: str
    """Its asynchronous error, or its proxy's; "" for none."""
    setup: str
    """The state of its making: "" where it is made, ``in progress``, or the error."""
    finalized: bool
    transfers: tuple[ProxyTransfer, ...] = ()
    """Those of its proxy that are not done."""


class NcclRelease(NamedTuple):
    """The places of the members in one release."""

    version: str
    structs: Mapping[str, Mapping[str, int]]
    sub_size: int
    most_subs: int
    transfers: tuple[int, ...]
    """``ncclPattern_t`` of a send and of a recv."""
    names_peers: bool


def release_of(version: str, architecture: str = "") -> NcclRelease | None:
    """That release as it was measured; None where it was not. Raises LayoutError: the data is damaged."""
    row = store.nccl_release(version, store.data_of(architecture) if architecture else store.DATA)
    if row is None:
        return None
    return NcclRelease(
        version, row["structs"], row["sub_size"], row["most_subs"], tuple(row["transfers"]), row["names_peers"]
    )


class CommunicatorReader:
    """Reads those of one process; nothing that it finds there is trusted. ``problems``: what could not be read."""

    def __init__(self, memory: Memory, release: NcclRelease) -> None:
        self._memory = memory
        self._release = release
        self._space = Space(memory, OffsetShapes(release.structs))
        self.problems: list[GdbextError] = []

    def of_group(self, address: int, rank: int, size: int) -> tuple[Communicator, ...]:
        """The communicators that a ProcessGroupNCCL at ``address`` keeps, which is that rank of so many."""
        found = [each for each in self._candidates(address) if self._is_one(each, rank, size)]
        return tuple(each for each in map(self._read_guarded, found) if each)

    def read(self, address: int) -> Communicator:
        """The communicator there. Raises BadData where its numbers do not go together, MemoryFault."""
        comm = CommStruct(self._space, address)
        rank, size, device = comm.rank, comm.nRanks, comm.cudaDev
        if not 0 <= rank < size <= _MOST_RANKS or not 0 <= device < _MOST_DEVICES:
            raise BadData(f"NCCL's communicator at {address:#x} says that it is rank {rank} of {size} on {device}")
        found = Communicator(
            address,
            self._release.version,
            rank,
            size,
            device,
            comm.opCount,
            self._flag(comm.abortFlag),
            _result(comm.asyncResult),
            _result(comm.initState),
            comm.finalizeCalled,
        )
        proxy = ProxyStruct(self._space, comm.proxyState)
        if not proxy.address:
            return found
        try:
            failed = found.error or _result(proxy.asyncResult)
            return found._replace(error=failed, transfers=tuple(self._transfers(proxy, rank, size)))
        except GdbextError as error:
            self.problems.append(error)
            return found

    def _read_guarded(self, address: int) -> Communicator | None:
        try:
            return self.read(address)
        except GdbextError as error:
            self.problems.append(error)
            return None

    def _flag(self, address: int) -> bool | None:
        raw = self._memory.try_read(address, 4) if address else b""
        return any(raw) if raw else None

    def _candidates(self, group: int) -> Iterator[int]:
        """Addresses that a communicator may have: what objects in the group's hash tables point to."""
        seen: set[int] = set()
        keepers: set[int] = set()  # apart: a key's text lies in the node, and leads to what keeps the communicator, too
        for node in self._nodes(group):
            for keeper in self._pointers(node + 8, _NODE - 1, keepers):
                yield from self._pointers(keeper, _KEEPER, seen)
                if len(seen) > _MOST_CANDIDATES:
                    return

    def _nodes(self, group: int) -> Iterator[int]:
        """The elements of what may be a ``std::unordered_map``: buckets, their number, the first element, how many."""
        words = self._words(group, _GROUP)
        for buckets, count, first, size in zip(words, words[1:], words[2:], words[3:]):
            if not (_is_pointer(buckets) and _is_pointer(first) and 0 < count < _MOST_BUCKETS):
                continue
            for _ in range(min(size, _MOST_NODES)):
                if not _is_pointer(first):
                    break
                yield first
                first = self._memory.try_u64(first) or 0

    def _pointers(self, address: int, count: int, seen: set[int]) -> Iterator[int]:
        for word in self._words(address, count):
            if _is_pointer(word) and word not in seen:
                seen.add(word)
                yield word

    def _words(self, address: int, most: int) -> tuple[int, ...]:
        """The words there; where its page is the last that can be read, those of that page."""
        for count in (most, min(most, (_PAGE - address % _PAGE) // 8)):
            raw = self._memory.try_read(address, 8 * count)
            if raw:
                return struct.unpack(f"<{count}Q", raw)
        return ()

    def _is_one(self, address: int, rank: int, size: int) -> bool:
        """It has the marks of a communicator, and is of that rank and size. 2.20 has no marks: there the proxy's state
        has to have the same flag to abort."""
        comm = CommStruct(self._space, address)
        try:
            if comm.has(CommStruct.startMagic) and (comm.startMagic, comm.endMagic) != (_MARK, _MARK):
                return False
            if (comm.rank, comm.nRanks) != (rank, size):
                return False
            if comm.has(CommStruct.startMagic):
                return True
            flag = comm.abortFlag
            return _is_pointer(flag) and ProxyStruct(self._space, comm.proxyState).abortFlag == flag
        except GdbextError:
            return False

    def _transfers(self, proxy: ProxyStruct, rank: int, size: int) -> Iterator[ProxyTransfer]:
        """Those that are not done, of the operations that the progress thread works on. Raises BadData, MemoryFault."""
        shared = proxy.refCount != 1
        address, found = ProgressStruct(self._space, proxy.place(ProxyStruct.progressState)).active, 0
        seen: set[int] = set()
        while address and len(seen) < _MOST_OPERATIONS:
            if address in seen:
                raise BadData(f"the list of what NCCL's proxy works on comes back to {address:#x}")
            seen.add(address)
            operation = OperationStruct(self._space, address)
            for each in self._parts(operation):
                transfer = self._transfer(operation, each, None if shared else rank, size)
                if transfer:
                    yield transfer
                    found += 1
                if found >= _MOST_TRANSFERS:
                    return
            address = operation.next

    def _parts(self, operation: OperationStruct) -> Iterator[TransferStruct]:
        count, state = operation.nsubs, operation.state
        if not 0 < count <= self._release.most_subs or state not in (_WAITS, _GOES_ON):
            raise BadData(f"NCCL's proxy has an operation at {operation.address:#x} with {count} parts, state {state}")
        for index in range(count):
            yield TransferStruct(self._space, operation.address + index * self._release.sub_size)

    def _transfer(
        self, operation: OperationStruct, part: TransferStruct, own: int | None, size: int
    ) -> ProxyTransfer | None:
        """None where it is done. ``own``: the communicator's rank, None where others share the proxy."""
        connection = ConnectionStruct(self._space, part.connection)
        is_send, transport = connection.send, connection.transport
        if is_send not in (0, 1) or not 0 <= part.nsteps < _MOST_STEPS or not 0 <= part.channelId < _MOST_DEVICES:
            raise BadData(f"NCCL's proxy has a transfer at {part.address:#x} that makes no sense")
        begun = operation.state == _GOES_ON
        counters = (part.posted, part.received, part.flushed, part.transmitted, part.done) if begun else (0,) * 5
        waits = _waits_for(bool(is_send), counters) if transport == _NETWORK else TransferWait.UNKNOWN
        if begun and counters[-1] >= part.nsteps:
            return None
        if begun and not waits:
            raise BadData(f"the steps of NCCL's transfer at {part.address:#x} do not go together: {counters}")
        coll = operation.coll
        return ProxyTransfer(
            _OPERATIONS[coll] if coll < len(_OPERATIONS) else "",
            bool(is_send),
            _TRANSPORTS[transport] if 0 <= transport < len(_TRANSPORTS) else "",
            part.channelId,
            self._peer(operation, part, own, size),
            part.nsteps,
            *counters,
            (waits or TransferWait.UNKNOWN) if begun else TransferWait.BEGIN,
        )

    def _peer(self, operation: OperationStruct, part: TransferStruct, own: int | None, size: int) -> int | None:
        """The other end. Ranks are of the communicator that the operation is of: of one that others share, or on whose
        behalf another rank's proxy works, nobody knows which."""
        if own is None or (part.has(TransferStruct.rank) and part.rank != own):
            return None
        if not self._release.names_peers and operation.pattern not in self._release.transfers:
            return None  # it is the operation's root there
        peer = part.peer
        return peer if 0 <= peer < size else None


def _waits_for(is_send: bool, counters: tuple[int, ...]) -> TransferWait | None:
    """Tell what the oldest step that is not done waits for (net.cc); None where the counters do not go together."""
    posted, received, _flushed, transmitted, done = counters
    if not done <= transmitted <= posted < _MOST_STEPS or not (is_send or transmitted <= received <= posted):
        return None
    at_end = transmitted if is_send else received
    steps = (
        (done < transmitted, TransferWait.PEER if is_send else TransferWait.DEVICE),
        (transmitted < at_end, TransferWait.FLUSH),
        (at_end < posted, TransferWait.DEVICE if is_send else TransferWait.PEER),
    )
    return next((wait for holds, wait in steps if holds), TransferWait.PROXY)


def _is_pointer(word: int) -> bool:
    """It may be the address of an object on the heap."""
    return _LOWEST <= word < 1 << 47 and not word & 7


def _result(value: int) -> str:
    return _RESULTS[value] if value < len(_RESULTS) else f"result {value}"
