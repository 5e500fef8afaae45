"""dispatch-break's breakpoints in gdb: ordinary ones, in ``info breakpoints``, with conditions that gdb evaluates.

They are set by address, so that gdb's own symbols are not needed.

Catchpoints for kernel probes, which stop a thread by a signal (thread_stopper.py). gdb is told of it by
``catch signal``, whose condition is a function of ours: it looks what the thread was stopped for, and says whether gdb
is to stop. Where it is not, gdb lets all run on and tells nobody, as after a breakpoint's stop(). gdb has no internal
catchpoints: each takes a number of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import gdb

from gdbext.engine.targets.system.linux import signal_name
from gdbext.engine.unwind.frame_steps import CfaRule
from gdbext.errors import MemoryFault, TargetError
from gdbext.hosts.gdb.gdb_batch import stopped_target
from gdbext.hosts.gdb.gdb_loader import BreakpointKeeper
from gdbext.hosts.gdb.gdb_modes import breakpoint_notes, check_probes
from gdbext.hosts.gdb.gdb_target import execute
from gdbext.live.breakpoint_setter import PythonCondition, condition_text, holds
from gdbext.live.host import HookSpec
from gdbext.tools.probes.thread_stopper import ProbeHooks

if TYPE_CHECKING:
    from gdbext.live.breakpoint_setter import (
        Breakpoint,
        BreakpointSetter,
        Condition,
        Reached,
        StoppedThread,
        Trap,
    )
    from gdbext.tools.probes.thread_stopper import ProbedHook

_WORD = (1 << 64) - 1
_NO_CONDITION = (
    "gdb takes no condition (condition N ...) for breakpoints of --continue: use --key or --has; or leave --continue "
    "out, and give the breakpoint the condition and, with commands N: continue"
)
"""gdb allows one stop condition, and ``stop()`` is one (gdb manual, Python: Breakpoints)."""


class SelectedThread:
    """gdb's selected thread: the one that a breakpoint stopped."""

    @property
    def tid(self) -> int:
        """Id that the kernel gave the thread."""
        return int(gdb.selected_thread().ptid[1])

    def register(self, name: str) -> int:
        """A register of its innermost frame, unsigned. Raises TargetError."""
        try:
            return int(gdb.parse_and_eval(f"${name}")) & _WORD
        except gdb.error as error:
            raise TargetError(f"gdb cannot read the register {name}: {error}") from error

    def word(self, address: int) -> int:
        """The 8 bytes at an address. Raises MemoryFault."""
        try:
            return int.from_bytes(gdb.selected_inferior().read_memory(address, 8), "little")
        except (gdb.error, OverflowError) as error:
            raise MemoryFault(address, 8) from error


class GdbBreakpoint(gdb.Breakpoint):  # type: ignore[misc]
    """A breakpoint that the user sees."""

    def is_alive(self) -> bool:
        """The user has not deleted it."""
        return bool(self.is_valid())

    def switch_off(self) -> None:
        """It may be the one that gdb is asking right now."""
        if self.is_valid():
            self.enabled = False

    def delete_later(self) -> None:
        """It may be the one that gdb is asking right now."""
        if self.is_valid():
            self.switch_off()
            gdb.post_event(lambda: self.delete() if self.is_valid() else None)


class GdbStop(GdbBreakpoint):
    """One that stops. It has no stop() of its own: gdb allows no condition beside that."""

    def __init__(self, address: int, condition: str, reached: Reached) -> None:
        super().__init__(f"*{address:#x}")
        self.reached = reached
        if condition:
            self.condition = condition


class GdbToldStop(GdbBreakpoint):
    """One that stops where a function of ours says so. gdb takes no condition beside that."""

    def __init__(self, address: int, told: PythonCondition, reached: Reached) -> None:
        super().__init__(f"*{address:#x}")
        self._told = told
        self._reached = reached

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        thread = SelectedThread()
        stops = self._told.ask(thread)
        if stops:
            self._reached(thread)
        return stops


class GdbCall(GdbBreakpoint):
    """One that calls a function and goes on."""

    def __init__(self, address: int, reached: Reached) -> None:
        super().__init__(f"*{address:#x}")
        self._reached = reached

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        self._reached(SelectedThread())
        return False


class GdbPending(GdbBreakpoint):
    """One at a function that may not be there yet."""

    def __init__(self, symbol: str, reached: Callable[[], bool]) -> None:
        super().__init__(symbol)
        self._reached = reached

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        return self._reached()


class GdbPlaceholder(GdbBreakpoint):
    """One that only stands in the list."""

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        return False


class GdbTrap(gdb.Breakpoint):  # type: ignore[misc]
    """An internal breakpoint that calls a function and goes on."""

    def __init__(self, address: int, reached: Reached) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self._reached = reached

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        self._reached(SelectedThread())
        return False

    def enable(self, wanted: bool) -> None:
        """Switch it on or off."""
        self.enabled = wanted

    def delete(self) -> None:
        """Delete the breakpoint from gdb's list."""
        if self.is_valid():
            super().delete()


class GdbBreakpointSetter:
    """Sets breakpoints in gdb's selected inferior."""

    def __init__(self) -> None:
        gdb.events.stop.connect(_stopped)
        self._keep = BreakpointKeeper().keep

    def set_stop(self, address: int, condition: Condition, reached: Reached) -> Breakpoint:
        """One that stops where the condition holds. Raises TargetError, as all others do."""
        with _refusals():
            if isinstance(condition, PythonCondition):
                return self._keep(GdbToldStop(address, condition, reached), address)
            return self._keep(GdbStop(address, condition_text(condition), reached), address)

    def set_call(self, address: int, reached: Reached) -> Breakpoint:
        """One that calls ``reached`` and goes on; gdb takes no condition for it."""
        with _refusals():
            return self._keep(GdbCall(address, reached), address)

    def set_pending(self, function: str, symbol: str, reached: Callable[[], bool]) -> Breakpoint:
        """One at a function of a library that gdb may not have seen yet, if need be by a name that is not demangled."""
        with _refusals():
            return GdbPending(symbol if gdb.parameter("demangle-style") == "none" else function, reached)

    def set_placeholder(self, address: int) -> Breakpoint:
        """Set a breakpoint that does nothing, for the user to see."""
        with _refusals():
            return GdbPlaceholder(f"*{address:#x}")

    def set_trap(self, address: int, reached: Reached) -> Trap:
        """Set a breakpoint that the user does not see."""
        with _refusals():
            return self._keep(GdbTrap(address, reached), address)

    def notes(self, go_on: bool) -> tuple[str, ...]:
        """Conditions beside ``stop()``, and what gdb's settings make of ``continue``."""
        return ((_NO_CONDITION,) if go_on else ()) + breakpoint_notes()

    def text_of(self, condition: Condition) -> str:
        """The condition as gdb's expression."""
        return condition_text(condition)

    def call_soon(self, action: Callable[[], None]) -> None:
        """Call a function from gdb's event loop."""
        gdb.post_event(action)

    def by_probes(self) -> BreakpointSetter:
        """One that has kernel probes stop the threads. Raises ProbesRefused."""
        check_probes()
        return ProbedSetter()

    def on_exit(self, action: Callable[[], None]) -> None:
        """Not when gdb follows a forked child, whose addresses are the same, and lets the parent go."""

        def exited(event: Any) -> None:
            if not any(other.pid for other in gdb.inferiors() if other.num != event.inferior.num):
                action()

        gdb.events.exited.connect(exited)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except gdb.error as error:
        raise TargetError(f"gdb cannot set the breakpoint: {error}") from error


def _stopped(event: Any) -> None:
    for each in getattr(event, "breakpoints", ()):
        if isinstance(each, GdbStop):
            each.reached(SelectedThread())


_NAME = "_gdbext_stop"


class HitFunction(gdb.Function):  # type: ignore[misc]
    """Used by gdbext where kernel probes stop the program (--engine probes)."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.given = 0
        """Numbers that were given to catchpoints."""
        self.reached: dict[int, Callable[[], bool]] = {}

    def invoke(self, number: gdb.Value) -> int:
        """Called by gdb for each catchpoint of ours where a thread has stopped by its signal."""
        reached = self.reached.get(int(number))
        return int(reached is not None and reached())


def _function() -> HitFunction:
    """The one function, for gdb never forgets any: kept in gdb's own module, also when our commands are loaded anew."""
    found: HitFunction | None = vars(gdb).get(_NAME)
    if not found:
        found = vars(gdb)[_NAME] = HitFunction()
    return found


class GdbCatch:
    """A catchpoint for a signal, at which ``reached`` says whether gdb stops."""

    def __init__(self, signal: int, reached: Callable[[], bool]) -> None:
        """Set the catchpoint, with a condition of ours. Raises TargetError."""
        execute(f'interpreter-exec console "catch signal {signal_name(signal)}"')  # MI would print it otherwise
        self.number = int(gdb.convenience_variable("bpnum"))
        function = _function()
        function.given += 1
        self._key = function.given
        function.reached[self._key] = reached
        execute(f"condition {self.number} ${_NAME}({self._key})")

    def is_alive(self) -> bool:
        """The user has not deleted it."""
        return f"${_NAME}({self._key})" in execute(f"info breakpoints {self.number}")

    def delete(self) -> None:
        """Delete the catchpoint, and forget its function; idempotent."""
        _function().reached.pop(self._key, None)
        if self.is_alive():
            execute(f"delete {self.number}")

    def switch_off(self) -> None:
        """It may be the one that gdb is asking right now."""
        _function().reached.pop(self._key, None)

    def delete_later(self) -> None:
        """It may be the one that gdb is asking right now."""
        self.switch_off()
        gdb.post_event(self.delete)


class ProbedThread(SelectedThread):
    """The thread that a probe has stopped: its registers as they were there."""

    def __init__(self, hooks: ProbeHooks) -> None:
        self._hooks = hooks

    def register(self, name: str) -> int:
        """A register of its innermost frame, unsigned. Raises TargetError."""
        noted = self._hooks.register(name)
        return super().register(name) if noted is None else noted


class ProbedCatch(GdbCatch):
    """A catchpoint for one probe, which goes with it."""

    def __init__(self, signal: int, reached: Callable[[], bool], hook: ProbedHook | None) -> None:
        self._hook = hook
        super().__init__(signal, reached)

    def delete(self) -> None:
        """Delete the catchpoint, and switch the probe off; idempotent."""
        super().delete()
        if self._hook:
            self._hook.remove()


class ProbedTrap:
    """A probe that the user does not see. Whichever catchpoint gdb asks first has it called."""

    def __init__(self, hooks: ProbeHooks, spec: HookSpec) -> None:
        self._hooks, self._spec = hooks, spec
        self._hook: ProbedHook | None = hooks.place(spec)

    def enable(self, wanted: bool) -> None:
        """Switch it on or off."""
        if wanted and not self._hook:
            self._hook = self._hooks.place(self._spec)
        elif not wanted:
            self.delete()

    def delete(self) -> None:
        """Nobody stops there any more; idempotent."""
        if self._hook:
            self._hook.remove()
            self._hook = None


class ProbedSetter(GdbBreakpointSetter):
    """Has kernel probes stop the threads of gdb's selected inferior. The user sees a catchpoint for each."""

    def __init__(self) -> None:
        self._hooks: ProbeHooks | None = None
        self._process = 0
        self._due: tuple[int, object] | None = None
        """The thread that is to stop, and the key of the catchpoint to say so."""

    def _of_process(self) -> ProbeHooks:
        """The hooks of the process that gdb has now. Raises ProbesRefused, TargetError."""
        target = stopped_target()
        if not self._hooks or self._hooks.is_spent or target.pid != self._process:
            if self._hooks:
                self._hooks.close()
            self._hooks = ProbeHooks(stopped_target, _memory)
            self._process = target.pid
        return self._hooks

    def _spec(self, address: int, called: Callable[[StoppedThread], object]) -> HookSpec:
        hooks = self._of_process()
        frame = CfaRule(hooks.stack_pointer, 0, 0)
        return HookSpec(address, frame, lambda *_: bool(called(ProbedThread(hooks))))

    def _catch(self, address: int, called: Callable[[StoppedThread], bool]) -> ProbedCatch:
        """A catchpoint that stops where ``called`` says so at the probe's place."""
        hooks, key = self._of_process(), object()

        def hit(thread: StoppedThread) -> bool:
            if called(thread):
                self._due = (thread.tid, key)
            return False

        def reached() -> bool:
            thread = SelectedThread().tid
            hooks.handle(thread)
            is_due, self._due = self._due == (thread, key), None if self._due == (thread, key) else self._due
            return is_due

        hook = hooks.place(self._spec(address, hit))
        hooks.begin()
        return ProbedCatch(hooks.signal, reached, hook)

    def set_stop(self, address: int, condition: Condition, reached: Reached) -> ProbedCatch:
        """One that stops where the condition holds. Raises TargetError, as all others do."""

        def called(thread: StoppedThread) -> bool:
            if not holds(condition, thread):
                return False
            reached(thread)
            return True

        return self._catch(address, called)

    def set_call(self, address: int, reached: Reached) -> ProbedCatch:
        """One that calls ``reached`` and goes on."""

        def called(thread: StoppedThread) -> bool:
            reached(thread)
            return False

        return self._catch(address, called)

    def notes(self, go_on: bool) -> tuple[str, ...]:
        """The notes on gdb's settings. Catchpoints take conditions."""
        del go_on
        return breakpoint_notes()

    def set_placeholder(self, address: int) -> ProbedCatch:
        """Set a catchpoint that stops for nothing, for the user to see."""
        del address
        hooks = self._of_process()
        return ProbedCatch(hooks.signal, lambda: hooks.handle(SelectedThread().tid), None)

    def set_trap(self, address: int, reached: Reached) -> ProbedTrap:
        """Set a probe that the user does not see."""
        trap = ProbedTrap(self._of_process(), self._spec(address, reached))
        self._of_process().begin()
        return trap


def _memory(address: int, size: int) -> bytes:
    return bytes(gdb.selected_inferior().read_memory(address, size))
