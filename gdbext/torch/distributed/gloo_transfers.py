"""The other end of a send or recv that waits in gloo: which rank, and with which tag.

A ``c10d::Work`` of gloo knows neither. The pair of sockets to the other rank does: until both ends have met, it keeps
the buffer in a table of those that wait to be sent or to be filled, by tag. Nothing is assumed of where these objects
have their members: a word counts as a pointer to one when the object there has the vtable of its class, and a table is
one when all its nodes are there and end where it says.

Source: gloo/transport/unbound_buffer.h, context.h, and gloo/transport/tcp/unbound_buffer.h, context.h, pair.h of gloo
70dc360 (``Pair::localPendingSend_``, ``localPendingRecv_``); tables and queues are libstdc++'s (bits/hashtable.h,
bits/stl_deque.h). The tag of a transfer is its slot there (ProcessGroupGloo::send, 2.13.0).

The ranks of the workers of torch.distributed.rpc, by their names, from the agent's own table.

A call names its worker by a string. The agent (``RpcAgent::currentRpcAgent_``) has a table from names to
``WorkerInfo``, in which the name stands a second time, with the worker's number behind it, which is its rank. Where the
table is in the agent is not assumed: one counts whose nodes are all there, end where it says, and have both names.

The worker whose answer ends a future. The agent has a pipe for each worker that it has called, and in it a table of the
messages that were not answered yet, with the future of each. What a program waits for is that future, or one that a
callback of it completes: the callback's closure, a block of malloc's, has the pointer to it.

Source: torch/csrc/distributed/rpc/rpc_agent.h (``WorkerInfo``: a CustomClassHolder, the name, an int16_t),
tensorpipe_agent.h (``workerNameToInfo_``, ``connectedPipes_``, ``ClientPipe``, ``AtomicJitFuture``) and
ATen/core/ivalue_inl.h (``Future::callbacks_``, a vector of std::function and a bool) of 2.13.0; tables are libstdc++'s
(bits/hashtable.h), a block's size stands before it (glibc malloc/malloc.c, ``mchunk_size``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gdbext.engine.process.memory import Memory
from gdbext.errors import GdbextError
from gdbext.torch.values.containers import StringReader

ClassOf = Callable[[int], str]
"""The C++ class of the object at an address, "" where it is none with virtual functions. Raises MemoryFault."""
_TCP = "gloo::transport::tcp::"
_BUFFER, _CONTEXT, _PAIR = f"{_TCP}UnboundBuffer", f"{_TCP}Context", "Pair"
_BEFORE = 512
"""Bytes before the futex of a wait in which its buffer begins."""
_CONTEXT_SIZE, _PAIR_SIZE = 256, 1024
"""Bytes of these objects in which their members are looked for."""
_RANKS = 1 << 16
_NODES = 4096
"""Most ranks of a group, and most transfers that wait in one table."""
_TAGS = 1 << 32
"""Slots from here on are those of gloo's own collectives (gloo/types.h, ``Slot``)."""
_BLOCK = 512
"""Bytes of a block of a ``std::deque``."""
_LOAD = 0x3F800000
"""1.0 as a float, the highest load of a table."""
_TABLE = struct.Struct("<4QI4xQQ")
"""``std::_Hashtable``: buckets, their number, first node, number of elements, highest load, next size, one bucket."""
_NODE = struct.Struct("<12Q")
"""A node: next, key, and the ``std::deque`` of that key, whose begin and end have four words each behind two."""


class Transfer(NamedTuple):
    """One end of a transfer: this process's rank, the other one's and their number in gloo's group; the tag."""

    rank: int
    size: int
    peer: int
    tag: int


def waiting_transfer(memory: Memory, class_of: ClassOf, futex: int) -> Transfer | None:
    """The transfer that a thread waits for which sleeps on ``futex``, a word of its buffer's condition variable; None
    where the ends have met already, or any rank may be the other one."""
    try:
        buffer = _around(class_of, futex, _BUFFER)
        for context in _pointers(memory, class_of, buffer, _BEFORE, _CONTEXT) if buffer else ():
            rank, size = struct.unpack("<2i", memory.read(context + 8, 8))
            if not 0 <= rank < size <= _RANKS:
                return None
            for peer, pair in enumerate(_pairs(memory, class_of, context, size)):
                tag = _tag(memory, pair, buffer) if pair else None
                if tag is not None:
                    return Transfer(rank, size, peer, tag)
    except GdbextError:
        return None
    return None


def _around(class_of: ClassOf, futex: int, name: str) -> int:
    """The object of class ``name`` in which the condition variable is; 0 where it is in none."""
    end = futex & -8
    for address in range(end, end - _BEFORE, -8):
        if _is_a(class_of, address, name):
            return address
    return 0


def _is_a(class_of: ClassOf, address: int, name: str) -> bool:
    try:
        return class_of(address) == name
    except GdbextError:
        return False


def _pointers(memory: Memory, class_of: ClassOf, address: int, size: int, name: str) -> Iterator[int]:
    """The objects of class ``name`` that words of an object point to."""
    words = struct.unpack(f"<{size // 8}Q", memory.read(address, size))
    return (word for word in words if word and not word % 8 and _is_a(class_of, word, name))


def _pairs(memory: Memory, class_of: ClassOf, context: int, size: int) -> tuple[int, ...]:
    """The pair of each rank, 0 for that of the process itself; empty where the vector of them is not found."""
    words = struct.unpack(f"<{_CONTEXT_SIZE // 8}Q", memory.read(context, _CONTEXT_SIZE))
    for start, end, limit in zip(words, words[1:], words[2:]):
        if start and end - start == 8 * size and end <= limit:
            pairs = struct.unpack(f"<{size}Q", memory.try_read(start, 8 * size) or bytes(8 * size))
            classes = {class_of(pair) for pair in pairs if pair}
            if classes and all(name.startswith(_TCP) and name.endswith(_PAIR) for name in classes):
                return pairs
    return ()


def _tag(memory: Memory, pair: int, buffer: int) -> int | None:
    """The tag under which the buffer waits in one of the pair's tables."""
    raw = memory.read(pair, _PAIR_SIZE)
    for offset in range(0, _PAIR_SIZE - _TABLE.size, 8):
        buckets, count, first, elements, load, _, _ = _TABLE.unpack_from(raw, offset)
        if load == _LOAD and buckets and count and first and 0 < elements <= _NODES:
            tag = _in_table(memory, first, elements, buffer)
            if tag is not None:
                return tag if tag < _TAGS else None
    return None


def _in_table(memory: Memory, first: int, elements: int, buffer: int) -> int | None:
    """The key of the queue that the buffer is in; None unless there are just so many nodes."""
    node, found = first, None
    for _ in range(elements):
        raw = memory.try_read(node, _NODE.size) if node else b""
        if not raw:
            return None
        node, key, _, _, *ends = _NODE.unpack(raw)
        if found is None and _is_in_queue(memory, ends[:4], ends[4:], buffer):
            found = key
    return None if node else found


def _is_in_queue(memory: Memory, start: list[int], end: list[int], buffer: int) -> bool:
    """One of the words from ``start`` to ``end`` is the buffer; each is (current, first, last, block) of a deque."""
    block, current = start[3], start[0]
    for _ in range(_NODES):
        stop = end[0] if block == end[3] else start[2] if block == start[3] else current + _BLOCK
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
        following = memory.try_read(block, 8)
        current = int.from_bytes(following, "little")
    return False


_AGENT_SIZE = 4096
"""Bytes of an agent in which its table is looked for."""
_WORKERS = 1 << 15
_AGENT_LOAD = 0x3F800000
"""1.0 as a float, the highest load of a table."""
_AGENT_TABLE = struct.Struct("<4QI4xQQ")
"""``std::_Hashtable``: buckets, their number, first node, number of elements, highest load, next size, one bucket."""
_OWN_INFO = 8
"""Offset of ``RpcAgent::workerInfo_``, behind the vtable."""
_KEY = 8
"""Offset of a node's key, behind the next node."""
_AGENT_NODE = 160
_HOLDER = (16, 24, 32)
"""Sizes that the head of a CustomClassHolder has had: the vtable and its counts of references."""


def rank_of_worker(memory: Memory, strings: StringReader, current_agent: int, name: str) -> int | None:
    """The rank of worker ``name``; None where the agent, whose pointer is at ``current_agent``, has no such table or no
    such worker."""
    try:
        for first, elements in _tables(_head_of(memory, memory.u64(current_agent))):
            ranks = dict(_workers(memory, strings, first, elements))
            if name in ranks and len(ranks) == elements:
                return ranks[name]
    except GdbextError:
        return None
    return None


def own_worker(memory: Memory, strings: StringReader, current_agent: int) -> tuple[int, int] | None:
    """The rank of this process as a worker, and the number of workers; None where the agent, whose pointer is at
    ``current_agent``, does not say so twice: in its own name, and in its table of all workers."""
    try:
        raw = _head_of(memory, memory.u64(current_agent))
        own = _info_at(strings, raw, memory.u64(current_agent), _OWN_INFO) if len(raw) >= _AGENT_NODE else None
        for first, elements in _tables(raw) if own else ():
            workers = dict(_workers(memory, strings, first, elements))
            if own and len(workers) == elements and workers.get(own[0]) == own[1] < elements:
                return own[1], elements
    except GdbextError:
        return None
    return None


def _info_at(strings: StringReader, raw: bytes, start: int, offset: int) -> tuple[str, int] | None:
    """Name and number of the ``WorkerInfo`` at an offset of an object whose bytes are ``raw``; None: there is none."""
    for head in _HOLDER:
        at = offset + head
        try:
            name = strings.parse(raw, at, start + at, 256)
        except GdbextError:
            continue
        if name and name.isprintable():
            rank = int(struct.unpack_from("<h", raw, at + strings.size)[0])
            return (name, rank) if rank >= 0 else None
    return None


def _tables(raw: bytes, with_empty: bool = False) -> Iterator[tuple[int, int]]:
    """(first node, number of nodes) of whatever has the form of a table."""
    for offset in range(0, len(raw) - _AGENT_TABLE.size + 1, 8):
        buckets, count, first, elements, load, _, _ = _AGENT_TABLE.unpack_from(raw, offset)
        is_filled = bool(first) and 0 < elements <= _WORKERS
        if load == _AGENT_LOAD and buckets and count and (is_filled or (with_empty and not (first or elements))):
            yield first, elements


def _workers(memory: Memory, strings: StringReader, node: int, elements: int) -> Iterator[tuple[str, int]]:
    """Name and rank of each node; none where a node is not of that form."""
    found = []
    for _ in range(elements):
        worker = _worker(memory, strings, node) if node else None
        if not worker:
            return
        found.append(worker)
        node = memory.u64(node)
    if not node:
        yield from found


def _worker(memory: Memory, strings: StringReader, node: int) -> tuple[str, int] | None:
    raw = memory.try_read(node, _AGENT_NODE)
    if not raw:
        return None
    try:
        name = strings.parse(raw, _KEY, node + _KEY, 256)
    except GdbextError:
        return None
    for head in _HOLDER:
        at = _KEY + strings.size + head
        try:
            if name and strings.parse(raw, at, node + at, 256) == name:
                rank = int(struct.unpack_from("<h", raw, at + strings.size)[0])
                return (name, rank) if rank >= 0 else None
        except GdbextError:
            continue
    return None


_FUTURE = "c10::ivalue::Future"
_FUTURE_SIZE = 512
"""Bytes of a future in which its condition variable and its callbacks are looked for."""
_PIPE_NODE = struct.Struct("<2Q")
"""The head of a node of ``connectedPipes_``: next, and the worker's number, a uint16_t, in what may be padding."""
_PIPE_SIZE = 160
"""Bytes of such a node in which its table of messages is looked for."""
_CALLBACK = 40
"""Bytes of a callback in a future: a std::function, whose first word is its closure, and a bool."""
_CALLBACKS, _DEEPEST, _FUTURES = 64, 6, 256
"""Most callbacks of a future, futures of a chain, and futures that are looked at."""
_CLOSURE = 4096
"""Most bytes of a closure."""


def worker_that_owes(memory: Memory, class_of: ClassOf, current_agent: int, futex: int) -> int | None:
    """The number (its rank) of the worker that has to answer a call before the future is complete that a thread waits
    for, which sleeps on ``futex``, a word of its condition variable; None where it is no such future."""
    try:
        future = _around(class_of, futex, _FUTURE)
        agent = memory.u64(current_agent) if future else 0
        raw = _head_of(memory, agent)
        found = {
            worker
            for first, elements in _tables(raw)
            for worker, pending in _pipes(memory, first, elements)
            if any(_leads_to(memory, class_of, each, future) for each in pending)
        }
    except GdbextError:
        return None
    return found.pop() if len(found) == 1 else None


def _head_of(memory: Memory, agent: int) -> bytes:
    """The beginning of the agent, in which its tables are; the end of its page may be the end of what is mapped."""
    return (memory.try_read(agent, _AGENT_SIZE) or memory.try_read(agent, 4096 - agent % 4096)) if agent else b""


def _pipes(memory: Memory, node: int, elements: int) -> list[tuple[int, list[int]]]:
    """(worker, the futures that it has to complete) of each node; none where one is not of that form."""
    found = []
    for _ in range(elements):
        raw = memory.try_read(node, _PIPE_SIZE) if node else b""
        inner = next(_tables(raw[_PIPE_NODE.size :], with_empty=True), None)
        if not inner:
            return []
        following, worker = _PIPE_NODE.unpack_from(raw)
        found.append((worker & 0xFFFF, _messages(memory, *inner)))
        node = following
    return [] if node else found


def _messages(memory: Memory, node: int, elements: int) -> list[int]:
    """The futures of messages without an answer: each node has next, the message's number, and what has its future
    behind a flag."""
    found = []
    for _ in range(elements):
        node, _, holder = struct.unpack("<3Q", memory.read(node, 24))
        found.append(memory.u64(holder + 8))
    return found


def _leads_to(memory: Memory, class_of: ClassOf, start: int, future: int) -> bool:
    """``start`` is the future, or its callbacks complete it, by their closures."""
    level, seen = [start], {start}
    for _ in range(_DEEPEST):
        if future in level:
            return True
        inner = dict.fromkeys(each for one in level for each in _completed_by(memory, class_of, one))
        level = [each for each in inner if each not in seen]
        seen.update(level)
        if len(seen) > _FUTURES:
            break
    return False


def _completed_by(memory: Memory, class_of: ClassOf, future: int) -> Iterator[int]:
    """The futures in the closures of a future's callbacks."""
    words = struct.unpack(f"<{_FUTURE_SIZE // 8}Q", memory.try_read(future, _FUTURE_SIZE) or bytes(_FUTURE_SIZE))
    for start, end, limit in zip(words, words[1:], words[2:]):
        size = end - start
        if start and 0 < size <= _CALLBACK * _CALLBACKS and not size % _CALLBACK and end <= limit:
            for at in range(start, end, _CALLBACK):
                closure = int.from_bytes(memory.try_read(at, 8), "little")
                yield from _futures_in(memory, class_of, closure)


def _futures_in(memory: Memory, class_of: ClassOf, closure: int) -> Iterator[int]:
    """The futures that words of a block of malloc's point to."""
    head = memory.try_read(closure - 8, 8) if closure and not closure % 16 else b""
    size = (int.from_bytes(head, "little") & -8) - 8
    if 8 <= size <= _CLOSURE:
        yield from _pointers(memory, class_of, closure, size, _FUTURE)
