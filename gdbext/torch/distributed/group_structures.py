"""The structures of process groups and of the flight recorder that are read.

As in torch/structures.py, each class says the name of a C++ class and the members that readers want; those that some
release lacks are asked for with ``has`` first. Sources: torch/csrc/distributed/c10d/ProcessGroup.hpp,
ProcessGroupGloo.hpp, FlightRecorder.hpp, TCPStore.hpp, c10/util/SmallVector.h, 2.0 to 2.15.
"""

from __future__ import annotations

from gdbext.engine.layouts.declarations import F32, I32, I64, U8, U16, U64, Flag, Inner, Link, Place, Struct
from gdbext.torch.values.value_structures import Deque


class ProcessGroupStruct(Struct, of="c10d::ProcessGroup"):
    """A group, with a backend for each type of device."""

    rank_ = I32()
    size_ = I32()
    pg_desc_ = Place()
    store_ = U64()
    deviceTypeToBackend_ = Place()


class ProcessGroupStatus(Struct, of="c10d::ProcessGroupStatus"):
    """The numbers of a group's last operations: enqueued, started, completed."""

    lastEnqueuedSeq = I64()
    lastStartedSeq = I64()
    lastCompletedSeq = I64()


class GlooGroup(Struct, of="c10d::ProcessGroupGloo"):
    """Gloo's backend, whose threads take work from a queue."""

    pgStatus_ = Link(lambda: ProcessGroupStatus)
    workInProgress_ = Place()
    workQueue_ = Inner(lambda: Deque)


class GlooWork(Struct, of="c10d::ProcessGroupGloo::AsyncWork"):
    """One collective that Gloo runs."""

    seq_ = U64()
    profilingTitle_ = Place()
    timeout_ = I64()


# FlightRecorder became a template when its functions moved to FlightRecorderDetail.hpp (2.9). All instances are laid
# out the same, since they hold their events by pointer. The one before is NCCL's alone and needs CUDA's headers.
_RECORDER = "c10d::FlightRecorder<c10::Event>"
_STATUS = "std::pair<const size_t, std::shared_ptr<c10d::ProcessGroupStatus>>"
_GROUP_NAME = "std::tuple<std::string, std::string>"
_RANKS = f"std::pair<const {_GROUP_NAME}, std::vector<uint64_t>>"


class Recorder(Struct, of="c10d::FlightRecorder", cpp=_RECORDER):
    """The flight recorder: a ring of entries, and maps of the groups."""

    enabled_ = Flag()
    entries_ = Place()
    next_ = U64()
    reset_epoch_ = U64()
    all_pg_status_ = Place()
    pg_name_to_ranks_ = Place()
    comm_lib_version_ = Place()


class RecorderEntry(Struct, of="c10d::FlightRecorder::Entry", cpp=f"{_RECORDER}::Entry"):
    """One operation, as it was recorded."""

    id_ = U64()
    reset_epoch_ = U64()
    pg_id_ = U64()
    pg_name_ = Place()
    collective_seq_id_ = U64()
    p2p_seq_id_ = U64()
    op_id_ = U64()
    profiling_name_ = Place()
    traceback_ = U64()
    time_created_ = I64()
    timeout_ms_ = I64()
    isP2P_ = Flag()
    duration_ = Place()
    time_discovered_started_ = Place()
    time_discovered_completed_ = Place()
    input_dims_ = Place()
    output_dims_ = Place()
    sizes_ = Place()
    input_dtypes_ = Place()
    output_dtypes_ = Place()
    thread_id_ = U64()
    thread_name_ = Place()
    retired_ = Flag()


class StatusNode(Struct, of="c10d::FlightRecorder::all_pg_status_.node", cpp=f"std::_Rb_tree_node<{_STATUS}>"):
    """A node of the map from a group's number to its status."""

    _M_storage = Place()


class RanksNode(Struct, of="c10d::FlightRecorder::pg_name_to_ranks_.node", cpp=f"std::_Rb_tree_node<{_RANKS}>"):
    """A node of the map from a group's name to its ranks."""

    _M_storage = Place()


class GroupName(Struct, of="c10d::FlightRecorder::pg_name", cpp=_GROUP_NAME):
    """The key of that map: name and description."""


class CapturedTraceback(Struct, of="torch::CapturedTraceback"):
    """The Python frames that issued an operation (torch/csrc/profiler/combined_traceback.h)."""

    frames_ = Place()


class PyFrame(Struct, of="torch::CapturedTraceback::PyFrame"):
    """One of them: its code object and instruction."""

    code = U64()
    lasti = I32()


class PrefixStore(Struct, of="c10d::PrefixStore"):
    """A store that others share."""

    store_ = U64()


class SocketAddress(Struct, of="c10d::detail::SocketAddress", cpp=""):
    """A host and its port."""

    host = Place()
    port = U16()


class TcpStore(Struct, of="c10d::TCPStore"):
    """A store that a server keeps."""

    addr_ = Inner(lambda: SocketAddress)


class FileStore(Struct, of="c10d::FileStore"):
    """A store that is a file."""

    path_ = Place()


class OptionalLong(Struct, of="std::optional<long int>", cpp=""):
    """A whole number that may be missing."""

    is_engaged = Flag("_M_payload._M_engaged")
    value_of = I64("_M_payload._M_payload._M_value")


class OptionalFloat(Struct, of="std::optional<float>", cpp=""):
    """A floating-point number that may be missing."""

    is_engaged = Flag("_M_payload._M_engaged")
    value_of = F32("_M_payload._M_payload._M_value")


# --- NCCL's groups, whose headers need CUDA's: offsets of their own, by release (nccl-groups.json) --------------------


class NcclGroupStruct(Struct, of="c10d::ProcessGroupNCCL", cpp=""):
    """A group of NCCL's, whose watchdog has a list of the work (ProcessGroupNCCL.hpp, 2.3 to 2.10)."""

    workMetaList_ = Place()
    pgStatus_ = U64()
    seqCollective_ = U64()


class NcclWorkStruct(Struct, of="c10d::ProcessGroupNCCL::WorkNCCL", cpp=""):
    """A piece of work. ``opType_`` is an OpType, ``workStartTime_`` by the steady clock."""

    seq_ = U64()
    opType_ = U8()
    opTimeout_ = I64()
    workStartTime_ = I64()


NCCL = (NcclGroupStruct, ProcessGroupStatus, NcclWorkStruct)
"""The structures that are measured with stand-ins for CUDA's headers (torch/measure/wants.py)."""
