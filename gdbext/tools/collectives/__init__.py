"""``dispatch-collectives``: process groups, sequence numbers, pending collectives; the flight recorder's file.

The file is a pickled dictionary, which PyTorch's analyzer (``torchfrtrace``) reads. Source: FlightRecorder.hpp (keys,
``version_val``), FlightRecorderDetail.hpp (``getCollectiveTrace``, ``getPgConfig``, ``getPgStatus``) of 2.13.0.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gdbext.diagnosis.job.collectives import known_groups, read_collectives, recorders_of, traceback_lines
from gdbext.diagnosis.job.collectives_section import CollectivesSection, CollectivesSource, JobRank
from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import make_report
from gdbext.diagnosis.tool import Tool, ToolHost
from gdbext.engine.formats import whole_file
from gdbext.engine.rank_sets import fold
from gdbext.engine.vocabulary import duration, or_unknown
from gdbext.errors import TargetError
from gdbext.render import Style, escape
from gdbext.torch.distributed.nccl_communicators import Communicator, ProxyTransfer, TransferWait
from gdbext.torch.distributed.process_groups import Collective, ProcessGroup
from gdbext.torch.values.value_text import short_name

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.torch.distributed.flight_recorder import RecordedEntry


class CollectivesTool(Tool):
    """The command ``dispatch-collectives`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        output_help = (
            "also write the flight recorder's contents in its own format: put one file per rank (NAME_RANK) into a "
            "folder and run torchfrtrace on it"
        )
        parser.add_argument("--output", metavar="FILE", help=output_help)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Read the groups; with --output all entries as well. Raises NotTorch, LayoutError, TargetError."""
        session, (section, document) = session.read_consistently(
            lambda session: (read_collectives(session), recorder_document(session) if args.output is not None else None)
        )
        if document:
            # The protocol of torch/csrc/jit/serialization/pickler.cpp, which the recorder uses, is 2.
            whole_file.write(args.output, pickle.dumps(document, 2))
            section = section.with_output(args.output)
        return make_report(self, session, args, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """A headline, then the groups."""
        section = report.section(CollectivesSection)
        sources = {
            CollectivesSource.FLIGHT_RECORDER: "from the flight recorder",
            CollectivesSource.PROCESS_GROUP: "from the process groups and their queues",
        }
        source = f", {sources[section.source]}" if section.source else ""
        yield style(f"{escape(_rank_text(section.identity))}{source}", "bold")
        if section.store:
            yield f"store {escape(section.store)}"
        if not section.groups:
            yield "No process group: torch.distributed.init_process_group() was not called, or has not returned."
        for group in section.groups:
            yield ""
            yield from group_lines(group, style, section.source is CollectivesSource.FLIGHT_RECORDER)
        if section.output:
            yield ""
            file = escape(section.output)
            yield f"written: {file} (the flight recorder's format; torchfrtrace reads a folder of such files)"


def recorder_document(session: Session) -> dict[str, Any]:
    """The contents of all recorders under their own keys. Raises TargetError (no recorder), NotTorch, LayoutError,
    MemoryFault, BadData."""
    recorders = recorders_of(session)
    if not recorders:
        raise TargetError(
            "this process has no flight recorder of collectives",
            why="its torch has none for this backend, it is disabled (TORCH_FR_BUFFER_SIZE=0), or the process has not "
            "issued a collective yet",
            help="omit --output to read the process groups themselves",
        )
    # Gloo registers its groups with the recorder before they have names. PyTorch's analyzer needs these to find the
    # members, so they are taken from the groups themselves.
    objects = known_groups(session).objects.values()
    groups = {group.name: (group.description, group.ranks) for group in objects}
    for recorder in recorders:
        for (name, description), ranks in recorder.groups().items():
            if name:
                groups[name] = description, ranks
    statuses = {number: status for recorder in recorders for number, status in recorder.statuses().items()}
    document = {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": description, "ranks": f"[{', '.join(map(str, ranks))}]"}
            for name, (description, ranks) in groups.items()
        },
        "comm_lib_version": recorders[-1].comm_lib_version,
        "pg_status": {
            str(number): {
                "last_enqueued_collective": status.enqueued,
                "last_started_collective": status.started,
                "last_completed_collective": status.completed,
            }
            for number, status in statuses.items()
        },
        "entries": [
            _entry(entry, traceback_lines(session, recorder, entry))
            for recorder in recorders
            for entry in recorder.entries()
        ],
    }
    for recorder in recorders:
        for problem in recorder.problems:
            session.errors.note(problem, "flight recorder")
    return document


def _entry(entry: RecordedEntry, frames: Iterable[tuple[str, str, int]]) -> dict[str, Any]:
    """The entry in the recorder's format. ``frames``: (function, file, line) that issued it, innermost first."""
    return {
        "frames": [{"name": function, "filename": file, "line": line} for function, file, line in frames],
        "record_id": entry.id,
        "pg_id": entry.pg_id,
        "process_group": (entry.group, entry.description),
        "thread_name": entry.thread_name,
        "thread_id": str(entry.thread_id),
        "collective_seq_id": entry.collective_seq,
        "p2p_seq_id": entry.p2p_seq,
        "op_id": entry.op_id,
        "profiling_name": entry.profiling_name,
        "time_created_ns": entry.created,
        **({} if entry.duration_ms is None else {"duration_ms": entry.duration_ms}),
        "input_sizes": [list(sizes) for sizes in entry.input_sizes],
        "input_dtypes": list(entry.input_dtypes),
        "output_sizes": [list(sizes) for sizes in entry.output_sizes],
        "output_dtypes": list(entry.output_dtypes),
        "state": entry.state,
        "time_discovered_started_ns": entry.started,
        "time_discovered_completed_ns": entry.completed,
        "retired": entry.retired,
        "timeout_ms": entry.timeout_ms,
        "is_p2p": entry.is_p2p,
    }


_SHOWN = 12
"""Pending collectives, and transfers, that are shown at most."""
_WAITS_FOR = {
    TransferWait.BEGIN: "; not started",
    TransferWait.PEER: "; waits for {peer} {what}",
    TransferWait.DEVICE: "; waits for its own device",
    TransferWait.FLUSH: "; waits until the received data is in its device's memory",
    TransferWait.PROXY: "; waits for its own proxy thread",
    TransferWait.UNKNOWN: "",
}


def _rank_text(rank: JobRank) -> str:
    """``rank 1 of 4 on node7, job 1234``."""
    text = "unknown rank" if rank.rank is None else f"rank {rank.rank}"
    text += f" of {rank.size}" if rank.size is not None else ""
    text += f" on {rank.host}" if rank.host else ""
    return text + (f", job {rank.job}" if rank.job else "")


def group_lines(group: ProcessGroup, style: Style, is_recorded: bool) -> Iterator[str]:
    """Lines on a group: name and members, sequence numbers, communicators, pending operations. ``is_recorded``: the
    facts are from the flight recorder."""
    about = f" ({group.description})" if group.description else ""
    members = f", ranks {fold(group.ranks)}" if group.ranks else ""
    own = f", rank {group.rank} of {group.size}" if group.rank is not None else ""
    title = style(f"group {escape(group.name + about)}", "bold")
    yield title + escape(f": {group.backend or 'backend ?'}{own}{members}")
    if group.last_enqueued is None:
        is_known = is_recorded or "gloo" in (group.backend or "")  # Gloo's groups count without a recorder, too
        yield "  no collective issued yet" if is_known else "  issued operations are not recorded for this backend"
    else:
        started, completed = or_unknown(group.last_started), or_unknown(group.last_completed)
        yield f"  enqueued {group.last_enqueued}, started {started}, completed {completed}"
    for communicator in group.communicators:
        yield from map(escape, communicator_lines(communicator))
    for collective in group.pending[:_SHOWN]:
        yield f"  pending {escape(_collective_text(collective))}"
    if len(group.pending) > _SHOWN:
        yield f"  … and {len(group.pending) - _SHOWN} more"


def communicator_lines(communicator: Communicator) -> Iterator[str]:
    """``  NCCL 2.27.5: rank 0 of 4 on cuda:0, 41 launches; no error``, then each transfer that is not done."""
    states = (
        f"being initialized: {communicator.setup}" if communicator.setup else "",
        f"asynchronous error: {communicator.error}" if communicator.error else "no error",
        "aborted" if communicator.aborted else "",
        "finalized" if communicator.finalized else "",
    )
    yield (
        f"  NCCL {communicator.version}: rank {communicator.rank} of {communicator.size} on "
        f"cuda:{communicator.device}, {communicator.launches} launches; {'; '.join(filter(None, states))}"
    )
    for transfer in communicator.transfers[:_SHOWN]:
        yield f"    {_transfer_text(transfer)}"
    if len(communicator.transfers) > _SHOWN:
        yield f"    … and {len(communicator.transfers) - _SHOWN} more transfers"


def _transfer_text(transfer: ProxyTransfer) -> str:
    """``all_reduce, channel 1, receives from rank 2 over net, 8 steps: … done 1; waits for rank 2 to send``."""
    peer = "an unknown rank" if transfer.peer is None else f"rank {transfer.peer}"
    direction, what = ("sends to", "to receive") if transfer.is_send else ("receives from", "to send")
    route = f"{direction} {peer}" + (f" over {transfer.transport}" if transfer.transport else "")
    received = "" if transfer.is_send else f"received {transfer.received}, "
    steps = f"{transfer.steps} steps: posted {transfer.posted}, {received}transmitted {transfer.transmitted}"
    words = _WAITS_FOR[transfer.waits_for].format(peer=peer, what=what)
    operation = f"{transfer.operation}, " if transfer.operation else ""
    return f"{operation}channel {transfer.channel}, {route}, {steps}, done {transfer.done}{words}"


def _collective_text(collective: Collective) -> str:
    """``#18 all_reduce f32[8, 2], issued 12 s ago at train.py:88 by MainThread, times out after 30 min``."""
    number = f"#{collective.seq} " if collective.seq is not None else ""
    tensors = ", ".join(
        f"{short_name(dtype)}[{', '.join(map(str, sizes))}]"
        for dtype, sizes in zip(collective.dtypes, collective.sizes)
    )
    text = f"{number}{collective.op} {tensors}".rstrip()
    if collective.age_ms is not None:
        text += f", issued {collective.age_ms / 1000:.1f} s ago"
    if collective.file:
        text += f" at {collective.file}:{collective.line}"
    if collective.thread:
        text += f" by {collective.thread}"
    if collective.timeout_ms:
        text += f", times out after {duration(collective.timeout_ms / 1000)}"
    return text
