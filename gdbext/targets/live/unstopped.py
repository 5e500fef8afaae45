"""A live process that nobody stops: threads that sleep in the kernel are read where they sleep (``--no-stop``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gdbext.errors import TargetError, TargetGone
from gdbext.targets.base import MemoryMapping, Target, Thread
from gdbext.targets.live import proc_checks
from gdbext.targets.live.proc_reads import own_tid, thread_name
from gdbext.targets.live.running_process import RunningProcess
from gdbext.targets.live.thread_motion import Place, place_of

FindThreadPointer = Callable[[Target, int, int, int], int]
"""(target, thread id, its id in its own PID namespace, stack pointer) to the address of the thread's control block, 0
where it is not found."""


class SleepingThread(Thread):
    """A thread as /proc/PID/task/TID shows it; only one that sleeps has registers, and not all of them."""

    number = None
    signal = None

    def __init__(self, target: UnstoppedProcess, tid: int, state: str) -> None:
        self.tid = tid
        self.place: Place = place_of(target.pid, tid)
        self._target = target
        self._state = state
        self._registers: dict[str, int] | None = None

    @property
    def name(self) -> str | None:  # type: ignore[override]
        """comm, read when asked for."""
        return thread_name(self._target.pid, self.tid)

    @property
    def runs_on(self) -> bool:  # type: ignore[override]
        """It does not sleep."""
        return self.place.stack_pointer is None

    @property
    def kernel_state(self) -> str | None:
        """The state when the threads were listed."""
        return self._state

    def registers(self) -> Mapping[str, int]:
        """Stack pointer, program counter, and what a system call was made with. Raises TargetError: it runs."""
        if self._registers is None:
            call = self.place.call.split()
            if len(call) < 3:
                raise TargetError(
                    f"thread {self.tid} runs, and where it is cannot be known without stopping it",
                    why="only a thread that sleeps in the kernel shows its stack (/proc/PID/task/TID/syscall)",
                    help="without --no-stop the process is stopped for some milliseconds",
                )
            number, *rest = (int(word, 0) for word in call)
            *arguments, stack_pointer, program_counter = rest
            self._registers = self._target.architecture.sleeping_registers(
                number, arguments, stack_pointer, program_counter
            )
            pointer = self._target.thread_pointer(self.tid, stack_pointer)
            if pointer:
                self._registers[self._target.architecture.thread_register] = pointer
        return self._registers


class UnstoppedProcess(RunningProcess):
    """Process ``pid`` with its threads as they sleep. Raises as RunningProcess."""

    def __init__(self, pid: int, find_thread_pointer: FindThreadPointer) -> None:
        super().__init__(pid)
        self._threads: list[SleepingThread] | None = None
        self._find_thread_pointer = find_thread_pointer

    def maps(self) -> Sequence[MemoryMapping]:
        """/proc/PID/maps, read once. Raises TargetGone."""
        if self._maps is None:
            self._maps = list(super().maps())
        return self._maps

    def threads(self) -> Sequence[Thread]:
        """All threads, by tid. Raises TargetGone."""
        return self._sleeping()

    def selected_thread(self) -> Thread | None:
        """The main thread."""
        return next(iter(self._sleeping()), None)

    def thread_pointer(self, tid: int, stack_pointer: int) -> int:
        """The thread's control block, 0 where it is not found."""
        return self._find_thread_pointer(self, tid, own_tid(self.pid, tid), stack_pointer)

    def moved(self) -> Sequence[int]:
        """Threads that no longer sleep where they did when they were listed."""
        sleeping = (thread for thread in self._threads or () if thread.place.stack_pointer is not None)
        return tuple(each.tid for each in sleeping if place_of(self.pid, each.tid).has_moved(each.place))

    def ran_on(self, tid: int) -> bool:
        """The thread does not sleep, or no longer where it did when the threads were listed."""
        seen = next((each for each in self._threads or () if each.tid == tid), None)
        now = place_of(self.pid, tid)
        return bool(now.call) if seen is None else now.has_moved(seen.place)

    def _sleeping(self) -> Sequence[SleepingThread]:
        if self._threads is None:
            try:
                states = proc_checks.thread_states(self.pid)
            except OSError as error:
                raise TargetGone(f"process {self.pid} ended while it was looked at") from error
            living = sorted((tid, state) for tid, state in states.items() if state not in "ZX")
            self._threads = [SleepingThread(self, tid, state) for tid, state in living]
        return self._threads
