"""A core that LLDB has loaded: read by CoreTarget, with LLDB's thread numbers and selection."""

from __future__ import annotations

import re

import lldb

from gdbext.engine.formats.elf_core import is_core
from gdbext.engine.targets.base_target import TargetThread
from gdbext.engine.targets.core_target import LentCore
from gdbext.engine.targets.system import linux
from gdbext.errors import TargetError
from gdbext.hosts.lldb.selection import SelectedThread, no_thread, thread_of

_SYSROOT_LINE = re.compile(r"^\s*Sysroot: (/.*)$", re.MULTILINE)


class LldbCoreTarget(LentCore):
    """``sysroot`` None means the one of LLDB's platform. Raises TargetError, BadCore, ForeignArchitecture."""

    debugger = "lldb"

    def __init__(
        self,
        process: lldb.SBProcess,
        selected: SelectedThread = no_thread,
        path: str | None = None,
        sysroot: str | None = None,
    ) -> None:
        path = _core_path(process) if path is None else path
        super().__init__(path, sysroot_of(process) if sysroot is None else sysroot)
        self._process = process
        self._selected = selected
        self.program = process.GetTarget().GetExecutable().fullpath
        threads = [process.GetThreadAtIndex(index) for index in range(process.GetNumThreads())]
        self.number_threads({thread.GetThreadID(): thread.GetIndexID() for thread in threads})

    def selected_thread(self) -> TargetThread | None:
        """The thread that the command is about, else LLDB's selected one."""
        selected = thread_of(self._process, self._selected)
        threads = self.threads()
        found = [thread for thread in threads if selected.IsValid() and thread.tid == selected.GetThreadID()]
        return next(iter(found or threads), None)


def _core_path(process: lldb.SBProcess) -> str:
    if process.GetPluginName() != "elf-core":
        raise TargetError(
            f"LLDB's {process.GetPluginName()} processes cannot be read",
            why="only live processes and ELF cores are supported",
            help="take a core of the process: gcore PID",
        )
    if hasattr(process, "GetCoreFile"):  # LLDB 18
        path = process.GetCoreFile().fullpath
        if path:
            return str(path)
    # LLDB keeps the core mapped.
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {linux.split_deleted(mapping.path)[0] for mapping in linux.parse_maps(file.read())}
    cores = [path for path in sorted(paths) if path.startswith("/") and is_core(path)]
    if len(cores) != 1:
        raise TargetError("LLDB does not say the path of its core file", help="use: scripts/dispatch -c CORE")
    return cores[0]


def sysroot_of(process: lldb.SBProcess) -> str:
    """The sysroot of LLDB's platform as a folder of this machine, "" for none."""
    result = lldb.SBCommandReturnObject()
    process.GetTarget().GetDebugger().GetCommandInterpreter().HandleCommand("platform status", result)
    found = _SYSROOT_LINE.search(result.GetOutput() or "")
    return found.group(1).strip() if found else ""
