"""The process that a command in LLDB is about, which the user looks at, and how it is let go.

Ctrl+C while a command of ours runs.

LLDB only notes it and leaves it to the command to ask, which it must do in its own thread (LLDB 17), and that is busy.
So for as long as a command runs the signal is Python's: a command that reads is ended by KeyboardInterrupt, as in gdb;
one that lets the process run has it stopped.

Functions and classes of ours that LLDB calls at breakpoints and for values. LLDB takes them by name, which it looks up
in the user's namespace for scripts. That namespace is to stay as it is, and has LLDB's own module: so they are kept in
there, also while our commands are loaded anew.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType, SimpleNamespace

import lldb

from gdbext.engine.targets.system.linux import ENDING_SIGNALS, actions_restored, signals_held
from gdbext.errors import TargetError

_TURN = 0.1
"""Seconds between two looks whether an editor has cancelled the command."""
AGAIN = 1.0
"""Seconds after which a process that did not stop is interrupted once more."""

_FOLLOWS = "target.process.follow-fork-mode"
_CONTINUES = re.compile(r"State: enabled\s+AutoContinue on")
"""The words of LLDB's list for a stop hook that was added with --auto-continue (Target::StopHook::GetDescription)."""


class Interruption:
    """Takes SIGINT for the duration of a command. Elsewhere than in the thread that Python handles signals in, as in an
    editor, there is no Ctrl+C, and nothing is taken."""

    def __init__(self) -> None:
        self.happened = False
        self._taken: ExitStack | None = None
        self._stop: Callable[[], None] | None = None

    def begin(self) -> None:
        """Note that a command begins."""
        self.happened = False
        with ExitStack() as taken:
            taken.enter_context(actions_restored((signal.SIGINT,)))  # LLDB's own, which Python does not know
            try:
                signal.signal(signal.SIGINT, self._interrupted)
            except ValueError:
                return
            self._taken = taken.pop_all()

    def end(self) -> None:
        """The command has ended; idempotent."""
        taken, self._taken = self._taken, None
        if taken:
            taken.close()

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        self.happened = True
        if not self._stop:
            raise KeyboardInterrupt

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` from another thread while LLDB lets the process run, when no Python runs in this one."""
        if not self._taken:
            yield
            return
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        thread = threading.Thread(target=self._wait, args=(ours, stop), daemon=True)
        self._stop = stop
        wakeup = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            os.close(theirs)
            thread.join()
            os.close(ours)
            self._stop = None

    @contextmanager
    def watching(self, debugger: lldb.SBDebugger, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` from another thread as soon as an editor wants to cancel the command (lldb-dap, since 21); and
        again, where the process does not stop: LLDB loses what comes before it has let that go."""
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(debugger, over, stop), daemon=True)
        with signals_held():  # a Ctrl+C is for the thread that runs the command
            thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, debugger: lldb.SBDebugger, over: threading.Event, stop: Callable[[], None]) -> None:
        is_asked, due = getattr(debugger, "InterruptRequested", bool), 0.0
        while not over.wait(_TURN):
            if is_asked():
                debugger.CancelInterruptRequest()
                self.happened, due = True, 0.0
            if self.happened and time.monotonic() >= due:
                stop()
                due = time.monotonic() + AGAIN

    def _wait(self, signals: int, stop: Callable[[], None]) -> None:
        while True:
            number = os.read(signals, 1)
            if not number:
                return
            if number[0] in (signal.SIGINT, *ENDING_SIGNALS):
                self.happened = True
                stop()


SelectedThread = Callable[[], "lldb.SBThread | None"]
"""Gives the thread that the command is about, None where LLDB's selected one is meant."""


def no_thread() -> None:
    """Nobody says which one: LLDB's selected one is meant."""


def thread_of(process: lldb.SBProcess, selected: SelectedThread) -> lldb.SBThread:
    """The thread that the command is about, else LLDB's selected one; invalid where there is none."""
    thread = selected()
    return thread if thread is not None and thread.IsValid() else process.GetSelectedThread()


class Selection:
    """The selection of one debugger: an editor may have several in one process."""

    def __init__(self, debugger: lldb.SBDebugger) -> None:
        self.debugger = debugger
        self.interruption = Interruption()
        self._context: lldb.SBExecutionContext | None = None
        self._session = threading.RLock()

    @contextmanager
    def session(self) -> Iterator[None]:
        """The session that commands share, for this thread alone. LLDB runs commands in one thread, and shows stops
        and what is in them in another one."""
        with self._session:
            yield

    @contextmanager
    def session_if_free(self) -> Iterator[bool]:
        """The same for those who cannot wait; False where another thread has it."""
        is_free = self._session.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._session.release()

    @contextmanager
    def command(self, context: lldb.SBExecutionContext) -> Iterator[None]:
        """The selection while a command runs: the editor's target, thread and frame need not be the selected
        ones."""
        with self.session():
            before, self._context = self._context, context
            self.interruption.begin()
            try:
                yield
            finally:
                self.interruption.end()
                self._context = before

    def process(self) -> lldb.SBProcess:
        """The command's process, else the selected one; invalid where there is none."""
        if self._context is not None and self._context.GetProcess().IsValid():
            return self._context.GetProcess()
        return self.debugger.GetSelectedTarget().GetProcess()

    def thread(self) -> lldb.SBThread | None:
        """The command's thread; None where no command runs."""
        return self._context.GetThread() if self._context is not None else None

    def target(self) -> lldb.SBTarget:
        """The command's target, else the selected one. Raises TargetError: there is none."""
        target = self._context.GetTarget() if self._context is not None else self.debugger.GetSelectedTarget()
        if not target.IsValid():
            raise TargetError("lldb has no program", help="target create PROGRAM   or   process attach --pid PID")
        return target

    def refusal(self) -> TargetError | None:
        """The reason why the process must not run, None where all is well."""
        found = lldb.SBDebugger.GetInternalVariableValue(_FOLLOWS, self.debugger.GetInstanceName())
        if found.GetSize() and found.GetStringAtIndex(0) == "child":
            return TargetError(
                f"LLDB would leave process {self.process().GetProcessID()} for the first child that it forks",
                why=f"{_FOLLOWS} is child, and LLDB does not say which process it has then",
                help=f"settings set {_FOLLOWS} parent",
            )
        result = lldb.SBCommandReturnObject()
        self.debugger.GetCommandInterpreter().HandleCommand("target stop-hook list", result)
        if _CONTINUES.search(result.GetOutput() or ""):
            return TargetError(
                "a stop hook of yours lets the process go on whenever it stops",
                why="nobody could stop it again: the command would never end",
                help="target stop-hook disable",
            )
        return None

    @contextmanager
    def synchronous(self) -> Iterator[None]:
        """Run synchronously: calls that let the process run come back when it has stopped."""
        before = self.debugger.GetAsync()
        self.debugger.SetAsync(False)
        try:
            yield
        finally:
            self.debugger.SetAsync(before)


Callback = Callable[[lldb.SBFrame], bool]
"""Called with the innermost frame of the thread that got there; True where the process is to stop."""

_KEPT = "callbacks_of_gdbext"


def keep_callback(what: object) -> str:
    """The name by which LLDB finds it."""
    kept = vars(vars(lldb).setdefault(_KEPT, SimpleNamespace(count=0)))
    kept["count"] += 1  # a name is never used twice
    name = f"at_{kept['count']}"
    kept[name] = what
    return f"lldb.{_KEPT}.{name}"


def drop_callback(name: str) -> None:
    """Forget what LLDB calls no more; ``name`` is what ``keep_callback`` gave."""
    vars(vars(lldb)[_KEPT]).pop(name.rpartition(".")[2], None)


def attach_callback(breakpoint: lldb.SBBreakpoint, callback: Callback) -> str:
    """Call the function at each hit; gives the name to ``drop_callback`` when the breakpoint is gone. Raises
    TargetError.

    LLDB's lock is taken for all of a call: SBProcess.ReadMemory takes that of the process first and then waits for
    this, which "process detach" has, and which waits for the other one. LLDB before 21 lends no lock: see read_memory.
    """
    target = breakpoint.GetTarget()
    lock = target.GetAPIMutex() if hasattr(target, "GetAPIMutex") else nullcontext()

    def called(frame: lldb.SBFrame, _location: lldb.SBBreakpointLocation, names: dict[str, object]) -> bool:
        try:
            with lock:
                return callback(frame) or _is_awaited(frame)
        finally:
            _admit(names, sys._getframe(1).f_globals)

    name = keep_callback(called)
    error = breakpoint.SetScriptCallbackFunction(name)
    if error is not None and error.Fail():
        raise TargetError(f"LLDB takes no callback: {error.GetCString()}")
    return name


def _is_awaited(frame: lldb.SBFrame) -> bool:
    """A command waits for the process to stand still: LLDB hands the stop to its thread, not to the one that handles
    events. Where we let it go on, LLDB 22 would forget that, and "process detach" never end."""
    kept = vars(vars(lldb)[_KEPT])
    if threading.get_ident() != threading.main_thread().ident:
        kept["has_handler"] = True
        return False
    return "has_handler" in kept and bool(frame.GetThread().GetProcess().GetTarget().GetDebugger().GetAsync())


def _admit(names: dict[str, object], others: dict[str, object]) -> None:
    """Admit the wrapper of another such breakpoint, which a callback has set and which is new in ``names``.

    The wrapper that LLDB has made around ours (ScriptInterpreterPython.cpp, GenerateFunction, 16 to 22) copies every
    name back from its own globals, and fails for one that is not there.
    """
    for name in names:
        others.setdefault(name, names[name])
