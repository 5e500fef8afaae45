"""The structures of process groups and of the flight recorder that are read.

As in torch/structures.py, each class says the name of a C++ class and the members that readers want; those that some
release lacks are asked for with ``has`` first. Sources: torch/csrc/distributed/c10d/ProcessGroup.hpp,
ProcessGroupGloo.hpp, FlightRecorder.hpp, TCPStore.hpp, c10/util/SmallVector.h, 2.0 to 2.15.
"""

from __future__ import annotations

from gdbext.engine.layouts.declarations import F32, I32, I64, U16, U64, Flag, Inner, Link, Place, Struct
from gdbext.torch.structures import Deque


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


class Recorder(Struct, of="c10d::FlightRecorder"):
    """The flight recorder: a ring of entries, and maps of the groups."""

    enabled_ = Flag()
    entries_ = Place()
    next_ = U64()
    reset_epoch_ = U64()
    all_pg_status_ = Place()
    pg_name_to_ranks_ = Place()
    comm_lib_version_ = Place()


class RecorderEntry(Struct, of="c10d::FlightRecorder::Entry"):
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


class SocketAddress(Struct, of="c10d::detail::SocketAddress"):
    """A host and its port."""

    host = Place()
    port = U16()


class TcpStore(Struct, of="c10d::TCPStore"):
    """A store that a server keeps."""

    addr_ = Inner(lambda: SocketAddress)


class FileStore(Struct, of="c10d::FileStore"):
    """A store that is a file."""

    path_ = Place()


class OptionalLong(Struct, of="std::optional<long int>"):
    """A whole number that may be missing."""

    is_engaged = Flag("_M_payload._M_engaged")
    value_of = I64("_M_payload._M_payload._M_value")


class OptionalFloat(Struct, of="std::optional<float>"):
    """A floating-point number that may be missing."""

    is_engaged = Flag("_M_payload._M_engaged")
    value_of = F32("_M_payload._M_payload._M_value")
