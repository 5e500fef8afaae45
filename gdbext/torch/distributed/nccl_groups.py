"""NCCL's process groups without a flight recorder: how far one came, and the work that its watchdog has on its list.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp of 2.3 to 2.10: ``pgStatus_`` has the numbers of what was
enqueued and completed, ``workMetaList_`` a copy of each piece of work until the watchdog has seen it completed.
"""

from __future__ import annotations

from collections.abc import Mapping

from gdbext.errors import BadData, LayoutError
from gdbext.layouts.layout import Layout
from gdbext.model.record import Record
from gdbext.process.memory import Memory
from gdbext.torch.distributed.flight_recorder import GroupStatus, read_status
from gdbext.torch.values.containers import has_cxx11_abi, list_items

GROUP = "c10d::ProcessGroupNCCL"
WORK = "c10d::ProcessGroupNCCL::WorkNCCL"
STATUS = "c10d::ProcessGroupStatus"
_NUMBERS = ("lastEnqueuedSeq", "lastStartedSeq", "lastCompletedSeq")
_WORK_LIMIT = 4096
_NAMES = {
    "BROADCAST": "broadcast", "ALLREDUCE": "all_reduce", "ALLREDUCE_COALESCED": "allreduce_coalesced",
    "REDUCE": "reduce", "ALLGATHER": "all_gather", "_ALLGATHER_BASE": "_all_gather_base", "GATHER": "gather",
    "SCATTER": "scatter", "REDUCE_SCATTER": "reduce_scatter", "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all", "SEND": "send", "RECV": "recv", "BARRIER": "barrier",
    "COALESCED": "coalesced",
}  # fmt: skip
"""``OpType`` (torch/csrc/distributed/c10d/Work.hpp) → what the flight recorder calls the operation."""


class NcclWork(Record):
    """One ``WorkNCCL``. ``began`` is by the steady clock, in nanoseconds."""

    seq: int
    op: str
    timeout_ms: int
    began: int


class NcclGroup(Record):
    """How far a group came, and what it waits for, oldest first."""

    status: GroupStatus
    works: tuple[NcclWork, ...]


def read_group(memory: Memory, layout: Layout, members: Mapping[str, Mapping[str, int]], address: int) -> NcclGroup:
    """The group at that address. Raises BadData where its numbers do not go together, MemoryFault, LayoutError."""
    if GROUP not in members or WORK not in members or "pgStatus_" not in members[GROUP]:
        raise LayoutError("NCCL's groups of this release keep their numbers elsewhere")
    group = members[GROUP]
    last = memory.u64(address + group["seqCollective_"])
    status = _status(memory, layout, members.get(STATUS), memory.u64(address + group["pgStatus_"]))
    if not -1 <= status.completed <= status.enqueued <= last:
        raise BadData(_disagreement(address, last, status))
    items = list_items(memory, address + group["workMetaList_"], _WORK_LIMIT, has_cxx11_abi(layout))
    types = {number: name for name, number in layout.enum("c10d::OpType").items()}
    works = tuple(_work(memory, members[WORK], each, types) for each in items)
    if any(work.seq > last for work in works):
        raise BadData(f"NCCL's group at {address:#x} has work behind its last collective, #{last}")
    return NcclGroup(status, works)


def _disagreement(address: int, last: int, status: GroupStatus) -> str:
    numbers = f"{last} collectives, {status.enqueued} enqueued, {status.completed} completed"
    return f"the numbers of NCCL's group at {address:#x} do not go together: {numbers}"


def _status(memory: Memory, layout: Layout, members: Mapping[str, int] | None, address: int) -> GroupStatus:
    """A ``ProcessGroupStatus``, which was NCCL's alone up to 2.7 and is in no layout of these."""
    if not members:
        return read_status(memory, layout, address)
    return GroupStatus(*(memory.i64(address + members[name]) for name in _NUMBERS))


def _work(memory: Memory, members: Mapping[str, int], address: int, types: Mapping[int, str]) -> NcclWork:
    name = types.get(memory.u8(address + members["opType_"]), "")
    return NcclWork(
        seq=memory.u64(address + members["seq_"]),
        op=_NAMES.get(name, name.lower() or "an operation"),
        timeout_ms=memory.i64(address + members["opTimeout_"]),
        began=memory.i64(address + members["workStartTime_"]),
    )
