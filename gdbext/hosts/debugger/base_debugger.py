"""The things that a debugger must do to run gdbext's commands: the one protocol of hosts/gdb and hosts/lldb.

``Launch`` is the outside: how scripts/dispatch starts the debugger for one command, a ``Job``. ``Debugger`` is the
inside: what that debugger lends once its Python runs our code. Everything else (which session a command gets, options
and help, requests of dispatch-break, the result's way back to the launcher) is the same for all and stands in neutral
files.

The debuggers are imported by name, when they are asked for: the launcher starts with this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from gdbext.diagnosis.samples import Pause
    from gdbext.engine.targets.base_target import Target
    from gdbext.errors import TargetError
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.live.breakpoint_setter import BreakpointSetter
    from gdbext.live.host import RunControl


class Job:
    """The command, what it is about, and where its result goes.

    ``result`` is the descriptor that takes the outcome, ``output`` that of the launcher's standard output for what
    a live command shows while the process runs (None for other commands), ``terminal`` that of its terminal, if it
    has one, for progress before a process is stopped. ``launcher`` is the descriptor that EndRequests listens to.
    ``record`` is the path for a recording, "" for none, ``memory`` what the look may take of it in bytes (0 for no
    limit); ``program`` and ``source`` those of engine.terminal.CommandLine. At most one of ``pid`` and ``core`` is
    given, the others are 0 and ""; without either the debugger's command line names a program to start.
    """

    __slots__ = (
        "argv",
        "color",
        "command",
        "core",
        "launcher",
        "memory",
        "output",
        "pid",
        "program",
        "record",
        "result",
        "source",
        "sysroot",
        "terminal",
    )

    def __init__(
        self,
        command: str,
        argv: Sequence[str],
        *,
        result: int,
        output: int | None = None,
        terminal: int | None = None,
        launcher: int = -1,
        pid: int = 0,
        core: str = "",
        sysroot: str = "",
        record: str = "",
        color: bool = False,
        memory: int = 0,
        program: str = "",
        source: str = "",
    ) -> None:
        self.command = command
        self.argv = list(argv)
        self.result = result
        self.output = output
        self.terminal = terminal
        self.launcher = launcher
        self.pid = pid
        self.core = core
        self.sysroot = sysroot
        self.record = record
        self.color = color
        self.memory = memory
        self.program = program
        self.source = source

    def expression(self) -> str:
        """Python for making this job again, in ASCII and on one line: it travels on a command line."""
        options = (
            "result",
            "output",
            "terminal",
            "launcher",
            "pid",
            "core",
            "sysroot",
            "record",
            "color",
            "memory",
            "program",
            "source",
        )
        given = ", ".join(f"{name}={getattr(self, name)!a}" for name in options)
        return f"Job({self.command!a}, {self.argv!a}, {given})"


class DebuggerLaunch(ABC):
    """The way a debugger of our own is started, with one job to do. Nothing here imports the debugger."""

    name: str
    """The debugger's name, as in ``--debugger NAME``."""
    no_result_reason: str
    """A guess at what it can mean that the debugger ended without a result and printed nothing."""

    @abstractmethod
    def find(self) -> str:
        """The debugger's executable. Raises TargetError with how to install one."""

    @abstractmethod
    def arguments(self, code: str, core: str, program: Sequence[str], live: bool) -> list[str]:
        """The arguments behind the executable. ``code`` is one line of Python that does the job, attaching included; a
        ``core`` may be loaded and a ``program`` is named here, and a ``live`` command needs no symbols of it."""

    def relevant_output(self, output: str) -> str:
        """The part that matters of the debugger's own output, for an error message."""
        return output

    def known_failure(self, output: str) -> TargetError | None:
        """The cause that its output says about the debugger itself, where it gave no result; None where that says
        nothing."""
        del output
        return None


class Debugger(ABC):
    """One debugger, from inside its Python."""

    name: str
    """The debugger's name, as in ``--debugger NAME`` and in every report."""

    # --- target ----------------------------------------------------------------------------------

    @abstractmethod
    def target(self) -> Target:
        """The process that the user has selected, stopped. Raises TargetError naming the next step, BadCore,
        ForeignArchitecture."""

    @abstractmethod
    def stopped_target(self) -> Target:
        """The live process at this very stop, also while the debugger calls us for a breakpoint. Raises TargetGone."""

    @abstractmethod
    def has_process(self) -> bool:
        """There is a process or a core."""

    @abstractmethod
    def identity(self) -> Hashable:
        """A value that distinguishes targets where no event does: another inferior, a core replaced by another."""

    @abstractmethod
    def thread_numbers(self) -> Sequence[int]:
        """The debugger's numbers of the threads, for completion."""

    # --- events ----------------------------------------------------------------------------------

    @abstractmethod
    def on_change(self, action: Callable[[], None]) -> Callable[[], None]:
        """Call ``action`` whenever what was read of the target may have become wrong; gives what ends that."""

    # --- running it ------------------------------------------------------------------------------

    @abstractmethod
    def run_control(self) -> RunControl:
        """A fresh way to place hooks and let the process run."""

    @abstractmethod
    def pause(self, target: Target) -> Pause:
        """The way in which this process is let go for a while, and stopped again. Raises UsageError where it cannot
        be."""

    @abstractmethod
    def breakpoint_setter(self) -> BreakpointSetter:
        """Sets breakpoints; asked for once."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Show text to the user at once."""

    @abstractmethod
    def extend_stacks(self, source: FrameSource | None) -> None:
        """Show the frames of ``source`` in the debugger's own stacks, None: native ones only. Raises UsageError."""

    # --- one command in a debugger of our own ----------------------------------------------------

    @abstractmethod
    def open(self, job: Job, live: bool) -> Target:
        """The job's target: attached to, loaded, or started; with ``live`` stopped before its first instruction.
        Raises TargetError, NotPermitted, TargetGone, BadCore."""

    @abstractmethod
    def let_go(self, job: Job, runs_on: bool) -> None:
        """Detach; a program that we started ends, or with ``runs_on`` runs to its own end. Never raises."""

    def leave(self, job: Job) -> None:
        """End the debugger at once, where it has nothing more to do and its own way to end takes long. All that the job
        had to say has been written."""
        del job


def launch(name: str) -> DebuggerLaunch:
    """Say how that debugger is started: ``launch()`` of the module NAME_launch of its folder."""
    found: DebuggerLaunch = import_module(f"gdbext.hosts.{name}.{name}_launch").launch()
    return found


def debugger(name: str) -> Debugger:
    """The debugger, inside which this runs: ``debugger()`` of the module NAME_debugger of its folder."""
    found: Debugger = import_module(f"gdbext.hosts.{name}.{name}_debugger").debugger()
    return found


def job_code(debugger: str, job: Job, root: str) -> str:
    """The line of Python that does the job inside that debugger; ``root`` is the folder that the package is in.

    Nothing is imported from the folder that we happen to be in, which LLDB would look in.

    Where this package is compiled for the debugger's Python already, that is used, and not compiled into our cache.
    """
    compiled = f"{root!a} + '/gdbext/hosts/debugger/__pycache__/batch_job.' + sys.implementation.cache_tag + '.pyc'"
    cached = f"import os, sys; sys.pycache_prefix = None if os.path.exists({compiled}) else sys.pycache_prefix"
    isolated = "sys.path[:] = [each for each in sys.path if each.startswith('/')]"
    imports = f"{isolated}; sys.path.append({root!a}); from gdbext.hosts.debugger.batch_job import Job, run"
    return f"{cached}; {imports}; run({debugger!a}, {job.expression()})"
