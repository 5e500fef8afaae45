"""Reads NCCL's communicators in host memory: their progress, and each transfer of their proxies.

Source: NCCL's src/include/comm.h (``ncclComm``) and proxy.h, src/transport/net.cc (which counter of a transfer follows
which), src/proxy.cc (``sub->peer``, which was the operation's root before 2.23), 2.20 to 2.30. The offsets of members
are data of each release (engine/layouts/data, nccl.json); other releases are not read.

A communicator is found without the offsets of torch's ``NCCLComm``: among the objects that the hash tables of a
ProcessGroupNCCL lead to, it has NCCL's marks at both ends, and the group's rank and size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
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
    *("", "unhandled CUDA error", "system error", "internal error", "invalid argument", "invalid usage"),
    *("remote error", "in progress", "timeout"),
)
"""``ncclResult_t`` (nccl.h), its values in words."""
_OPERATIONS = (
    *("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce", "send_recv", "send", "recv"),
    *("all_to_all", "scatter", "gather"),
)
"""``ncclFunc_t`` (nccl_common.h), the last three since 2.28."""
_TRANSPORTS = ("p2p", "shm", "net", "collnet")
_NETWORK = 2
_READY, _IN_PROGRESS = 1, 2
"""``ncclProxyOpState`` of an operation."""
_MAX_RANKS, _MAX_DEVICES, _MAX_STEPS = 1 << 24, 1 << 12, 1 << 31
_MAX_OPERATIONS, _MAX_TRANSFERS = 1024, 256
_GROUP_WORDS, _NODE_WORDS, _NCCLCOMM_WORDS = 256, 12, 80
"""Words of a process group, of a node of a hash table, and of torch's NCCLComm, that are searched for pointers."""
_MAX_NODES, _MAX_BUCKETS, _MAX_CANDIDATES = 64, 1 << 16, 4096
_PAGE = 0x1000


class CommStruct(Struct, of="ncclComm", cpp=""):
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
    refCount = I32()
    abortFlag = U64()
    asyncResult = U32()
    progressState = Place()


class ProgressStruct(Struct, of="ncclProxyProgressState", cpp=""):
    active = U64()


class OperationStruct(Struct, of="ncclProxyArgs", cpp=""):
    """An operation that the progress thread works on, with its transfers first."""

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
    send = I32()
    transport = I32()


class TransferWait(Enum):
    """The thing that the oldest step of a transfer waits for."""

    BEGIN = "begin"
    """The progress thread, to begin it."""
    PEER = "peer"
    """The network: data from the peer, or the peer's receipt of sent data."""
    DEVICE = "device"
    """The process's own GPU, to write data to be sent, or to take received data."""
    FLUSH = "flush"
    """The GPU's memory, where received data is not visible yet."""
    PROXY = "proxy"
    """The progress thread, to post the next step."""
    UNKNOWN = "unknown"
    """Not a network's transfer: its counters mean other things."""


class ProxyTransfer(NamedTuple):
    """One transfer that is not done. ``posted`` to ``done`` count steps, of ``steps`` in total."""

    operation: str
    """``all_reduce``; "" if unknown."""
    is_send: bool
    transport: str
    """``net``, ``shm``, ``p2p``, ``collnet``; "" for another one."""
    channel: int
    peer: Count | None
    """The other end's rank in the communicator; None if that is not kept, or not of this communicator."""
    steps: int
    posted: int
    received: int
    flushed: int
    transmitted: int
    done: int
    waits_for: TransferWait


class Communicator(NamedTuple):
    """One communicator of this process. A value of None could not be read."""

    address: Hexadecimal
    version: str
    """The release of NCCL, as its library states it."""
    rank: int
    size: int
    device: int
    launches: int
    """Kernels that were launched for it; they may not have run."""
    aborted: bool | None
    error: str
    """Its asynchronous error, or its proxy's; "" for none."""
    setup: str
    """The state of its initialization: "" if complete, ``in progress``, or the error."""
    finalized: bool
    transfers: tuple[ProxyTransfer, ...] = ()
    """The transfers of its proxy that are not done."""


class NcclRelease(NamedTuple):
    """The layout of one release of NCCL (nccl.json)."""

    version: str
    structs: Mapping[str, Mapping[str, int]]
    """Structure → member → offset in bytes."""
    sub_size: int
    """``sizeof(ncclProxySubArgs)``."""
    most_subs: int
    """Transfers of an operation, at most."""
    transfers: Sequence[int]
    """``ncclPattern_t`` of a send and of a recv."""
    names_peers: bool
    """``sub->peer`` is the peer of any operation; before 2.23 it is the root unless the operation is a transfer."""


def release_of(version: str, architecture: str = "") -> NcclRelease | None:
    """The layout of that release of NCCL ("2.21.5") for an architecture (default: this machine's); None if it was not
    measured. Raises LayoutError: the data is damaged."""
    row = store.nccl_release(version, store.data_of(architecture) if architecture else store.DATA)
    return None if row is None else NcclRelease(version, *(row[field] for field in NcclRelease._fields[1:]))


class CommunicatorReader:
    """Reads the communicators of one process; all numbers are checked. ``problems`` are failed reads."""

    def __init__(self, memory: Memory, release: NcclRelease) -> None:
        self._memory = memory
        self._release = release
        self._space = Space(memory, OffsetShapes(release.structs))
        self.problems: list[GdbextError] = []

    def of_group(self, address: int, rank: int, size: int) -> tuple[Communicator, ...]:
        """The communicators of the ProcessGroupNCCL at ``address``, which has this rank and size."""
        communicators = []
        for candidate in self._candidates(address):
            if self._is_communicator(candidate, rank, size):
                try:
                    communicators.append(self.read(candidate))
                except GdbextError as error:
                    self.problems.append(error)
        return tuple(communicators)

    def read(self, address: int) -> Communicator:
        """The communicator at an address. Raises BadData if its numbers contradict each other, MemoryFault."""
        comm = CommStruct(self._space, address)
        rank, size, device = comm.rank, comm.nRanks, comm.cudaDev
        if not 0 <= rank < size <= _MAX_RANKS or not 0 <= device < _MAX_DEVICES:
            raise BadData(f"NCCL's communicator at {address:#x} claims to be rank {rank} of {size} on {device}")
        abort = self._memory.try_read(comm.abortFlag, 4) if comm.abortFlag else b""
        communicator = Communicator(
            address,
            self._release.version,
            rank,
            size,
            device,
            comm.opCount,
            any(abort) if abort else None,
            _result(comm.asyncResult),
            _result(comm.initState),
            comm.finalizeCalled,
        )
        proxy = ProxyStruct(self._space, comm.proxyState)
        if not proxy.address:
            return communicator
        try:
            error = communicator.error or _result(proxy.asyncResult)
            return communicator._replace(error=error, transfers=tuple(self._transfers(proxy, rank, size)))
        except GdbextError as fault:
            self.problems.append(fault)
            return communicator

    def _candidates(self, group: int) -> Iterator[int]:
        """Addresses that may be a communicator's: the pointers in the objects (torch's NCCLComm) that the hash tables
        of the ProcessGroupNCCL at ``group`` point to."""
        candidates: set[int] = set()
        objects: set[int] = set()  # apart: a key's text is in the node, and leads to torch's NCCLComm, too
        for node in self._nodes(group):
            for keeper in self._pointers(node + 8, _NODE_WORDS - 1, objects):
                yield from self._pointers(keeper, _NCCLCOMM_WORDS, candidates)
                if len(candidates) > _MAX_CANDIDATES:
                    return

    def _nodes(self, group: int) -> Iterator[int]:
        """Addresses of the nodes of everything in the object at ``group`` that looks like a ``std::unordered_map``:
        four words with the buckets' address and number, the first node, the number of nodes."""
        words = self._words(group, _GROUP_WORDS)
        for buckets, count, node, size in zip(words, words[1:], words[2:], words[3:]):
            if not (_is_pointer(buckets) and _is_pointer(node) and 0 < count < _MAX_BUCKETS):
                continue
            for _ in range(min(size, _MAX_NODES)):
                if not _is_pointer(node):
                    break
                yield node
                node = self._memory.try_u64(node) or 0

    def _pointers(self, address: int, count: int, seen: set[int]) -> Iterator[int]:
        """The words, of ``count`` at ``address``, that may be pointers and are not in ``seen``; adds them to it."""
        for word in self._words(address, count):
            if _is_pointer(word) and word not in seen:
                seen.add(word)
                yield word

    def _words(self, address: int, limit: int) -> tuple[int, ...]:
        """``limit`` words at an address; fewer, up to the end of its page, if not all of them can be read."""
        for count in (limit, min(limit, (_PAGE - address % _PAGE) // 8)):
            raw = self._memory.try_read(address, 8 * count)
            if raw:
                return struct.unpack(f"<{count}Q", raw)
        return ()

    def _is_communicator(self, address: int, rank: int, size: int) -> bool:
        """True if there is a communicator with that rank and size at ``address``: by its marks (NCCL_MAGIC), in 2.20 by
        the address of its abort flag, which its proxy has, too."""
        comm = CommStruct(self._space, address)
        try:
            if comm.has(CommStruct.startMagic):
                marks = (comm.startMagic, comm.endMagic)
                return marks == (_MARK, _MARK) and (comm.rank, comm.nRanks) == (rank, size)
            flag = comm.abortFlag
            return (
                (comm.rank, comm.nRanks) == (rank, size)
                and _is_pointer(flag)
                and ProxyStruct(self._space, comm.proxyState).abortFlag == flag
            )
        except GdbextError:
            return False

    def _transfers(self, proxy: ProxyStruct, rank: int, size: int) -> Iterator[ProxyTransfer]:
        """The unfinished transfers of the operations that the progress thread works on. Raises BadData, MemoryFault."""
        own_rank = rank if proxy.refCount == 1 else None
        address, count = ProgressStruct(self._space, proxy.place(ProxyStruct.progressState)).active, 0
        seen: set[int] = set()
        while address and len(seen) < _MAX_OPERATIONS:
            if address in seen:
                raise BadData(f"the list of the NCCL proxy's operations is circular at {address:#x}")
            seen.add(address)
            operation = OperationStruct(self._space, address)
            parts, state = operation.nsubs, operation.state
            if not 0 < parts <= self._release.most_subs or state not in (_READY, _IN_PROGRESS):
                raise BadData(f"NCCL's proxy has an operation at {address:#x} with {parts} parts, state {state}")
            for index in range(parts):
                part = TransferStruct(self._space, address + index * self._release.sub_size)
                transfer = self._transfer(operation, part, own_rank, size)
                if transfer:
                    yield transfer
                    count += 1
                if count >= _MAX_TRANSFERS:
                    return
            address = operation.next

    def _transfer(
        self, operation: OperationStruct, part: TransferStruct, own_rank: int | None, size: int
    ) -> ProxyTransfer | None:
        """The transfer in ``part``; None if it is done. ``own_rank`` is the communicator's rank, None if others share
        the proxy; ``size`` is its number of ranks. Raises BadData, MemoryFault."""
        connection = ConnectionStruct(self._space, part.connection)
        is_send, transport = connection.send, connection.transport
        if is_send not in (0, 1) or not 0 <= part.nsteps < _MAX_STEPS or not 0 <= part.channelId < _MAX_DEVICES:
            raise BadData(f"NCCL's proxy has an invalid transfer at {part.address:#x}")
        has_begun = operation.state == _IN_PROGRESS
        counters = (part.posted, part.received, part.flushed, part.transmitted, part.done) if has_begun else (0,) * 5
        waits_for = _stalled_at(bool(is_send), counters) if transport == _NETWORK else TransferWait.UNKNOWN
        if has_begun and counters[-1] >= part.nsteps:
            return None
        if has_begun and not waits_for:
            raise BadData(f"the steps of NCCL's transfer at {part.address:#x} are inconsistent: {counters}")
        # A peer's rank is that of the operation's communicator, which is unknown if others share the proxy or another
        # rank's proxy does the work; before 2.23 it is the operation's root, except in transfers.
        peer = None
        is_ours = own_rank is not None and not (part.has(TransferStruct.rank) and part.rank != own_rank)
        if is_ours and (self._release.names_peers or operation.pattern in self._release.transfers):
            peer = part.peer if 0 <= part.peer < size else None
        return ProxyTransfer(
            _OPERATIONS[operation.coll] if operation.coll < len(_OPERATIONS) else "",
            bool(is_send),
            _TRANSPORTS[transport] if 0 <= transport < len(_TRANSPORTS) else "",
            part.channelId,
            peer,
            part.nsteps,
            *counters,
            (waits_for or TransferWait.UNKNOWN) if has_begun else TransferWait.BEGIN,
        )


def _stalled_at(is_send: bool, counters: tuple[int, ...]) -> TransferWait | None:
    """What the oldest unfinished step of a transfer waits for: the cause of the first gap between its counters (posted,
    received, flushed, transmitted, done), from the end back (net.cc). PROXY without a gap; None if they contradict
    each other.

    Send: posted → (device) → transmitted → (peer) → done. Receive: posted → (peer) → received → (flush) → transmitted →
    (device) → done.
    """
    posted, received, _flushed, transmitted, done = counters
    if not done <= transmitted <= posted < _MAX_STEPS or not (is_send or transmitted <= received <= posted):
        return None
    if done < transmitted:
        return TransferWait.PEER if is_send else TransferWait.DEVICE
    if is_send:
        return TransferWait.DEVICE if transmitted < posted else TransferWait.PROXY
    if transmitted < received:
        return TransferWait.FLUSH
    return TransferWait.PEER if received < posted else TransferWait.PROXY


def _is_pointer(word: int) -> bool:
    """True if the word may be the address of an object on the heap."""
    return 0x10000 <= word < 1 << 47 and not word & 7


def _result(value: int) -> str:
    """An ``ncclResult_t`` in words, "" for success."""
    return _RESULTS[value] if value < len(_RESULTS) else f"result {value}"
