"""A process or core inside LLDB, which supplies memory, registers and threads; nothing here writes or reads symbols.

Expressions are in the language of ``frame variable``: LLDB reads memory for them, and calls and writes nothing.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import lldb

from gdbext.engine.arch import Architecture, architectures
from gdbext.engine.formats import elf_core
from gdbext.engine.glibc.pthread import find_control_block, glibc_abi
from gdbext.engine.targets.base_target import MemoryMapping, Signal, Target, TargetThread
from gdbext.engine.targets.core_target import LentCore
from gdbext.engine.targets.live import proc_checks
from gdbext.engine.targets.live.debugger_guard import DebuggerGuards
from gdbext.engine.targets.live.local_process import LentProcess
from gdbext.engine.targets.live.proc_checks import parent, tracer
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget
from gdbext.engine.targets.system import linux, proc_files
from gdbext.engine.targets.system.linux import ENDING_SIGNALS, signals_handled
from gdbext.errors import MemoryFault, NotPermitted, ProgramEnded, TargetError, TargetGone, UsageError
from gdbext.hosts.lldb.selection import SelectedThread, no_thread, run_command, thread_of

LentRegisters = dict[int, Mapping[str, int]]
"""Thread id → registers, while LLDB makes that thread's stack: to read frames would make it lock the stack twice."""


_WORD = (1 << 64) - 1
_STOPPED = (lldb.eStateStopped, lldb.eStateCrashed, lldb.eStateSuspended)
_RUNNING = (lldb.eStateRunning, lldb.eStateStepping, lldb.eStateAttaching, lldb.eStateLaunching)
_MAX_KEPT_BYTES = 1 << 26
"""Bytes of memory that are kept to be compared later. Beyond that the memory counts as changed."""


class LldbThread(TargetThread):
    """One thread of a live process in LLDB; its registers are read when asked for and then kept."""

    def __init__(self, owner: LldbTarget, thread: lldb.SBThread, state: str | None) -> None:
        self.tid = thread.GetThreadID()
        self.number = thread.GetIndexID()
        self._owner = owner
        self._thread = thread
        # the state before the attach if scripts/dispatch read it; in LLDB every thread is stopped, so None
        self.kernel_state = state
        self._registers: dict[str, int] | None = None
        self._lldb_registers: dict[str, int] = {}

    @property
    def name(self) -> str | None:  # type: ignore[override]
        """/proc/PID/task/TID/comm."""
        return str(self._thread.GetName()) if self._thread.IsValid() and self._thread.GetName() else None

    @property
    def signal(self) -> Signal | None:  # type: ignore[override]
        """The crash signal that LLDB stopped this thread for. Raises TargetError (the process runs), TargetGone."""
        self._owner.check_stopped()
        return _stop_signal(self._thread)

    def registers(self) -> Mapping[str, int]:
        """Those of the architecture's registers that can be read. Raises TargetError (the process runs), TargetGone."""
        if self._registers is None:
            self._owner.check_stopped()
            self._lldb_registers = self._owner.lldb_registers(self._thread)
            self._registers = self._owner.with_missing_registers(self.tid, self._lldb_registers)
        return self._registers

    def float_registers(self) -> Mapping[str, int]:
        """Vector registers of its innermost frame (low 8 bytes); empty while LLDB makes the thread's stack."""
        if self.tid in self._owner.lent:
            return {}
        frame = self._thread.GetFrameAtIndex(0)
        values = {name: float_register(frame, name) for name in self._owner.architecture.float_argument_registers}
        return {name: value for name, value in values.items() if value is not None}

    def is_current(self) -> bool:
        """True if LLDB still has the registers that were read, if any were."""
        return self._registers is None or self._lldb_registers == self._owner.lldb_registers(self._thread)


def threads_of(process: lldb.SBProcess) -> list[lldb.SBThread]:
    """All threads of a process, in LLDB's order."""
    return [process.GetThreadAtIndex(index) for index in range(process.GetNumThreads())]


def float_register(frame: lldb.SBFrame, name: str) -> int | None:
    """The low 8 bytes of a vector register; None if LLDB does not have it."""
    error = lldb.SBError()
    value = frame.FindRegister(name)
    number = value.GetData().GetUnsignedInt64(error, 0) if value.IsValid() else 0
    return int(number) & _WORD if value.IsValid() and error.Success() else None


def read_memory(process: lldb.SBProcess, address: int, size: int) -> bytes:
    """``size`` bytes; b"" if they cannot be read.

    SBProcess.ReadMemory locks the process and then the API, "process detach" the other way round: a deadlock with a
    callback of ours in another thread. Since LLDB 21 the callback holds the API's lock (attach_callback); before, it
    reads by SBTarget, which takes 15 µs longer and takes the locks in order.
    """
    error = lldb.SBError()
    if hasattr(lldb, "SBMutex") or threading.current_thread() is threading.main_thread():
        data = process.ReadMemory(address, size, error)
    else:
        target = process.GetTarget()
        data = target.ReadMemory(lldb.SBAddress(address, target), size, error)
    return bytes(data) if error.Success() and data and len(data) == size else b""


class LldbTarget(LentProcess):
    """A process in LLDB, live and stopped. Raises ForeignArchitecture. ``selected()`` returns the thread that the
    command is about; ``states``: tid → state letter before the attach, if it was read; ``lent``: registers that LLDB
    cannot be asked for."""

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
        self.lent = {} if lent is None else lent
        self._threads: list[LldbThread] | None = None
        self._maps: list[MemoryMapping] | None = None
        self._kept: dict[tuple[int, int], bytes | None] = {}  # (address, size) → the bytes; None if unreadable
        self._left = _MAX_KEPT_BYTES

    def read(self, address: int, size: int) -> bytes:
        """Read memory, and remember the bytes (None for a fault) for ``is_current``. Raises MemoryFault, TargetGone."""
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
        """Compare all memory and registers that were read: LLDB does not report that the user wrote to them. It takes a
        tenth of the time of a report."""
        if self._left < 0 or self._process.GetState() not in _STOPPED:
            return False
        return all(map(LldbThread.is_current, self._threads or ())) and all(map(self._is_unchanged, self._kept))

    def _is_unchanged(self, area: tuple[int, int]) -> bool:
        """True if memory at (address, size) is as when it was read."""
        try:
            return self._read(*area) == self._kept[area]
        except MemoryFault:
            return self._kept[area] is None

    def _read(self, address: int, size: int) -> bytes:
        """The bytes in the process now. Raises MemoryFault, TargetGone."""
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

    def threads(self) -> Sequence[LldbThread]:
        """All threads, in order of LLDB's numbers."""
        if self._threads is None:
            rows = threads_of(self._process)
            threads = [LldbThread(self, row, self._states.get(row.GetThreadID())) for row in rows]
            self._threads = sorted(threads, key=lambda thread: thread.number or 0)
        return self._threads

    def selected_thread(self) -> TargetThread | None:
        return _selected_among(self.threads(), thread_of(self._process, self._selected))

    def selected_stack_pointer(self) -> int | None:
        frame = thread_of(self._process, self._selected).GetSelectedFrame()
        return frame.GetSP() if frame.IsValid() and frame.GetFrameID() else None

    def evaluate(self, expression: str) -> int | None:
        """The value of a pointer or a number, else the address of the object. Raises UsageError."""
        frame = thread_of(self._process, self._selected).GetSelectedFrame()
        value = frame.GetValueForVariablePath(expression)
        if not value.IsValid() or not value.GetError().Success():
            raise UsageError(
                f"{expression!r} is not an address: the selected frame has no such variable",
                why="names with ., ->, [ ], * and & are understood, as by frame variable; nothing is called in the "
                "process",
                help="give an address, $REGISTER, *$REGISTER+8, --py NAME, or select the frame that has the variable",
            )
        kind = value.GetType().GetCanonicalType()
        if kind.IsReferenceType() or kind.IsPointerType() or not kind.IsAggregateType():
            return int(value.GetValueAsUnsigned())
        address = value.GetLoadAddress()
        if address == lldb.LLDB_INVALID_ADDRESS:
            raise UsageError(f"{expression!r} has no address", help="name an object in memory, or a pointer to it")
        return int(address)

    def maps(self) -> Sequence[MemoryMapping]:
        """Raises TargetError for a remote process: LLDB does not know which parts of files are mapped."""
        if not self.is_native:
            raise TargetError(
                f"process {self.pid} is on another machine, or under a server that LLDB did not start",
                why="LLDB reports the memory regions of such a process without their file offsets",
                help=f"on that machine: scripts/dispatch -p {self.pid}; or take a core there: gcore {self.pid}",
            )
        return super().maps()

    def auxv(self) -> Mapping[int, int]:
        return super().auxv() if self.is_native else {}

    def check_stopped(self) -> None:
        """Raise TargetError if it runs, TargetGone."""
        state = self._process.GetState()
        if state in _RUNNING:
            raise running_error(self.pid)
        if state not in _STOPPED:
            raise TargetGone.of(self.pid)

    def lldb_registers(self, thread: lldb.SBThread) -> dict[str, int]:
        """The registers of a thread's innermost frame that LLDB has."""
        lent = self.lent.get(thread.GetThreadID())
        return registers_of(thread.GetFrameAtIndex(0), self.architecture) if lent is None else dict(lent)

    def with_missing_registers(self, tid: int, lldb_registers: Mapping[str, int]) -> dict[str, int]:
        """``lldb_registers``, with the system call's number and the thread pointer if LLDB lacks them. Raises
        TargetError."""
        registers = dict(lldb_registers)
        missing = [name for name in self.architecture.general_registers if name not in registers]
        if missing:
            raise TargetError(f"LLDB cannot read thread {tid}: it lacks {', '.join(missing)}")
        if not self.is_native:
            return registers
        call_number = self.architecture.syscall_register
        if call_number and call_number not in registers:
            # proc_pid_syscall(5): -1 in user code. Forbidden, or the thread ran: the other registers are still known.
            with suppress(OSError, ValueError, IndexError):
                text = proc_files.read(f"/proc/{self.pid}/task/{tid}/syscall")
                registers[call_number] = int(text.split(maxsplit=1)[0]) & _WORD
        thread_pointer = self.architecture.thread_register
        if thread_pointer not in registers:  # LLDB has it since version 18; else search for the block
            stack_pointer = registers[self.architecture.stack_pointer]
            block = find_control_block(self.read, self.maps(), glibc_abi(self.architecture), tid, stack_pointer)
            if block:
                registers[thread_pointer] = block
        return registers


class LldbCoreTarget(LentCore):
    """A core that LLDB has loaded: read by CoreTarget, with LLDB's thread numbers and selection, and by default the
    path and sysroot that LLDB has. Raises TargetError, BadCore, ForeignArchitecture."""

    debugger = "lldb"

    def __init__(
        self,
        process: lldb.SBProcess,
        selected: SelectedThread = no_thread,
        path: str | None = None,
        sysroot: str | None = None,
    ) -> None:
        path = _core_path(process) if path is None else path
        super().__init__(path, sysroot_of(process) if sysroot is None else sysroot)
        self._process = process
        self._selected = selected
        self.program = process.GetTarget().GetExecutable().fullpath
        self.number_threads({thread.GetThreadID(): thread.GetIndexID() for thread in threads_of(process)})

    def selected_thread(self) -> TargetThread | None:
        return _selected_among(self.threads(), thread_of(self._process, self._selected))


def _selected_among(threads: Sequence[TargetThread], selected: lldb.SBThread) -> TargetThread | None:
    """The one of these threads that is LLDB's ``selected``; the first if none is."""
    tid = selected.GetThreadID() if selected.IsValid() else None
    return next((thread for thread in threads if thread.tid == tid), next(iter(threads), None))


def _core_path(process: lldb.SBProcess) -> str:
    """The path of the core that LLDB has loaded. Raises TargetError."""
    if process.GetPluginName() != "elf-core":
        raise TargetError(
            f"LLDB's {process.GetPluginName()} processes cannot be read",
            why="only live processes and ELF cores are supported",
            help="take a core of the process: gcore PID",
        )
    if hasattr(process, "GetCoreFile"):  # LLDB 18
        path = process.GetCoreFile().fullpath
        if path:
            return str(path)
    # LLDB keeps the core mapped.
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {linux.split_deleted(mapping.path)[0] for mapping in linux.parse_maps(file.read())}
    cores = [path for path in sorted(paths) if path.startswith("/") and elf_core.is_core(path)]
    if len(cores) != 1:
        raise TargetError("LLDB does not report the path of its core file", help="use: scripts/dispatch -c CORE")
    return cores[0]


def sysroot_of(process: lldb.SBProcess) -> str:
    """The sysroot of LLDB's platform as a folder of this machine, "" for none."""
    status = run_command(process.GetTarget().GetDebugger(), "platform status").GetOutput() or ""
    match = re.search(r"^\s*Sysroot: (/.*)$", status, re.MULTILINE)
    return match.group(1).strip() if match else ""


def registers_of(frame: lldb.SBFrame, architecture: Architecture) -> dict[str, int]:
    """The architecture's registers that LLDB has in a frame, by name."""
    names = (*architecture.general_registers, *architecture.system_registers)
    values = {name: register_value(frame, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def register_value(frame: lldb.SBFrame, name: str) -> int | None:
    """A frame's register, unsigned; None if LLDB does not have it."""
    error = lldb.SBError()
    value = frame.FindRegister(name)
    number = value.GetValueAsUnsigned(error) if value.IsValid() else 0
    return int(number) & _WORD if value.IsValid() and error.Success() else None


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
            why="none was started or loaded yet, or it has exited",
            help="process attach --pid PID   or   target create --core CORE   or   run",
        )
    if process.GetState() in _RUNNING:
        raise running_error(process.GetProcessID())
    if is_core(process):
        return LldbCoreTarget(process, selected)
    return LldbTarget(process, selected, states, lent)


def attached_target(debugger: lldb.SBDebugger, pid: int, target: lldb.SBTarget | None = None) -> Target:
    """Attach LLDB to a process. ``target``: LLDB's target of an earlier attach, which knows the libraries. Raises
    TargetGone, NotPermitted, ForeignArchitecture."""
    try:
        states = proc_checks.thread_states(pid)
    except OSError as error:
        raise TargetGone.of(pid) from error
    target = target or debugger.CreateTarget("")
    failure = lldb.SBError()
    # LLDB's server inherits this: else it would exit, and leave the breakpoints in the process
    with signals_handled(ENDING_SIGNALS, signal.SIG_IGN):
        process = target.AttachToProcessWithID(debugger.GetListener(), pid, failure)
    if failure.Fail() or not process.IsValid():
        proc_checks.check_process(pid)
        raise NotPermitted(f"lldb could not attach to process {pid}: {failure.GetCString()}")
    return current_target(process, states=states)


def brief_stop(debugger: lldb.SBDebugger, pid: int) -> SnapshotTarget:
    """A process that LLDB is attached to only while registers and stacks are copied, which is repeated if threads ran
    meanwhile: for an LLDB that attaches quickly. Raises TargetError."""
    target = debugger.CreateTarget("")
    guards = DebuggerGuards()

    def stop() -> Target:
        guards.watch_over(pid)  # from before LLDB puts its breakpoint into the dynamic loader
        return attached_target(debugger, pid, target)

    def detach(_: object) -> None:
        target.GetProcess().Detach()
        guards.close()

    return SnapshotTarget(pid, "lldb", stop, detach)


def start_program(target: lldb.SBTarget, live: bool) -> lldb.SBProcess:
    """Start LLDB's program; with ``live`` it is stopped before its first instruction, else it runs until it crashes, or
    until Ctrl+C or --timeout. Raises TargetError, ProgramEnded."""
    information = target.GetLaunchInfo()
    information.SetLaunchFlags(information.GetLaunchFlags() | (lldb.eLaunchFlagStopAtEntry if live else 0))
    error = lldb.SBError()
    process = target.Launch(information, error)
    if error.Fail() or not process.IsValid():
        raise TargetError(f"lldb cannot run the program: {error.GetCString()}")
    if not is_there(process):
        raise ProgramEnded(process.GetExitStatus())
    return process


def is_there(process: lldb.SBProcess) -> bool:
    """True for a process that has not exited, and for a core."""
    return bool(process.GetState() in _STOPPED + _RUNNING)


def running_error(pid: int) -> TargetError:
    """The error of a command that needs a stopped process."""
    return TargetError(
        f"process {pid} is running",
        why="it was continued in the background",
        help="stop it first: process interrupt   (then the command again)",
    )


def is_core(process: lldb.SBProcess) -> bool:
    """True for a core that LLDB has loaded, in any format."""
    return bool(process.GetPluginName() != "gdb-remote")


def is_native(pid: int) -> bool:
    """True for a process of this machine: its tracer is the server that this LLDB has started."""
    server = tracer(pid, pid)
    return server != 0 and os.getpid() in (server, parent(server))


def architecture_of(process: lldb.SBProcess) -> Architecture:
    """The architecture by the first word of the target's triple. Raises ForeignArchitecture."""
    name = str(process.GetTarget().GetTriple() or "").partition("-")[0]
    if name not in architectures.names():
        raise architectures.foreign(f"process {process.GetProcessID()} is of architecture {name or 'unknown'}")
    return architectures.by_name(name)


def _stop_signal(thread: lldb.SBThread) -> Signal | None:
    """The crash signal that stopped a thread; None for any other stop."""
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
