"""A live process of which registers and stacks are copied, and which runs on while it is analysed.

Where all of its threads sleep, and a look before and one after prove that none had a turn, the copy is of one moment
without anybody being stopped. Else, and where a proof needs registers that only a stop shows, it stands still while
the copy is made. A stop can end a blocked system call early: ``cut_short`` says in which threads.

Whatever takes long (symbols, layouts, call frame information) happens while the process runs. Memory is that of the
copy where there is one; the rest is read when it is wanted. A process that hangs does not change meanwhile, and its
threads' places in /proc prove that. Where threads seem to have moved it is stopped once more, and all that was wanted
of its memory is copied with the stacks. If nothing has changed, the threads only took their time to fall asleep again,
and what was read holds. Else ``retake`` goes on with that later stop. The second look may come to other memory than the
first one; where a thread is then said to wait for ever that has moved (``has_run``), this goes on until the copy is
enough.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress

from gdbext.engine.arch import architectures
from gdbext.engine.targets.base_target import MemoryMapping, Target, TargetThread
from gdbext.engine.targets.live import proc_checks
from gdbext.engine.targets.live.local_process import LocalProcess, read_file, read_memory
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.targets.live.stop_copy import (
    CopiedThread,
    PageCopy,
    PreparedMemory,
    StopCopy,
    code_files,
    mapping_at,
    pages_of,
    parts,
    ranges,
    real_time_priority,
    writable_pages,
)
from gdbext.engine.targets.live.thread_motion import same_but_for_rseq
from gdbext.engine.targets.live.unstopped import UnstoppedProcess, copy_asleep
from gdbext.engine.targets.system import linux
from gdbext.errors import MemoryFault, TargetError, TargetGone

_RED_ZONE = 256
"""Bytes below the stack pointer that are copied, too: a function that calls nothing may keep its variables there."""
_STACKS_SIZE = 32 << 20
"""Bytes of stack that are copied in all; what lies further out is read afterwards."""
_STACK_LEAST = 64 << 10
_STACK_USUAL = 16 << 10
"""Bytes of their stacks that most threads which wait have used."""
_LOGGED_READ = 1 << 17
"""Larger reads are whole tables, which a second look reads again by itself."""
_WANTED_PAGES = 4096
"""Pages besides the stacks that a later stop copies, at most."""
_SETTLING_SECONDS = 0.001
"""Seconds that a thread takes to go back to sleep in the system call that the stop interrupted; on a busy machine
longer, so that each further stop is given four times as long."""
_STOPS = 2
_STOPS_IN_DOUBT = 5
"""Most stops of the process, and where a thread that is said to wait for ever has moved each time."""


class SnapshotTarget(LocalProcess):
    """Process ``pid``, stopped when its threads are first asked for, for as long as copying them takes.

    ``stop`` stops it and gives the stopped target; ``let_go`` lets that go on. ``unstopped`` opens it as it sleeps:
    where all threads do, nobody is stopped. A process that is about to die of a signal is held until close(): it would
    be gone. Raises NoSuchProcess, NotPermitted, ForeignArchitecture, TargetGone.
    """

    def __init__(
        self,
        pid: int,
        debugger: str,
        stop: Callable[[], Target],
        let_go: Callable[[Target], None],
        unstopped: Callable[[], UnstoppedProcess] | None = None,
    ) -> None:
        self.pid = pid
        self.debugger = debugger
        self.architecture = architectures.by_machine(proc_checks.check_process(pid))
        self._memory = proc_checks.open_memory(pid)
        self._stop = stop
        self._let_go = let_go
        self._unstopped = unstopped
        self._needs_registers = False
        self._cut_short: dict[int, str] = {}
        self._held: Target | None = None
        self._copy: StopCopy | None = None
        self._next: StopCopy | None = None
        self._moved: tuple[int, ...] | None = None
        self._wanted: dict[tuple[int, int], bytes] = {}
        self._wanted_pages: set[int] = set()
        self._changing = False
        self._paused = 0.0
        self._looks = 0
        self._stops = 0
        self._actions: list[Callable[[], None]] = []
        self._prepare: Callable[[], Callable[[], None] | None] = lambda: None
        self._standing: list[tuple[int, bytes]] | None = None
        """Whole pages that were read while the process stands still; None while it does not."""

    def on_change(self, action: Callable[[], None]) -> None:
        """``action`` is called at every stop: what was read before may be older than the threads."""
        self._actions.append(action)

    def before_stops(self, prepare: Callable[[], Callable[[], None] | None]) -> None:
        """``prepare`` is called before each stop, in place of an earlier one, and what it returns at the stop."""
        self._prepare = prepare

    @property
    def paused_ms(self) -> float:
        """Milliseconds that the process stood still, all stops together."""
        return self._paused * 1e3

    @property
    def stops(self) -> int | None:
        """Number of times that it was stopped; 0 where its threads were read as they slept."""
        return self._stops

    def cut_short(self) -> Mapping[int, str]:
        """Thread id → the system call that a stop may have ended early."""
        return self._cut_short

    def need_registers(self, tid: int) -> None:
        """Note that the thread's callee-saved registers are wanted, which only a stop shows."""
        thread = self._copy.thread(tid) if self._copy else None
        if thread and thread.lacks_registers:
            self._needs_registers = True

    def stopped_thread(self, tid: int) -> TargetThread | None:
        """The thread at a stop that is made now, where all that was read before belongs to that moment, too."""
        self.need_registers(tid)
        if self._needs_registers and self._copy and self._copy.is_asleep and self._memory >= 0:
            is_same, self._next = self._is_confirmed(_STOPS), None  # else the next look has a stop of its own
            self._looks = 1 if is_same else self._looks
        return self._copy.thread(tid) if self._copy else None

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes: as they were at the stop where they were copied, else as they are now. Raises
        MemoryFault, TargetGone."""
        copied = self._copy.memory.read(address, size) if self._copy and self._standing is None else b""
        if copied:
            return copied
        if self._memory < 0:
            raise TargetError(f"process {self.pid} has been let go already")
        found = read_memory(self._memory, self.pid, address, size)
        if self._standing is not None:
            if not (address | size) % linux.PAGE_SIZE:
                self._standing.append((address, found))
            return found
        if size <= _LOGGED_READ:
            self._wanted[address, size] = found
        return self._copy.memory.over(address, found) if self._copy else found

    def copied_page(self, number: int) -> bytes:
        """A page that was copied at the stop."""
        return self._copy.memory.page(number) if self._copy and self._standing is None else b""

    def sample(self, address: int, size: int) -> bytes:
        """Read memory as it is now: what is compared with a file does not change."""
        return read_memory(self._memory, self.pid, address, size)

    def threads(self) -> Sequence[TargetThread]:
        """All threads, as they were at the stop, which the first call makes."""
        return self._copied().threads

    def selected_thread(self) -> TargetThread | None:
        """The debugger's; without one the main thread."""
        copy = self._copied()
        return next((each for each in copy.threads if each.tid == copy.selected), next(iter(copy.threads), None))

    def close(self) -> None:
        """Let go what is still held; idempotent."""
        self._release()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    # --- what moved ------------------------------------------------------------------------------

    def threads_that_ran(self) -> Sequence[int]:
        """Threads that ran on since the stop, as far as something besides the copy was read; found once for a stop."""
        if self._moved is None:
            self._moved = self._find_moved()
        return self._moved

    def has_run(self, tid: int) -> bool:
        """The thread ran on since the stop, or began after it, and something was read besides the copy."""
        if not self._copy or not self._may_be_mixed():
            return False
        moved = self._copy.has_moved(tid, self.architecture, self._code)
        return moved and not self._is_confirmed(_STOPS_IN_DOUBT)

    def has_moved_on(self, tid: int) -> bool:
        """The thread is not known to have slept since the copy was made."""
        runs_on = self._copy and not self._held and self._memory >= 0
        return bool(runs_on and self._copy and self._copy.has_moved(tid, self.architecture, self._code))

    def retake(self, in_doubt: bool = False) -> bool:
        """Go on with a later look, if threads have moved since the last one, or libraries were loaded since the first
        began; or with a stop, where registers are wanted; or ``in_doubt``, if what was read may be of two moments. All
        that was read so far is copied."""
        if self._needs_registers and self._copy and self._copy.is_asleep and self._memory >= 0:
            self._wanted_pages |= set(self._pages_wanted())
            self._adopt(self._take())
            return True
        self.threads_that_ran()
        again = in_doubt and self._looks < _STOPS_IN_DOUBT and self._may_be_mixed()
        if not self._next and (again or self._has_other_files()):
            self._wanted_pages |= set(self._pages_wanted())
            with suppress(TargetError):
                self._next = self._take()
        if not self._next:
            return False
        self._adopt(self._next)
        return True

    def _find_moved(self) -> tuple[int, ...]:
        copy = self._copy
        if not copy or not self._may_be_mixed():
            return ()
        moved = tuple(each.tid for each in copy.threads if copy.has_moved(each.tid, self.architecture, self._code))
        return () if moved and self._is_confirmed(_STOPS) else moved

    def _has_other_files(self) -> bool:
        """Other code is mapped than when this look began: a library was loaded before the stop, or after it."""
        if not self._copy or self._held or self._memory < 0 or self._looks >= _STOPS_IN_DOUBT:
            return False
        try:
            before, text = self.maps(), self._maps_text
            if read_file(self.pid, "maps") == text:
                return False
            self._maps = None
            return code_files(self.maps()) != code_files(before)
        except TargetGone:
            self._maps = None
            return False

    def _may_be_mixed(self) -> bool:
        """The process runs, and something was read that is not in the copy and may change."""
        self._changing = self._changing or any(True for _ in self._pages_wanted())
        return self._changing and not self._held and self._memory >= 0

    def _is_confirmed(self, most: int) -> bool:
        """Threads that seem to have moved only took their time to fall asleep again: at another stop, of ``most``
        in all, they are where they were, all that was read is as it was, and no library was loaded. Else that stop is
        the next to look at."""
        if not self._copy or self._next or self._looks >= most:
            return False
        wanted, files = set(self._pages_wanted()), code_files(self.maps())
        self._wanted_pages |= wanted
        try:
            later = self._take()
        except TargetError:
            return False
        is_same = self._copy.is_as(later, self.architecture, self._code) and self._read_same(later.memory, wanted)
        if not is_same or code_files(self.maps()) != files:
            self._next = later
            return False
        self._copy = later
        self._forget_reads()
        return True

    def _read_same(self, later: PageCopy, pages: Collection[int]) -> bool:
        """True if what was read of those pages is what they held at a later stop."""
        return all(
            piece and same_but_for_rseq(piece, found[low - address : high - address], low)
            for (address, size), found in self._wanted.items()
            for low, high in parts(address, size, pages)
            for piece in (later.read(low, high - low),)
        )

    def _pages_wanted(self) -> Iterator[int]:
        """Pages that were read besides the copy, in memory that the process can write to."""
        return writable_pages(self._wanted, self.maps())

    def _code(self, address: int, size: int) -> bytes:
        try:
            return self.sample(address, size)
        except (MemoryFault, TargetError):
            return b""

    # --- the stop --------------------------------------------------------------------------------

    def _copied(self) -> StopCopy:
        """The copy, made when it is first wanted."""
        if not self._copy:
            self._adopt(self._take())
        assert self._copy
        return self._copy

    def _adopt(self, copy: StopCopy) -> None:
        """Adopt a stop: from here on that is how the process is."""
        self._copy, self._next = copy, None
        self._forget_reads()
        for action in self._actions:
            action()

    def _forget_reads(self) -> None:
        self._wanted.clear()
        self._moved, self._changing = None, False

    def _take(self) -> StopCopy:
        """Copy registers, stacks and the pages that were wanted so far, at one moment: of threads that all sleep, else
        of a process that is stopped meanwhile."""
        runs = list(ranges(sorted(self._wanted_pages), _WANTED_PAGES))
        if self._looks:
            self._maps = None
        self.maps()
        self._looks += 1
        size = self._stacks_estimate() + sum(end - start for start, end in runs)
        with real_time_priority():
            asleep = self._copy_asleep(runs, size)
        if asleep:
            return asleep
        read, prepared = self._prepared(), PreparedMemory(size)
        with real_time_priority():
            try:
                copy = self._copy_stopped(runs, prepared, read)
            except BaseException:
                self._release()
                raise
        self._stops += 1
        self._cut_short.update(copy.cut_short(self.architecture, self._code))
        time.sleep(_SETTLING_SECONDS * 4 ** (self._stops - 1))
        copy.note_places()
        return copy

    def _copy_asleep(self, runs: Sequence[tuple[int, int]], size: int) -> StopCopy | None:
        """A copy without a stop; None where that is not wanted, or not all threads sleep for as long as it takes."""
        if not self._unstopped or self._needs_registers:
            return None

        maps = list(self.maps())

        def copy(pointers: Sequence[int]) -> list[tuple[int, bytes | memoryview]]:
            return self._pieces([*self._stacks(pointers, maps), *runs], PreparedMemory(size))

        return copy_asleep(self._unstopped, maps, copy)

    def _stacks_estimate(self) -> int:
        """Number of bytes of stack that will probably be copied."""
        try:
            threads = len(os.listdir(f"/proc/{self.pid}/task"))  # noqa: PTH208 - strings are all that is needed
        except OSError:
            return 0
        return min(threads * _STACK_USUAL, _STACKS_SIZE)

    def _prepared(self) -> Callable[[], None]:
        """The steps that are to be done at the stop. All that is read for it before the stop is of no moment."""
        wanted, self._wanted = self._wanted, {}
        try:
            return self._prepare() or (lambda: None)
        finally:
            self._wanted = wanted

    def _copy_stopped(
        self, runs: list[tuple[int, int]], prepared: PreparedMemory, read: Callable[[], None]
    ) -> StopCopy:
        """All that happens while the process stands still."""
        started = time.perf_counter()
        stopped = self._held = self._stop()
        started = stopped.moment.stopped_since or started
        threads = []
        for each in stopped.memory.threads():
            with suppress(TargetGone):
                threads.append(CopiedThread(self.pid, each))
        threads = self._with_sleepers(threads)
        for each in threads:
            each.note_earlier(self._copy)
        pointers = [pointer for each in threads if (pointer := self._stack_pointer(each))]
        pieces = self._pieces([*self._stacks(pointers, self.maps()), *runs], prepared)
        pieces += self._read_standing(read)
        selected = stopped.memory.selected_thread()
        if not any(thread.signal for thread in threads):
            self._release()
        self._paused += time.perf_counter() - started
        return StopCopy(self.pid, threads, PageCopy(pieces), selected.tid if selected else 0)

    def _with_sleepers(self, threads: list[CopiedThread]) -> list[CopiedThread]:
        """The threads; those that nobody can stop as they sleep."""
        if not self._unstopped or not any(each.is_unread for each in threads):
            return threads
        with closing(self._unstopped()) as process:
            asleep = {each.tid: each for each in process.threads() if not each.runs_on}
            return [
                CopiedThread(self.pid, asleep[each.tid]) if each.is_unread and each.tid in asleep else each
                for each in threads
            ]

    def _read_standing(self, read: Callable[[], None]) -> Sequence[tuple[int, bytes]]:
        """The pages that are read now, which later stops copy, too."""
        self._standing = []
        try:
            read()
            self._wanted_pages |= {number for start, data in self._standing for number in pages_of(start, len(data))}
            return self._standing
        finally:
            self._standing = None

    def _release(self) -> None:
        if self._held:
            held, self._held = self._held, None
            self._let_go(held)

    def _pieces(
        self, copied: Sequence[tuple[int, int]], prepared: PreparedMemory
    ) -> list[tuple[int, bytes | memoryview]]:
        return [(start, piece) for start, end in copied if (piece := self._piece(prepared, start, end - start))]

    def _piece(self, prepared: PreparedMemory, start: int, size: int) -> bytes | memoryview:
        try:
            return prepared.read(self._memory, self.pid, start, size)
        except MemoryFault:
            return b""

    def _stack_pointer(self, thread: CopiedThread) -> int:
        """0 where the thread could not be stopped."""
        try:
            return thread.registers()[self.architecture.stack_pointer]
        except TargetError:
            return 0

    def _stacks(self, pointers: Sequence[int], maps: Sequence[MemoryMapping]) -> Iterator[tuple[int, int]]:
        """The used part of each stack, in whole pages, from the stack pointer outwards."""
        most = max(_STACKS_SIZE // max(len(pointers), 1), _STACK_LEAST)
        for pointer in pointers:
            mapping = mapping_at(maps, pointer)
            if mapping:
                start = max((pointer - _RED_ZONE) & -linux.PAGE_SIZE, mapping.start)
                yield start, min(mapping.end, start + most)


def brief_stop(pid: int, unstopped: Callable[[], UnstoppedProcess] | None = None) -> SnapshotTarget:
    """Process ``pid``, without a debugger; ``unstopped`` as SnapshotTarget has it. Raises as SnapshotTarget."""

    def stop() -> Target:
        return ProcTarget(pid)

    return SnapshotTarget(pid, "none", stop, lambda target: target.close(), unstopped)
