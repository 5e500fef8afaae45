"""The host of a live command: the debugger that can call us at addresses, and resume the process.

A debugger that exits while the process runs can leave breakpoint instructions in it, and SIGTRAP kills the process when
a thread reaches one. So a request to exit first stops the process, as Ctrl+C does; the ordinary end of the command then
removes the breakpoints and detaches.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol, TypeVar, cast

from gdbext.diagnosis.tool import Alone, Tool, ToolHost
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.targets.live.debugger_guard import DebuggerGuards
from gdbext.engine.targets.live.local_process import LentProcess
from gdbext.engine.targets.live.proc_checks import is_killed_with_tracer
from gdbext.engine.targets.system.linux import ENDING_SIGNALS, actions_restored, enlarge_signal_stack, signals_blocked
from gdbext.errors import ProbesRefused, TargetError, UsageError

if TYPE_CHECKING:
    from argparse import Namespace
    from types import FrameType

    from gdbext.diagnosis.report import Ending, Report
    from gdbext.diagnosis.session import Session
    from gdbext.engine.terminal import CommandLine
    from gdbext.engine.unwind.frame_steps import CfaRule
    from gdbext.live.breakpoint_setter import BreakpointSetter
    from gdbext.live.timed_run import Work

ENGINES = (PROBES, BREAKPOINTS) = ("probes", "breakpoints")

Handler = Callable[[int, int, int], bool]
"""(thread id, CFA of the frame, value) → True: the process stays stopped. May raise GdbextError and OSError."""


class HookSpec(NamedTuple):
    """An address at which ``handler`` is called."""

    address: int
    frame: CfaRule
    """How to find the frame's CFA there."""
    handler: Handler
    register: str = ""
    """The register whose value the handler gets; "": it gets 0."""
    load: int | None = None
    """The handler gets the word at register + ``load`` instead; None: the register itself."""


class AddressHook(Protocol):
    """A hook that is placed at an address."""

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""


class RunControl(Protocol):
    """One debugger's way to run the process."""

    def place(self, spec: HookSpec) -> AddressHook:
        """Watch an address in all threads. Raises TargetError."""

    def use_probes(self) -> None:
        """Watch addresses by kernel probes from now on, which are removed if the debugger is killed, not by
        breakpoints. Raises ProbesRefused, TargetError."""

    def read(self, address: int, size: int) -> bytes:
        """Memory as it is now, also inside a handler. Raises MemoryFault."""

    def register(self, name: str) -> int:
        """Inside a handler: a register of its thread, unsigned."""

    def float_register(self, name: str) -> int:
        """Inside a handler: the low 8 bytes of a vector register of its thread. Raises TargetError."""

    def run(self) -> Ending:
        """Resume the process, and return when it has stopped or exited; the reason."""

    @property
    def can_run_beside(self) -> bool:
        """True for a process of this machine."""

    def run_beside(self, work: Work) -> Ending:
        """Resume the process while another thread does the work, and stop it when that is done: the ending is ASKED
        then. Raises what the work raises, TargetError, and UsageError if the debugger's settings prevent it."""

    def start(self) -> None:
        """Start the program and stop it before its first instruction. Raises TargetError."""

    def session(self) -> Session:
        """A fresh session of the stopped process, also inside a handler. Raises TargetError."""

    def close(self) -> None:
        """Remove every hook; idempotent."""


Kept = TypeVar("Kept")


class EndRequests:
    """The requests to end that reach one debugger: signals, and the end of the launcher."""

    def __init__(self, launcher: int = -1) -> None:
        """``launcher``: an fd, the read end of a pipe that the launcher closes when the command is to end, and that the
        kernel closes when the launcher exits; -1 in a user's debugger, which exits by itself afterwards."""
        self._launcher = launcher
        self._received = 0

    def hold(self) -> None:
        """Catch the signals that would end a debugger of ours, also while it attaches and detaches: when asked to exit
        in the middle of attaching, gdb 13 kills the process."""
        enlarge_signal_stack()
        for number in ENDING_SIGNALS:
            signal.signal(number, self._note)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Interrupt this thread as Ctrl+C does when there is a request. Does nothing outside the main thread, the only
        one that Python delivers signals to."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with actions_restored(ENDING_SIGNALS):
            self.hold()
            signals, written = os.pipe()
            os.set_blocking(written, False)
            before = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
            over = threading.Event()
            thread = threading.Thread(target=self._watch, args=(signals, over), daemon=True)
            with signals_blocked():  # gdb 18 aborts if a thread other than its first gets a SIGINT
                thread.start()
            try:
                yield
            finally:
                with signals_blocked((signal.SIGINT,)):
                    over.set()
                    os.write(written, b"\0")
                    thread.join()
                    signal.set_wakeup_fd(before)
                    os.close(signals)
                    os.close(written)
        if self._launcher < 0 and self._received:
            number, self._received = self._received, 0
            os.kill(os.getpid(), number)  # now the user's debugger exits by itself

    def _watch(self, signals: int, over: threading.Event) -> None:
        """Once an end is requested (a signal, or the launcher's exit), interrupt the main thread every 2 s until
        ``over``. ``signals``: the pipe that gets the numbers of signals."""
        main = threading.main_thread().ident or 0
        sources = [signals] if self._launcher < 0 else [signals, self._launcher]
        requested, due = bool(self._received), 0.0
        while not over.is_set():
            if requested and time.monotonic() >= due:
                # again, because a debugger can lose an interrupt that arrives before it has resumed the process
                due = time.monotonic() + 2.0
                signal.pthread_kill(main, signal.SIGINT)
            ready = select.select(sources, [], [], max(0.0, due - time.monotonic()) if requested else None)[0]
            if self._launcher in ready:
                sources.remove(self._launcher)
                requested = True
            if signals in ready and set(os.read(signals, 64)) & {*ENDING_SIGNALS}:
                requested = True

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received = number


class Host(ToolHost):
    """The debugger in which a live command runs: the user's, or one of ours (``is_batch``)."""

    def __init__(self, is_batch: bool = False, output: int | None = None, called: CommandLine | None = None) -> None:
        super().__init__(is_batch, output, called)
        self.lets_finish = False  # the command ended by itself: a program that we started then runs to its end
        self._running = ""
        """The name of the live command that runs, "" for none."""
        self._kept: dict[type, object] = {}  # class → its one object in this debugger
        self._guards = DebuggerGuards()
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
        """Have a helper process clean up process ``pid`` (0: none yet) if the debugger is killed."""
        if pid and control.can_run_beside:
            self._guards.watch_over(pid)

    def end_guard(self) -> None:
        """End the helper process: the debugger has detached."""
        self._guards.close()

    def engines(self, wanted: str | None, session: Session) -> tuple[str, ...]:
        """The engines to try, in their order: only the one that the user ``wanted``, if any; in a user's debugger first
        PROBES, which cannot harm the process."""
        if wanted is not None:
            return (wanted,)
        return ENGINES if self._may_harm(session) and session.has_torch else (BREAKPOINTS,)

    def _may_harm(self, session: Session) -> bool:
        """True if a user's debugger is attached to a process of this machine that must survive the debugger."""
        return self._is_lent(session) and _is_native(session) and not is_killed_with_tracer(session.target.pid)

    def _is_lent(self, session: Session) -> bool:
        """True if a user's debugger traces the process, itself or by a server."""
        return isinstance(session.target, LentProcess) and session.target.pid != 0 and not self.is_batch

    def note_on_breakpoints(self, session: Session, refused: ProbesRefused | None) -> tuple[str, ...]:
        """Warnings about breakpoints in a process that the user attached to; ``refused``: why there are no kernel
        probes. A gdbserver does not help: it detaches with the breakpoints inserted (11 of 11 jobs died)."""
        is_native = _is_native(session)
        if not self._is_lent(session) or (is_native and not self._may_harm(session)):
            return ()
        why = "--engine probes has none" if is_native else "on its own machine scripts/dispatch needs none"
        if refused:
            why = f"kernel probes, which do no harm, cannot be used: {refused.what} ({refused.why})"
        notes = []
        if not self._guards.has_server:
            notes.append(f"a gdb that is killed (kill -9) while breakpoints are in the code may end the process; {why}")
        # The mapping of a process in which a thread got to a kernel probe (xol_add_vma, kernel/events/uprobes.c).
        if is_native and any(mapping.path == "[uprobes]" for mapping in session.target.memory.maps()):
            notes.append(
                "this process has had kernel probes: it runs past breakpoints at addresses that a tool probes now, in "
                "any process; --engine probes sees these calls"
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
        """The single object of type ``kind`` in this debugger; the first call makes it."""
        if kind not in self._kept:
            self._kept[kind] = make()
        return cast("Kept", self._kept[kind])

    @contextmanager
    def running(self, command: str) -> Iterator[None]:
        """Mark the live command as running: only one at a time. Raises UsageError while another one is."""
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
    """True if the debugger itself traces the process, on this machine."""
    return bool(getattr(session.target, "is_native", False))


class NoDebugger(Alone, Host):
    """No debugger: a process can be resumed and stopped again, and nothing more."""

    def _refuse(self) -> NoReturn:
        raise UsageError("this command needs a debugger", help="use --debugger gdb, or --debugger lldb")

    _run_control = breakpoint_setter = stopped_session = _refuse


class LiveTool(Tool):
    """A tool that resumes the process, and needs a debugger for it."""

    mode = Mode.RESUMES

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        return self.run_live(session, args, host if isinstance(host, Host) else NoDebugger(output=host.output))

    @abstractmethod
    def run_live(self, session: Session, args: Namespace, host: Host) -> Report:
        """Run the tool as ``run`` does, with a debugger. Raises GdbextError."""


def probes_are_elsewhere() -> ProbesRefused:
    """The error if the debugger traces a process of another machine, or by a server: its PID is not valid here."""
    return ProbesRefused(
        "this debugger does not trace the process itself (but by a gdbserver, an lldb-server, an emulator)",
        why="kernel probes would be placed in the process that has its PID on this machine",
        help="--engine breakpoints; or on that machine: scripts/dispatch -p PID dispatch-trace",
    )
