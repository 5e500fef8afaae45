"""LLDB's side of the live commands and of --samples: hooks at addresses, and ``Continue``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lldb

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.diagnosis.session import Session
from gdbext.diagnosis.tool import run_for
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget
from gdbext.errors import GdbextError, MemoryFault, TargetError
from gdbext.hosts.lldb import lldb_target
from gdbext.hosts.lldb.lldb_callbacks import attach_callback, drop_callback, keep_callback
from gdbext.hosts.lldb.lldb_target import current_target, is_there, read_memory
from gdbext.hosts.lldb.selection import AGAIN
from gdbext.live.host import probes_are_elsewhere
from gdbext.live.timed_run import TimedRun, check_pause, ending_of_failure
from gdbext.log import logger
from gdbext.tools.probes.thread_stopper import ProbeHooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from gdbext.diagnosis.samples import Pause, Watch
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.lldb.lldb_callbacks import Callback
    from gdbext.hosts.lldb.selection import Selection
    from gdbext.live.host import AddressHook, HookSpec
    from gdbext.live.timed_run import Work


def pause_of(selection: Selection, target: Target) -> Pause:
    """Returns a function that lets the process run for some seconds and returns the target at the next stop."""
    pid = target.pid
    alternative = (
        f"examine it from outside: process detach, then scripts/dispatch -p {pid} dispatch-diagnose --samples 5"
    )

    def stop_again(seconds: float, watch: Watch) -> Target:
        run_for(seconds, watch)  # the process runs already
        return lldb_target.brief_stop(selection.debugger, pid)

    def pause(seconds: float, watch: Watch) -> Target:
        """The pause of a process that LLDB holds: resume it, and interrupt it after that time."""
        process = selection.process()
        number = process.GetSelectedThread().GetIndexID()
        check_pause(LldbRunControl(selection).run_beside(lambda run: run_for(seconds, watch, run.sleep)), alternative)
        process.SetSelectedThreadByIndexID(number)
        return lldb_target.LldbTarget(process)

    return stop_again if isinstance(target, SnapshotTarget) else pause


_log = logger(__name__)
_WORD = (1 << 64) - 1


class LldbHook:
    """An address at which the handler of ``spec`` is called."""

    def __init__(self, control: LldbRunControl, owner: HookBreakpoint, spec: HookSpec) -> None:
        self._control = control
        self._owner = owner
        self._spec = spec

    def hit(self, frame: lldb.SBFrame) -> bool:
        """Called at each hit, where every microsecond counts. True if the process is to stop."""
        spec, control = self._spec, self._control
        try:
            control.frame = frame
            cfa = register_of(frame, spec.frame.register) + spec.frame.offset
            value = register_of(frame, spec.register) if spec.register else 0
            if spec.load is not None:
                value = int.from_bytes(control.read((value + spec.load) & _WORD, 8), "little")
            stops = spec.handler(frame.GetThread().GetThreadID(), cfa, value)
            if stops:
                control.stop_requested = True
            return stops
        except (GdbextError, OSError, KeyboardInterrupt) as error:
            control.fail(error)
            return True

    def remove(self) -> None:
        self._owner.drop(self._spec.address, self)


class NoResolver:
    """A breakpoint resolver that finds no locations: only a breakpoint with one takes locations by address
    (SBBreakpoint.AddLocation). LLDB makes the object and calls it."""

    def __init__(self, *_: object) -> None:
        pass

    def __callback__(self, _context: lldb.SBSymbolContext) -> None:
        """Called for a target, and for libraries that are loaded later."""

    def __get_depth__(self) -> int:
        """Where LLDB is to search: once in the target."""
        return int(lldb.eSearchDepthTarget)


class HookBreakpoint:
    """The one breakpoint of a command, with a location for each address: LLDB's Python API has no internal breakpoints,
    and each breakpoint takes a number that the user sees."""

    def __init__(self, target: lldb.SBTarget) -> None:
        """Make the breakpoint, yet without locations: ``add`` gives it one per address. Raises TargetError."""
        self._target = target
        self._class = keep_callback(NoResolver)
        nowhere = lldb.SBFileSpecList()
        self._breakpoint = target.BreakpointCreateFromScript(self._class, lldb.SBStructuredData(), nowhere, nowhere)
        if not self._breakpoint.IsValid():
            drop_callback(self._class)
            raise TargetError("lldb cannot set a breakpoint")
        self.number = int(self._breakpoint.GetID())
        self._hooks: dict[int, dict[object, Callback]] = {}  # address → owner of a hook → called at each hit
        self._callback = attach_callback(self._breakpoint, self._hit)

    def add(self, address: int, owner: object, hit: Callback) -> None:
        """Call ``hit`` at that address. Raises TargetError."""
        error = self._breakpoint.AddLocation(lldb.SBAddress(address, self._target))
        if error.Fail():
            raise TargetError(f"lldb cannot set a breakpoint at {address:#x}: {error.GetCString()}")
        self._breakpoint.FindLocationByAddress(address).SetEnabled(True)
        self._hooks.setdefault(address, {})[owner] = hit

    def drop(self, address: int, owner: object) -> None:
        """Remove the hook of ``owner`` at that address; idempotent."""
        hooks = self._hooks.get(address, {})
        hooks.pop(owner, None)
        if not hooks:
            self._hooks.pop(address, None)
            if self._breakpoint.IsValid():
                self._breakpoint.FindLocationByAddress(address).SetEnabled(False)

    @property
    def is_used(self) -> bool:
        """True if it has hooks, and the user has not deleted it."""
        return bool(self._hooks and self._breakpoint.IsValid())

    def _hit(self, frame: lldb.SBFrame) -> bool:
        """Called by LLDB at each hit: call all hooks of the address; True if one of them stops the process."""
        hooks = tuple(self._hooks.get(frame.GetPC(), {}).values())
        return True in [hit(frame) for hit in hooks]

    def delete(self, delete: Callable[[lldb.SBTarget, int], object] = lldb.SBTarget.BreakpointDelete) -> None:
        """Delete the breakpoint, by the function ``delete``, and forget its callbacks."""
        if self._breakpoint.IsValid():
            delete(self._target, self.number)
        drop_callback(self._callback)
        drop_callback(self._class)


def _ending_of_process(process: lldb.SBProcess) -> Ending:
    """How a process ended that no longer exists."""
    if process.GetState() != lldb.eStateExited:
        return Ending(EndingKind.GONE, "the process ended")
    if "signal" in (process.GetExitDescription() or ""):
        return Ending(EndingKind.KILLED, "the process was killed by a signal")
    status = int(process.GetExitStatus())
    return Ending(EndingKind.EXITED, f"the process exited with status {status}", status=status)


def register_of(frame: lldb.SBFrame, name: str) -> int:
    """The value of a frame's register, unsigned. Raises TargetError."""
    value = lldb_target.register_value(frame, name)
    if value is None:
        raise TargetError(f"LLDB cannot read the register {name}")
    return value


class LldbRunControl:
    """Places hooks and runs the process: a RunControl (live/host.py)."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._breakpoint: HookBreakpoint | None = None
        self._failure: BaseException | None = None
        self.stop_requested = False
        self.frame: lldb.SBFrame | None = None
        self._probes: ProbeHooks | None = None

    @property
    def _process(self) -> lldb.SBProcess:
        return self._selection.process()

    def use_probes(self) -> None:
        if not self.can_run_beside:
            raise probes_are_elsewhere()
        self._probes = ProbeHooks(lambda: current_target(self._process), self.read)

    def place(self, spec: HookSpec) -> AddressHook:
        """Call the hook's handler whenever a thread reaches its address, until it is removed. Raises TargetError."""
        if self._probes:
            return self._probes.place(spec)
        if not self._breakpoint:
            self._breakpoint = HookBreakpoint(self._process.GetTarget())
        hook = LldbHook(self, self._breakpoint, spec)
        self._breakpoint.add(spec.address, hook, hook.hit)
        return hook

    def read(self, address: int, size: int) -> bytes:
        data = read_memory(self._process, address, size) if 0 <= address <= _WORD - size and size > 0 else b""
        if not data:
            raise MemoryFault(address, size)
        return data

    def register(self, name: str) -> int:
        """A register of the thread at a hook. Raises TargetError."""
        at_probe = self._probes.register(name) if self._probes else None
        if at_probe is not None:
            return at_probe
        frame = self.frame
        if frame is None or not frame.IsValid():
            frame = self._process.GetSelectedThread().GetFrameAtIndex(0)
        return register_of(frame, name)

    def float_register(self, name: str) -> int:
        """The low 8 bytes of a vector register of the thread at a hook. Raises TargetError."""
        if self._probes:
            self._probes.check_vectors()
        frame = self.frame
        value = lldb_target.float_register(frame, name) if frame is not None and frame.IsValid() else None
        if value is None:
            raise TargetError(f"LLDB cannot read the register {name}")
        return value

    def fail(self, error: BaseException) -> None:
        """Keep the error of a handler; the first one counts."""
        self._failure = self._failure or error

    def start(self) -> None:
        with self._selection.synchronous():
            lldb_target.start_program(self._selection.target(), live=True)

    def session(self) -> Session:
        return Session(current_target(self._process))

    def close(self) -> None:
        if self._breakpoint:
            self._breakpoint.delete()
            self._breakpoint = None
        if self._probes:
            self._probes.close()

    @property
    def can_run_beside(self) -> bool:
        return lldb_target.is_native(self._process.GetProcessID())

    def run_beside(self, work: Work) -> Ending:
        """Let the process run while ``work`` does its part, then interrupt it."""
        process = self._process

        def interrupt() -> None:  # LLDB loses an interrupt that comes before it has resumed the process
            while not timed.came:
                process.SendAsyncInterrupt()
                timed.wait(AGAIN)

        timed = TimedRun(work, interrupt)
        with timed:
            ending = self.run()
        return timed.ending(ending)

    def run(self) -> Ending:
        """Let the process run until something other than a hook stops it, or a handler requests that."""
        refused = self._selection.refusal()
        if refused:
            return Ending(EndingKind.FAILED, refused.what, error=refused)
        with self._selection.synchronous():
            _log.debug("continue")
            self._failure, self.stop_requested = None, False
            process = self._process
            interruption, stop = self._selection.interruption, process.SendAsyncInterrupt
            watching = interruption.watching(self._selection.debugger, stop)
            with self._stopping_by_probes(process), interruption.stopping(stop), watching:
                error = process.Continue()
                while error.Success() and self._handle_probe_stops(process):
                    error = process.Continue()
            self.frame = None
            if self._failure:
                return ending_of_failure(self._failure, "lldb")
            if not is_there(process):
                return _ending_of_process(process)
            if error.Fail():
                text = f"lldb cannot resume the process: {error.GetCString()}"
                return Ending(EndingKind.FAILED, text, error=TargetError(text))
            return self._ending_at_stop(process)

    @contextmanager
    def _stopping_by_probes(self, process: lldb.SBProcess) -> Iterator[None]:
        """Have LLDB stop for the probes' signal meanwhile, if there are probes. Raises ProbesRefused."""
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

    def _handle_probe_stops(self, process: lldb.SBProcess) -> bool:
        """Call the handlers for all threads that probes have stopped; True if the process is to be resumed."""
        if not self._probes or not is_there(process) or self._selection.interruption.happened:
            return False
        running = {lldb.eStopReasonNone, lldb.eStopReasonInvalid}
        stopped = [thread for thread in lldb_target.threads_of(process) if thread.GetStopReason() not in running]
        probed = [thread for thread in stopped if self._is_probed(thread)]
        try:
            for thread in probed:
                process.SetSelectedThread(thread)
                self.frame = thread.GetFrameAtIndex(0)
                self.stop_requested = self._probes.handle(thread.GetThreadID()) or self.stop_requested
        except (GdbextError, OSError, KeyboardInterrupt) as error:
            self.fail(error)
        return bool(probed) and len(probed) == len(stopped) and not self.stop_requested and self._failure is None

    def _is_probed(self, thread: lldb.SBThread) -> bool:
        """True if the probes' signal has stopped the thread."""
        is_signal = thread.GetStopReason() == lldb.eStopReasonSignal
        return self._probes is not None and is_signal and thread.GetStopReasonDataAtIndex(0) == self._probes.signal

    def _ending_at_stop(self, process: lldb.SBProcess) -> Ending:
        """The ending of a run that LLDB stopped while the process exists."""
        if self.stop_requested:
            return Ending(EndingKind.ASKED, "")
        if self._selection.interruption.happened:
            return Ending(EndingKind.INTERRUPTED, "interrupted")
        own_number = self._breakpoint.number if self._breakpoint else None
        for thread in lldb_target.threads_of(process):
            reason = thread.GetStopReason()
            if reason == lldb.eStopReasonExec:
                return Ending(EndingKind.REPLACED, "the process replaced itself by another program (exec)")
            number = thread.GetStopReasonDataAtIndex(0)
            if reason == lldb.eStopReasonSignal and not self._is_probed(thread):
                name = process.GetUnixSignals().GetSignalAsCString(number)
                if name in ("SIGINT", "SIGSTOP"):  # by which a process stops when LLDB halts it
                    return Ending(EndingKind.INTERRUPTED, "interrupted")
                return Ending(EndingKind.SIGNAL, f"the process got {name}")
            if reason == lldb.eStopReasonBreakpoint and number != own_number:
                # LLDB's own breakpoints have negative numbers (lldb::break_id_t)
                own = "of LLDB's own, as for libraries that come or go (target.process.stop-on-sharedlibrary-events)"
                return Ending(EndingKind.STOPPED, f"breakpoint {number}" if number < 1 << 31 else f"a breakpoint {own}")
        return Ending(EndingKind.STOPPED, "lldb stopped the process")
