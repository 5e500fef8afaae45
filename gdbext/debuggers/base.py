"""What a debugger must do to run gdbext's commands: the one protocol of every folder in debuggers/.

``Launch`` is the outside: how scripts/dispatch starts the debugger for one command. ``Debugger`` is the inside: what
that debugger lends once its Python runs our code. Everything else (which session a command gets, options and help,
requests of dispatch-break, the result's way back to the launcher) is the same for all and stands in neutral files.

Imports next to nothing: the launcher starts with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from gdbext.debuggers.frame_source import FrameSource
    from gdbext.debuggers.job import Job
    from gdbext.errors import TargetError
    from gdbext.live.breakpoints.setter import BreakpointSetter
    from gdbext.live.host import Pause
    from gdbext.live.run_control import RunControl
    from gdbext.targets.base import Target


class Launch(ABC):
    """How a debugger of our own is started, with one job to do. Nothing here imports the debugger."""

    name: str
    """As in ``--debugger NAME``."""
    when_silent: str
    """What it can mean that the debugger ended without a result and printed nothing."""

    @abstractmethod
    def find(self) -> str:
        """The debugger's executable. Raises TargetError with how to install one."""

    @abstractmethod
    def arguments(self, code: str, core: str | None, program: Sequence[str], live: bool) -> list[str]:
        """What stands behind the executable. ``code`` is one line of Python that does the job, attaching included; a
        ``core`` may be loaded and a ``program`` is named here, and a ``live`` command needs no symbols of it."""

    def said(self, output: str) -> str:
        """What matters of the debugger's own output, for an error message."""
        return output

    def known_failure(self, output: str) -> TargetError | None:
        """What its output says about the debugger itself, where it gave no result; None where that says nothing."""
        del output
        return None


class Debugger(ABC):
    """One debugger, from inside its Python."""

    name: str
    """As in ``--debugger NAME``, and in every report."""

    # --- target ----------------------------------------------------------------------------------

    @abstractmethod
    def target(self) -> Target:
        """What the user has selected, stopped. Raises TargetError naming the next step, BadCore,
        ForeignArchitecture."""

    @abstractmethod
    def stopped_target(self) -> Target:
        """The live process at this very stop, also while the debugger calls us for a breakpoint. Raises TargetGone."""

    @abstractmethod
    def has_process(self) -> bool:
        """There is a process or a core."""

    @abstractmethod
    def identity(self) -> Hashable:
        """What distinguishes targets where no event does: another inferior, a core replaced by another."""

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
        """How this process is let go for a while, and stopped again. Raises UsageError where it cannot be."""

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
