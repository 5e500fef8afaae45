"""The contents of ``command script import gdbext/lldb_init.py``: a command object per row of the table, the
same as words of ``dispatch``, and printers of values.

LldbDebugger is LLDB as hosts/debugger/base_debugger.py asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING

import lldb

from gdbext.engine.terminal import shown
from gdbext.errors import TargetError
from gdbext.hosts.debugger.base_debugger import Debugger
from gdbext.hosts.debugger.command_shell import Shell
from gdbext.hosts.lldb.lldb_printers import LldbTypePrinters
from gdbext.hosts.lldb.lldb_target import LentRegisters
from gdbext.hosts.lldb.parsed_command import LldbCommand, check_version
from gdbext.hosts.lldb.selection import Selection
from gdbext.tools import table

if TYPE_CHECKING:
    from gdbext.diagnosis.samples import Pause
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.debugger.base_debugger import Job
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.hosts.lldb.lldb_frames import RegisteredFrames
    from gdbext.hosts.resume.breakpoint_setter import BreakpointSetter
    from gdbext.hosts.resume.host import RunControl


_NAMESPACE = "gdbext_commands"
"""The name by which LLDB finds our classes, for as long as it takes to define the commands."""


class LldbCommands:
    """All commands of one debugger, from ``command script import gdbext/lldb_init.py`` until the next one."""

    def __init__(self, debugger: lldb.SBDebugger, names: dict[str, object]) -> None:
        """Define the commands. ``names`` is LLDB's namespace for scripts, left as it was. Raises TargetError."""
        check_version(debugger)
        self._debugger = debugger
        self._ours = LldbDebugger(debugger, names)
        self._shell = Shell(self._ours)
        classes = names[_NAMESPACE] = SimpleNamespace()
        try:
            self._command(f'command container add -o -h "Explain what a PyTorch process is doing." {table.PREFIX}')
            self._define(vars(classes))
        finally:
            del names[_NAMESPACE]
        self._printers = LldbTypePrinters(self._ours.selection, self._shell.summaries)

    def _define(self, classes: dict[str, object]) -> None:
        kind, add = _kind_of_command(self._debugger)
        for row in table.every_command():
            name = row.name.replace("-", "_")
            classes[name] = type(name, (kind,), {"row": row, "commands": self})
            for words in (row.name, f"{table.PREFIX} {table.short_name(row)}"):
                self._command(f"{add} -o -c {_NAMESPACE}.{name} {words}")

    def execute(self, row: table.ToolRow, argv: Sequence[str], context: lldb.SBExecutionContext) -> table.Outcome:
        """Run one command on what ``context`` says."""
        with self._ours.selection.command(context), _api_lock(row, argv, context):
            return self._shell.execute(row, argv, self._wants_color())

    def completions(self, row: table.ToolRow, words: Sequence[str], current: str) -> list[str]:
        """The words that ``current`` may become behind ``words``."""
        with self._ours.selection.session():
            return self._shell.completions(row, words, current)

    def unload(self) -> None:
        """Make room for a newer version of the commands."""
        self._printers.remove()
        self._shell.close()

    def _wants_color(self) -> bool:
        is_terminal = sys.__stdout__ is not None and sys.__stdout__.isatty()
        return is_terminal and bool(self._debugger.GetUseColor())

    def _command(self, line: str) -> None:
        result = _run(self._debugger, line)
        if not result.Succeeded():
            raise TargetError(f"LLDB refuses {line!r}: {result.GetError()}")


def _run(debugger: lldb.SBDebugger, line: str) -> lldb.SBCommandReturnObject:
    result = lldb.SBCommandReturnObject()
    debugger.GetCommandInterpreter().HandleCommand(line, result)
    return result


def _kind_of_command(debugger: lldb.SBDebugger) -> tuple[type[LldbCommand], str]:
    """The class of our commands, and how they are added."""
    if "--parsed" not in (_run(debugger, "help command script add").GetOutput() or ""):
        return LldbCommand, "command script add"
    from gdbext.hosts.lldb.parsed_command import ParsedCommand

    return ParsedCommand, "command script add --parsed"


def _api_lock(
    row: table.ToolRow, argv: Sequence[str], context: lldb.SBExecutionContext
) -> AbstractContextManager[object]:
    """Nobody else resumes the process while a command reads it (LLDB 22); others resume it themselves."""
    target = context.GetTarget()
    if row.mode != "stopped" or row.runs_on(argv) or not target.IsValid() or not hasattr(target, "GetAPIMutex"):
        return nullcontext()
    lock: AbstractContextManager[object] = target.GetAPIMutex()
    return lock


class LldbDebugger(Debugger):
    """One of the debuggers in this process: an editor may have several. Imports what is needed when it is."""

    name = "lldb"

    def __init__(self, debugger: lldb.SBDebugger, names: dict[str, object] | None = None) -> None:
        """``names``: LLDB's namespace for scripts."""
        self.selection = Selection(debugger)
        self._names = {} if names is None else names
        self._lent = LentRegisters()
        self._frames: RegisteredFrames | None = None

    def target(self) -> Target:
        """The process or core that the command is about."""
        from gdbext.hosts.lldb.lldb_target import current_target

        return current_target(self.selection.process(), self.selection.thread, lent=self._lent)

    def stopped_target(self) -> Target:
        """The process at this stop, also inside a breakpoint's callback."""
        return self.target()

    def has_process(self) -> bool:
        """There is one that has not ended."""
        from gdbext.hosts.lldb.lldb_target import is_there

        return is_there(self.selection.process())

    def identity(self) -> Hashable:
        """The process and its stop; for a core also where its files are looked for."""
        from gdbext.hosts.lldb.lldb_target import is_core, is_there

        process = self.selection.process()
        if not is_there(process):
            return None
        from gdbext.hosts.lldb.lldb_core_target import sysroot_of

        sysroot = sysroot_of(process) if is_core(process) else ""
        return process.GetUniqueID(), process.GetStopID(True), sysroot

    def thread_numbers(self) -> Sequence[int]:
        """The numbers that ``thread list`` shows."""
        process = self.selection.process()
        return [process.GetThreadAtIndex(index).GetIndexID() for index in range(process.GetNumThreads())]

    def on_change(self, action: Callable[[], None]) -> Callable[[], None]:
        """Nothing to connect to: ``identity`` knows the stop, and the target what was written to at this one."""
        del action
        return lambda: None

    def run_control(self) -> RunControl:
        """Give the object that runs the process."""
        from gdbext.hosts.lldb.lldb_run_control import LldbRunControl

        return LldbRunControl(self.selection)

    def pause(self, target: Target) -> Pause:
        """Pause by detaching from the process. Raises UsageError."""
        from gdbext.hosts.lldb.lldb_run_control import pause_of

        return pause_of(self.selection, target)

    def breakpoint_setter(self) -> BreakpointSetter:
        """Give the object that sets LLDB's ordinary breakpoints."""
        from gdbext.hosts.lldb.lldb_breakpoints import LldbBreakpointSetter

        return LldbBreakpointSetter(self.selection)

    def write(self, text: str) -> None:
        """Write text to LLDB's standard output."""
        output = self.selection.debugger.GetOutputFile()
        output.Write(shown(text).encode())
        output.Flush()

    def extend_stacks(self, source: FrameSource | None) -> None:
        """Add frames by a frame provider of the selected target. Raises UsageError (before LLDB 22), TargetError (no
        target)."""
        if self._frames is not None:
            self._frames.remove()
            self._frames = None
        if source is not None:
            from gdbext.hosts.lldb.lldb_frames import RegisteredFrames, StackBuilder, check_frame_providers

            target = self.selection.target()
            check_frame_providers(target)
            builder = StackBuilder(target, self.selection, self._lent, source)
            self._frames = RegisteredFrames(target, self._names, builder)

    def open(self, job: Job, live: bool) -> Target:
        """Attach, load or start. Raises TargetError and its relatives."""
        from gdbext.hosts.lldb.lldb_batch import open_target

        self.selection.interruption.begin()
        return open_target(self.selection.debugger, job, live)

    def let_go(self, job: Job, runs_on: bool) -> None:
        """Detach, or end the program."""
        from gdbext.hosts.lldb.lldb_batch import let_go

        self.selection.interruption.end()
        let_go(self.selection.process(), job, runs_on)


def debugger() -> Debugger:
    """The LLDB whose ``script`` command runs this."""
    return LldbDebugger(lldb.debugger)
