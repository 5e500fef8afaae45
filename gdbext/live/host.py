"""The host of a live command: the debugger that can call us at addresses, and let the process run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from gdbext.diagnosis.tool import Alone, Tool, ToolHost
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.targets.live.debugger_guard import DebuggerGuards
from gdbext.engine.targets.live.local_process import LentProcess
from gdbext.engine.targets.live.proc_checks import is_killed_with_tracer
from gdbext.errors import ProbesRefused, TargetError, UsageError
from gdbext.live.end_requests import EndRequests

if TYPE_CHECKING:
    from argparse import Namespace

    from gdbext.diagnosis.report import Ending, Report
    from gdbext.diagnosis.session import Session
    from gdbext.engine.terminal import CommandLine
    from gdbext.engine.unwind.frame_steps import CfaRule
    from gdbext.live.breakpoint_setter import BreakpointSetter
    from gdbext.live.timed_run import Work

ENGINES = (PROBES, BREAKPOINTS) = ("probes", "breakpoints")

Handler = Callable[[int, int, int], bool]
"""(thread id, CFA of the frame, value) → True: the process stays stopped. May raise GdbextError and OSError, too."""


class HookSpec(NamedTuple):
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
        """Remove every hook; idempotent."""


Kept = TypeVar("Kept")


class Host(ToolHost):
    """A debugger, the user's own or one of ours; or none."""

    def __init__(self, is_batch: bool = False, output: int | None = None, called: CommandLine | None = None) -> None:
        super().__init__(is_batch, output, called)
        self.lets_finish = False
        """True when the watching is over without a request to end the program: one that we started runs on to its
        end."""
        self._running = ""
        self._kept: dict[type, object] = {}
        self._guards: DebuggerGuards | None = None
        self.end_requests = EndRequests()

    def run_control(self, session: Session) -> RunControl:
        """The object that runs the session's process. Raises TargetError (a core), UsageError (no debugger)."""
        if session.target.origin.is_core:
            raise TargetError(
                "a core dump cannot run: there is nothing to trace",
                why="this command resumes the process and observes what it does",
                help="see what the core was doing: dispatch-bt; or attach to a live process: scripts/dispatch -p PID",
            )
        control = self._run_control()
        self.guard(control, session.target.pid)
        return control

    def guard(self, control: RunControl, pid: int) -> None:
        """Have a helper clean up the process of this machine, 0 for none yet, should the debugger be killed."""
        if pid and control.can_run_beside:
            self._guard().watch_over(pid)

    def _guard(self) -> DebuggerGuards:
        self._guards = self._guards or DebuggerGuards()
        return self._guards

    def end_guard(self) -> None:
        """End the helper: the debugger has detached."""
        if self._guards:
            self._guards.close()

    def engines(self, wanted: str | None, session: Session) -> tuple[str, ...]:
        """The engines to try, in their order: in a user's debugger first the one that does no harm."""
        if wanted is not None:
            return (wanted,)
        return ENGINES if self._may_harm(session) and session.has_torch else (BREAKPOINTS,)

    def _may_harm(self, session: Session) -> bool:
        """The user has attached his debugger to a process of this machine, which is to outlive it."""
        return self._is_lent(session) and _is_native(session) and not is_killed_with_tracer(session.target.pid)

    def _is_lent(self, session: Session) -> bool:
        """A user's debugger holds a process, itself or by a server."""
        return isinstance(session.target, LentProcess) and session.target.pid != 0 and not self.is_batch

    def note_on_breakpoints(self, session: Session, refused: ProbesRefused | None) -> tuple[str, ...]:
        """Notes on breakpoints in a process that the user attached to; ``refused``: why no kernel probes. A gdbserver
        does not help: it detaches with the breakpoints inserted (11 of 11 jobs ended)."""
        is_native = _is_native(session)
        if not self._is_lent(session) or (is_native and not self._may_harm(session)):
            return ()
        why = "--engine probes has none" if is_native else "on its own machine scripts/dispatch needs none"
        if refused:
            why = f"kernel probes, which do no harm, cannot be used: {refused.what} ({refused.why})"
        notes = []
        if not self._guard().has_server:
            notes.append(f"a gdb that is killed (kill -9) while breakpoints are in the code may end the process; {why}")
        # The mapping of a process in which a thread got to a kernel probe (xol_add_vma, kernel/events/uprobes.c).
        if is_native and any(mapping.path == "[uprobes]" for mapping in session.target.memory.maps()):
            notes.append(
                "kernel probes have been in this process, which runs past breakpoints at places that anybody probes "
                "now, in any process; --engine probes sees them"
            )
        return tuple(notes)

    @abstractmethod
    def _run_control(self) -> RunControl:
        """The debugger's run control. Raises UsageError where there is none."""

    @abstractmethod
    def breakpoint_setter(self) -> BreakpointSetter:
        """The setter of breakpoints that stay. Raises UsageError without a debugger."""

    @abstractmethod
    def stopped_session(self) -> Session:
        """A fresh session of the stopped process, also while the debugger calls us. Raises UsageError, TargetError."""

    def object_of(self, kind: type[Kept], make: Callable[[], Kept]) -> Kept:
        """The one object of that type which belongs to this debugger; made when it is first asked for."""
        if kind not in self._kept:
            self._kept[kind] = make()
        kept = self._kept[kind]
        assert isinstance(kept, kind)
        return kept

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
            with self.end_requests.heard():
                yield
        finally:
            self._running = ""


def _is_native(session: Session) -> bool:
    """The debugger itself traces the process, on this machine."""
    return bool(getattr(session.target, "is_native", False))


class NoDebugger(Alone, Host):
    """No debugger: a process can be resumed and stopped again, and nothing more."""

    def _run_control(self) -> RunControl:
        raise needs_debugger()

    def breakpoint_setter(self) -> BreakpointSetter:
        raise needs_debugger()

    def stopped_session(self) -> Session:
        raise needs_debugger()


class LiveTool(Tool):
    """A tool that lets the process run, and needs a debugger for it."""

    mode = Mode.RESUMES

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        return self.run_live(session, args, host if isinstance(host, Host) else NoDebugger(output=host.output))

    @abstractmethod
    def run_live(self, session: Session, args: Namespace, host: Host) -> Report:
        """Run the tool as ``run`` does, with a debugger. Raises GdbextError."""


def probes_are_elsewhere() -> ProbesRefused:
    """The error where the debugger holds a process of another machine, or by a server: its id means nothing here."""
    return ProbesRefused(
        "the process is not held by this debugger itself (a gdbserver, an lldb-server, an emulator)",
        why="kernel probes would be placed in whatever has its process id on this machine",
        help="--engine breakpoints; or on that machine: scripts/dispatch -p PID dispatch-trace",
    )


def needs_debugger() -> UsageError:
    """The error of a command that cannot work without one."""
    return UsageError("this command needs a debugger", help="use --debugger gdb, or --debugger lldb")
