"""dispatch-break's breakpoints in gdb, set by address, so that gdb's own symbols are not needed.

Breakpoints are ordinary ones, in ``info breakpoints``, with conditions that gdb evaluates. A kernel probe stops a
thread by a signal (thread_stopper.py). It shows as a catchpoint (``catch signal``), whose condition calls a function of
ours, which decides whether gdb stops or resumes all threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gdb

from gdbext.engine.targets.system.linux import signal_name
from gdbext.engine.unwind.frame_steps import CfaRule
from gdbext.hosts.gdb.gdb_loader import BreakpointKeeper
from gdbext.hosts.gdb.gdb_modes import breakpoint_notes, check_probes
from gdbext.hosts.gdb.gdb_target import execute, gdb_errors, read_memory, read_register, stopped_target
from gdbext.live.breakpoint_setter import PythonCondition, condition_text, holds
from gdbext.live.host import HookSpec
from gdbext.tools.probes.thread_stopper import ProbeHooks

if TYPE_CHECKING:
    from gdbext.live.breakpoint_setter import Breakpoint, BreakpointSetter, Condition, Reached, StoppedThread, Trap
    from gdbext.tools.probes.thread_stopper import ProbedHook

_NO_CONDITION = (
    "breakpoints of --continue take no condition of gdb (condition N ...): use --key or --has; or omit --continue, and "
    "give the breakpoint the condition and the command continue (commands N)"
)
"""gdb allows one stop condition, and ``stop()`` is one (gdb manual, Python: Breakpoints)."""


_SET = "set the breakpoint"  # for error messages


class SelectedThread:
    """gdb's selected thread, which a breakpoint has stopped: a StoppedThread (live/breakpoint_setter.py)."""

    @property
    def tid(self) -> int:
        return int(gdb.selected_thread().ptid[1])

    def register(self, name: str) -> int:
        return read_register(name)

    def word(self, address: int) -> int:
        return int.from_bytes(read_memory(address, 8), "little")


class GdbBreakpoint(gdb.Breakpoint):  # type: ignore[misc]
    """A breakpoint that the user sees."""

    def is_alive(self) -> bool:
        return bool(self.is_valid())

    def switch_off(self) -> None:
        if self.is_valid():
            self.enabled = False

    def delete_later(self) -> None:
        if self.is_valid():
            self.switch_off()
            gdb.post_event(lambda: self.delete() if self.is_valid() else None)


class GdbStop(GdbBreakpoint):
    """A breakpoint whose condition gdb evaluates: ``stop()`` in Python would be the only condition that gdb allows."""

    def __init__(self, address: int, condition: str, reached: Reached) -> None:
        super().__init__(f"*{address:#x}")
        self.reached = reached
        if condition:
            self.condition = condition


class GdbCallback(GdbBreakpoint):
    """A breakpoint at which ``hit`` decides each time whether gdb stops."""

    def __init__(self, location: str, hit: Callable[[], bool]) -> None:
        super().__init__(location)
        self._hit = hit

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        return self._hit()


class GdbTrap(gdb.Breakpoint):  # type: ignore[misc]
    """An internal breakpoint that calls a function, and never stops the process."""

    def __init__(self, address: int, reached: Reached) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self._reached = reached

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        self._reached(SelectedThread())
        return False

    def enable(self, wanted: bool) -> None:
        self.enabled = wanted

    def delete(self) -> None:
        if self.is_valid():
            super().delete()


class GdbBreakpointSetter:
    """Sets breakpoints in gdb's selected inferior: a BreakpointSetter (live/breakpoint_setter.py)."""

    def __init__(self) -> None:
        gdb.events.stop.connect(_call_reached)
        self._keep = BreakpointKeeper().keep

    def set_stop(self, address: int, condition: Condition, reached: Reached) -> Breakpoint:
        """Stop at an address if the condition holds; ``reached`` is called then."""

        def hit() -> bool:
            """Called at each hit: True if the condition, in Python, holds."""
            assert isinstance(condition, PythonCondition)
            thread = SelectedThread()
            stops = condition.ask(thread)
            if stops:
                reached(thread)
            return stops

        with gdb_errors(_SET):
            if isinstance(condition, PythonCondition):
                return self._keep(GdbCallback(f"*{address:#x}", hit), address)
            return self._keep(GdbStop(address, condition_text(condition), reached), address)

    def set_call(self, address: int, reached: Reached) -> Breakpoint:
        """Call ``reached`` at an address, without a stop."""

        def hit() -> bool:
            reached(SelectedThread())
            return False

        with gdb_errors(_SET):
            return self._keep(GdbCallback(f"*{address:#x}", hit), address)

    def set_pending(self, function: str, symbol: str, reached: Callable[[], bool]) -> Breakpoint:
        """Stop at a function, now or once it is loaded, if ``reached`` returns True."""
        with gdb_errors(_SET):
            return GdbCallback(symbol if gdb.parameter("demangle-style") == "none" else function, reached)

    def set_placeholder(self, address: int) -> Breakpoint:
        """A breakpoint for the user to see and delete, which never stops."""
        with gdb_errors(_SET):
            return GdbCallback(f"*{address:#x}", lambda: False)

    def set_trap(self, address: int, reached: Reached) -> Trap:
        """Call ``reached`` at an address; the user sees no breakpoint."""
        with gdb_errors(_SET):
            return self._keep(GdbTrap(address, reached), address)

    def notes(self, go_on: bool) -> tuple[str, ...]:
        return ((_NO_CONDITION,) if go_on else ()) + breakpoint_notes()

    def text_of(self, condition: Condition) -> str:
        return condition_text(condition)

    def call_soon(self, action: Callable[[], None]) -> None:
        gdb.post_event(action)

    def by_probes(self) -> BreakpointSetter:
        check_probes()
        return ProbedSetter()

    def on_exit(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the process has exited, unless gdb follows its child, which has the same addresses."""

        def exited(event: Any) -> None:
            if not any(other.pid for other in gdb.inferiors() if other.num != event.inferior.num):
                action()

        gdb.events.exited.connect(exited)


def _call_reached(event: Any) -> None:
    """Called by gdb at each stop: call ``reached`` of our breakpoints that caused it."""
    for breakpoint in getattr(event, "breakpoints", ()):
        if isinstance(breakpoint, GdbStop):
            breakpoint.reached(SelectedThread())


_NAME = "_gdbext_stop"


class HitFunction(gdb.Function):  # type: ignore[misc]
    """Used by gdbext where kernel probes stop the program (--engine probes)."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.last_key = 0
        self.reached: dict[int, Callable[[], bool]] = {}  # key of a catchpoint → returns True if gdb is to stop

    def invoke(self, key: gdb.Value) -> int:
        """Called by gdb as the condition of a catchpoint of ours when a thread has stopped by its signal."""
        reached = self.reached.get(int(key))
        return int(reached is not None and reached())


def _hit_function() -> HitFunction:
    """This gdb's HitFunction, kept in gdb's module when our commands are reloaded: gdb deletes no functions."""
    function: HitFunction | None = vars(gdb).get(_NAME)
    if not function:
        function = vars(gdb)[_NAME] = HitFunction()
    return function


class ProbedCatch:
    """A catchpoint for the signal of a probe, ``hook``; ``reached`` decides whether gdb stops."""

    def __init__(self, signal: int, reached: Callable[[], bool], hook: ProbedHook | None) -> None:
        """Raises TargetError."""
        self._hook = hook
        execute(f'interpreter-exec console "catch signal {signal_name(signal)}"')  # MI would print it otherwise
        self.number = int(gdb.convenience_variable("bpnum"))
        function = _hit_function()
        function.last_key += 1
        self._key = function.last_key
        function.reached[self._key] = reached
        execute(f"condition {self.number} ${_NAME}({self._key})")

    def is_alive(self) -> bool:
        return f"${_NAME}({self._key})" in execute(f"info breakpoints {self.number}")

    def delete(self) -> None:
        """Delete the catchpoint, and switch the probe off; idempotent."""
        self.switch_off()
        if self.is_alive():
            execute(f"delete {self.number}")
        if self._hook:
            self._hook.remove()

    def switch_off(self) -> None:
        _hit_function().reached.pop(self._key, None)

    def delete_later(self) -> None:
        self.switch_off()
        gdb.post_event(self.delete)


class ProbedThread(SelectedThread):
    """The thread that a probe has stopped: its registers are those at the probe."""

    def __init__(self, hooks: ProbeHooks) -> None:
        self._hooks = hooks

    def register(self, name: str) -> int:
        value = self._hooks.register(name)
        return super().register(name) if value is None else value


class ProbedTrap:
    """A probe without a catchpoint; the first of our catchpoints that gdb evaluates handles it."""

    def __init__(self, hooks: ProbeHooks, spec: HookSpec) -> None:
        self._hooks, self._spec = hooks, spec
        self._hook: ProbedHook | None = hooks.place(spec)

    def enable(self, wanted: bool) -> None:
        """Place the probe, or remove it."""
        if wanted and not self._hook:
            self._hook = self._hooks.place(self._spec)
        elif not wanted:
            self.delete()

    def delete(self) -> None:
        if self._hook:
            self._hook.remove()
            self._hook = None


class ProbedSetter(GdbBreakpointSetter):
    """Has kernel probes stop the threads of gdb's selected inferior. The user sees a catchpoint for each."""

    def __init__(self) -> None:
        self._hooks: ProbeHooks | None = None
        self._process = 0
        self._due: tuple[int, object] | None = None  # tid that is to stop, key of the catchpoint that has to stop it

    def _current_hooks(self) -> ProbeHooks:
        """The hooks of the process that gdb has now. Raises ProbesRefused, TargetError."""
        target = stopped_target()
        if not self._hooks or self._hooks.is_spent or target.pid != self._process:
            if self._hooks:
                self._hooks.close()
            self._hooks = ProbeHooks(stopped_target, read_memory)
            self._process = target.pid
        return self._hooks

    def _spec(self, address: int, called: Callable[[StoppedThread], object]) -> HookSpec:
        """A hook that calls ``called(stopped thread)``; the thread stays stopped if that returns a true value."""
        hooks = self._current_hooks()
        frame = CfaRule(hooks.stack_pointer, offset=0, size=0)
        return HookSpec(address, frame, lambda *_: bool(called(ProbedThread(hooks))))

    def _catch(self, address: int, stops: Callable[[StoppedThread], bool]) -> ProbedCatch:
        """A catchpoint for a probe at ``address``; gdb stops if ``stops`` returns True."""
        hooks, key = self._current_hooks(), object()

        def hit(thread: StoppedThread) -> bool:
            """Called when a thread reaches the probe: note whether gdb is to stop it."""
            if stops(thread):
                self._due = (thread.tid, key)
            return False

        def reached() -> bool:
            """Called by gdb when any thread stops by the signal: handle the probe, which may call ``hit``."""
            tid = SelectedThread().tid
            hooks.handle(tid)
            if self._due != (tid, key):
                return False
            self._due = None
            return True

        hook = hooks.place(self._spec(address, hit))
        hooks.begin()
        return ProbedCatch(hooks.signal, reached, hook)

    def set_stop(self, address: int, condition: Condition, reached: Reached) -> ProbedCatch:
        def stops(thread: StoppedThread) -> bool:
            is_met = holds(condition, thread)
            if is_met:
                reached(thread)
            return is_met

        return self._catch(address, stops)

    def set_call(self, address: int, reached: Reached) -> ProbedCatch:
        def stops(thread: StoppedThread) -> bool:
            reached(thread)
            return False

        return self._catch(address, stops)

    def notes(self, go_on: bool) -> tuple[str, ...]:
        del go_on  # catchpoints take conditions
        return breakpoint_notes()

    def set_placeholder(self, address: int) -> ProbedCatch:
        del address
        hooks = self._current_hooks()
        return ProbedCatch(hooks.signal, lambda: hooks.handle(SelectedThread().tid), None)

    def set_trap(self, address: int, reached: Reached) -> ProbedTrap:
        trap = ProbedTrap(self._current_hooks(), self._spec(address, reached))
        self._current_hooks().begin()
        return trap
