"""The protocol of hosts/gdb and hosts/lldb: what a debugger must do to run gdbext's commands.

``DebuggerLaunch`` is the outside: how scripts/dispatch starts the debugger for one command, a ``Job``. ``Debugger`` is
the inside: what that debugger supplies once its Python runs our code. The debuggers are imported by name, when they are
asked for: the launcher starts with this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from gdbext.diagnosis.samples import Pause
    from gdbext.engine.targets.base_target import Target
    from gdbext.errors import TargetError
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.live.breakpoint_setter import BreakpointSetter
    from gdbext.live.host import RunControl


class Job(NamedTuple):
    """One command for a debugger of our own. At most one of ``pid`` and ``core`` is given; without either the
    debugger's command line names a program to start."""

    command: str
    argv: Sequence[str]
    result: int
    """File descriptor for the outcome."""
    output: int | None = None
    """File descriptor of the launcher's standard output, for the texts that a live command shows while the process
    runs; None for other commands."""
    terminal: int | None = None
    """File descriptor of the launcher's terminal, if it has one, for progress before a process is stopped."""
    launcher: int = -1
    """File descriptor that EndRequests listens to."""
    pid: int = 0
    core: str = ""
    sysroot: str = ""
    record: str = ""
    """Path for a recording, "" for none."""
    color: bool = False
    memory: int = 0
    """Limit of the inspection's memory in bytes, 0 for none."""
    program: str = ""
    """As in engine.terminal.CommandLine, as ``source``."""
    source: str = ""

    def expression(self) -> str:
        """Python for making this job again, in ASCII and on one line: it travels on a command line."""
        return f"Job({', '.join(f'{name}={value!a}' for name, value in self._asdict().items())})"


class DebuggerLaunch(ABC):
    """The way a debugger of our own is started, with one job to do. Nothing here imports the debugger."""

    name: str
    """The debugger's name, as in ``--debugger NAME``."""
    no_result_reason: str
    """The likely cause if the debugger exits without a result and prints nothing."""

    @abstractmethod
    def find(self) -> str:
        """The debugger's executable. Raises TargetError with how to install one."""

    @abstractmethod
    def arguments(self, code: str, core: str, program: Sequence[str], live: bool) -> list[str]:
        """The arguments after the executable. ``code`` is one line of Python that does the job, attaching included; a
        ``core`` may be loaded and a ``program`` is named here; a ``live`` command needs no symbols of it."""

    noise: str
    """The beginning of the lines of its output that say nothing about an error."""

    def relevant_output(self, output: str) -> str:
        """The part that matters of the debugger's own output, for an error message."""
        lines = (line for line in output.splitlines() if line.strip() and not line.startswith(self.noise))
        return "\n".join(lines)

    def known_failure(self, output: str) -> TargetError | None:
        """The fault of the debugger itself that its output names, if it gave no result; None if it names none."""
        del output
        return None


class Debugger(ABC):
    """One debugger, from inside its Python."""

    name: str
    """The debugger's name, as in ``--debugger NAME`` and in every report."""

    @abstractmethod
    def target(self) -> Target:
        """The process that the user has selected, stopped. Raises TargetError naming the next step, BadCore,
        ForeignArchitecture."""

    @abstractmethod
    def stopped_target(self) -> Target:
        """The live process at this very stop, also while the debugger calls us for a breakpoint. Raises TargetGone."""

    @abstractmethod
    def has_process(self) -> bool:
        """True if there is a process or a core."""

    @abstractmethod
    def identity(self) -> Hashable:
        """A value that distinguishes targets where no event does: another inferior, a core replaced by another."""

    @abstractmethod
    def thread_numbers(self) -> Sequence[int]:
        """The debugger's numbers of the threads, for completion."""

    @abstractmethod
    def on_change(self, action: Callable[[], None]) -> Callable[[], None]:
        """Call ``action`` when earlier reads may have become wrong; returns a function that stops these calls."""

    @abstractmethod
    def run_control(self) -> RunControl:
        """A new object that places hooks and runs the process."""

    @abstractmethod
    def pause(self, target: Target) -> Pause:
        """The function that lets this process run for a while and stops it again. Raises UsageError."""

    @abstractmethod
    def breakpoint_setter(self) -> BreakpointSetter:
        """The object that sets breakpoints; asked for once."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Show text to the user at once."""

    @abstractmethod
    def extend_stacks(self, source: FrameSource | None) -> None:
        """Show the frames of ``source`` in the debugger's own stacks, None: native ones only. Raises UsageError."""

    @abstractmethod
    def open(self, job: Job, live: bool) -> Target:
        """The job's target: attached to, loaded, or started; with ``live`` stopped before its first instruction.
        Raises TargetError, NotPermitted, TargetGone, BadCore."""

    @abstractmethod
    def release(self, job: Job, runs_on: bool) -> None:
        """Detach; kill a program that we started, or with ``runs_on`` let it run to its end. Never raises."""

    def leave(self, job: Job) -> None:
        """Exit the debugger at once, after the outcome was written, if its own exit takes long."""
        del job


def launch(name: str) -> DebuggerLaunch:
    """The way the debugger of that name is started: ``launch()`` in the module NAME_launch of its folder."""
    result: DebuggerLaunch = import_module(f"gdbext.hosts.{name}.{name}_launch").launch()
    return result


def debugger(name: str) -> Debugger:
    """The debugger in whose Python this runs: ``debugger()`` in the module NAME_debugger of its folder."""
    result: Debugger = import_module(f"gdbext.hosts.{name}.{name}_debugger").debugger()
    return result


def job_code(debugger: str, job: Job, root: str) -> str:
    """The line of Python that does the job inside that debugger; ``root`` is the folder that the package is in.

    Nothing is imported from the current folder, which LLDB would search. If this package is compiled for the debugger's
    Python already, that is used instead of our cache.
    """
    compiled = f"{root!a} + '/gdbext/hosts/debugger/__pycache__/batch_job.' + sys.implementation.cache_tag + '.pyc'"
    cached = f"import os, sys; sys.pycache_prefix = None if os.path.exists({compiled}) else sys.pycache_prefix"
    isolated = "sys.path[:] = [path for path in sys.path if path.startswith('/')]"
    imports = f"{isolated}; sys.path.append({root!a}); from gdbext.hosts.debugger.batch_job import Job, run"
    return f"{cached}; {imports}; run({debugger!a}, {job.expression()})"
