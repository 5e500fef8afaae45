"""A copy of a process at one stop: registers, stacks and wanted pages, and which threads moved since.

Nothing may delay us while a process is stopped: we run at real-time priority, and copy into memory that was touched
before, so that copying costs no page faults.
"""

from __future__ import annotations

import operator
import os
from bisect import bisect_left
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from gdbext.engine.targets.base_target import MemoryMapping, TargetThread
from gdbext.engine.targets.budget import no_garbage_collection
from gdbext.engine.targets.live.local_process import read_memory, thread_name
from gdbext.engine.targets.live.thread_motion import (
    SleepPlace,
    has_moved_since,
    run_count,
    same_but_for_rseq,
    sleep_place,
)
from gdbext.engine.targets.system.linux import PAGE_SIZE
from gdbext.errors import TargetError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Union

    from gdbext.engine.arch import Architecture, ReadCode

    Piece = Union[bytes, memoryview]


class PageCopy:
    """Copies of whole pages: each piece is an address, a multiple of the page size, and its bytes."""

    def __init__(self, pieces: Iterable[tuple[int, bytes | memoryview]] = ()) -> None:
        """``pieces``: addresses and bytes of whole pages; a later piece replaces an earlier one."""
        self._pages: dict[int, memoryview] = {}  # by page number
        for start, data in pieces:
            view = memoryview(data)
            first = start // PAGE_SIZE
            for index in range(len(data) // PAGE_SIZE):
                self._pages[first + index] = view[index * PAGE_SIZE : (index + 1) * PAGE_SIZE]

    def page(self, number: int) -> bytes:
        """The page at the address ``number`` * PAGE_SIZE, b"" unless it was copied."""
        return bytes(self._pages.get(number, b""))

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes at ``address``, b"" unless all of them were copied."""
        first, offset = divmod(address, PAGE_SIZE)
        last = (address + size - 1) // PAGE_SIZE
        if first not in self._pages or last not in self._pages:  # the usual case, quickly
            return b""
        parts = [self._pages.get(number, b"") for number in range(first, last + 1)]
        return b"".join(parts)[offset : offset + size] if all(parts) else b""

    def is_part_of(self, other: PageCopy, same: Callable[[bytes, bytes], bool] = operator.eq) -> bool:
        """All pages of this copy are in the other one, with the ``same`` contents."""
        pairs = ((bytes(page), other.page(number)) for number, page in self._pages.items())
        return all(other_page and same(page, other_page) for page, other_page in pairs)

    def overlay_on(self, address: int, data: bytes) -> bytes:
        """``data``, read at ``address``, with the copy in place of what was copied of it."""
        copied = list(parts_in_pages(address, len(data), self._pages))
        if not copied:
            return data
        mixed = bytearray(data)
        for low, high in copied:
            page, offset = divmod(low, PAGE_SIZE)
            mixed[low - address : high - address] = self._pages[page][offset : offset + high - low]
        return bytes(mixed)


def pages_of(address: int, size: int) -> range:
    """The numbers (address // PAGE_SIZE) of the pages that ``size`` bytes at ``address`` lie in."""
    return range(address // PAGE_SIZE, -(-(address + size) // PAGE_SIZE))


def writable_pages(pieces: Iterable[tuple[int, int]], maps: Sequence[MemoryMapping]) -> Iterator[int]:
    """The numbers, sorted, of the pages of pieces (address, size) in memory that the process can write to."""
    writable = iter([mapping for mapping in maps if "w" in mapping.permissions])
    current = next(writable, None)
    for number in sorted({number for address, size in pieces for number in pages_of(address, size)}):
        while current and current.end <= number * PAGE_SIZE:
            current = next(writable, None)
        if not current:
            return
        if current.start <= number * PAGE_SIZE:
            yield number


def parts_in_pages(address: int, size: int, pages: Collection[int]) -> Iterator[tuple[int, int]]:
    """(start, end) of the pieces of ``size`` bytes at ``address`` that lie in the pages of these numbers."""
    for number in pages_of(address, size):
        if number in pages:
            yield max(number * PAGE_SIZE, address), min((number + 1) * PAGE_SIZE, address + size)


def merge_pages(pages: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """(start, end) addresses of each run of adjacent pages, among the first ``most`` of these sorted page numbers."""
    chosen = dict.fromkeys(islice(pages, most))
    starts = [number for number in chosen if number - 1 not in chosen]
    ends = [number + 1 for number in chosen if number + 1 not in chosen]
    return ((start * PAGE_SIZE, end * PAGE_SIZE) for start, end in zip(starts, ends))


@contextmanager
def real_time_priority() -> Iterator[None]:
    """Run without garbage collection and, if permitted, before all other processes of this machine: a busy machine
    makes a stop of 200 threads twice as long. The real-time policy needs CAP_SYS_NICE or RLIMIT_RTPRIO (sched(7));
    without these, the highest priority by niceness may still be permitted."""
    restore: Callable[[], None]
    with no_garbage_collection():
        try:
            policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
            # any real-time priority comes before all threads that share the CPU by time
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            restore = partial(os.sched_setscheduler, 0, policy, parameters)
        except OSError:
            restore = partial(os.setpriority, os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, -20)
        try:
            yield
        finally:
            with suppress(OSError):
                restore()


class PreparedMemory:
    """Memory to read into that was touched before: faulting in fresh pages takes most of a large read's time."""

    def __init__(self, size: int) -> None:
        self._left = memoryview(bytearray(b"\xff") * size)

    def read(self, memory: int, pid: int, address: int, size: int) -> Piece:
        """As ``read_memory``; into other memory if too little of this is left."""
        if size <= len(self._left):
            with suppress(OSError, OverflowError, ValueError):  # read_memory raises the error
                piece = self._left[:size]
                if os.preadv(memory, [piece], address) == size:
                    self._left = self._left[size:]
                    return piece
        return read_memory(memory, pid, address, size)


ENDED_BY_STOPS = frozenset(
    (
        *("write", "writev", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice", "mq_timedsend", "recvfrom"),
        *("recvmsg", "recvmmsg", "accept", "accept4", "connect", "epoll_wait", "epoll_pwait", "epoll_pwait2"),
        *("rt_sigtimedwait", "semop", "semtimedop", "msgrcv", "msgsnd", "io_getevents", "io_uring_enter"),
    )
)
"""Blocked system calls that a stop may end with a short count or EINTR, without a handler: signal(7), "Interruption of
system calls and library functions by stop signals". Of sockets those that wait with a timeout (SO_RCVTIMEO) or for more
than has come (MSG_WAITALL, a partial write); which these are, no register says."""


class CopiedThread(TargetThread):
    """A thread as it was at the stop."""

    def __init__(self, pid: int, thread: TargetThread) -> None:
        """Copy ``thread`` of process ``pid``, which is stopped or asleep. Raises TargetGone: it has exited."""
        self.tid, self.number = thread.tid, thread.number
        self.lacks_registers = thread.lacks_registers
        self.kernel_side = thread.kernel_side
        self._pid = pid
        self._listed_name = thread.listed_name
        self.kernel_state = thread.kernel_state
        self._registers: Mapping[str, int] | TargetError
        self._floats: Mapping[str, int] = {}
        try:
            self._registers = thread.registers()
            self.signal, self.stop_signal = thread.signal, thread.stop_signal
        except TargetGone:
            raise
        except TargetError as error:
            self._registers = error
        if self.kernel_state not in ("S", "D"):  # else no function's arguments are in its registers
            with suppress(TargetError):
                self._floats = thread.float_registers()

    @property
    def name(self) -> str | None:  # type: ignore[override]
        """comm; read on demand if listing the threads did not read it."""
        return self._listed_name or thread_name(self._pid, self.tid)

    def note_earlier(self, copy: StopCopy | None) -> None:
        """Take over how long the thread slept in the kernel before our own earlier stop let it run."""
        earlier = copy.thread(self.tid) if copy else None
        if earlier and not earlier.is_unread and not self.is_unread and self._registers == earlier._registers:
            side, earlier_side = self.kernel_side, earlier.kernel_side
            if side and earlier_side and side.call == earlier_side.call:
                self.kernel_side = side._replace(seconds=max(side.seconds or 0, earlier_side.seconds or 0))

    @property
    def is_unread(self) -> bool:
        """It could not be stopped, so its registers are unknown."""
        return isinstance(self._registers, TargetError)

    def registers(self) -> Mapping[str, int]:
        if isinstance(self._registers, TargetError):
            raise self._registers
        return self._registers

    def float_registers(self) -> Mapping[str, int]:
        return self._floats


class StopCopy:
    """The threads and the memory of a process at one moment: at a stop, or while all of its threads slept."""

    def __init__(
        self,
        pid: int,
        threads: Sequence[CopiedThread],
        memory: PageCopy,
        selected: int,
        places: Mapping[int, SleepPlace] | None = None,
    ) -> None:
        """``selected``: tid of the thread that a debugger shows; ``places``: where the threads sleep, if the copy was
        made without a stop."""
        self.is_asleep = places is not None
        self.threads = threads
        self.memory = memory
        self.selected = selected
        self._pid = pid
        self._by_tid = {thread.tid: thread for thread in threads}
        self._places: Mapping[int, SleepPlace] = places or {}

    def thread(self, tid: int) -> CopiedThread | None:
        return self._by_tid.get(tid)

    def cut_short(self, architecture: Architecture, read: ReadCode) -> dict[int, str]:
        """Thread id → name of the system call that the stop may have ended early (ENDED_BY_STOPS)."""
        calls = {}
        for thread in self.threads:
            with suppress(TargetError):
                call = architecture.blocked_syscall(thread.registers(), read)
                name = architecture.syscall_names.get(call[0], "") if call else ""
                if name in ENDED_BY_STOPS:
                    calls[thread.tid] = name
        return calls

    def note_places(self) -> None:
        """Note how much the threads have run so far; call this when they sleep again where they were stopped."""
        self._places = {tid: run_count(self._pid, tid) for tid in self._by_tid}

    def has_moved(self, tid: int, architecture: Architecture, read: ReadCode) -> bool:
        """True unless the thread provably slept ever since; also if it began after the stop."""
        thread = self._by_tid.get(tid)
        if thread and self.is_asleep:
            return has_moved_since(self._pid, tid, self._places[tid])
        place = sleep_place(self._pid, tid)
        if not thread:
            return bool(place.call)
        return place.has_moved(self._places[tid]) or not _sleeps_as_copied(thread, place, architecture, read)

    def is_same_as(self, later: StopCopy, architecture: Architecture, read: ReadCode) -> bool:
        """True if at a ``later`` stop threads and memory were the same, as far as this copy goes."""
        return (
            self._by_tid.keys() == later._by_tid.keys()
            and all(_waits_alike(thread, later._by_tid[thread.tid], architecture, read) for thread in self.threads)
            and self.memory.is_part_of(later.memory, same_but_for_rseq)
        )


def _sleeps_as_copied(thread: CopiedThread, place: SleepPlace, architecture: Architecture, read: ReadCode) -> bool:
    """At ``place`` the thread has the copied stack pointer, and the arguments of the copied system call; True if it
    does not sleep there."""
    if place.stack_pointer is None:
        return True
    if thread.is_unread:
        return False
    registers = thread.registers()
    call = architecture.blocked_syscall(registers, read)
    arguments = call[1] if call else ()
    return (registers[architecture.stack_pointer], arguments) == (place.stack_pointer, place.arguments)


def _waits_alike(first: CopiedThread, second: CopiedThread, architecture: Architecture, read: ReadCode) -> bool:
    """True if the thread is in the same system call, with the same registers that unwinding starts from (as far as
    ``first`` has them); the call's result register depends on how it was interrupted."""
    if first.is_unread or second.is_unread:
        return False
    before, after = first.registers(), second.registers()
    saved = () if first.lacks_registers else architecture.callee_saved
    if any(before.get(name) != after.get(name) for name in (*saved, architecture.stack_pointer)):
        return False
    if architecture.syscall_end(before, read) != architecture.syscall_end(after, read):
        return False
    call, later = (architecture.blocked_syscall(registers, read) for registers in (before, after))
    return bool(call and later and call[1] == later[1])


def code_files(maps: Sequence[MemoryMapping]) -> set[tuple[int, str]]:
    """(start, path) of the mapped files that have code."""
    code = (mapping for mapping in maps if "x" in mapping.permissions)
    return {(mapping.start, mapping.path) for mapping in code if mapping.path.startswith("/")}


def mapping_at(maps: Sequence[MemoryMapping], address: int) -> MemoryMapping | None:
    """The mapping that holds an address; ``maps`` is sorted. A mapping is a tuple that begins with its start."""
    index = bisect_left(maps, (address + 1,)) - 1
    return maps[index] if index >= 0 and address < maps[index].end else None
