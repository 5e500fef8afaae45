"""The ranks of the workers of torch.distributed.rpc, by their names, from the agent's own table.

A call names its worker by a string. The agent (``RpcAgent::currentRpcAgent_``) has a table from names to
``WorkerInfo``, in which the name stands a second time, with the worker's number behind it, which is its rank. Where the
table is in the agent is not assumed: one counts whose nodes are all there, end where it says, and have both names.

Source: torch/csrc/distributed/rpc/rpc_agent.h (``WorkerInfo``: a CustomClassHolder, the name, an int16_t) and
tensorpipe_agent.h (``workerNameToInfo_``) of 2.13.0; tables are libstdc++'s (bits/hashtable.h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gdbext.engine.process.memory import Memory
from gdbext.errors import GdbextError
from gdbext.torch.values.containers import StringReader

_AGENT_SIZE = 4096
"""Bytes of an agent in which its table is looked for."""
_WORKERS = 1 << 15
_LOAD = 0x3F800000
"""1.0 as a float, the highest load of a table."""
_TABLE = struct.Struct("<4QI4xQQ")
"""``std::_Hashtable``: buckets, their number, first node, number of elements, highest load, next size, one bucket."""
_KEY = 8
"""Offset of a node's key, behind the next node."""
_NODE = 160
_HOLDER = (16, 24, 32)
"""Sizes that the head of a CustomClassHolder has had: the vtable and its counts of references."""


def rank_of_worker(memory: Memory, strings: StringReader, current_agent: int, name: str) -> int | None:
    """The rank of worker ``name``; None where the agent, whose pointer is at ``current_agent``, has no such table or no
    such worker."""
    try:
        agent = memory.u64(current_agent)
        raw = memory.try_read(agent, _AGENT_SIZE) if agent else None
        if raw is None and agent:  # the end of its page may be the end of what is mapped
            raw = memory.try_read(agent, 4096 - agent % 4096)
        for first, elements in _tables(raw or b""):
            ranks = dict(_workers(memory, strings, first, elements))
            if name in ranks and len(ranks) == elements:
                return ranks[name]
    except GdbextError:
        return None
    return None


def _tables(raw: bytes) -> Iterator[tuple[int, int]]:
    """(first node, number of nodes) of whatever has the form of a table."""
    for offset in range(0, len(raw) - _TABLE.size + 1, 8):
        buckets, count, first, elements, load, _, _ = _TABLE.unpack_from(raw, offset)
        if load == _LOAD and buckets and count and first and 0 < elements <= _WORKERS:
            yield first, elements


def _workers(memory: Memory, strings: StringReader, node: int, elements: int) -> Iterator[tuple[str, int]]:
    """Name and rank of each node; none where a node is not of that form."""
    found = []
    for _ in range(elements):
        worker = _worker(memory, strings, node) if node else None
        if worker is None:
            return
        found.append(worker)
        node = memory.u64(node)
    if not node:
        yield from found


def _worker(memory: Memory, strings: StringReader, node: int) -> tuple[str, int] | None:
    raw = memory.try_read(node, _NODE)
    if raw is None:
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
