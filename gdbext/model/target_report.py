"""TargetReport: which process a report is about, and what was recognised in it."""

from __future__ import annotations

from gdbext.model.record import Record
from gdbext.model.recorded_run import RecordedRun


class TargetReport(Record):
    """The ``target`` of a report. Versions and the layout are None where there is none or it is not known."""

    kind: str
    """"live" or "core"."""
    pid: int
    debugger: str
    """"gdb", "lldb" or "none"."""
    torch_version: str | None = None
    layout_id: str | None = None
    layout_match: str = "none"
    """"exact", "generated", "probed" or "none"."""
    python_version: str | None = None
    paused_ms: float | None = None
    """How long the process stood still for this report, in milliseconds; None where nobody measured it."""
    moved: tuple[int, ...] = ()
    """Threads that ran on while memory was read: what is said of them may mix two moments."""
    recording: RecordedRun | None = None
    """The recording that was replayed in place of the target."""
