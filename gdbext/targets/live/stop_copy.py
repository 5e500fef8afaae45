"""StopCopy: registers, stacks and wanted pages of a process as they were at one stop, and what moved since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from gdbext.arch.base import Architecture, ReadCode
from gdbext.errors import TargetError, TargetGone
from gdbext.targets.base import Signal, Thread
from gdbext.targets.live.proc_reads import thread_name
from gdbext.targets.live.rseq import same_but_for_rseq
from gdbext.targets.live.thread_motion import Place, place_of, turns_of
from gdbext.targets.page_copy import PageCopy

_ASLEEP = ("S", "D")
"""States in which a thread is inside a system call: no function's arguments are in its registers."""


class CopiedThread(Thread):
    """A thread as it was at the stop."""

    def __init__(self, pid: int, thread: Thread) -> None:
        """Raises TargetGone: it has ended."""
        self.tid = thread.tid
        self.number = thread.number
        self.signal: Signal | None = None
        self._pid = pid
        self._listed_name = thread.listed_name
        self._state = thread.kernel_state
        self._registers: Mapping[str, int] | TargetError
        self._floats: Mapping[str, int] = {}
        try:
            self._registers = thread.registers()
            self.signal = thread.signal
        except TargetGone:
            raise
        except TargetError as error:
            self._registers = error
        if self._state not in _ASLEEP:
            with suppress(TargetError):
                self._floats = thread.float_registers()

    @property
    def name(self) -> str | None:  # type: ignore[override]
        """comm, read when asked for where the list of threads did not tell it."""
        return self._listed_name or thread_name(self._pid, self.tid)

    @property
    def kernel_state(self) -> str | None:
        """The state just before the stop."""
        return self._state

    def registers(self) -> Mapping[str, int]:
        """As they were at the stop. Raises TargetError: the thread could not be stopped."""
        if isinstance(self._registers, TargetError):
            raise self._registers
        return self._registers

    def float_registers(self) -> Mapping[str, int]:
        """As they were at the stop, of threads that ran."""
        return self._floats


class StopCopy:
    """The threads and the memory of process ``pid`` at one stop; ``selected`` is the thread that a debugger shows."""

    def __init__(self, pid: int, threads: Sequence[CopiedThread], memory: PageCopy, selected: int) -> None:
        self.threads = threads
        self.memory = memory
        self.selected = selected
        self._pid = pid
        self._by_tid = {thread.tid: thread for thread in threads}
        self._places: dict[int, Place] = {}

    def note_places(self) -> None:
        """Note how far the threads have got, once they sleep again where they were stopped."""
        self._places = {tid: turns_of(self._pid, tid) for tid in self._by_tid}

    def has_moved(self, tid: int, architecture: Architecture, read: ReadCode) -> bool:
        """The thread is not known to have slept ever since; or it began after the stop."""
        thread, place = self._by_tid.get(tid), place_of(self._pid, tid)
        if thread is None:
            return bool(place.call)
        return place.has_moved(self._places[tid]) or not _is_at(thread, place, architecture, read)

    def is_as(self, later: StopCopy, architecture: Architecture, read: ReadCode) -> bool:
        """At a ``later`` stop threads and memory were the same, as far as this copy goes."""
        return (
            self._by_tid.keys() == later._by_tid.keys()
            and all(_is_same(each, later._by_tid[each.tid], architecture, read) for each in self.threads)
            and self.memory.is_part_of(later.memory, same_but_for_rseq)
        )


def _is_at(thread: CopiedThread, place: Place, architecture: Architecture, read: ReadCode) -> bool:
    """The thread sleeps on the very stack that was copied, in the same system call."""
    if place.stack_pointer is None:
        return True
    try:
        registers = thread.registers()
    except TargetError:
        return False
    call = architecture.blocked_syscall(registers, read)
    arguments = call[1] if call is not None else ()
    return (registers[architecture.stack_pointer], arguments) == (place.stack_pointer, place.arguments)


def _is_same(one: CopiedThread, other: CopiedThread, architecture: Architecture, read: ReadCode) -> bool:
    """In the same system call, with all that a walk through its stack begins with; the result of the call differs with
    how it was interrupted."""
    try:
        mine, theirs = one.registers(), other.registers()
    except TargetError:
        return False
    if any(mine.get(name) != theirs.get(name) for name in (*architecture.callee_saved, architecture.stack_pointer)):
        return False
    if architecture.syscall_end(mine, read) != architecture.syscall_end(theirs, read):
        return False
    call, later = (architecture.blocked_syscall(registers, read) for registers in (mine, theirs))
    return call is not None and later is not None and call[1] == later[1]
