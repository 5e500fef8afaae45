"""``dispatch-collectives`` as text: the rank, then each group with what is pending in it."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.rank_set import fold
from gdbext.model.report import Report
from gdbext.model.sections.collectives_section import (
    Collective,
    CollectivesSection,
    CollectivesSource,
    JobRank,
    ProcessGroup,
)
from gdbext.render.text.style import Style, escape
from gdbext.torch.values.dtype import short_name

_SHOWN = 12
_SOURCES = {
    CollectivesSource.FLIGHT_RECORDER: "from the flight recorder",
    CollectivesSource.PROCESS_GROUP: "from the process groups and their queues",
}

_COUNTS = "gloo"
"""The backend whose groups count without a flight recorder, too."""


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, then the groups."""
    section = report.section(CollectivesSection)
    source = f", {_SOURCES[section.source]}" if section.source is not None else ""
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
        yield "  nothing was issued yet" if is_known else "  what was issued is not recorded for this backend"
    else:
        yield f"  enqueued {group.last_enqueued}, started {_known(group.last_started)}, completed " + _known(
            group.last_completed
        )
    for collective in group.pending[:_SHOWN]:
        yield f"  pending {escape(collective_text(collective))}"
    if len(group.pending) > _SHOWN:
        yield f"  … and {len(group.pending) - _SHOWN} more"


def collective_text(collective: Collective) -> str:
    """``#18 all_reduce f32[8, 2], issued 12 s ago at train.py:88 by MainThread (gives up after 1800 s)``."""
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
        text += f" (gives up after {collective.timeout_ms / 1000:g} s)"
    return text


def _known(sequence: int | None) -> str:
    return "?" if sequence is None else str(sequence)
