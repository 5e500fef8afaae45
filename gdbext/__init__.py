"""gdbext explains a hung or crashed PyTorch process from GDB, from LLDB, or with no debugger at all.

As a library: ``import gdbext; process = gdbext.open(pid=1234)`` (docs/library.md). Imports nothing before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.report.wait import Owner, OwnerThread, ParentsThread, VanishedThread, Wait
    from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
    from gdbext.diagnosis.reporting import make_report
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import Tool
    from gdbext.diagnosis.tool_mode import Mode
    from gdbext.diagnosis.waits.function_tag import Functions
    from gdbext.diagnosis.waits.pool_table import Pool
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
    from gdbext.engine.vocabulary import Section
    from gdbext.errors import GdbextError
    from gdbext.hosts.library.process import Answer, Diagnosis, Process
    from gdbext.hosts.library.threads import Thread, Threads
    from gdbext.known import Affected, KnownBug, ThreadPattern

__all__ = [
    "Affected",
    "Answer",
    "Diagnosis",
    "Functions",
    "GdbextError",
    "KnownBug",
    "Mode",
    "Owner",
    "OwnerThread",
    "ParentsThread",
    "Pool",
    "Process",
    "Report",
    "Resource",
    "Section",
    "Session",
    "Thread",
    "ThreadPattern",
    "ThreadSnapshot",
    "Threads",
    "Tool",
    "VanishedThread",
    "Wait",
    "WaitKind",
    "make_report",
    "open",
]
__version__ = "0.1.0"
_MODULES = {
    "known": "Affected KnownBug ThreadPattern",
    "diagnosis.waits.pool_table": "Pool",
    "diagnosis.waits.function_tag": "Functions",
    "diagnosis.waits.snapshot": "ThreadSnapshot",
    "diagnosis.report.wait": "Owner OwnerThread VanishedThread ParentsThread Wait",
    "diagnosis.report.wait_kind": "Resource WaitKind",
    "diagnosis.tool_mode": "Mode",
    "diagnosis.tool": "Tool",
    "diagnosis.report": "Report",
    "diagnosis.reporting": "make_report",
    "engine.vocabulary": "Section",
    "diagnosis.session": "Session",
    "hosts.library.process": "Answer Diagnosis Process",
    "errors": "GdbextError",
    "hosts.library.threads": "Thread Threads",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
"""Public name → its module."""


def open(  # as in gzip.open
    *,
    pid: int | None = None,
    core: str | None = None,
    recording: str | None = None,
    sysroot: str = "",
    stop: bool = True,
    hold: bool = False,
    timeout: float | None = None,
    memory_limit: float | None = None,
) -> Process:
    """Examine a running process, a core dump or a recording: give one of ``pid``, ``core`` and ``recording``.

    A running process is stopped for some milliseconds and resumes; with ``stop=False`` it is not stopped, with
    ``hold=True`` it stays stopped until ``close()``. Nothing is ever written to it. ``sysroot`` is the root of the
    files of a core's machine. ``timeout`` (seconds) and ``memory_limit`` (gigabytes) are for each call that reads, this
    one among them; None for no limit. Raises GdbextError.
    """
    # with the next line 9 ms, which the command line need not pay
    from gdbext.engine.targets.budget import CallLimits
    from gdbext.hosts.library.process import open_process

    return open_process(pid, core, recording, sysroot, stop, hold, CallLimits(timeout, memory_limit))


if not TYPE_CHECKING:  # so that mypy reports a misspelled name

    def __getattr__(name):
        """The public class of that name, imported on first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'gdbext' has no attribute {name!r}")
        return getattr(import_module(f"gdbext.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
