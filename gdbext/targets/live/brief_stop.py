"""A live process that stands still only while registers and stacks are copied, and runs on while it is analysed.

Whatever takes long (symbols, layouts, call frame information) happens while the process runs. Memory is that of the
copy where there is one; the rest is read when it is wanted. A process that hangs does not change meanwhile, and its
threads' places in /proc prove that. Where threads have moved, ``again`` stops the process once more and copies with the
stacks all that the first look wanted to know. The second look may come to other memory than the first one; where a
thread is then said to wait for ever that has moved (``ran_on``), ``again`` goes on until a look needs its copy alone.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from gdbext.arch import registry
from gdbext.errors import MemoryFault, TargetError, TargetGone
from gdbext.targets.base import MemoryMapping, Signal, Target, Thread
from gdbext.targets.live import proc_checks
from gdbext.targets.live.local_process import LocalProcess
from gdbext.targets.live.proc_reads import read_memory, thread_name
from gdbext.targets.live.thread_motion import Place, place_of, turns_of
from gdbext.targets.page_copy import PageCopy, ranges
from gdbext.targets.system import linux

_RED_ZONE = 256
"""Bytes below the stack pointer that are copied, too: a function that calls nothing may keep its variables there."""
_STACKS_SIZE = 32 << 20
"""Bytes of stack that are copied in all; what lies further out is read afterwards."""
_STACK_LEAST = 64 << 10
_LOGGED_READ = 1 << 17
"""Larger reads are whole tables, which a second look reads again by itself."""
_AGAIN_PAGES = 4096
"""Pages besides the stacks that a second look copies, at most."""
_HIGHEST_PRIORITY = -20
_SETTLING_SECONDS = 0.001
"""What it takes a thread to go back to sleep in the system call that the stop interrupted; on a busy machine longer, so
that each further stop is given four times as long."""
_STOPS = 2
_STOPS_IN_DOUBT = 5
"""How often the process is stopped at most, and where a thread that is said to wait for ever has moved each time."""


class CopiedThread(Thread):
    """A thread as it was at the stop."""

    def __init__(self, pid: int, thread: Thread) -> None:
        """Raises TargetGone: it has ended."""
        self.tid = thread.tid
        self.number = thread.number
        self.signal: Signal | None = None
        self._pid = pid
        self._state = thread.kernel_state
        self._registers: Mapping[str, int] | TargetError
        try:
            self._registers = thread.registers()
            self.signal = thread.signal
        except TargetGone:
            raise
        except TargetError as error:
            self._registers = error

    @property
    def name(self) -> str | None:  # type: ignore[override]
        """comm, read when asked for."""
        return thread_name(self._pid, self.tid)

    @property
    def kernel_state(self) -> str | None:
        """The state just before the stop."""
        return self._state

    def registers(self) -> Mapping[str, int]:
        """As they were at the stop. Raises TargetError: the thread could not be stopped."""
        if isinstance(self._registers, TargetError):
            raise self._registers
        return self._registers


class BriefStop(LocalProcess):
    """Process ``pid``, stopped when its threads are first asked for, for as long as copying them takes.

    ``stop`` stops it and gives the stopped target; ``let_go`` lets that go on. A process that is about to die of a
    signal is held until close(): it would be gone. Raises NoSuchProcess, NotPermitted, ForeignArchitecture, TargetGone.
    """


    def __init__(self, pid: int, debugger: str, stop: Callable[[], Target], let_go: Callable[[Target], None]) -> None:
        self.pid = pid
        self.debugger = debugger
        self.architecture = registry.by_machine(proc_checks.check_process(pid))
        self._root = linux.process_root(pid)
        self._memory = proc_checks.open_memory(pid)
        self._stop = stop
        self._let_go = let_go
        self._held: Target | None = None
        self._threads: list[CopiedThread] | None = None
        self._selected = 0
        self._copy = PageCopy()
        self._places: dict[int, Place] = {}
        self._moved: tuple[int, ...] | None = None
        self._wanted: set[tuple[int, int]] = set()
        self._wanted_before: set[int] = set()
        self._in_doubt = False
        self._paused = 0.0
        self._stops = 0
        self._actions: list[Callable[[], None]] = []

    def on_change(self, action: Callable[[], None]) -> None:
        """``action`` is called at every stop: what was read before may be older than the threads."""
        self._actions.append(action)

    @property
    def paused_ms(self) -> float:
        """How long the process stood still, all stops together, in milliseconds."""
        return self._paused * 1e3

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes: as they were at the stop where they were copied, else as they are now. Raises
        MemoryFault, TargetGone."""
        copied = self._copy.read(address, size)
        if copied is not None:
            return copied
        if self._memory < 0:
            raise TargetError(f"process {self.pid} has been let go already")
        found = read_memory(self._memory, self.pid, address, size)
        if size <= _LOGGED_READ:
            self._wanted.add((address, size))
        return self._copy.over(address, found)

    def copied_page(self, number: int) -> bytes | None:
        """A page that was copied at the stop."""
        return self._copy.page(number)

    def sample(self, address: int, size: int) -> bytes:
        """As it is now: what is compared with a file does not change."""
        return read_memory(self._memory, self.pid, address, size)

    def threads(self) -> Sequence[Thread]:
        """All threads, as they were at the stop, which the first call makes."""
        return self._stopped_threads()

    def selected_thread(self) -> Thread | None:
        """The debugger's; without one the main thread."""
        threads = self._stopped_threads()
        return next((each for each in threads if each.tid == self._selected), next(iter(threads), None))

    def close(self) -> None:
        """Let go what is still held; idempotent."""
        self._release()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    # --- what moved ------------------------------------------------------------------------------

    def moved(self) -> Sequence[int]:
        """Threads that ran on since the stop, as far as something besides the copy was read; found once for a stop."""
        if self._moved is None:
            self._moved = tuple(self._find_moved())
        return self._moved

    def ran_on(self, tid: int) -> bool:
        """The thread ran on since the stop, or began after it, and something was read besides the copy."""
        if self._held is not None or not self._reads_changing():
            return False
        thread = next((each for each in self._threads or () if each.tid == tid), None)
        place = place_of(self.pid, tid)
        ran = bool(place.call) if thread is None else self._has_moved(thread, place)
        self._in_doubt |= ran
        return ran

    def again(self) -> bool:
        """Stop the process once more, if threads have moved since the last stop, and copy all that was read so far."""
        if self._memory < 0 or not 0 < self._stops < (_STOPS_IN_DOUBT if self._in_doubt else _STOPS):
            return False
        if not (self._in_doubt or self.moved()):
            return False
        self._maps = None
        self._wanted_before.update(self._pages_wanted())
        self._take(sorted(self._wanted_before))
        return True

    def _find_moved(self) -> Iterator[int]:
        if self._held is not None or not self._reads_changing():
            return
        for thread in self._threads or ():
            if self._has_moved(thread, place_of(self.pid, thread.tid)):
                yield thread.tid

    def _has_moved(self, thread: CopiedThread, place: Place) -> bool:
        return place.has_moved(self._places[thread.tid]) or not self._is_at(thread, place)

    def _is_at(self, thread: CopiedThread, place: Place) -> bool:
        """The thread sleeps on the very stack that was copied, in the same system call."""
        if place.stack_pointer is None:
            return True
        try:
            registers = thread.registers()
        except TargetError:
            return False
        call = self.architecture.blocked_syscall(registers, self._code)
        arguments = call[1] if call is not None else ()
        return (registers[self.architecture.stack_pointer], arguments) == (place.stack_pointer, place.arguments)

    def _code(self, address: int, size: int) -> bytes | None:
        try:
            return self.sample(address, size)
        except (MemoryFault, TargetError):
            return None

    def _reads_changing(self) -> bool:
        """Something was read that is not in the copy and may change."""
        return any(True for _ in self._pages_wanted())

    def _pages_wanted(self) -> Iterator[int]:
        """Pages that were read besides the copy, in memory that the process can write to."""
        pages = {
            number
            for address, size in self._wanted
            for number in range(address // linux.PAGE_SIZE, -(-(address + size) // linux.PAGE_SIZE))
        }
        writable = iter([each for each in self.maps() if "w" in each.permissions])
        current = next(writable, None)
        for number in sorted(pages):
            while current is not None and current.end <= number * linux.PAGE_SIZE:
                current = next(writable, None)
            if current is None:
                return
            if current.start <= number * linux.PAGE_SIZE:
                yield number

    # --- the stop --------------------------------------------------------------------------------

    def _stopped_threads(self) -> Sequence[CopiedThread]:
        if self._threads is None:
            self._take(())
        return self._threads or ()

    def _take(self, pages: Iterable[int]) -> None:
        """Stop the process, copy registers, stacks and those pages, and let it go."""
        runs = list(ranges(pages, _AGAIN_PAGES))
        self.maps()
        self._stops += 1
        with hurry():
            try:
                threads, pieces = self._copied(runs)
            except BaseException:
                self._release()
                raise
        self._threads = threads
        self._copy = PageCopy(pieces)
        self._wanted.clear()
        self._moved, self._in_doubt = None, False
        for action in self._actions:
            action()
        time.sleep(_SETTLING_SECONDS * 4 ** (self._stops - 1))
        self._places = {thread.tid: turns_of(self.pid, thread.tid) for thread in threads}

    def _copied(self, runs: list[tuple[int, int]]) -> tuple[list[CopiedThread], list[tuple[int, bytes]]]:
        """All that happens while the process stands still."""
        started = time.perf_counter()
        stopped = self._held = self._stop()
        started = stopped.stopped_since or started
        threads = []
        for each in stopped.threads():
            with suppress(TargetGone):
                threads.append(CopiedThread(self.pid, each))
        copied = [*self._stacks(threads, self.maps()), *runs]
        pieces = [(start, piece) for start, end in copied if (piece := self._piece(start, end - start))]
        selected = stopped.selected_thread()
        self._selected = selected.tid if selected is not None else 0
        if not any(thread.signal for thread in threads):
            self._release()
        self._paused += time.perf_counter() - started
        return threads, pieces

    def _release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._let_go(held)

    def _piece(self, start: int, size: int) -> bytes:
        try:
            return read_memory(self._memory, self.pid, start, size)
        except MemoryFault:
            return b""

    def _stacks(self, threads: Sequence[CopiedThread], maps: Sequence[MemoryMapping]) -> Iterator[tuple[int, int]]:
        """The used part of each stack, in whole pages, from the stack pointer outwards."""
        most = max(_STACKS_SIZE // max(len(threads), 1), _STACK_LEAST)
        for thread in threads:
            try:
                pointer = thread.registers()[self.architecture.stack_pointer]
            except TargetError:
                continue
            mapping = _mapping_at(maps, pointer)
            if mapping is not None:
                start = max((pointer - _RED_ZONE) & -linux.PAGE_SIZE, mapping.start)
                yield start, min(mapping.end, start + most)


@contextmanager
def hurry() -> Iterator[None]:
    """Let nothing come between while a process stands still for us: no garbage collection and, where we may, no other
    process of this machine."""
    collects = gc.isenabled()
    gc.disable()
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _HIGHEST_PRIORITY)
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        if collects:
            gc.enable()


def brief_stop(pid: int) -> BriefStop:
    """Process ``pid``, without a debugger. Raises as BriefStop."""

    def stop() -> Target:
        from gdbext.targets.live.proc_target import ProcTarget

        return ProcTarget(pid)

    return BriefStop(pid, "none", stop, lambda target: target.close())


def _mapping_at(maps: Sequence[MemoryMapping], address: int) -> MemoryMapping | None:
    """The mapping that holds an address; the list is sorted."""
    low, high = 0, len(maps)
    while low < high:
        middle = (low + high) // 2
        if maps[middle].end <= address:
            low = middle + 1
        else:
            high = middle
    return maps[low] if low < len(maps) and maps[low].start <= address else None
