"""All that the flight recorders of a process hold, to be written as they would write it themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import TargetError
from gdbext.inspection.job.collectives import known_groups, recorders_of, traceback_lines
from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.torch.distributed.flight_recorder import FlightRecorder, GroupStatus, RecordedEntry


class RecordedGroup(Record):
    """A group that the recorder describes."""

    name: str
    description: str
    ranks: tuple[int, ...]


class TracedEntry(Record):
    """An entry with (function, file, line) of the frames that issued it, innermost first."""

    entry: RecordedEntry
    frames: tuple[tuple[str, str, int], ...]


class RecorderContents(Record):
    """What all recorders hold together; statuses by the group's number."""

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
