"""LLDB's side of the live commands: breakpoints with a callback that does next to nothing, and ``Continue``.

--samples lets the process run in the same way, and interrupts it when the time is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import lldb

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.tool import run_for
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget
from gdbext.errors import GdbextError, MemoryFault, TargetError
from gdbext.hosts.lldb.lldb_batch import brief_stop, start_program
from gdbext.hosts.lldb.lldb_target import (
    LldbTarget,
    current_target,
    float_register,
    is_native,
    is_there,
    read_memory,
)
from gdbext.hosts.lldb.selection import AGAIN, attach_callback, drop_callback, keep_callback
from gdbext.live.host import probes_are_elsewhere
from gdbext.live.timed_run import TimedRun, check_pause, ending_of_failure
from gdbext.log import logger
from gdbext.tools.probes.thread_stopper import ProbeHooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from gdbext.diagnosis.samples import Pause, Watch
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.lldb.selection import Selection
    from gdbext.live.host import AddressHook, HookSpec
    from gdbext.live.timed_run import Work


def pause_of(selection: Selection, target: Target) -> Pause:
    """The function that lets the process run for some seconds."""
    if isinstance(target, SnapshotTarget):
        return partial(_look_again, selection, target.pid)
    alternative = (
        f"look from outside: process detach, then scripts/dispatch -p {target.pid} dispatch-diagnose --samples 5"
    )

    def pause(seconds: float, watch: Watch) -> Target:
        process = selection.process()
        number = process.GetSelectedThread().GetIndexID()
        check_pause(LldbRunControl(selection).run_beside(lambda run: run_for(seconds, watch, run.sleep)), alternative)
        process.SetSelectedThreadByIndexID(number)
        return LldbTarget(process)

    return pause


def _look_again(selection: Selection, pid: int, seconds: float, watch: Watch) -> Target:
    """Look at the process again, which runs already."""
    run_for(seconds, watch)
    return brief_stop(selection.debugger, pid)


_log = logger(__name__)
_WORD = (1 << 64) - 1
_INTERRUPTS = ("SIGINT", "SIGSTOP")
"""Signals by which a process stops when LLDB halts it."""


class LldbHook:
    """An address at which a handler is called."""

    def __init__(self, control: LldbRunControl, owner: HookBreakpoint, spec: HookSpec) -> None:
        self._control = control
        self._owner = owner
        self._spec = spec

    def hit(self, frame: lldb.SBFrame) -> bool:
        """Called at each hit; everything in it counts. True where the process is to stop."""
        spec, control = self._spec, self._control
        try:
            control.frame = frame
            cfa = register_of(frame, spec.frame.register) + spec.frame.offset
            value = register_of(frame, spec.register) if spec.register else 0
            if spec.load is not None:
                value = int.from_bytes(control.read((value + spec.load) & _WORD, 8), "little")
            over = spec.handler(frame.GetThread().GetThreadID(), cfa, value)
            if over:
                control.asked = True
            return over
        except (GdbextError, OSError, KeyboardInterrupt) as error:
            control.fail(error)
            return True

    def remove(self) -> None:
        """Nobody is called there any more."""
        self._owner.drop(self._spec.address, self)


class Hook(Protocol):
    """Whatever is called at an address."""

    def hit(self, frame: lldb.SBFrame) -> bool:
        """Called at each hit: True where the process is to stop."""


class NoResolver:
    """Finds no places by itself: LLDB takes places by address for breakpoints that have such a class only
    (SBBreakpoint.AddLocation)."""

    def __init__(self, *_: object) -> None:
        pass

    def __callback__(self, _context: lldb.SBSymbolContext) -> None:
        """Called by LLDB for a target, and for what is loaded later."""

    def __get_depth__(self) -> int:
        """Called by LLDB: once for a target is enough."""
        return int(lldb.eSearchDepthTarget)


class HookBreakpoint:
    """The one breakpoint of a command, with a location for each address: LLDB's Python can make no internal ones, and
    each takes a number of the user's."""

    def __init__(self, target: lldb.SBTarget) -> None:
        """Make the breakpoint. Raises TargetError."""
        self._target = target
        self._class = keep_callback(NoResolver)
        nowhere = lldb.SBFileSpecList()
        self._breakpoint = target.BreakpointCreateFromScript(self._class, lldb.SBStructuredData(), nowhere, nowhere)
        if not self._breakpoint.IsValid():
            drop_callback(self._class)
            raise TargetError("lldb cannot set a breakpoint")
        self.number = int(self._breakpoint.GetID())
        self._hooks: dict[int, list[Hook]] = {}
        self._callback = attach_callback(self._breakpoint, self._hit)

    def add(self, address: int, hook: Hook) -> None:
        """Call the hook at that address. Raises TargetError."""
        error = self._breakpoint.AddLocation(lldb.SBAddress(address, self._target))
        if error.Fail():
            raise TargetError(f"lldb cannot set a breakpoint at {address:#x}: {error.GetCString()}")
        self._breakpoint.FindLocationByAddress(address).SetEnabled(True)
        self._hooks.setdefault(address, []).append(hook)

    def drop(self, address: int, hook: Hook) -> None:
        """Call the hook no more; idempotent."""
        hooks = self._hooks.get(address, [])
        if hook in hooks:
            hooks.remove(hook)
        if not hooks:
            self._hooks.pop(address, None)
            if self._breakpoint.IsValid():
                self._breakpoint.FindLocationByAddress(address).SetEnabled(False)

    @property
    def is_used(self) -> bool:
        """There are hooks, and the user has not deleted the breakpoint."""
        return bool(self._hooks and self._breakpoint.IsValid())

    def _hit(self, frame: lldb.SBFrame) -> bool:
        """Called by LLDB at each hit."""
        over = False
        for hook in tuple(self._hooks.get(frame.GetPC(), ())):
            over = hook.hit(frame) or over
        return over

    def delete(self, by: Callable[[lldb.SBTarget, int], object] = lldb.SBTarget.BreakpointDelete) -> None:
        """Remove it from the process, with all its locations."""
        if self._breakpoint.IsValid():
            by(self._target, self.number)
        drop_callback(self._callback)
        drop_callback(self._class)


def register_of(frame: lldb.SBFrame, name: str) -> int:
    """A register of the frame, unsigned. Raises TargetError."""
    error = lldb.SBError()
    value = frame.FindRegister(name)
    number = value.GetValueAsUnsigned(error) if value.IsValid() else 0
    if not value.IsValid() or error.Fail():
        raise TargetError(f"LLDB cannot read the register {name}")
    return int(number) & _WORD


class LldbRunControl:
    """Places hooks and runs the process."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._breakpoint: HookBreakpoint | None = None
        self._failure: BaseException | None = None
        self.asked = False
        self.frame: lldb.SBFrame | None = None
        self._probes: ProbeHooks | None = None

    @property
    def _process(self) -> lldb.SBProcess:
        return self._selection.process()

    def use_probes(self) -> None:
        """Watch addresses by kernel probes, not by breakpoints. Raises ProbesRefused, TargetError."""
        if not self.can_run_beside:
            raise probes_are_elsewhere()
        self._probes = ProbeHooks(lambda: current_target(self._process), self.read)

    def place(self, spec: HookSpec) -> AddressHook:
        """Watch an address in all threads. Raises TargetError."""
        if self._probes:
            return self._probes.place(spec)
        if not self._breakpoint:
            self._breakpoint = HookBreakpoint(self._process.GetTarget())
        hook = LldbHook(self, self._breakpoint, spec)
        self._breakpoint.add(spec.address, hook)
        return hook

    def read(self, address: int, size: int) -> bytes:
        """Memory as it is now. Raises MemoryFault."""
        data = read_memory(self._process, address, size) if 0 <= address <= _WORD - size and size > 0 else b""
        if not data:
            raise MemoryFault(address, size)
        return data

    def register(self, name: str) -> int:
        """A register of the thread that a handler is called for. Raises TargetError."""
        noted = self._probes.register(name) if self._probes else None
        if noted is not None:
            return noted
        frame = self.frame
        if frame is None or not frame.IsValid():
            frame = self._process.GetSelectedThread().GetFrameAtIndex(0)
        return register_of(frame, name)

    def float_register(self, name: str) -> int:
        """The low 8 bytes of a vector register of that thread. Raises TargetError."""
        if self._probes:
            self._probes.check_vectors()
        frame = self.frame
        found = float_register(frame, name) if frame is not None and frame.IsValid() else None
        if found is None:
            raise TargetError(f"LLDB cannot read the register {name}")
        return found

    def fail(self, error: BaseException) -> None:
        """A handler raised; the first error counts."""
        self._failure = self._failure or error

    def start(self) -> None:
        """Start the program and stop it before its first instruction. Raises TargetError."""
        with self._selection.synchronous():
            start_program(self._selection.target(), True)

    def session(self) -> Session:
        """A fresh session of the stopped process, also inside a handler. Raises TargetError."""
        return Session(current_target(self._process))

    def close(self) -> None:
        """Remove all hooks from the process."""
        if self._breakpoint:
            self._breakpoint.delete()
            self._breakpoint = None
        if self._probes:
            self._probes.close()

    @property
    def can_run_beside(self) -> bool:
        """LLDB holds a process of this machine."""
        return is_native(self._process.GetProcessID())

    def run_beside(self, work: Work) -> Ending:
        """Let the process run while another thread works, and interrupt it when that is done."""
        process = self._process

        def interrupt() -> None:  # LLDB loses what comes before it has let the process go
            while not timed.came:
                process.SendAsyncInterrupt()
                timed.wait(AGAIN)

        timed = TimedRun(work, interrupt)
        with timed:
            ending = self.run()
        return timed.ending(ending)

    def run(self) -> Ending:
        """Let the process run until something ends that; which signals do, LLDB's table says."""
        refused = self._selection.refusal()
        if refused:
            return Ending(EndingKind.FAILED, refused.what, error=refused)
        with self._selection.synchronous():
            _log.debug("continue")
            self._failure, self.asked = None, False
            process = self._process
            with self._catching(process), self._interruptible(process):
                error = process.Continue()
                while error.Success() and self._was_probed(process):
                    error = process.Continue()
            self.frame = None
            if self._failure:
                return ending_of_failure(self._failure, "lldb")
            if not is_there(process):
                return _exited(process)
            if error.Fail():
                text = f"lldb cannot resume the process: {error.GetCString()}"
                return Ending(EndingKind.FAILED, text, error=TargetError(text))
            return self._why_stopped(process)

    @contextmanager
    def _catching(self, process: lldb.SBProcess) -> Iterator[None]:
        """LLDB stops by the probes' signal meanwhile, where there are any. Raises ProbesRefused."""
        if not self._probes:
            yield
            return
        signals, number = process.GetUnixSignals(), self._probes.signal
        before = signals.GetShouldStop(number)
        self._probes.begin()
        signals.SetShouldStop(number, True)
        try:
            yield
        finally:
            signals.SetShouldStop(number, before)

    def _was_probed(self, process: lldb.SBProcess) -> bool:
        """Call the handlers for all threads that probes have stopped; True where the process is to go on."""
        if not self._probes or not is_there(process) or self._selection.interruption.happened:
            return False
        reasons = {lldb.eStopReasonNone, lldb.eStopReasonInvalid}
        threads = [process.GetThreadAtIndex(index) for index in range(process.GetNumThreads())]
        stopped = [thread for thread in threads if thread.GetStopReason() not in reasons]
        probed = [thread for thread in stopped if self._is_probed(thread)]
        try:
            for thread in probed:
                process.SetSelectedThread(thread)
                self.frame = thread.GetFrameAtIndex(0)
                self.asked = self._probes.handle(thread.GetThreadID()) or self.asked
        except (GdbextError, OSError, KeyboardInterrupt) as error:
            self.fail(error)
        return bool(probed) and len(probed) == len(stopped) and not self.asked and self._failure is None

    def _is_probed(self, thread: lldb.SBThread) -> bool:
        is_signal = thread.GetStopReason() == lldb.eStopReasonSignal
        return self._probes is not None and is_signal and thread.GetStopReasonDataAtIndex(0) == self._probes.signal

    @contextmanager
    def _interruptible(self, process: lldb.SBProcess) -> Iterator[None]:
        interruption, stop = self._selection.interruption, process.SendAsyncInterrupt
        with interruption.stopping(stop), interruption.watching(self._selection.debugger, stop):
            yield

    def _why_stopped(self, process: lldb.SBProcess) -> Ending:
        if self.asked:
            return Ending(EndingKind.ASKED, "")
        if self._selection.interruption.happened:
            return Ending(EndingKind.INTERRUPTED, "interrupted")
        threads = [process.GetThreadAtIndex(index) for index in range(process.GetNumThreads())]
        ours = (self._breakpoint.number,) if self._breakpoint else ()
        for thread in threads:
            reason = thread.GetStopReason()
            if reason == lldb.eStopReasonExec:
                return Ending(EndingKind.REPLACED, "the process replaced itself by another program (exec)")
            if reason == lldb.eStopReasonSignal and not self._is_probed(thread):
                return _by_signal(process, thread)
            if reason == lldb.eStopReasonBreakpoint and thread.GetStopReasonDataAtIndex(0) not in ours:
                return Ending(EndingKind.STOPPED, _breakpoint_text(thread.GetStopReasonDataAtIndex(0)))
        return Ending(EndingKind.STOPPED, "lldb stopped the process")


def _breakpoint_text(number: int) -> str:
    """A breakpoint of the user's, or one of LLDB's own, which have negative numbers (lldb::break_id_t)."""
    own = "a breakpoint of LLDB's own, as for libraries that come or go (target.process.stop-on-sharedlibrary-events)"
    return f"breakpoint {number}" if number < 1 << 31 else own


def _by_signal(process: lldb.SBProcess, thread: lldb.SBThread) -> Ending:
    """LLDB stops for those signals only for which its table says so (``process handle``)."""
    name = process.GetUnixSignals().GetSignalAsCString(thread.GetStopReasonDataAtIndex(0))
    if name in _INTERRUPTS:
        return Ending(EndingKind.INTERRUPTED, "interrupted")
    return Ending(EndingKind.SIGNAL, f"the process got {name}")


def _exited(process: lldb.SBProcess) -> Ending:
    if process.GetState() != lldb.eStateExited:
        return Ending(EndingKind.GONE, "the process ended")
    status = process.GetExitStatus()
    if "signal" in (process.GetExitDescription() or ""):
        return Ending(EndingKind.KILLED, "the process was killed by a signal")
    return Ending(EndingKind.EXITED, f"the process exited with status {status}", status=int(status))
