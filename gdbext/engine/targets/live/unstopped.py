"""Live processes that are not stopped: read as they run, or while all threads sleep in the kernel (``--no-stop``).

A snapshot of sleeping threads is of one moment: all threads sleep before it is made, and afterwards none has run. The
proof is /proc/PID/task: the state of each thread, the system call that it sleeps in with its arguments and stack
pointer, and how often and how long it has run (thread_motion.py). A thread that ran in between, however briefly, has
run once more; then the snapshot is tried again, and in the end the process is stopped.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.arch import architectures
from gdbext.engine.targets.base_target import KernelSide, MemoryMapping, Target, TargetThread
from gdbext.engine.targets.live import proc_checks
from gdbext.engine.targets.live.local_process import (
    LocalProcess,
    ProcessOrigin,
    own_tid,
    thread_name,
)
from gdbext.engine.targets.live.stop_copy import CopiedThread, PageCopy, StopCopy
from gdbext.engine.targets.live.thread_motion import SleepPlace, has_moved_since, kernel_side, sleep_place
from gdbext.engine.targets.system import proc_files
from gdbext.errors import MemoryFault, TargetError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gdbext.engine.targets.live.stop_copy import Piece

    FindThreadPointer = Callable[[Target, int, int, int], int]
    """(target, thread id, its id in its own PID namespace, stack pointer) to the address of the thread's control block,
    0 if it is not found."""
    CopyStacks = Callable[[Sequence[int]], Sequence[tuple[int, Piece]]]
    """Copies the stacks that end at these addresses, and other wanted memory, as addresses and bytes."""


class RunningProcess(LocalProcess):
    """A process as it runs, without its threads: only a stopped one has registers. Values that change while they are
    read may be torn: read what rarely changes."""

    runs_meanwhile = True
    inside_debugger = False

    def __init__(self, pid: int, inside_debugger: bool = False, may_be_traced: bool = False) -> None:
        """``inside_debugger``: we run in the debugger that traces the process; ``may_be_traced``: another one may.
        Raises NoSuchProcess, NotPermitted, ForeignArchitecture, TargetGone."""
        self.pid = pid
        self.inside_debugger = inside_debugger
        check = proc_checks.check_readable if may_be_traced else proc_checks.check_process
        check = proc_checks.check_architecture if inside_debugger else check
        self.architecture = architectures.by_machine(check(pid))
        self._memory = proc_checks.open_memory(pid)

    @property
    def paused_ms(self) -> float:
        return 0.0

    def maps(self) -> Sequence[MemoryMapping]:
        """/proc/PID/maps, as it is now. Raises TargetGone."""
        self._maps = None
        return super().maps()

    def thread_names(self) -> Mapping[int, str]:
        """Thread id → the kernel's name of the thread, for the threads that are alive now."""
        tids = map(int, proc_files.folder_names(f"/proc/{self.pid}/task"))
        return {tid: name for tid in tids if (name := thread_name(self.pid, tid)) is not None}


class SleepingThread(TargetThread):
    """A thread as /proc/PID/task/TID shows it. Only one that sleeps has registers, and not all of them."""

    lacks_registers = True

    def __init__(self, target: UnstoppedProcess, tid: int, state: str, name: str) -> None:
        """State letter and name are those when the threads were listed."""
        self.tid = tid
        self.name = self.listed_name = name
        self.place: SleepPlace = sleep_place(target.pid, tid)
        self._target = target
        self.kernel_state = state

    @property
    def runs_on(self) -> bool:  # type: ignore[override]
        return self.place.stack_pointer is None

    @cached_property
    def kernel_side(self) -> KernelSide | None:  # type: ignore[override]
        target, state = self._target, self.kernel_state or ""
        return kernel_side(target.pid, self.tid, state, self.place.call, target.architecture)

    def registers(self) -> Mapping[str, int]:
        """Stack pointer, program counter, and the arguments of its system call. Raises TargetError: it runs."""
        return self._registers

    @cached_property
    def _registers(self) -> dict[str, int]:
        """See ``registers``; decoded from the text of its ``syscall``."""
        words = self.place.call.split()
        if len(words) < 3:
            raise TargetError(
                f"thread {self.tid} runs, so its stack cannot be read without stopping it",
                why="only a thread that sleeps in the kernel shows its stack pointer (/proc/PID/task/TID/syscall)",
                help="omit --no-stop: then the process is stopped for some milliseconds",
            )
        number, *arguments, stack_pointer, program_counter = (int(word, 0) for word in words)
        architecture = self._target.architecture
        registers = architecture.sleeping_registers(number, arguments, stack_pointer, program_counter)
        pointer = self._target.thread_pointer(self.tid, stack_pointer)
        return {**registers, architecture.thread_register: pointer} if pointer else registers


class UnstoppedProcess(RunningProcess):
    """A process that is not stopped, with its threads as they sleep."""

    def __init__(self, pid: int, find_thread_pointer: FindThreadPointer) -> None:
        """Raises as RunningProcess."""
        super().__init__(pid, may_be_traced=True)  # no thread is stopped
        if tracer := proc_checks.holder(pid):
            self.holder = f"{tracer} ({proc_checks.process_name(tracer)})"
        self._threads: list[SleepingThread] | None = None
        self._find_thread_pointer = find_thread_pointer

    maps = LocalProcess.maps  # read once

    def threads(self) -> Sequence[SleepingThread]:
        """All threads, by tid. Raises TargetGone."""
        if self._threads is None:
            try:
                stats = proc_checks.thread_stats(self.pid)
            except OSError as error:
                raise TargetGone.of(self.pid) from error
            living = sorted((tid, *stat) for tid, stat in stats.items() if stat[0] not in "ZX")
            self._threads = [SleepingThread(self, *row) for row in living]
        return self._threads

    def thread_pointer(self, tid: int, stack_pointer: int) -> int:
        """Address of the thread's control block, 0 if it is not found."""
        return self._find_thread_pointer(self, tid, own_tid(self.pid, tid), stack_pointer)

    def threads_that_ran(self) -> Sequence[int]:
        """Threads that no longer sleep where they did when they were listed."""
        sleeping = (thread for thread in self._threads or () if not thread.runs_on)
        return tuple(thread.tid for thread in sleeping if has_moved_since(self.pid, thread.tid, thread.place))

    @property
    def places(self) -> Mapping[int, SleepPlace]:
        """Thread id → where the thread was when the threads were listed. Raises TargetGone."""
        return {thread.tid: thread.place for thread in self.threads()}

    def all_threads_sleep(self) -> bool:
        """Every thread sleeps in the kernel, and how much it has run is known. Raises TargetGone."""
        asleep = [
            thread.kernel_state in ("S", "D") and not thread.runs_on and thread.place.ran for thread in self.threads()
        ]
        return bool(asleep) and all(asleep)

    def no_thread_ran(self) -> bool:
        """No thread has run since they were listed, and no new one has begun."""
        return not self.threads_that_ran() and not proc_checks.living_threads(self.pid, self.places)

    def has_run(self, tid: int) -> bool:
        """The thread does not sleep, or no longer where it did when the threads were listed."""
        place = next((thread.place for thread in self._threads or () if thread.tid == tid), None)
        now = sleep_place(self.pid, tid)
        return now.has_moved(place) if place else bool(now.call)

    may_have_left = has_run  # nothing is copied


class SleepingProcess(UnstoppedProcess):
    """A process whose threads all sleep, read without a copy. Check is_consistent() after reading."""

    _needs_registers = False

    @property
    def stops(self) -> int | None:
        return 0

    def need_registers(self, tid: int) -> None:  # noqa: ARG002
        self._needs_registers = True

    def can_be_read(self) -> bool:
        """Every thread sleeps, and its control block is found without a stop. Raises TargetGone."""
        pointer = self.architecture.thread_pointer
        return self.all_threads_sleep() and all(pointer(thread.registers()) for thread in self.threads())

    def is_consistent(self) -> bool:
        """No thread ran while the process was read, and no proof needs registers that only a stop shows."""
        return not self._needs_registers and self.no_thread_ran()


class _UnreadableOrigin(ProcessOrigin):
    unreadable = "its memory, its memory map and its environment"

    def environ(self) -> Mapping[str, str]:
        return {}


class UnreadableProcess(UnstoppedProcess):
    """A process whose memory the kernel does not let us read: only what /proc says of its threads. Files that would
    wait for the lock of its memory are not read (mm->mmap_lock: mem, maps, environ, cmdline)."""

    def __init__(self, pid: int) -> None:
        """Reads nothing that needs the lock of its memory. Raises ForeignArchitecture."""
        self.pid = pid
        architecture = architectures.own()
        if not architecture:
            raise architectures.foreign("processes of this machine cannot be read")
        self.architecture = architecture
        self.origin = _UnreadableOrigin(pid)
        self._threads = None
        self._find_thread_pointer = lambda *_: 0

    def read(self, address: int, size: int) -> bytes:
        raise MemoryFault(address, size, "the kernel does not answer")

    def maps(self) -> Sequence[MemoryMapping]:
        return ()

    def auxv(self) -> Mapping[int, int]:
        return {}


def snapshot_while_asleep(
    unstopped: Callable[[], UnstoppedProcess], maps: list[MemoryMapping], copy: CopyStacks
) -> StopCopy | None:
    """Copy threads and stacks if all threads sleep for as long as that takes, else None. ``unstopped`` opens the
    process as it sleeps; ``maps`` is its memory map. Raises TargetGone."""
    # many waiting threads wake at times, only to check whether they should keep waiting
    for pause in (0.001, 0.002, 0.004, 0.008):
        with closing(unstopped()) as process:
            process._maps = maps
            if process.all_threads_sleep():
                pieces = copy([place.stack_pointer or 0 for place in process.places.values()])
                if process.no_thread_ran():
                    threads = [CopiedThread(process.pid, thread) for thread in process.threads()]
                    # only a stop shows where a thread without this pointer has its control block
                    if all(process.architecture.thread_pointer(thread.registers()) for thread in threads):
                        return StopCopy(process.pid, threads, PageCopy(pieces), process.pid, process.places)
        time.sleep(pause)
    return None
