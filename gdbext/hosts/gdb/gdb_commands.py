"""The contents of ``source gdbext/init.py``: a gdb.Command for each row of the table, and printers of values.

GdbDebugger is gdb as hosts/debugger/base_debugger.py asks for it. gdb's own ``bt`` shows more than native frames by a
frame filter. Only gdb's frames are asked, for the program counter and the stack pointer: no symbol of any library is
read for this.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gdb
from gdb.FrameDecorator import FrameDecorator

from gdbext.engine.terminal import shown, wrapped
from gdbext.hosts.debugger.base_debugger import Debugger
from gdbext.hosts.debugger.command_shell import Shell
from gdbext.hosts.debugger.frame_source import AddedFrame, Position, frame_function, frame_source, interleaved
from gdbext.hosts.gdb.gdb_printers import PrinterRegistration
from gdbext.tools import table

if TYPE_CHECKING:
    from gdbext.diagnosis.samples import Pause
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.debugger.base_debugger import Job
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.hosts.resume.breakpoint_setter import BreakpointSetter
    from gdbext.hosts.resume.host import RunControl


class GdbCommand(gdb.Command):  # type: ignore[misc]
    """One command of the registry. Its ``__doc__`` is what gdb's help shows; gdb copies it here and now."""

    def __init__(self, row: table.ToolRow, shell: Shell, documentation: str, name: str = "") -> None:
        """``name``: another one than the row's."""
        self._row = row
        self._shell = shell
        self.__doc__ = documentation
        super().__init__(name or row.name, gdb.COMMAND_USER)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Called by gdb. Failures become gdb.GdbError, or with --json a document."""
        self.dont_repeat()
        argv = gdb.string_to_argv(argument)
        outcome = self._shell.execute(self._row, argv, _wants_color(from_tty))
        width = 0 if "--json" in argv else gdb.parameter("width") or 0
        try:
            if outcome.output:
                _write(wrapped(outcome.output, width) if width else outcome.output, gdb.STDOUT)
        except KeyboardInterrupt:  # the user ended gdb's pager
            return
        if outcome.error:
            if not outcome.output:
                raise gdb.GdbError(outcome.error)
            _write(outcome.error + "\n", gdb.STDERR)

    def complete(self, text: str, word: str) -> Sequence[str]:
        """Options, and thread numbers after --thread."""
        words = text.split()
        current = "" if not words or text[-1:].isspace() else words.pop()
        # gdb completes its own idea of the last word, which begins after the option's dashes.
        dropped = len(current) - len(word) if current.endswith(word) else 0
        return [name[dropped:] for name in self._shell.completions(self._row, words, current)]


class GdbPrefix(gdb.Command):  # type: ignore[misc]
    """``dispatch``: the commands as its words, ``dispatch bt`` for dispatch-bt, as LLDB has them."""

    def __init__(self) -> None:
        self.__doc__ = "Explain what a PyTorch process is doing. Alone it says why the process hangs or crashed."
        super().__init__(table.PREFIX, gdb.COMMAND_USER, gdb.COMPLETE_NONE, True)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Called by gdb where no word that it knows follows. Raises gdb.GdbError."""
        if argument:
            raise gdb.GdbError(f'there is no "{table.PREFIX} {argument}"; help {table.PREFIX} lists what there is')
        try:
            gdb.execute(table.DEFAULT, from_tty)
        except gdb.error as error:
            raise gdb.GdbError(str(error)) from None


class GdbCommands:
    """All commands, from ``source gdbext/init.py`` until the next one."""

    def __init__(self) -> None:
        """Define the commands, with a line of help each; the whole help follows with the first prompt.

        Making it takes the import of every command (0.1 s), which nobody should pay who only runs one in a script.
        """
        self._shell = Shell(debugger())
        GdbPrefix()
        self._define(lambda row: f"{row.summary}\nSee: {row.name} --help")
        self._printers = PrinterRegistration(self._shell.summaries)
        self._awaits_prompt = hasattr(gdb.events, "before_prompt")
        if self._awaits_prompt:
            gdb.events.before_prompt.connect(self._complete_help)

    def unload(self) -> None:
        """Make room for a newer version of the commands."""
        self._printers.remove()
        self._shell.close()
        self._forget_prompt()

    def _complete_help(self) -> None:
        self._forget_prompt()
        self._define(table.help_text)

    def _define(self, documentation: Callable[[table.ToolRow], str]) -> None:
        for row in table.every_command():
            text = documentation(row)
            GdbCommand(row, self._shell, text)
            GdbCommand(row, self._shell, text, f"{table.PREFIX} {table.short_name(row)}")

    def _forget_prompt(self) -> None:
        """gdb 13 raises SystemError for what is not connected any more."""
        if self._awaits_prompt:
            self._awaits_prompt = False
            gdb.events.before_prompt.disconnect(self._complete_help)


def _wants_color(from_tty: bool) -> bool:
    is_terminal = from_tty and sys.__stdout__ is not None and sys.__stdout__.isatty()
    return is_terminal and bool(gdb.parameter("style enabled"))


def _write(text: str, stream: int) -> None:
    text = shown(text)
    try:
        gdb.write(text, stream)
    except (UnicodeError, gdb.error):  # gdb's host charset (LANG=C) has no such character
        gdb.write(text.encode("ascii", "backslashreplace").decode(), stream)


_CHANGES = ("stop", "cont", "exited", "memory_changed", "register_changed", "new_objfile", "clear_objfiles",
            "inferior_deleted", "inferior_call")  # fmt: skip
"""gdb's events after which what was read may be wrong. Older gdbs lack some."""


class GdbDebugger(Debugger):
    """Imports what is needed when it is: most commands only want a target."""

    name = "gdb"

    def __init__(self) -> None:
        self._filter: AddedFrameFilter | None = None
        self._unwritten: list[str] = []

    def target(self) -> Target:
        """gdb's selected inferior, or its core."""
        from gdbext.hosts.gdb.gdb_batch import current_target

        return current_target()

    def stopped_target(self) -> Target:
        """The selected inferior, also inside a breakpoint's stop()."""
        from gdbext.hosts.gdb.gdb_batch import stopped_target

        return stopped_target()

    def has_process(self) -> bool:
        """The selected inferior has one."""
        return bool(gdb.selected_inferior().pid)

    def identity(self) -> Hashable:
        """Inferior, process, connection, and where files are looked for."""
        inferior = gdb.selected_inferior()
        connection = getattr(inferior, "connection", None)
        number = connection.num if connection is not None else 0
        return inferior.num, inferior.pid, number, gdb.parameter("sysroot")

    def thread_numbers(self) -> Sequence[int]:
        """The numbers that ``info threads`` shows."""
        return [thread.num for thread in gdb.selected_inferior().threads()]

    def on_change(self, action: Callable[[], None]) -> Callable[[], None]:
        """Connect ``action`` to all events of that kind; gives what disconnects it."""

        def changed(_: Any) -> None:
            action()

        events = [getattr(gdb.events, name) for name in _CHANGES if hasattr(gdb.events, name)]
        for event in events:
            event.connect(changed)

        def disconnect() -> None:
            for event in events:
                event.disconnect(changed)

        return disconnect

    def run_control(self) -> RunControl:
        """Give the object that runs the selected inferior."""
        from gdbext.hosts.gdb.gdb_run_control import GdbRunControl

        return GdbRunControl()

    def pause(self, target: Target) -> Pause:
        """Pause by gdb's own continue. Raises UsageError."""
        from gdbext.hosts.gdb.gdb_run_control import pause_of

        return pause_of(target)

    def breakpoint_setter(self) -> BreakpointSetter:
        """Give the object that sets gdb's ordinary breakpoints."""
        from gdbext.hosts.gdb.gdb_breakpoints import GdbBreakpointSetter

        return GdbBreakpointSetter()

    def write(self, text: str) -> None:
        """Write text to gdb's standard output; from another thread than gdb's own: soon."""
        self._unwritten.append(shown(text))
        if threading.current_thread() is threading.main_thread():
            self._write_all()
        else:
            gdb.post_event(self._write_all)

    def _write_all(self) -> None:
        while self._unwritten:
            gdb.write(self._unwritten.pop(0))

    def extend_stacks(self, source: FrameSource | None) -> None:
        """Add frames to the stacks of gdb by a frame filter."""
        if self._filter is not None:
            self._filter.remove()
            self._filter = None
        if source is not None:
            self._filter = AddedFrameFilter(source)

    def open(self, job: Job, live: bool) -> Target:
        """Attach, load or start. Raises TargetError and its relatives."""
        from gdbext.hosts.gdb.gdb_batch import open_target

        return open_target(job, live)

    def let_go(self, job: Job, runs_on: bool) -> None:
        """Detach, or end the program."""
        from gdbext.hosts.gdb.gdb_batch import let_go

        let_go(job, runs_on)


def debugger() -> Debugger:
    """The debugger inside which this runs: gdb."""
    return GdbDebugger()


NAME = "dispatch-frames"
_INDENT = "    "
_WORD = (1 << 64) - 1
_PRIORITY = 50
"""A priority below the 100 of most filters, which then see gdb's own frames only."""


class AddedDecorator(FrameDecorator):  # type: ignore[misc]
    """Shows one added frame. It borrows a frame of gdb's, whose number gdb prints only once: for the frame itself."""

    def __init__(self, lender: gdb.Frame, added: AddedFrame) -> None:
        super().__init__(lender)
        self._added = added

    def function(self) -> str:
        """A Python function's name, or PyTorch's words for a pass through the dispatcher; below gdb's numbers."""
        return _INDENT + frame_function(self._added.frame)

    def filename(self) -> str | None:
        """The source file of a Python function."""
        return frame_source(self._added.frame)[0] or None

    def line(self) -> int | None:
        """The current line of a Python function."""
        return frame_source(self._added.frame)[1] or None

    def address(self) -> int | None:
        """None: there is no code of its own. gdb's DAP server takes no None (gdb 14 to 18) and gets the
        native frame's."""
        return int(self.inferior_frame().pc()) if "gdb.dap" in sys.modules else None

    def frame_args(self) -> None:
        """None that gdb could read."""

    def frame_locals(self) -> None:
        """None that gdb could read."""


class AddedFrameFilter:
    """The filter, as gdb wants it; it stands in ``gdb.frame_filters`` while it is wanted."""

    def __init__(self, source: FrameSource) -> None:
        self.name = NAME
        self.priority = _PRIORITY
        self.enabled = True
        self._source = source
        gdb.frame_filters[self.name] = self

    def filter(self, frames: Iterator[FrameDecorator]) -> Iterator[FrameDecorator]:
        """Called by gdb for each stack that it shows."""
        thread = gdb.selected_thread()
        if thread is None:
            return frames
        pid, lwp, _ = thread.ptid
        return self._with_added(frames, lwp or pid)

    def _with_added(self, frames: Iterator[FrameDecorator], tid: int) -> Iterator[FrameDecorator]:
        lender = gdb.newest_frame()
        for each in interleaved(frames, _position, self._source.of(tid)):
            if isinstance(each, AddedFrame):
                yield AddedDecorator(lender, each)
            else:
                lender = each.inferior_frame()
                yield each

    def remove(self) -> None:
        """Remove our frames: only native ones are shown then."""
        if gdb.frame_filters.get(self.name) is self:
            del gdb.frame_filters[self.name]


def _position(decorator: FrameDecorator) -> Position | None:
    frame = decorator.inferior_frame()
    with suppress(gdb.error):
        if frame.type() != gdb.INLINE_FRAME:
            return frame.pc(), int(frame.read_register("sp")) & _WORD
    return None
