"""A live process inside LLDB. LLDB lends memory, registers and threads; nothing here runs, writes or reads symbols.

Expressions are in the language of ``frame variable``: LLDB reads memory for them, and calls and writes nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import lldb

from gdbext.engine.arch import Architecture, architectures
from gdbext.engine.glibc.pthread import find_control_block, glibc_abi
from gdbext.engine.targets.base_target import MemoryMapping, Signal, Target, TargetThread
from gdbext.engine.targets.live.local_process import LentProcess
from gdbext.engine.targets.live.proc_checks import parent, tracer
from gdbext.engine.targets.system import linux, proc_files
from gdbext.errors import MemoryFault, TargetError, TargetGone, UsageError
from gdbext.hosts.lldb.lldb_core_target import LldbCoreTarget
from gdbext.hosts.lldb.selection import SelectedThread, no_thread, thread_of


class LentRegisters:
    """Registers of threads of which LLDB is making the stack: to ask for its frames would make LLDB lock that stack
    twice."""

    def __init__(self) -> None:
        self._of: dict[int, Mapping[str, int]] = {}

    @contextmanager
    def lend(self, tid: int, registers: Mapping[str, int]) -> Iterator[None]:
        """Lend registers for as long as the stack of that thread is made."""
        self._of[tid] = registers
        try:
            yield
        finally:
            del self._of[tid]

    def of(self, tid: int) -> dict[str, int] | None:
        """The registers, None where LLDB is to be asked."""
        registers = self._of.get(tid)
        return None if registers is None else dict(registers)


def evaluated_address(frame: lldb.SBFrame, expression: str) -> int:
    """The value of a pointer or a number, else the address of the object. Raises UsageError."""
    found = frame.GetValueForVariablePath(expression)
    if not found.IsValid() or not found.GetError().Success():
        raise UsageError(
            f"{expression!r} is not an address: the selected frame has no such variable",
            why="names with ., ->, [ ], * and & are understood, as by frame variable; nothing is called in the process",
            help="give an address, $REGISTER, *$REGISTER+8, --py NAME, or select the frame that has the variable",
        )
    kind = found.GetType().GetCanonicalType()
    if kind.IsReferenceType() or kind.IsPointerType() or not kind.IsAggregateType():
        return int(found.GetValueAsUnsigned())
    address = found.GetLoadAddress()
    if address == lldb.LLDB_INVALID_ADDRESS:
        raise UsageError(f"{expression!r} has no address", help="name an object in memory, or a pointer to it")
    return int(address)


_WORD = (1 << 64) - 1
_STOPPED = (lldb.eStateStopped, lldb.eStateCrashed, lldb.eStateSuspended)
_RUNNING = (lldb.eStateRunning, lldb.eStateStepping, lldb.eStateAttaching, lldb.eStateLaunching)
_KEPT_BYTES = 1 << 26
"""Bytes that are kept of what was read, so that it can be compared later. Beyond that it counts as changed."""


class LldbThread(TargetThread):
    """One thread of a live process in LLDB; its registers are read when asked for and then kept."""

    def __init__(self, owner: LldbTarget, thread: lldb.SBThread, state: str | None) -> None:
        self.tid = thread.GetThreadID()
        self.number = thread.GetIndexID()
        self._owner = owner
        self._thread = thread
        self._state = state
        self._registers: dict[str, int] | None = None
        self._given: dict[str, int] = {}

    @property
    def name(self) -> str | None:  # type: ignore[override]
        """The thread's name, as /proc/PID/task/TID/comm has it."""
        return str(self._thread.GetName()) if self._thread.IsValid() and self._thread.GetName() else None

    @property
    def signal(self) -> Signal | None:  # type: ignore[override]
        """The crash signal that LLDB stopped this thread for. Raises TargetError (the process runs), TargetGone."""
        self._owner.check_stopped()
        return _stop_signal(self._thread)

    @property
    def kernel_state(self) -> str | None:
        """The state before the attach where scripts/dispatch looked; in LLDB every thread is stopped, so None."""
        return self._state

    def registers(self) -> Mapping[str, int]:
        """All that is to be had of the architecture's registers. Raises TargetError (the process runs), TargetGone."""
        if self._registers is None:
            self._owner.check_stopped()
            self._given = self._owner.lldb_registers(self._thread)
            self._registers = self._owner.completed(self.tid, self._given)
        return self._registers

    def float_registers(self) -> Mapping[str, int]:
        """Those of its innermost frame; none while LLDB makes the thread's stack."""
        if self._owner.is_lent(self.tid):
            return {}
        frame = self._thread.GetFrameAtIndex(0)
        found = {name: float_register(frame, name) for name in self._owner.architecture.float_argument_registers}
        return {name: value for name, value in found.items() if value is not None}

    def is_current(self) -> bool:
        """Its registers, if they were asked for, are those that LLDB has now."""
        return self._registers is None or self._given == self._owner.lldb_registers(self._thread)


def float_register(frame: lldb.SBFrame, name: str) -> int | None:
    """The low 8 bytes of a vector register; None where LLDB does not give it."""
    error = lldb.SBError()
    value = frame.FindRegister(name)
    number = value.GetData().GetUnsignedInt64(error, 0) if value.IsValid() else 0
    return int(number) & _WORD if value.IsValid() and error.Success() else None


def read_memory(process: lldb.SBProcess, address: int, size: int) -> bytes:
    """Exactly that many bytes; b"" where they cannot be read.

    SBProcess.ReadMemory takes the process's lock and then the API's, "process detach" the other way round: a callback
    of ours, which another thread calls meanwhile, would wait for ever. Where LLDB lends the API's lock (since LLDB 21)
    the callback has it (attach_callback); else SBTarget reads, which takes 15 µs longer, and its locks in order.
    """
    error = lldb.SBError()
    if hasattr(lldb, "SBMutex") or threading.current_thread() is threading.main_thread():
        data = process.ReadMemory(address, size, error)
    else:
        target = process.GetTarget()
        data = target.ReadMemory(lldb.SBAddress(address, target), size, error)
    return bytes(data) if error.Success() and data and len(data) == size else b""


class LldbTarget(LentProcess):
    """A process in LLDB, live and stopped. Raises ForeignArchitecture.

    ``selected`` gives the thread that the user looks at; ``states`` each thread's state (tid to letter) as it was
    before the attach, where somebody looked; ``lent`` registers that LLDB cannot be asked for.
    """

    debugger = "lldb"

    def __init__(
        self,
        process: lldb.SBProcess,
        selected: SelectedThread = no_thread,
        states: Mapping[int, str] | None = None,
        lent: LentRegisters | None = None,
    ) -> None:
        self.pid = process.GetProcessID()
        self.architecture = architecture_of(process)
        self.is_native = is_native(self.pid)
        self._process = process
        self._selected = selected
        self._states = states or {}
        self._lent = lent or LentRegisters()
        self._threads: list[LldbThread] | None = None
        self._maps: list[MemoryMapping] | None = None
        self._kept: dict[tuple[int, int], bytes | None] = {}
        self._left = _KEPT_BYTES

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises MemoryFault, TargetGone."""
        try:
            data = self._read(address, size)
        except MemoryFault:
            self._kept[address, size] = None
            raise
        self._left -= size
        if self._left >= 0:
            self._kept[address, size] = data
        return data

    def is_current(self) -> bool:
        """All memory and registers that were read are as they were. LLDB tells nobody that the user wrote to them; to
        compare them takes a tenth of the time that a report takes."""
        if self._left < 0 or self._process.GetState() not in _STOPPED:
            return False
        return all(map(LldbThread.is_current, self._threads or ())) and all(map(self._is_kept, self._kept))

    def _is_kept(self, where: tuple[int, int]) -> bool:
        try:
            return self._read(*where) == self._kept[where]
        except MemoryFault:
            return self._kept[where] is None

    def _read(self, address: int, size: int) -> bytes:
        if size == 0:
            return b""
        if size < 0 or not 0 <= address <= _WORD - size:
            raise MemoryFault(address, size, "no such address")
        data = read_memory(self._process, address, size)
        if not data:
            if self._process.GetState() not in _STOPPED + _RUNNING:
                raise TargetGone.of(self.pid)
            raise MemoryFault(address, size)
        return data

    def threads(self) -> Sequence[TargetThread]:
        """All threads, by LLDB's number."""
        return self._all_threads()

    def selected_thread(self) -> TargetThread | None:
        """The thread that the command is about, else LLDB's selected one, asked anew each time."""
        selected = thread_of(self._process, self._selected)
        number = selected.GetIndexID() if selected.IsValid() else None
        threads = self._all_threads()
        return next((thread for thread in threads if thread.number == number), next(iter(threads), None))

    def selected_stack_pointer(self) -> int | None:
        """That of the frame that is selected in the command's thread."""
        frame = thread_of(self._process, self._selected).GetSelectedFrame()
        return frame.GetSP() if frame.IsValid() and frame.GetFrameID() else None

    def evaluate(self, expression: str) -> int | None:
        """Evaluate as ``frame variable`` would, in the frame that is selected in the command's thread."""

        return evaluated_address(thread_of(self._process, self._selected).GetSelectedFrame(), expression)

    def maps(self) -> Sequence[MemoryMapping]:
        """/proc/PID/maps. Raises TargetError for a remote process, of whose files LLDB does not know which part is
        mapped where."""
        if not self.is_native:
            raise TargetError(
                f"process {self.pid} is on another machine, or under a server that LLDB did not start",
                why="LLDB gives the memory regions of such a process without the parts of files that they show",
                help=f"on that machine: scripts/dispatch -p {self.pid}; or take a core there: gcore {self.pid}",
            )
        return super().maps()

    def auxv(self) -> Mapping[int, int]:
        """/proc/PID/auxv of a local process, else empty."""
        return super().auxv() if self.is_native else {}

    def check_stopped(self) -> None:
        """Raises TargetError (it runs), TargetGone."""
        state = self._process.GetState()
        if state in _RUNNING:
            raise running_error(self.pid)
        if state not in _STOPPED:
            raise TargetGone.of(self.pid)

    def completed(self, tid: int, given: Mapping[str, int]) -> dict[str, int]:
        """A thread's registers, with those that LLDB does not give. Raises TargetError."""
        registers = dict(given)
        missing = [name for name in self.architecture.general_registers if name not in registers]
        if missing:
            raise TargetError(f"LLDB cannot read thread {tid}: it gives no {', '.join(missing)}")
        self._add_call_number(registers, tid)
        self._add_thread_pointer(registers, tid)
        return registers

    def is_lent(self, tid: int) -> bool:
        """LLDB cannot be asked for that thread's frames now."""
        return self._lent.of(tid) is not None

    def lldb_registers(self, thread: lldb.SBThread) -> dict[str, int]:
        """Those of a thread that LLDB gives: its innermost frame's."""
        lent = self._lent.of(thread.GetThreadID())
        return registers_of(thread.GetFrameAtIndex(0), self.architecture) if lent is None else lent

    def _add_call_number(self, registers: dict[str, int], tid: int) -> None:
        """LLDB leaves it out; the kernel tells it of a stopped thread (proc_pid_syscall(5)), -1 in user code."""
        name = self.architecture.syscall_register
        if not name or name in registers or not self.is_native:
            return
        try:
            text = proc_files.read(f"/proc/{self.pid}/task/{tid}/syscall")
            registers[name] = int(text.split(maxsplit=1)[0]) & _WORD
        except (OSError, ValueError, IndexError):
            return  # forbidden here, or the thread ran: what is known without it stays known

    def _add_thread_pointer(self, registers: dict[str, int], tid: int) -> None:
        """LLDB has the register since version 18 only. Without it the block that it points to is looked for."""
        name = self.architecture.thread_register
        if name in registers or not self.is_native:
            return
        stack_pointer = registers[self.architecture.stack_pointer]
        found = find_control_block(self.read, self.maps(), glibc_abi(self.architecture), tid, stack_pointer)
        if found:
            registers[name] = found

    def _all_threads(self) -> list[LldbThread]:
        if self._threads is None:
            threads = [self._process.GetThreadAtIndex(index) for index in range(self._process.GetNumThreads())]
            found = [LldbThread(self, each, self._states.get(each.GetThreadID())) for each in threads]
            self._threads = sorted(found, key=lambda thread: thread.number or 0)
        return self._threads


def registers_of(frame: lldb.SBFrame, architecture: Architecture) -> dict[str, int]:
    """Those of a frame that LLDB knows."""
    found: dict[str, int] = {}
    error = lldb.SBError()
    for name in (*architecture.general_registers, *architecture.system_registers):
        value = frame.FindRegister(name)
        number = value.GetValueAsUnsigned(error) if value.IsValid() else 0
        if value.IsValid() and error.Success():
            found[name] = number & _WORD
    return found


def current_target(
    process: lldb.SBProcess,
    selected: SelectedThread = no_thread,
    states: Mapping[int, str] | None = None,
    lent: LentRegisters | None = None,
) -> Target:
    """The target of an LLDB process. Raises TargetError naming the next step, BadCore, ForeignArchitecture."""
    if not is_there(process):
        raise TargetError(
            "lldb has no process and no core",
            why="none was started or loaded yet, or it has ended",
            help="process attach --pid PID   or   target create --core CORE   or   run",
        )
    if process.GetState() in _RUNNING:
        raise running_error(process.GetProcessID())
    if is_core(process):
        return LldbCoreTarget(process, selected)
    return LldbTarget(process, selected, states, lent)


def is_there(process: lldb.SBProcess) -> bool:
    """It is a process that has not ended, or a core."""
    return bool(process.GetState() in _STOPPED + _RUNNING)


def running_error(pid: int) -> TargetError:
    """The error for a process that is not stopped."""
    return TargetError(
        f"process {pid} is running",
        why="it was continued in the background",
        help="stop it first: process interrupt   (then the command again)",
    )


def is_core(process: lldb.SBProcess) -> bool:
    """It is a core that LLDB has loaded, of whatever format."""
    return bool(process.GetPluginName() != "gdb-remote")


def is_native(pid: int) -> bool:
    """The process is one of this machine: its tracer is the server that this LLDB has started."""
    found = tracer(pid, pid)
    return found != 0 and os.getpid() in (found, parent(found))


def architecture_of(process: lldb.SBProcess) -> Architecture:
    """The architecture by the first word of the target's triple. Raises ForeignArchitecture."""
    name = str(process.GetTarget().GetTriple() or "").partition("-")[0]
    if name not in architectures.names():
        raise architectures.foreign(f"process {process.GetProcessID()} is of architecture {name or 'unknown'}")
    return architectures.by_name(name)


def _stop_signal(thread: lldb.SBThread) -> Signal | None:
    if thread.GetStopReason() not in (lldb.eStopReasonSignal, lldb.eStopReasonException):
        return None
    number = thread.GetStopReasonDataAtIndex(0)
    if number not in linux.CRASH_SIGNALS:
        return None
    information = thread.GetSiginfo()
    if not information.IsValid() or not information.GetChildMemberWithName("si_code").IsValid():
        return Signal(number, linux.signal_name(number))
    code = information.GetChildMemberWithName("si_code").GetValueAsSigned()
    address = information.GetValueForExpressionPath("._sifields._sigfault.si_addr").GetValueAsUnsigned() & _WORD
    return Signal(number, linux.signal_name(number), code, linux.fault_address(number, code, address))
