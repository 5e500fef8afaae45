"""The protocol of hosts/gdb and hosts/lldb: what a debugger must do to run gdbext's commands.

``DebuggerLaunch`` is the outside: how scripts/dispatch starts the debugger for one command, a ``Job``. ``Debugger`` is
the inside: what that debugger supplies once its Python runs our code. The debuggers are imported by name, when they are
asked for: the launcher starts with this file.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cache import find_program
from gdbext.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from gdbext.diagnosis.samples import Pause
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.live.breakpoint_setter import BreakpointSetter
    from gdbext.live.host import RunControl


class Job(NamedTuple):
    """One command for a debugger of our own. At most one of ``pid`` and ``core`` is given; without either the
    debugger's command line names a program to start. ``program`` and ``source``: as in engine.terminal.CommandLine."""

    command: str
    argv: Sequence[str]
    result: int  # fd for the outcome
    output: int | None = None  # fd of the launcher's standard output, for what a live command shows meanwhile
    terminal: int | None = None  # fd of the launcher's terminal, if it has one, for progress before the stop
    launcher: int = -1  # fd that EndRequests listens to
    pid: int = 0
    core: str = ""
    sysroot: str = ""
    record: str = ""  # path for a recording, "" for none
    color: bool = False
    memory: int = 0  # limit of the inspection's memory in bytes, 0 for none
    program: str = ""
    source: str = ""

    def expression(self) -> str:
        """A Python expression that makes this job, in ASCII and on one line, for a debugger's command line."""
        return f"Job({', '.join(f'{name}={value!a}' for name, value in self._asdict().items())})"


class DebuggerLaunch(ABC):
    """The way a debugger of our own is started, with one job to do. Nothing here imports the debugger."""

    name: str
    """The debugger's name, as in ``--debugger NAME``: also that of its executable, unless $NAME is another one."""
    no_result_reason: str
    """The likely cause if the debugger exits without a result and prints nothing."""
    packages: tuple[str, str]
    """Its packages of Debian and Fedora."""

    def find(self) -> str:
        """The debugger's executable. Raises TargetError with how to install one."""
        wanted = os.environ.get(self.name.upper()) or self.name
        path = find_program(wanted) or (self.other_executable() if wanted == self.name else None)
        if path is not None:
            return path
        debian, fedora = self.packages
        raise TargetError(
            f"{self.name} was not found ({wanted})",
            why="it is not installed, or not in $PATH",
            help=f"apt-get install {debian}   or   dnf install {fedora};   or --debugger none, which needs no debugger",
        )

    def other_executable(self) -> str | None:
        """The path of an executable of another name in $PATH; None without one."""
        return None

    @abstractmethod
    def arguments(self, code: str, core: str, program: Sequence[str], live: bool) -> list[str]:
        """The arguments after the executable. ``code``: one line of Python that does the job, attaching included;
        ``core``: a path, "" for none; ``program``: the command line to start, if any; ``live``: the command resumes the
        process, and needs no symbols."""

    noise: str
    """The beginning of lines of its output that are irrelevant to errors."""

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
        """A value that changes with the selected target and with each of its stops, so that equal values mean that
        earlier reads are still right, unless the user has written to the process (``Memory.is_current``)."""

    @abstractmethod
    def thread_numbers(self) -> Sequence[int]:
        """The debugger's numbers of the threads, for completion."""

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

    def close(self) -> None:
        """Disconnect from the debugger's events: its commands are defined anew."""


def launch(name: str) -> DebuggerLaunch:
    """The way the debugger of that name is started: ``launch()`` in the module NAME_launch of its folder."""
    result: DebuggerLaunch = import_module(f"gdbext.hosts.{name}.{name}_launch").launch()
    return result


def debugger(name: str) -> Debugger:
    """The debugger in whose Python this runs: ``debugger()`` in the module NAME_debugger of its folder."""
    result: Debugger = import_module(f"gdbext.hosts.{name}.{name}_debugger").debugger()
    return result


def job_code(debugger: str, job: Job, root: str) -> str:
    """The line of Python that does the job inside that debugger; ``root`` is the folder that the package is in. It
    imports nothing from the current folder, which LLDB would search, and prefers .pyc files beside the package to those
    in our cache."""
    compiled = f"{root!a} + '/gdbext/hosts/debugger/__pycache__/batch_job.' + sys.implementation.cache_tag + '.pyc'"
    cached = f"import os, sys; sys.pycache_prefix = None if os.path.exists({compiled}) else sys.pycache_prefix"
    isolated = "sys.path[:] = [path for path in sys.path if path.startswith('/')]"
    imports = f"{isolated}; sys.path.append({root!a}); from gdbext.hosts.debugger.batch_job import Job, run"
    return f"{cached}; {imports}; run({debugger!a}, {job.expression()})"
