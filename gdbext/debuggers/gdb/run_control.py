"""gdb's side of the live commands: breakpoints with a Python stop() that does next to nothing, and ``continue``.

Measured with gdb 13.1 on this project's machine: a breakpoint with an empty stop() costs 160 to 290 µs a hit (two
context switches, a step over the instruction), whatever stop() does comes on top. ``gdb.parse_and_eval`` of a register
takes 6 µs without symbols and 22 µs with torch's symbols read; ``gdb.selected_frame()`` alone takes 14 and 128 µs,
since it computes the frame's identity. So registers are read by parse_and_eval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gdb

from gdbext.debuggers.gdb.current import stopped_target
from gdbext.debuggers.gdb.vector_register import low_word
from gdbext.errors import GdbextError, MemoryFault, TargetError
from gdbext.live.run_control import HookSpec
from gdbext.log import logger
from gdbext.model.ending import Ending, EndingKind

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

_log = logger(__name__)
_WORD = (1 << 64) - 1
_PASSED_ON = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGPIPE", "SIGTERM", "SIGQUIT", "SIGALRM", "SIGCHLD", "SIGCONT")
"""Signals for which gdb stops by default, or may have been told to, and which are the program's own affair."""
_evaluate = gdb.parse_and_eval


class GdbHook(gdb.Breakpoint):  # type: ignore[misc]
    """An internal breakpoint at an address."""

    def __init__(self, control: GdbRunControl, spec: HookSpec) -> None:
        super().__init__(f"*{spec.address:#x}", internal=True)
        self.silent = True
        self._control = control
        self._handler = spec.handler
        self._frame_register = f"${spec.frame.register}"
        self._offset = spec.frame.offset
        self._value = value_expression(spec)

    def stop(self) -> bool:
        """Called by gdb at each hit; everything in it counts."""
        try:
            cfa = (int(_evaluate(self._frame_register)) & _WORD) + self._offset
            value = int(_evaluate(self._value)) & _WORD if self._value else 0
            over = self._handler(gdb.selected_thread().ptid[1], cfa, value)
            if over:
                self._control.asked = True
            return over
        except (GdbextError, OSError, gdb.error, KeyboardInterrupt) as error:
            self._control.fail(error)
            return True

    def remove(self) -> None:
        """Take it away."""
        if self.is_valid():
            self.delete()


def value_expression(spec: HookSpec) -> str:
    """The wanted value as gdb's expression."""
    if not spec.register:
        return ""
    if spec.load is None:
        return f"${spec.register}"
    return f"*(unsigned long*)((unsigned long)${spec.register} + {spec.load})"


class GdbRunControl:
    """Places hooks and runs the selected inferior."""

    def __init__(self) -> None:
        self._hooks: list[GdbHook] = []
        self._failure: BaseException | None = None
        self.asked = False
        self._exit: Any = None
        self._stop: Any = None
        self._exec_catch: int | None = None
        self._ran = ""

    def place(self, spec: HookSpec) -> GdbHook:
        """Watch an address in all threads. Raises TargetError."""
        try:
            hook = GdbHook(self, spec)
        except gdb.error as error:
            raise TargetError(f"gdb cannot set a breakpoint at {spec.address:#x}: {error}") from error
        self._hooks.append(hook)
        return hook

    def read(self, address: int, size: int) -> bytes:
        """Memory as it is now. Raises MemoryFault."""
        try:
            return bytes(gdb.selected_inferior().read_memory(address, size))
        except (gdb.error, OverflowError) as error:
            raise MemoryFault(address, size) from error

    def register(self, name: str) -> int:
        """A register of the selected thread's innermost frame. Raises TargetError."""
        try:
            return int(_evaluate(f"${name}")) & _WORD
        except gdb.error as error:
            raise TargetError(f"gdb cannot read the register {name}: {error}") from error

    def float_register(self, name: str) -> int:
        """The low 8 bytes of a vector register of the selected thread's innermost frame. Raises TargetError."""
        try:
            return low_word(_evaluate(f"${name}"))
        except gdb.error as error:
            raise TargetError(f"gdb cannot read the register {name}: {error}") from error

    def fail(self, error: BaseException) -> None:
        """A handler raised; the first error counts."""
        self._failure = self._failure or error

    def start(self) -> None:
        """Start the program and stop it before its first instruction. Raises TargetError."""
        try:
            gdb.execute("starti", False, True)
        except gdb.error as error:
            raise TargetError(
                f"gdb cannot start a program: {error}", help="file PROGRAM, or attach PID, then the command again"
            ) from error

    def session(self) -> Session:
        """A fresh session of the stopped process, also inside a handler. Raises TargetError."""
        from gdbext.inspection.session import Session

        return Session(stopped_target())

    def close(self) -> None:
        """Take away every hook."""
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()
        if self._exec_catch is not None:
            _quietly(f"delete {self._exec_catch}")
            self._exec_catch = None

    # --- running ---------------------------------------------------------------------------------

    def run(self) -> Ending:
        """Let the process run until something ends that; signals that are its own affair are passed on."""
        self._catch_exec()
        gdb.events.exited.connect(self._exited)
        gdb.events.stop.connect(self._stopped)
        try:
            while True:
                _log.debug("continue with %d hooks", len(self._hooks))
                ending = self._continue()
                if ending is not None:
                    return ending
        finally:
            gdb.events.exited.disconnect(self._exited)
            gdb.events.stop.disconnect(self._stopped)

    def _continue(self) -> Ending | None:
        """One run; None where the process is to go on."""
        self._failure = self._exit = self._stop = None
        self.asked = False
        self._ran = _program()
        try:
            gdb.execute("continue", False, True)
        except KeyboardInterrupt:
            self._interrupt()
            return Ending(EndingKind.INTERRUPTED, "interrupted")
        except gdb.error as error:
            if self._is_another_program():  # gdb tried to set our breakpoints in it
                return _REPLACED
            return Ending(EndingKind.FAILED, f"gdb cannot resume the process: {error}", error=TargetError(str(error)))
        if self._failure is not None:
            return _failed(self._failure)
        if self._exit is not None:
            return _exited(self._exit)
        return self._why_stopped()

    def _why_stopped(self) -> Ending | None:
        if gdb.selected_inferior().pid == 0:
            return Ending(EndingKind.GONE, "the process ended")
        if self.asked:
            return Ending(EndingKind.ASKED, "")
        event = self._stop
        if isinstance(event, gdb.SignalEvent):
            name = event.stop_signal
            if name == "SIGINT":
                return Ending(EndingKind.INTERRUPTED, "interrupted")
            return None if name in _PASSED_ON else Ending(EndingKind.SIGNAL, f"the process got {name}")
        if isinstance(event, gdb.BreakpointEvent):
            if any(each.number == self._exec_catch for each in event.breakpoints):
                return _REPLACED
            numbers = [each.number for each in event.breakpoints if not isinstance(each, GdbHook)]
            return Ending(EndingKind.STOPPED, f"breakpoint {numbers[0]}" if numbers else "a breakpoint")
        return Ending(EndingKind.STOPPED, "gdb stopped the process")

    def _is_another_program(self) -> bool:
        """It is not the program that ran when the process was resumed."""
        return _program() not in ("", self._ran)

    def _interrupt(self) -> None:
        """After a KeyboardInterrupt the process may still run."""
        thread = gdb.selected_thread()
        if thread is not None and thread.is_valid() and thread.is_running():
            _quietly("interrupt -a")

    def _catch_exec(self) -> None:
        """After an exec nothing is where it was: gdb must not try to set our breakpoints there."""
        if self._exec_catch is None and _quietly("catch exec"):
            self._exec_catch = int(gdb.convenience_variable("bpnum") or 0) or None

    def _exited(self, event: Any) -> None:
        self._exit = event

    def _stopped(self, event: Any) -> None:
        self._stop = event


_REPLACED = Ending(EndingKind.REPLACED, "the process replaced itself by another program (exec)")


def _program() -> str:
    """What is different in every program that a process executes; "" where that is unknown (remote)."""
    pid = gdb.selected_inferior().pid
    try:
        with open(f"/proc/{pid}/auxv", "rb") as auxv:  # the addresses of its program headers and entry
            return auxv.read().hex()
    except OSError:
        return ""


def _failed(error: BaseException) -> Ending:
    if isinstance(error, KeyboardInterrupt):
        return Ending(EndingKind.INTERRUPTED, "interrupted")
    if isinstance(error, GdbextError):
        return Ending(EndingKind.FAILED, error.what, error=error)
    if isinstance(error, OSError):
        what = f"the trace cannot be written: {error.strerror}"
        return Ending(EndingKind.FAILED, what, error=TargetError(what, help="make room, or name another --output"))
    return Ending(EndingKind.FAILED, str(error), error=TargetError(f"gdb: {error}"))


def _exited(event: Any) -> Ending:
    status = getattr(event, "exit_code", None)
    if status is None:
        return Ending(EndingKind.KILLED, "the process was killed by a signal")
    return Ending(EndingKind.EXITED, f"the process exited with status {status}", status=int(status))


def _quietly(command: str) -> bool:
    """Run a command of gdb's without output; False where it fails."""
    try:
        gdb.execute(command, False, True)
    except gdb.error:
        return False
    return True
