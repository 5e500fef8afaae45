"""``dispatch-collectives`` as text: the rank, then each group with what is pending in it.

``dispatch-collectives``: process groups, sequence numbers, pending collectives with the lines that issued them.

All that the flight recorders of a process hold, to be written as they would write it themselves.

The file that PyTorch's flight recorder writes, and its analyser (``torchfrtrace``) reads: a pickled dictionary.

Source: FlightRecorder.hpp (keys, ``version_val``), FlightRecorderDetail.hpp (``getCollectiveTrace``, ``getPgConfig``,
``getPgStatus``) of 2.13.0.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from gdbext.diagnosis.job.collectives import known_groups, read_collectives, recorders_of, traceback_lines
from gdbext.diagnosis.job.collectives_section import CollectivesSection, CollectivesSource, JobRank
from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import make_report
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_mode import Mode
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
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.torch.distributed.flight_recorder import FlightRecorder, GroupStatus, RecordedEntry


class CollectivesTool(Tool):
    """The command ``dispatch-collectives`` as a tool."""

    name = "dispatch-collectives"
    summary = "Show process groups, sequence numbers and pending collectives."
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the options of this tool."""
        parser.add_argument(
            "--output",
            metavar="FILE",
            help="also write the contents of the flight recorder, in its own format: put one file "
            "per rank into a folder (NAME_RANK) and run torchfrtrace on it",
        )

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Read the groups; with --output all entries as well. Raises NotTorch, LayoutError, TargetError."""
        session, (section, recorded) = session.settled(lambda each: _read(each, with_all=args.output is not None))
        if recorded:
            write(recorded, args.output)
            section = section.with_output(args.output)
        return make_report(self, session, args, sections=(section,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        return render(report, style)


def _read(session: Session, with_all: bool) -> tuple[CollectivesSection, RecorderContents | None]:
    return read_collectives(session), recorder_contents(session) if with_all else None


class RecordedGroup(NamedTuple):
    """A group that the recorder describes."""

    name: str
    description: str
    ranks: tuple[int, ...]


class TracedEntry(NamedTuple):
    """An entry with (function, file, line) of the frames that issued it, innermost first."""

    entry: RecordedEntry
    frames: tuple[tuple[str, str, int], ...]


class RecorderContents(NamedTuple):
    """The contents of all recorders together; statuses by the group's number."""

    comm_lib_version: str
    groups: tuple[RecordedGroup, ...]
    statuses: dict[int, GroupStatus]
    entries: tuple[TracedEntry, ...]


def recorder_contents(session: Session) -> RecorderContents:
    """Raises TargetError (no recorder), NotTorch, LayoutError, MemoryFault, BadData."""
    recorders = recorders_of(session)
    if not recorders:
        raise TargetError(
            "this process has no flight recorder of collectives",
            why="its torch has none for this backend, it is switched off (TORCH_FR_BUFFER_SIZE=0), or the process has "
            "issued no collective yet",
            help="without --output the process groups themselves are read",
        )
    found = RecorderContents(
        recorders[-1].comm_lib_version,
        tuple(_groups(session, recorders)),
        {number: status for each in recorders for number, status in each.statuses().items()},
        tuple(
            TracedEntry(entry, tuple(traceback_lines(session, each, entry)))
            for each in recorders
            for entry in each.entries()
        ),
    )
    for recorder in recorders:
        for problem in recorder.problems:
            session.errors.note(problem, "flight recorder")
    return found


def _groups(session: Session, recorders: list[FlightRecorder]) -> list[RecordedGroup]:
    """Gloo describes its groups to the recorder before they have names: those are added from the groups themselves,
    without which PyTorch's analyser does not find their members."""
    objects = known_groups(session).objects.values()
    named = {group.name: RecordedGroup(group.name, group.description, group.ranks) for group in objects}
    for recorder in recorders:
        for (name, description), ranks in recorder.groups().items():
            if name:
                named[name] = RecordedGroup(name, description, ranks)
    return list(named.values())


VERSION = "2.10"
PROTOCOL = 2
"""The protocol of torch/csrc/jit/serialization/pickler.cpp, which the recorder uses."""


def write(contents: RecorderContents, path: str) -> None:
    """Raises TargetError where the file cannot be written."""
    whole_file.write(path, pickle.dumps(document(contents), PROTOCOL))


def document(contents: RecorderContents) -> dict[str, Any]:
    """The dictionary under the recorder's own keys."""
    return {
        "version": VERSION,
        "pg_config": {
            group.name: {
                "name": group.name,
                "desc": group.description,
                "ranks": f"[{', '.join(map(str, group.ranks))}]",
            }
            for group in contents.groups
        },
        "comm_lib_version": contents.comm_lib_version,
        "pg_status": {
            str(number): {
                "last_enqueued_collective": status.enqueued,
                "last_started_collective": status.started,
                "last_completed_collective": status.completed,
            }
            for number, status in contents.statuses.items()
        },
        "entries": [_entry(traced) for traced in contents.entries],
    }


def _entry(traced: TracedEntry) -> dict[str, Any]:
    entry = traced.entry
    frames = [{"name": function, "filename": file, "line": line} for function, file, line in traced.frames]
    return {
        "frames": frames,
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
_SOURCES = {
    CollectivesSource.FLIGHT_RECORDER: "from the flight recorder",
    CollectivesSource.PROCESS_GROUP: "from the process groups and their queues",
}

_COUNTS = "gloo"
"""The backend whose groups count without a flight recorder, too."""


_WAITS_FOR = {
    TransferWait.BEGIN: "; not begun",
    TransferWait.PEER: "; waits for {peer} {what}",
    TransferWait.DEVICE: "; waits for its own device",
    TransferWait.FLUSH: "; waits until what came is in its device's memory",
    TransferWait.PROXY: "; waits for its own proxy thread",
    TransferWait.UNKNOWN: "",
}


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, then the groups."""
    section = report.section(CollectivesSection)
    source = f", {_SOURCES[section.source]}" if section.source else ""
    yield style(f"{escape(identity(section.identity))}{source}", "bold")
    if section.store:
        yield f"store {escape(section.store)}"
    if not section.groups:
        yield "This process has no process group: torch.distributed.init_process_group() was not called, or waits."
    for group in section.groups:
        yield ""
        yield from group_lines(group, style, section.source is CollectivesSource.FLIGHT_RECORDER)
    if section.output:
        yield ""
        yield f"Written: {escape(section.output)} (the flight recorder's format; torchfrtrace reads a folder of them)"


def identity(rank: JobRank) -> str:
    """``rank 1 of 4 on node7, job 1234``."""
    text = "unknown rank" if rank.rank is None else f"rank {rank.rank}"
    text += f" of {rank.size}" if rank.size is not None else ""
    text += f" on {rank.host}" if rank.host else ""
    return text + (f", job {rank.job}" if rank.job else "")


def group_lines(group: ProcessGroup, style: Style, is_recorded: bool) -> Iterator[str]:
    """A group: what it is, how far it came, what is pending; ``is_recorded``: a flight recorder would have noted it."""
    about = f" ({group.description})" if group.description else ""
    members = f", ranks {fold(group.ranks)}" if group.ranks else ""
    own = f", rank {group.rank} of {group.size}" if group.rank is not None else ""
    title = style(f"group {escape(group.name + about)}", "bold")
    yield title + escape(f": {group.backend or 'backend ?'}{own}{members}")
    if group.last_enqueued is None:
        is_known = is_recorded or _COUNTS in (group.backend or "")
        yield "  no collective was issued yet" if is_known else "  what was issued is not recorded for this backend"
    else:
        yield f"  enqueued {group.last_enqueued}, started {or_unknown(group.last_started)}, completed " + or_unknown(
            group.last_completed
        )
    for each in group.communicators:
        yield from map(escape, communicator_lines(each))
    for collective in group.pending[:_SHOWN]:
        yield f"  pending {escape(collective_text(collective))}"
    if len(group.pending) > _SHOWN:
        yield f"  … and {len(group.pending) - _SHOWN} more"


def communicator_lines(found: Communicator) -> Iterator[str]:
    """``  NCCL 2.27.5: rank 0 of 4 on cuda:0, 41 launches; no error``, then each transfer that is not done."""
    state = "; ".join(
        filter(
            None,
            (
                f"being made: {found.setup}" if found.setup else "",
                f"asynchronous error: {found.error}" if found.error else "no error",
                "aborted" if found.aborted else "",
                "finalized" if found.finalized else "",
            ),
        )
    )
    yield (
        f"  NCCL {found.version}: rank {found.rank} of {found.size} on cuda:{found.device}, "
        f"{found.launches} launches; {state}"
    )
    for each in found.transfers[:_SHOWN]:
        yield f"    {transfer_text(each)}"
    if len(found.transfers) > _SHOWN:
        yield f"    … and {len(found.transfers) - _SHOWN} more transfers"


def transfer_text(found: ProxyTransfer) -> str:
    """``all_reduce, channel 1, receives from 2 over net: 8 steps, posted 3, … done 1: waits for data of rank 2``."""
    peer = "an unknown rank" if found.peer is None else f"rank {found.peer}"
    way = f"{'sends to' if found.is_send else 'receives from'} {peer}{' over ' if found.transport else ''}"
    steps = f"{found.steps} steps: posted {found.posted}, received {found.received}, transmitted {found.transmitted}"
    if found.is_send:
        steps = f"{found.steps} steps: posted {found.posted}, transmitted {found.transmitted}"
    words = _WAITS_FOR[found.waits_for].format(peer=peer, what="to take what was sent" if found.is_send else "to send")
    operation = f"{found.operation}, " if found.operation else ""
    return f"{operation}channel {found.channel}, {way}{found.transport}, {steps}, done {found.done}{words}"


def collective_text(collective: Collective) -> str:
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
