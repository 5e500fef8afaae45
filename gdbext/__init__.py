"""gdbext explains a hung or crashed PyTorch process from GDB, from LLDB, or with no debugger at all.

As a library: ``import gdbext; process = gdbext.open(pid=1234)`` (docs/library.md). Imports nothing before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdbext.diagnosis.report import Report as Report
    from gdbext.diagnosis.report.wait import Owner as Owner
    from gdbext.diagnosis.report.wait import OwnerThread as OwnerThread
    from gdbext.diagnosis.report.wait import ParentsThread as ParentsThread
    from gdbext.diagnosis.report.wait import VanishedThread as VanishedThread
    from gdbext.diagnosis.report.wait import Wait as Wait
    from gdbext.diagnosis.report.wait_kind import Resource as Resource
    from gdbext.diagnosis.report.wait_kind import WaitKind as WaitKind
    from gdbext.diagnosis.reporting import make_report as make_report
    from gdbext.diagnosis.session import Session as Session
    from gdbext.diagnosis.tool import Tool as Tool
    from gdbext.diagnosis.tool_mode import Mode as Mode
    from gdbext.diagnosis.waits.function_tag import Functions as Functions
    from gdbext.diagnosis.waits.pool_table import Pool as Pool
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot as ThreadSnapshot
    from gdbext.engine.vocabulary import Section as Section
    from gdbext.errors import GdbextError as GdbextError
    from gdbext.hosts.library.process import Answer as Answer
    from gdbext.hosts.library.process import Diagnosis as Diagnosis
    from gdbext.hosts.library.process import Process as Process
    from gdbext.hosts.library.threads import Thread as Thread
    from gdbext.hosts.library.threads import Threads as Threads
    from gdbext.known import Affected as Affected
    from gdbext.known import KnownBug as KnownBug
    from gdbext.known import ThreadPattern as ThreadPattern

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
__all__ = [*_MODULE_OF, "open"]


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

    limits = CallLimits(timeout, memory_limit, "core" if core else "recording" if recording else "process")
    return open_process(pid, core, recording, sysroot, stop, hold, limits)


if not TYPE_CHECKING:  # so that mypy reports a misspelled name

    def __getattr__(name):
        """The public class of that name, imported on first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'gdbext' has no attribute {name!r}")
        return getattr(import_module(f"gdbext.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
