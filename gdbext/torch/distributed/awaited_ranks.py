"""The rank that a thread waits for: the other end of a transfer of gloo, or a worker of torch.distributed.rpc.

No offsets of members are assumed: a pointer is recognized by the vtable of its object, a table (libstdc++'s
bits/hashtable.h, bits/stl_deque.h) by the number of its nodes.

Gloo: a ``c10d::Work`` knows neither rank nor tag. Until both ends of a transfer have met, the pair of sockets to the
other rank keeps the buffer in a table by tag (``Pair::localPendingSend_``, ``localPendingRecv_``). Source:
gloo/transport/unbound_buffer.h, context.h, and gloo/transport/tcp/unbound_buffer.h, context.h, pair.h of gloo 70dc360.
A tag is the transfer's slot there (ProcessGroupGloo::send, 2.13.0).

RPC: the agent (``RpcAgent::currentRpcAgent_``) has a table from names to ``WorkerInfo``, which has the name again and
then the worker's number, its rank; and a pipe for each worker that it has called, with a table of the unanswered
messages and the future of each. A program waits for such a future, or for one that a callback of it completes: the
callback's closure, a block of malloc's, has the pointer to it. Source: torch/csrc/distributed/rpc/rpc_agent.h
(``WorkerInfo``: a CustomClassHolder, the name, an int16_t), tensorpipe_agent.h (``workerNameToInfo_``,
``connectedPipes_``, ``ClientPipe``, ``AtomicJitFuture``) and ATen/core/ivalue_inl.h (``Future::callbacks_``, a vector
of std::function and a bool) of 2.13.0; a block's size is before it (glibc malloc/malloc.c, ``mchunk_size``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, GdbextError
from gdbext.torch.values.containers import StringReader

ClassOf = Callable[[int], str]
"""Returns the C++ class of the object at an address, "" if it has no virtual functions. Raises MemoryFault."""
_TCP = "gloo::transport::tcp::"
_WAIT_SPAN = 512
"""Bytes before the futex of a wait in which its object begins."""
_CONTEXT_SIZE, _PAIR_SIZE, _FUTURE_SIZE, _AGENT_SIZE, _PIPE_SIZE = 256, 1024, 512, 4096, 160
"""Bytes of these objects that are searched for their members; a pipe is a node of ``connectedPipes_``."""
_MAX_RANKS, _MAX_TRANSFERS, _MAX_WORKERS = 1 << 16, 4096, 1 << 15
_MAX_TAG = 1 << 32
"""Slots from here on are those of gloo's own collectives (gloo/types.h, ``Slot``)."""
_BLOCK = 512
"""Bytes of a block of a ``std::deque``."""
_MAX_LOAD = 0x3F800000
"""1.0 as a float, the highest load of a table."""
_TABLE = struct.Struct("<4QI4xQQ")
"""``std::_Hashtable``: buckets, their number, first node, number of elements, highest load, next size, one bucket."""
_QUEUE_NODE = struct.Struct("<12Q")
"""A node: next, key, and the ``std::deque`` of that key, whose begin and end have four words each behind two."""


class Transfer(NamedTuple):
    """A point-to-point transfer of gloo. Ranks are those in the process group."""

    rank: int
    """The rank of this process."""
    size: int
    """The group's number of ranks."""
    peer: int
    """The rank at the other end."""
    tag: int


def waiting_transfer(memory: Memory, class_of: ClassOf, futex: int) -> Transfer | None:
    """The transfer that a thread waits for if it sleeps on ``futex``, a word of a gloo buffer's condition variable;
    None if both ends have met already, or the other end may be any rank."""
    with suppress(GdbextError):
        buffer = _object_around(class_of, futex, f"{_TCP}UnboundBuffer")
        for context in _pointers_to(f"{_TCP}Context", memory, class_of, buffer, _WAIT_SPAN) if buffer else ():
            rank, size = struct.unpack("<2i", memory.read(context + 8, 8))
            if not 0 <= rank < size <= _MAX_RANKS:
                return None
            for peer, pair in enumerate(_pairs(memory, class_of, context, size)):
                tag = _tag_of_buffer(memory, pair, buffer) if pair else None
                if tag is not None:
                    return Transfer(rank, size, peer, tag)
    return None


def _object_around(class_of: ClassOf, futex: int, name: str) -> int:
    """Address of the object of class ``name`` in which the condition variable with the word ``futex`` is; 0 for
    none."""
    end = futex & -8
    return next((address for address in range(end, end - _WAIT_SPAN, -8) if _has_class(class_of, address, name)), 0)


def _has_class(class_of: ClassOf, address: int, name: str) -> bool:
    """True if the object at an address is of class ``name``; False also if it cannot be read."""
    try:
        return class_of(address) == name
    except GdbextError:
        return False


def _pointers_to(name: str, memory: Memory, class_of: ClassOf, address: int, size: int) -> Iterator[int]:
    """Addresses of the objects of class ``name`` that words in the ``size`` bytes at ``address`` point to."""
    words = struct.unpack(f"<{size // 8}Q", memory.read(address, size))
    return (word for word in words if word and not word % 8 and _has_class(class_of, word, name))


def _pairs(memory: Memory, class_of: ClassOf, context: int, size: int) -> tuple[int, ...]:
    """Addresses of the pairs (connections) to each rank, 0 for the process's own: the elements of the vector of
    ``size`` pointers in the gloo context at ``context``; empty if it has none."""
    words = struct.unpack(f"<{_CONTEXT_SIZE // 8}Q", memory.read(context, _CONTEXT_SIZE))
    for start, end, limit in zip(words, words[1:], words[2:]):
        if start and end - start == 8 * size and end <= limit:
            pairs = struct.unpack(f"<{size}Q", memory.try_read(start, 8 * size) or bytes(8 * size))
            classes = {class_of(pair) for pair in pairs if pair}
            if classes and all(name.startswith(_TCP) and name.endswith("Pair") for name in classes):
                return pairs
    return ()


def _tables(raw: bytes, limit: int, with_empty: bool = False) -> Iterator[tuple[int, int]]:
    """(address of the first node, number of nodes) of everything in the bytes ``raw`` that has the form of a
    ``std::unordered_map`` of at most ``limit`` nodes. ``with_empty``: also of empty ones, as (0, 0)."""
    for offset in range(0, len(raw) - _TABLE.size + 1, 8):
        buckets, count, first, elements, load, _, _ = _TABLE.unpack_from(raw, offset)
        is_filled = bool(first) and 0 < elements <= limit
        if load == _MAX_LOAD and buckets and count and (is_filled or (with_empty and not (first or elements))):
            yield first, elements


def _nodes(memory: Memory, node: int, elements: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(address, first ``size`` bytes) of each of the ``elements`` nodes of a table. Raises BadData if it has fewer or
    more."""
    for _ in range(elements):
        raw = memory.try_read(node, size) if node else b""
        if not raw:
            raise BadData("a table has fewer nodes than it says")
        yield node, raw
        node = int.from_bytes(raw[:8], "little")
    if node:
        raise BadData("a table has more nodes than it says")


def _tag_of_buffer(memory: Memory, pair: int, buffer: int) -> int | None:
    """The tag of the transfer for which the pair at ``pair`` queues the buffer at ``buffer``: the key of that queue in
    one of its tables; None if none has it, or for gloo's own collectives."""
    for first, elements in _tables(memory.read(pair, _PAIR_SIZE), _MAX_TRANSFERS):
        with suppress(BadData):
            nodes = [_QUEUE_NODE.unpack(raw) for _, raw in _nodes(memory, first, elements, _QUEUE_NODE.size)]
            for _, tag, _, _, *ends in nodes:
                if _is_in_queue(memory, ends[:4], ends[4:], buffer):
                    return tag if tag < _MAX_TAG else None
    return None


def _is_in_queue(memory: Memory, start: list[int], end: list[int], buffer: int) -> bool:
    """True if a ``std::deque`` has the word ``buffer``. ``start`` and ``end`` are its iterators, each four words:
    address of the element, first and end of its block, address of the block's pointer."""
    block, current = start[3], start[0]
    for _ in range(_MAX_TRANSFERS):
        stop = current + _BLOCK
        if block in (start[3], end[3]):
            stop = end[0] if block == end[3] else start[2]
        if not 0 <= stop - current <= _BLOCK:
            return False
        raw = memory.try_read(current, stop - current)
        if not raw and stop > current:
            return False
        if buffer in struct.unpack(f"<{len(raw) // 8}Q", raw[: len(raw) & -8]):
            return True
        if block == end[3]:
            return False
        block += 8
        current = int.from_bytes(memory.try_read(block, 8), "little")
    return False


# --- the workers of torch.distributed.rpc ---

_WORKER_NODE_SIZE = 160
_NODE_KEY = 8
"""Offset of a node's key, behind the next node."""


def rank_of_worker(memory: Memory, strings: StringReader, current_agent: int, name: str) -> int | None:
    """The rank of the worker ``name`` in the RpcAgent that the pointer at ``current_agent`` points to; None if
    unknown."""
    with suppress(GdbextError):
        for first, elements in _tables(_head_of_agent(memory, memory.u64(current_agent)), _MAX_WORKERS):
            ranks = dict(_workers(memory, strings, first, elements))
            if name in ranks and len(ranks) == elements:
                return ranks[name]
    return None


def own_worker(memory: Memory, strings: StringReader, current_agent: int) -> tuple[int, int] | None:
    """(rank of this process as a worker, number of workers), by the RpcAgent that the pointer at ``current_agent``
    points to; None unless its own ``WorkerInfo`` and its table of all workers agree."""
    with suppress(GdbextError):
        agent = memory.u64(current_agent)
        raw = _head_of_agent(memory, agent)
        # RpcAgent::workerInfo_ is behind the vtable
        own = _worker_info(strings, raw, agent, 8) if len(raw) >= _WORKER_NODE_SIZE else None
        if not own:
            return None
        name, rank = own
        for first, elements in _tables(raw, _MAX_WORKERS):
            workers = dict(_workers(memory, strings, first, elements))
            if len(workers) == elements and workers.get(name) == rank and rank < elements:
                return rank, elements
    return None


def _head_of_agent(memory: Memory, agent: int) -> bytes:
    """The first bytes of the RpcAgent at ``agent``, which have its tables; fewer if memory ends behind its page; b"" if
    ``agent`` is 0."""
    return (memory.try_read(agent, _AGENT_SIZE) or memory.try_read(agent, 4096 - agent % 4096)) if agent else b""


def _worker_info(
    strings: StringReader, raw: bytes, start: int, offset: int, expected: str = ""
) -> tuple[str, int] | None:
    """(name, rank) of the ``WorkerInfo`` that ``raw``, the bytes of memory from ``start`` on, has at ``offset``; None
    if there is none, or one with another name than ``expected`` ("" accepts any)."""
    for head in (16, 24, 32):  # sizes of a CustomClassHolder: the vtable and its counts of references
        position = offset + head
        with suppress(GdbextError):
            name = strings.parse(raw, position, start + position, 256)
            if name and (name == expected if expected else name.isprintable()):
                rank = int(struct.unpack_from("<h", raw, position + strings.size)[0])
                return (name, rank) if rank >= 0 else None
    return None


def _workers(memory: Memory, strings: StringReader, node: int, elements: int) -> list[tuple[str, int]]:
    """(name, rank) of the worker in each of the ``elements`` nodes of a table, the first at ``node``; [] if a node has
    another form."""
    workers = []
    with suppress(GdbextError):
        for address, raw in _nodes(memory, node, elements, _WORKER_NODE_SIZE):
            name = strings.parse(raw, _NODE_KEY, address + _NODE_KEY, 256)
            worker = _worker_info(strings, raw, address, _NODE_KEY + strings.size, name) if name else None
            if not worker:
                return []
            workers.append(worker)
        return workers
    return []


_FUTURE = "c10::ivalue::Future"
_CALLBACK_SIZE = 40
"""Bytes of a callback in a future: a std::function, whose first word is its closure, and a bool."""
_MAX_CALLBACKS, _MAX_DEPTH, _MAX_FUTURES = 64, 6, 256
"""Most callbacks of a future, futures of a chain, and futures that are read."""
_MAX_CLOSURE = 4096
"""Most bytes of a closure."""


def worker_that_owes(memory: Memory, class_of: ClassOf, current_agent: int, futex: int) -> int | None:
    """The rank of the worker whose answer completes the future that a thread waits for if it sleeps on ``futex``, a
    word of the future's condition variable; None if there is no such future. ``current_agent`` is as in
    ``own_worker``."""
    try:
        future = _object_around(class_of, futex, _FUTURE)
        agent = memory.u64(current_agent) if future else 0
        workers = {
            worker
            for first, elements in _tables(_head_of_agent(memory, agent), _MAX_WORKERS)
            for worker, unanswered in _pipes(memory, first, elements)
            if any(_completes(memory, class_of, start, future) for start in unanswered)
        }
    except GdbextError:
        return None
    return workers.pop() if len(workers) == 1 else None


def _pipes(memory: Memory, node: int, elements: int) -> list[tuple[int, list[int]]]:
    """(rank of a worker, addresses of the futures that its answers complete) of each of the ``elements`` nodes of
    ``connectedPipes_``, the first at ``node``; [] if a node has another form."""
    pipes = []
    with suppress(BadData):
        for _, raw in _nodes(memory, node, elements, _PIPE_SIZE):
            pending = next(_tables(raw[16:], _MAX_WORKERS, with_empty=True), None)
            if not pending:
                return []
            message, count = pending
            futures = []
            for _ in range(count):  # next, the message's number, and the holder of its future behind a flag
                message, _, holder = struct.unpack("<3Q", memory.read(message, 24))
                futures.append(memory.u64(holder + 8))
            worker = int.from_bytes(raw[8:10], "little")
            pipes.append((worker, futures))
        return pipes
    return []


def _completes(memory: Memory, class_of: ClassOf, start: int, future: int) -> bool:
    """True if the future at ``start`` is the one at ``future``, or completes it by its callbacks, directly or by way of
    other futures."""
    level, seen = [start], {start}
    for _ in range(_MAX_DEPTH):
        if future in level:
            return True
        following = {later for earlier in level for later in _completed_by(memory, class_of, earlier)}
        level = sorted(following - seen)
        seen.update(level)
        if len(seen) > _MAX_FUTURES:
            break
    return False


def _completed_by(memory: Memory, class_of: ClassOf, future: int) -> Iterator[int]:
    """Addresses of the futures that the callbacks of the one at ``future`` can complete: their closures, blocks of
    malloc's, point to them."""
    words = struct.unpack(f"<{_FUTURE_SIZE // 8}Q", memory.try_read(future, _FUTURE_SIZE) or bytes(_FUTURE_SIZE))
    for start, end, limit in zip(words, words[1:], words[2:]):
        size = end - start
        if start and 0 < size <= _CALLBACK_SIZE * _MAX_CALLBACKS and not size % _CALLBACK_SIZE and end <= limit:
            for callback in range(start, end, _CALLBACK_SIZE):
                closure = int.from_bytes(memory.try_read(callback, 8), "little")
                head = memory.try_read(closure - 8, 8) if closure and not closure % 16 else b""
                closure_size = (int.from_bytes(head, "little") & -8) - 8
                if 8 <= closure_size <= _MAX_CLOSURE:
                    yield from _pointers_to(_FUTURE, memory, class_of, closure, closure_size)
