"""The functions of MPI that wait for other ranks, and which of their arguments name the other end.

Source: the C bindings of MPI 4.1 (mpi.h of MPICH 5.0 and Open MPI 5.0). Each has a second name for profilers, with a P
in front, and if it counts elements one for large counts, ending in ``_c``, whose arguments are the same.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Meeting(Enum):
    """The ranks of a communicator without which a call does not return."""

    PEER = "peer"
    """The other end of a transfer."""
    ALL = "all"
    """All of them: none returns before all have called it."""
    SOME = "some"
    """Some of them: a rank may leave early, as the root of a broadcast does."""
    UNKNOWN = "unknown"


class MpiCall(NamedTuple):
    """The numbers of a function's arguments (from 0): the other end or root, the tag, the communicator; None where
    there is none. ``source``: of a function that sends to one rank and receives from another."""

    meeting: Meeting
    peer: int | None = None
    tag: int | None = None
    communicator: int | None = None
    source: int | None = None


_SEND = _RECEIVE = MpiCall(Meeting.PEER, 3, 4, 5)
_PROBE = MpiCall(Meeting.PEER, 0, 1, 2)
_UNKNOWN = MpiCall(Meeting.UNKNOWN)


def _all(communicator: int) -> MpiCall:
    return MpiCall(Meeting.ALL, communicator=communicator)


def _some(communicator: int, root: int | None = None) -> MpiCall:
    return MpiCall(Meeting.SOME, root, communicator=communicator)


_OTHERS = (
    "Wait Waitall Waitany Waitsome Mrecv Init Init_thread Finalize Session_finalize Comm_free "
    "Comm_create_group Comm_create_from_group Comm_disconnect Comm_accept Comm_connect Comm_spawn "
    "Comm_spawn_multiple Intercomm_create Intercomm_merge Win_create Win_allocate Win_allocate_shared Win_free "
    "Win_fence Win_lock Win_lock_all Win_unlock Win_unlock_all Win_flush Win_flush_all Win_start Win_complete "
    "Win_wait File_open File_close File_sync File_read_all File_write_all File_read_at_all File_write_at_all "
    "Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall Neighbor_alltoallv Neighbor_alltoallw"
)
"""Calls whose other end no argument names."""
MPI_CALLS = {
    **dict.fromkeys(("Send", "Ssend", "Rsend", "Bsend"), _SEND),
    "Recv": _RECEIVE,
    **dict.fromkeys(("Probe", "Mprobe"), _PROBE),
    "Sendrecv": MpiCall(Meeting.PEER, 3, 4, 10, 8),
    "Sendrecv_replace": MpiCall(Meeting.PEER, 3, 4, 7, 5),
    "Barrier": _all(0),
    "Allreduce": _all(5),
    "Allgather": _all(6),
    "Allgatherv": _all(7),
    "Alltoall": _all(6),
    "Reduce_scatter": _all(5),
    "Reduce_scatter_block": _all(5),
    **dict.fromkeys(("Comm_dup", "Comm_dup_with_info", "Comm_split", "Comm_split_type", "Comm_create"), _all(0)),
    "Alltoallv": _some(8),
    "Alltoallw": _some(8),
    "Bcast": _some(4, 3),
    "Reduce": _some(6, 5),
    "Gather": _some(7, 6),
    "Gatherv": _some(8, 7),
    "Scatter": _some(7, 6),
    "Scatterv": _some(8, 7),
    "Scan": _some(5),
    "Exscan": _some(5),
    **dict.fromkeys(_OTHERS.split(), _UNKNOWN),
}
"""By the name without ``MPI_``."""

MPI_NAMES = tuple(f"{prefix}MPI_{name}{ending}" for name in MPI_CALLS for prefix in ("", "P") for ending in ("", "_c"))


def plain_name(name: str) -> str:
    """``Send`` of ``PMPI_Send_c``; the name itself if it is none of MPI's functions."""
    plain = name.removeprefix("P").removeprefix("MPI_")
    return plain if plain in MPI_CALLS else plain.removesuffix("_c")
