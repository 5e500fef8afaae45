"""The host of a live command: whoever runs it, and so can let the process run.

What a live command needs of a debugger: to be called at addresses, and to let the process run. Inside a user's debugger
it runs by the debugger's own ``continue``, while another thread of ours works. That thread waits some seconds, or reads
what kernel probes see, and has the process stopped when it is done. Detaching and attaching again would do as well, and
did; but an editor ends its session when its process is detached from, and a program that the debugger started cannot be
attached to again.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from gdbext.diagnosis.report.report import Ending, EndingKind
from gdbext.diagnosis.tool import Alone, Mode, Tool, ToolHost
from gdbext.engine.record import Record
from gdbext.engine.targets.live.debugger_guard import DebuggerGuards
from gdbext.engine.targets.live.proc_checks import ends_with_tracer
from gdbext.errors import GdbextError, ProbesRefused, TargetError, TargetGone, UsageError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from types import TracebackType

    from gdbext.diagnosis.report.report import Ending, Report
    from gdbext.diagnosis.session import Session
    from gdbext.engine.terminal import CommandLine
    from gdbext.hosts.resume.breakpoint_setter import BreakpointSetter
    from gdbext.torch.stack.lookup_sites import CfaRule

    Work = Callable[["TimedRun"], None]


ENGINES = (PROBES, BREAKPOINTS) = ("probes", "breakpoints")

Handler = Callable[[int, int, int], bool]
"""(thread id, CFA of the frame, value) → True: the process stays stopped. May raise GdbextError and OSError, too."""


class HookSpec(Record):
    """An address at which ``handler`` is called. ``register`` "" means that no value is wanted.

    The value is the register's, or with ``load`` the word at register + ``load``.
    """

    address: int
    frame: CfaRule
    handler: Handler
    register: str = ""
    load: int | None = None


class AddressHook(Protocol):
    """An address that is watched."""

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""


class RunControl(Protocol):
    """One debugger's way to run the process."""

    def place(self, spec: HookSpec) -> AddressHook:
        """Watch an address in all threads. Raises TargetError."""

    def use_probes(self) -> None:
        """Watch addresses by kernel probes from now on, which a kill of the debugger takes away, not by breakpoints.
        Raises ProbesRefused, TargetError."""

    def read(self, address: int, size: int) -> bytes:
        """Memory as it is now, also inside a handler. Raises MemoryFault."""

    def register(self, name: str) -> int:
        """A register of the thread that a handler is called for, unsigned."""

    def float_register(self, name: str) -> int:
        """The low 8 bytes of a vector register of that thread. Raises TargetError."""

    def run(self) -> Ending:
        """Let the process run until something ends that."""

    @property
    def can_run_beside(self) -> bool:
        """It is a process of this machine."""

    def run_beside(self, work: Work) -> Ending:
        """Let the process run while another thread does the work, and stop it when that is done: the ending is ASKED
        then. Raises what the work raises, TargetError and UsageError where the debugger's settings are against it."""

    def start(self) -> None:
        """Start the program and stop it before its first instruction. Raises TargetError."""

    def session(self) -> Session:
        """A fresh session of the stopped process, also inside a handler. Raises TargetError."""

    def close(self) -> None:
        """Take away every hook; idempotent."""


Kept = TypeVar("Kept")


class Host(ToolHost):
    """A debugger, the user's own or one of ours; or nobody."""

    def __init__(self, is_batch: bool = False, output: int | None = None, called: CommandLine | None = None) -> None:
        super().__init__(is_batch, output, called)
        self.lets_finish = False
        """True when the watching is over, and nobody asked to end the program: one that we started runs on to its
        end."""
        self._running = ""
        self._kept: dict[type, object] = {}

    def run_control(self, session: Session) -> RunControl:
        """The object that runs the session's process. Raises TargetError (a core), UsageError (no debugger)."""
        if session.target.is_core:
            raise TargetError(
                "a core dump cannot run: there is nothing to trace",
                why="this command resumes the process and observes what it does",
                help="see what the core was doing: dispatch-bt; or attach to a live process: scripts/dispatch -p PID",
            )
        control = self._run_control()
        self.guard(control, session.target.pid)
        return control

    def guard(self, control: RunControl, pid: int) -> None:
        """Have somebody look after the process of this machine, 0 for none yet, should the debugger be killed."""
        if pid and control.can_run_beside:
            self.kept(DebuggerGuards, DebuggerGuards).watch_over(pid)

    def engines(self, wanted: str | None, session: Session) -> tuple[str, ...]:
        """The engines to try, in their order: in a user's debugger first the one that does no harm."""
        if wanted is not None:
            return (wanted,)
        return ENGINES if self._may_harm(session) and session.has_torch else (BREAKPOINTS,)

    def _may_harm(self, session: Session) -> bool:
        """The user has attached his debugger to the process, which is to outlive it."""
        pid = session.target.pid
        return not self.is_batch and pid != 0 and not ends_with_tracer(pid)

    def note_on_breakpoints(self, session: Session, refused: ProbesRefused | None) -> tuple[str, ...]:
        """The note for whoever has breakpoints in a process that he attached to; ``refused``: why no kernel probes."""
        if not self._may_harm(session):
            return ()
        why = (
            f"kernel probes, which do no harm, cannot be used: {refused.what}"
            if refused
            else "--engine probes has none"
        )
        return (f"a debugger that is killed (kill -9) while breakpoints are in the code ends the process; {why}",)

    @abstractmethod
    def _run_control(self) -> RunControl:
        """The debugger's. Raises UsageError where there is none."""

    @abstractmethod
    def breakpoint_setter(self) -> BreakpointSetter:
        """Sets breakpoints that stay. Raises UsageError without a debugger."""

    @abstractmethod
    def stopped_session(self) -> Session:
        """A fresh session of the stopped process, also while the debugger calls us. Raises UsageError, TargetError."""

    def kept(self, kind: type[Kept], make: Callable[[], Kept]) -> Kept:
        """The one object of that type which belongs to this debugger; made when it is first asked for."""
        if kind not in self._kept:
            self._kept[kind] = make()
        found = self._kept[kind]
        assert isinstance(found, kind)
        return found

    @contextmanager
    def running(self, command: str) -> Iterator[None]:
        """Only one live command at a time resumes the process. Raises UsageError while another does."""
        if self._running:
            raise UsageError(
                f"{self._running} is running already",
                why="two traces of one process would stop each other",
                help="end it first with Ctrl+C (or interrupt)",
            )
        self._running = command
        try:
            yield
        finally:
            self._running = ""


class NoDebugger(Alone, Host):
    """No debugger: a process can be let go and stopped again, and nothing more."""

    def _run_control(self) -> RunControl:
        raise needs_debugger()

    def breakpoint_setter(self) -> BreakpointSetter:
        """Refuse: there is no debugger. Raises UsageError."""
        raise needs_debugger()

    def stopped_session(self) -> Session:
        """Refuse: there is no debugger. Raises UsageError."""
        raise needs_debugger()


class LiveTool(Tool):
    """A tool that lets the process run, and needs a debugger for it."""

    mode = Mode.RESUMES

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Run the tool and answer, once. Raises GdbextError."""
        return self.run_live(session, args, host if isinstance(host, Host) else NoDebugger(output=host.output))

    @abstractmethod
    def run_live(self, session: Session, args: Namespace, host: Host) -> Report:
        """Run the tool as ``run`` does, with what a debugger lends."""


def needs_debugger() -> UsageError:
    """The error of a command that cannot work without one."""
    return UsageError("this command needs a debugger", help="use --debugger gdb, or --debugger lldb")


class TimedRun:
    """A context manager around what lets the process run and returns when it has stopped: when ``work`` is done, in
    another thread, that calls ``stop``."""

    def __init__(self, work: Work, stop: Callable[[], None]) -> None:
        """``stop`` must do nothing once ``is_running`` is false: the process may have stopped by itself."""
        self._work = work
        self._stop = stop
        self._cancelled = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._do, daemon=True)
        self.is_over = False
        """True when the work is done."""
        self.is_running = False
        """The process has not been seen to stop."""

    def __enter__(self) -> TimedRun:
        self.is_running = True
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_running = False
        self._cancelled.set()
        self._thread.join()

    @property
    def came(self) -> bool:
        """The process has stopped by itself, or the user has stopped it: the work is to end."""
        return self._cancelled.is_set()

    def sleep(self, seconds: float) -> None:
        """Sleep, in the work; ends that where the process has stopped."""
        if self._cancelled.wait(seconds):
            raise _CancelledError

    def ending(self, ending: Ending) -> Ending:
        """The reason why the run ended: ASKED where the work was done, else ``ending``. Raises what the work raised."""
        if self._error is not None:
            raise self._error
        return Ending(EndingKind.ASKED, "") if self.is_over and ending.kind is EndingKind.INTERRUPTED else ending

    def _do(self) -> None:
        try:
            self._work(self)
        except _CancelledError:
            return
        except BaseException as error:
            self._error = error
        self.is_over = not self.came
        self._stop()


class _CancelledError(Exception):
    """The process has stopped before its time."""


def check_pause(ending: Ending, alternative: str) -> None:
    """Raise what else ended a pause than its time: KeyboardInterrupt, TargetGone, TargetError with the help
    ``alternative``."""
    if ending.kind is EndingKind.ASKED:
        return
    if ending.kind is EndingKind.INTERRUPTED:
        raise KeyboardInterrupt
    if ending.error is not None:
        raise ending.error
    if ending.kind.leaves_process:
        raise TargetError(
            f"{ending.text} stopped the process before the next look",
            why="--samples lets the process run between its looks",
            help=f"disable what stops it, or {alternative}",
        )
    raise TargetGone(ending.text)


def ending_of_failure(error: BaseException, debugger: str) -> Ending:
    """The ending of a run in which a hook of ours, or the ``debugger`` itself, raised this."""
    if isinstance(error, KeyboardInterrupt):
        return Ending(EndingKind.INTERRUPTED, "interrupted")
    if isinstance(error, GdbextError):
        return Ending(EndingKind.FAILED, error.what, error=error)
    if isinstance(error, OSError):
        what = f"the trace cannot be written: {error.strerror or error}"
        return Ending(EndingKind.FAILED, what, error=TargetError(what, help="make room, or name another --output"))
    return Ending(EndingKind.FAILED, str(error), error=TargetError(f"{debugger}: {error}"))
