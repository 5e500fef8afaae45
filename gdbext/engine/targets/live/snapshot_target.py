"""A live process whose registers and stacks are copied, and which runs while it is analyzed.

If all of its threads sleep, and none ran between a check before and one after, the copy is of one moment and nothing
was stopped. Otherwise, and if a proof needs registers that only a stop shows, the process is stopped while the copy is
made. A stop can end a blocked system call early: ``cut_short`` says in which threads.

Slow work (symbols, layouts, call frame information) happens while the process runs. Memory that was copied is read from
the copy, the rest on demand. A hung process does not change meanwhile, and /proc proves that its threads still sleep in
the same calls. If threads seem to have moved, the process is stopped once more, and all memory that was read so far is
copied with the stacks. If nothing changed, the threads only took their time to fall asleep again, and what was read
holds. Otherwise ``retake`` adopts the later stop. The second inspection may read other memory than the first one; as
long as a thread that is then said to wait forever has moved (``has_run``), this repeats until the copy is enough.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import cast

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
    merge_pages,
    pages_of,
    parts_in_pages,
    real_time_priority,
    writable_pages,
)
from gdbext.engine.targets.live.thread_motion import same_but_for_rseq
from gdbext.engine.targets.live.unstopped import UnstoppedProcess, snapshot_while_asleep
from gdbext.engine.targets.system import linux
from gdbext.errors import MemoryFault, TargetError, TargetGone

_RED_ZONE = 256
"""Bytes below the stack pointer that are copied, too: a leaf function may keep its variables there."""
_MAX_STACKS_SIZE = 32 << 20
"""Bytes of all stacks that are copied; what lies further out is read afterwards."""
_MIN_STACK_SIZE = 64 << 10
_USUAL_STACK_SIZE = 16 << 10
"""Bytes of their stacks that most waiting threads have used."""
_MAX_LOGGED_READ = 1 << 17
"""Larger reads are whole tables, which a second inspection reads again by itself."""
_MAX_WANTED_PAGES = 4096
"""Pages besides the stacks that a later stop copies."""
_SETTLING_SECONDS = 0.001
"""Seconds that a thread takes to go back to sleep in the system call that the stop interrupted; more on a busy machine,
so each further stop is given four times as long."""
_MAX_COPIES = 2
_MAX_COPIES_IN_DOUBT = 5
"""Limit of copies; the second one while a thread that is said to wait forever has moved each time."""


class SnapshotTarget(LocalProcess):
    """A process that is stopped when its threads are first asked for, for as long as copying them takes. One that is
    about to die of a signal is held until close(): otherwise it would be gone."""

    def __init__(
        self,
        pid: int,
        debugger: str,
        stop: Callable[[], Target],
        resume: Callable[[Target], None],
        unstopped: Callable[[], UnstoppedProcess] | None = None,
    ) -> None:
        """``stop`` stops the process and returns the stopped target; ``resume`` resumes that. ``unstopped`` opens the
        process as it sleeps: if all threads do, nothing is stopped. Raises NoSuchProcess, NotPermitted,
        ForeignArchitecture, TargetGone."""
        self.pid = pid
        self.debugger = debugger
        self.architecture = architectures.by_machine(proc_checks.check_process(pid))
        self._memory = proc_checks.open_memory(pid)
        self._stop = stop
        self._resume = resume
        self._unstopped = unstopped
        self._needs_registers = False  # a proof needs registers that only a stop shows
        self._holds = False  # the process stays stopped after the next copy, until let_go()
        self._held_since = 0.0  # time of that stop (time.perf_counter)
        self._cut_short: dict[int, str] = {}  # tid → the system call that the stop interrupted
        self._held_target: Target | None = None  # the stopped target, while the process is stopped
        self._copy: StopCopy | None = None
        self._later_copy: StopCopy | None = None  # a later copy that differs from ``_copy``, for ``retake``
        self._moved: tuple[int, ...] | None = None
        """Threads that ran since ``_copy``; None until they are determined."""
        self._reads: dict[tuple[int, int], bytes] = {}
        """(address, size) → bytes that were read besides the copy, since it was made."""
        self._wanted_pages: set[int] = set()  # numbers of the pages that the next copy has besides the stacks
        self._read_besides_copy = False
        self._paused_seconds = 0.0
        self._copies_made = 0
        self._stops = 0
        self._actions: list[Callable[[], None]] = []
        self._prepare: Callable[[], Callable[[], None] | None] = lambda: None
        self._pages_at_stop: list[tuple[int, bytes]] | None = None
        """Whole pages that were read while the process is stopped; None while it is not."""

    def on_change(self, action: Callable[[], None]) -> None:
        self._actions.append(action)

    def before_stops(self, prepare: Callable[[], Callable[[], None] | None]) -> None:
        """As in TargetMoment; the last ``prepare`` replaces earlier ones."""
        self._prepare = prepare

    @property
    def paused_ms(self) -> float:
        return self._paused_seconds * 1e3

    @property
    def stops(self) -> int | None:
        return self._stops

    def cut_short(self) -> Mapping[int, str]:
        return self._cut_short

    def need_registers(self, tid: int) -> None:
        thread = self._copy.thread(tid) if self._copy else None
        if thread and thread.lacks_registers:
            self._needs_registers = True

    def stopped_thread(self, tid: int) -> TargetThread | None:
        self.need_registers(tid)
        if self._must_stop_sleepers():
            if self._is_confirmed(_MAX_COPIES):
                self._copies_made = 1
            self._later_copy = None  # the next copy has a stop of its own
        return self._copy.thread(tid) if self._copy else None

    def _must_stop_sleepers(self) -> bool:
        """The copy was made without a stop, and lacks registers that are needed."""
        return self._needs_registers and self._copy is not None and self._copy.is_asleep and self._memory >= 0

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes: as they were at the stop if they were copied, else as they are now. Raises
        MemoryFault, TargetGone."""
        copied = self._copy.memory.read(address, size) if self._copy and self._pages_at_stop is None else b""
        if copied:
            return copied
        data = super().read(address, size)
        if self._pages_at_stop is not None:
            if not (address | size) % linux.PAGE_SIZE:
                self._pages_at_stop.append((address, data))
            return data
        if size <= _MAX_LOGGED_READ:
            self._reads[address, size] = data
        return self._copy.memory.overlay_on(address, data) if self._copy else data

    def copied_page(self, number: int) -> bytes:
        return self._copy.memory.page(number) if self._copy and self._pages_at_stop is None else b""

    def sample(self, address: int, size: int) -> bytes:
        """Memory as it is now: what is compared with a file does not change."""
        return read_memory(self._memory, self.pid, address, size)

    def threads(self) -> Sequence[TargetThread]:
        """All threads, as they were at the stop, which the first call makes."""
        return self._first_copy().threads

    def selected_thread(self) -> TargetThread | None:
        """The debugger's; without one the main thread."""
        copy = self._first_copy()
        return copy.thread(copy.selected) or next(iter(copy.threads), None)

    def close(self) -> None:
        self._release()
        super().close()

    def hold(self) -> bool:
        if self._memory < 0 or self._held_target:
            return False
        self._holds = True
        try:
            self._adopt(self._copy_process())
        except BaseException:
            self.let_go()
            raise
        return True

    def let_go(self) -> None:
        self._holds = False
        if self._held_target and not any(thread.signal for thread in self._held_target.memory.threads()):
            self._release()
            self._paused_seconds += time.perf_counter() - self._held_since
        self._forget_reads()
        self._moved = ()  # all that was read is of the stop

    # --- what moved ------------------------------------------------------------------------------

    def threads_that_ran(self) -> Sequence[int]:
        """Threads that ran since the stop, if anything besides the copy was read; determined once for each stop."""
        if self._moved is None:
            moved: tuple[int, ...] = ()
            if self._copy and self._may_mix_moments():
                tids = {thread.tid for thread in self._copy.threads} | proc_checks.living_threads(self.pid)
                moved = tuple(tid for tid in sorted(tids) if self._has_moved(self._copy, tid))
            self._moved = () if moved and self._is_confirmed(_MAX_COPIES) else moved
        return self._moved

    def has_run(self, tid: int) -> bool:
        """The thread ran since the stop, or began after it, and something was read besides the copy."""
        if not self._copy or not self._may_mix_moments():
            return False
        return self._has_moved(self._copy, tid) and not self._is_confirmed(_MAX_COPIES_IN_DOUBT)

    def may_have_left(self, tid: int) -> bool:
        return bool(self._copy and self._runs and self._has_moved(self._copy, tid))

    @property
    def _runs(self) -> bool:
        """The process is not stopped by us, and was not closed."""
        return not self._held_target and self._memory >= 0

    def _has_moved(self, copy: StopCopy, tid: int) -> bool:
        """True unless the thread provably slept ever since ``copy`` was made."""
        return copy.has_moved(tid, self.architecture, self._read_code)

    def retake(self, in_doubt: bool = False) -> bool:
        """Adopt a later copy if threads have moved since the last one, or libraries were loaded since the first began;
        or stop the process, if registers are wanted; or copy again if ``in_doubt`` and what was read may be of two
        moments. All that was read so far is copied."""
        if self._must_stop_sleepers():
            self._wanted_pages.update(self._pages_read())
            self._adopt(self._copy_process())
            return True
        self.threads_that_ran()
        again = in_doubt and self._copies_made < _MAX_COPIES_IN_DOUBT and self._may_mix_moments()
        if not self._later_copy and (again or self._loaded_other_code()):
            self._wanted_pages.update(self._pages_read())
            with suppress(TargetError):
                self._later_copy = self._copy_process()
        if not self._later_copy:
            return False
        self._adopt(self._later_copy)
        return True

    def _loaded_other_code(self) -> bool:
        """Other code is mapped than when this copy began: a library was loaded before the stop, or after it."""
        if not self._copy or not self._runs or self._copies_made >= _MAX_COPIES_IN_DOUBT:
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

    def _may_mix_moments(self) -> bool:
        """The process runs, and something was read that is not in the copy and may change."""
        self._read_besides_copy = self._read_besides_copy or any(True for _ in self._pages_read())
        return self._read_besides_copy and self._runs

    def _is_confirmed(self, max_copies: int) -> bool:
        """Copy the process once more, if fewer than ``max_copies`` were made. True if threads that seem to have moved
        only took their time to fall asleep again: they are where they were, all that was read is as it was, and no
        library was loaded. Otherwise that copy is kept for ``retake``."""
        if not self._copy or self._later_copy or self._copies_made >= max_copies:
            return False
        pages, files = set(self._pages_read()), code_files(self.maps())
        self._wanted_pages |= pages
        try:
            later = self._copy_process()
        except TargetError:
            return False

        def is_as_read(address: int, data: bytes) -> bool:
            """The later copy has the same bytes as were read, in memory that the process can write to."""
            parts = list(parts_in_pages(address, len(data), pages))
            pairs = ((later.memory.read(low, high - low), data[low - address : high - address]) for low, high in parts)
            return all(piece and same_but_for_rseq(piece, old, low) for (piece, old), (low, _) in zip(pairs, parts))

        is_same = self._copy.is_same_as(later, self.architecture, self._read_code) and all(
            is_as_read(address, data) for (address, _), data in self._reads.items()
        )
        if not is_same or code_files(self.maps()) != files:
            self._later_copy = later
            return False
        self._copy = later
        self._forget_reads()
        return True

    def _pages_read(self) -> Iterator[int]:
        """Numbers of the pages that were read besides the copy, in memory that the process can write to."""
        return writable_pages(self._reads, self.maps())

    def _read_code(self, address: int, size: int) -> bytes:
        """Memory as it is now; b"" if it cannot be read."""
        try:
            return self.sample(address, size)
        except (MemoryFault, TargetError):
            return b""

    # --- the stop --------------------------------------------------------------------------------

    def _first_copy(self) -> StopCopy:
        """The adopted copy; the first call makes it."""
        if not self._copy:
            self._adopt(self._copy_process())
        return cast("StopCopy", self._copy)

    def _adopt(self, copy: StopCopy) -> None:
        """Read from this copy from now on: drop the cached reads and tell the listeners of on_change()."""
        self._copy, self._later_copy = copy, None
        self._forget_reads()
        for action in self._actions:
            action()

    def _forget_reads(self) -> None:
        self._reads.clear()
        self._moved, self._read_besides_copy = None, False

    def _copy_process(self) -> StopCopy:
        """Copy registers, stacks and the wanted pages, at one moment: while all threads sleep, else while the process
        is stopped."""
        page_ranges = list(merge_pages(sorted(self._wanted_pages), _MAX_WANTED_PAGES))
        if self._copies_made:
            self._maps = None
        self.maps()
        self._copies_made += 1
        size = sum(end - start for start, end in page_ranges)
        with suppress(OSError):
            threads = len(os.listdir(f"/proc/{self.pid}/task"))  # noqa: PTH208 - strings are all that is needed
            size += min(threads * _USUAL_STACK_SIZE, _MAX_STACKS_SIZE)
        with real_time_priority():
            if copy := self._copy_asleep(page_ranges, size):
                return copy
        reads, self._reads = self._reads, {}  # what preparing reads is of no moment
        try:
            read_at_stop = self._prepare() or (lambda: None)
        finally:
            self._reads = reads
        prepared = PreparedMemory(size)
        with real_time_priority():
            try:
                copy = self._copy_stopped(page_ranges, prepared, read_at_stop)
            except BaseException:
                self._release()
                raise
        self._stops += 1
        self._cut_short.update(copy.cut_short(self.architecture, self._read_code))
        if self._holds:
            self._held_since = time.perf_counter()
            return copy
        time.sleep(_SETTLING_SECONDS * 4 ** (self._stops - 1))
        copy.note_places()
        return copy

    def _copy_asleep(self, page_ranges: Sequence[tuple[int, int]], size: int) -> StopCopy | None:
        """A copy without a stop; None if that is not wanted, or not all threads sleep for as long as it takes."""
        if not self._unstopped or self._needs_registers or self._holds:
            return None

        maps = list(self.maps())

        def copy(pointers: Sequence[int]) -> list[tuple[int, bytes | memoryview]]:
            return self._pieces([*self._stacks(pointers, maps), *page_ranges], PreparedMemory(size))

        return snapshot_while_asleep(self._unstopped, maps, copy)

    def _copy_stopped(
        self, page_ranges: list[tuple[int, int]], prepared: PreparedMemory, read_at_stop: Callable[[], None]
    ) -> StopCopy:
        """Stop the process, copy it, call ``read_at_stop``, and resume it unless it is about to die of a signal."""
        started = time.perf_counter()
        stopped = self._held_target = self._stop()
        started = stopped.moment.stopped_since or started
        threads = []
        for thread in stopped.memory.threads():
            with suppress(TargetGone):
                threads.append(CopiedThread(self.pid, thread))
        threads = self._with_sleepers(threads)
        pointers = []
        for copied in threads:
            copied.note_earlier(self._copy)
            with suppress(TargetError):  # it could not be stopped
                pointers.append(copied.registers()[self.architecture.stack_pointer])
        pieces = self._pieces([*self._stacks(list(filter(None, pointers)), self.maps()), *page_ranges], prepared)
        self._pages_at_stop = []
        try:
            read_at_stop()
            pieces += self._pages_at_stop
            for start, data in self._pages_at_stop:  # later stops copy them, too
                self._wanted_pages.update(pages_of(start, len(data)))
        finally:
            self._pages_at_stop = None
        selected = stopped.memory.selected_thread()
        if not self._holds and not any(thread.signal for thread in threads):
            self._release()
        self._paused_seconds += time.perf_counter() - started
        return StopCopy(self.pid, threads, PageCopy(pieces), selected.tid if selected else 0)

    def _with_sleepers(self, threads: list[CopiedThread]) -> list[CopiedThread]:
        """``threads``, with those that cannot be stopped as they sleep."""
        if not self._unstopped or not any(thread.is_unread for thread in threads):
            return threads
        with closing(self._unstopped()) as process:
            asleep = {thread.tid: thread for thread in process.threads() if not thread.runs_on}
            return [
                CopiedThread(self.pid, asleep[thread.tid]) if thread.is_unread and thread.tid in asleep else thread
                for thread in threads
            ]

    def _release(self) -> None:
        """Resume the process if it is stopped."""
        if self._held_target:
            held, self._held_target = self._held_target, None
            self._resume(held)

    def _pieces(
        self, address_ranges: Sequence[tuple[int, int]], prepared: PreparedMemory
    ) -> list[tuple[int, bytes | memoryview]]:
        """(address, bytes) of the ranges (start, end) that can be read."""
        pieces: list[tuple[int, bytes | memoryview]] = []
        for start, end in address_ranges:
            with suppress(MemoryFault):
                pieces.append((start, prepared.read(self._memory, self.pid, start, end - start)))
        return pieces

    def _stacks(self, pointers: Sequence[int], maps: Sequence[MemoryMapping]) -> Iterator[tuple[int, int]]:
        """(start, end) of the used part of each stack, in whole pages, from its pointer outwards."""
        limit = max(_MAX_STACKS_SIZE // max(len(pointers), 1), _MIN_STACK_SIZE)
        for pointer in pointers:
            if mapping := mapping_at(maps, pointer):
                start = max((pointer - _RED_ZONE) & -linux.PAGE_SIZE, mapping.start)
                yield start, min(mapping.end, start + limit)


def brief_stop(pid: int, unstopped: Callable[[], UnstoppedProcess] | None = None) -> SnapshotTarget:
    """Process ``pid``, without a debugger; ``unstopped`` and errors as for SnapshotTarget."""
    return SnapshotTarget(pid, "none", lambda: ProcTarget(pid), lambda target: target.close(), unstopped)
