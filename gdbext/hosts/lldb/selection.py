"""The process, thread and target that a command in LLDB is about, and Ctrl+C while it runs."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import lldb

from gdbext.engine.targets.system.linux import ENDING_SIGNALS, actions_restored, signals_blocked
from gdbext.errors import TargetError

AGAIN = 1.0
"""Seconds after which a process that did not stop is interrupted once more."""


class Interruption:
    """Handles SIGINT during a command: one that reads gets KeyboardInterrupt, as in gdb; one that runs the process has
    it stopped. LLDB itself only notes the signal, for commands to ask. Nothing is done in a thread in which Python does
    not handle signals, as in an editor: there is no Ctrl+C."""

    def __init__(self) -> None:
        self.happened = False  # during the present command
        self._taken: ExitStack | None = None
        self._stop: Callable[[], None] | None = None

    def begin(self) -> None:
        """Handle SIGINT from now on: a command begins."""
        self.happened = False
        with ExitStack() as taken:
            taken.enter_context(actions_restored((signal.SIGINT,)))  # LLDB's own, which Python does not know
            try:
                signal.signal(signal.SIGINT, self._interrupted)
            except ValueError:
                return
            self._taken = taken.pop_all()

    def end(self) -> None:
        """Restore the handling of SIGINT: the command has ended; idempotent."""
        taken, self._taken = self._taken, None
        if taken:
            taken.close()

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of SIGINT."""
        self.happened = True
        if not self._stop:
            raise KeyboardInterrupt

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` from another thread on a signal while LLDB runs the process: this one runs no Python then."""
        if not self._taken:
            yield
            return

        def wait_for_signal() -> None:
            """Read the numbers of signals that Python writes to the pipe, until that is closed."""
            while number := os.read(reading, 1):
                if number[0] in (signal.SIGINT, *ENDING_SIGNALS):
                    self.happened = True
                    stop()

        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        thread = threading.Thread(target=wait_for_signal, daemon=True)
        self._stop = stop
        wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            os.close(writing)
            thread.join()
            os.close(reading)
            self._stop = None

    @contextmanager
    def watching(self, debugger: lldb.SBDebugger, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` from another thread as soon as an editor cancels the command (lldb-dap, since 21), and again
        until the process stops: LLDB loses an interrupt that comes before it has resumed the process."""
        over = threading.Event()

        def watch() -> None:
            """Check every 0.1 s, until the process has stopped."""
            is_requested, due = getattr(debugger, "InterruptRequested", bool), 0.0
            while not over.wait(0.1):
                if is_requested():
                    debugger.CancelInterruptRequest()
                    self.happened, due = True, 0.0
                if self.happened and time.monotonic() >= due:
                    stop()
                    due = time.monotonic() + AGAIN

        thread = threading.Thread(target=watch, daemon=True)
        with signals_blocked():  # a Ctrl+C is for the thread that runs the command
            thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


SelectedThread = Callable[[], "lldb.SBThread | None"]
"""Returns the thread that a command is about, None for LLDB's selected one."""


def no_thread() -> None:
    """The ``SelectedThread`` for LLDB's selected one."""


def thread_of(process: lldb.SBProcess, selected: SelectedThread) -> lldb.SBThread:
    """The thread that the command is about, else LLDB's selected one; invalid if there is none."""
    thread = selected()
    return thread if thread is not None and thread.IsValid() else process.GetSelectedThread()


class Selection:
    """The selection of one debugger: an editor may have several in one process."""

    def __init__(self, debugger: lldb.SBDebugger) -> None:
        self.debugger = debugger
        self.interruption = Interruption()
        self._context: lldb.SBExecutionContext | None = None
        self.session_lock = threading.RLock()
        """Guards the session that commands share: LLDB runs commands in one thread, and shows values in another one."""

    @contextmanager
    def session_if_free(self) -> Iterator[bool]:
        """Hold the lock of the session, without waiting for it; yields False if another thread has it."""
        is_free = self.session_lock.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self.session_lock.release()

    @contextmanager
    def command(self, context: lldb.SBExecutionContext) -> Iterator[None]:
        """The selection while a command runs: an editor's target, thread and frame need not be the selected ones."""
        with self.session_lock:
            before, self._context = self._context, context
            self.interruption.begin()
            try:
                yield
            finally:
                self.interruption.end()
                self._context = before

    def process(self) -> lldb.SBProcess:
        """The command's process, else the selected one; invalid if there is none."""
        if self._context is not None and self._context.GetProcess().IsValid():
            return self._context.GetProcess()
        return self.debugger.GetSelectedTarget().GetProcess()

    def thread(self) -> lldb.SBThread | None:
        """The command's thread; None while no command runs."""
        return self._context.GetThread() if self._context is not None else None

    def target(self) -> lldb.SBTarget:
        """The command's target, else the selected one. Raises TargetError: there is none."""
        target = self._context.GetTarget() if self._context is not None else self.debugger.GetSelectedTarget()
        if not target.IsValid():
            raise TargetError("lldb has no program", help="target create PROGRAM   or   process attach --pid PID")
        return target

    def refusal(self) -> TargetError | None:
        """The reason why the process must not run, None if it may."""
        setting = "target.process.follow-fork-mode"
        mode = lldb.SBDebugger.GetInternalVariableValue(setting, self.debugger.GetInstanceName())
        if mode.GetSize() and mode.GetStringAtIndex(0) == "child":
            return TargetError(
                f"LLDB would detach from process {self.process().GetProcessID()} and follow its first child",
                why=f"{setting} is child, and LLDB does not report which process it has then",
                help=f"settings set {setting} parent",
            )
        # LLDB's words for a stop hook that was added with --auto-continue (Target::StopHook::GetDescription)
        hooks = run_command(self.debugger, "target stop-hook list").GetOutput() or ""
        if re.search(r"State: enabled\s+AutoContinue on", hooks):
            return TargetError(
                "a stop hook of yours resumes the process whenever it stops",
                why="nothing could stop it again: the command would never end",
                help="target stop-hook disable",
            )
        return None

    @contextmanager
    def synchronous(self) -> Iterator[None]:
        """Have calls that resume the process return only when it has stopped."""
        before = self.debugger.GetAsync()
        self.debugger.SetAsync(False)
        try:
            yield
        finally:
            self.debugger.SetAsync(before)


def run_command(debugger: lldb.SBDebugger, line: str) -> lldb.SBCommandReturnObject:
    """Run a line of LLDB's command language."""
    result = lldb.SBCommandReturnObject()
    debugger.GetCommandInterpreter().HandleCommand(line, result)
    return result


def lldb_release(debugger: lldb.SBDebugger) -> int | None:
    """The major release of LLDB; None for Apple's, which numbers its own differently ("lldb-1500.0.404.7")."""
    match = re.match(r"lldb version (\d+)", debugger.GetVersionString())
    return int(match.group(1)) if match else None


def check_version(debugger: lldb.SBDebugger) -> None:
    """Raise TargetError if LLDB is older than 16, the oldest that the tests run in."""
    release = lldb_release(debugger)
    if release is not None and release < 16:
        raise TargetError(
            f"this is LLDB {release}; 16 or later is needed",
            why="older releases are untested",
            help="apt-get install lldb-16 or later, and name it in $LLDB; or use --debugger none",
        )
