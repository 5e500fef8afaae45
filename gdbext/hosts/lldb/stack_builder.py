"""LLDB's frames of a thread and ours, put together while LLDB asks for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lldb

from gdbext.engine.record import Record
from gdbext.errors import ForeignArchitecture
from gdbext.hosts.debugger.frame_source import AddedFrame, Position, interleaved
from gdbext.hosts.lldb.lldb_target import architecture_of, is_there, registers_of

if TYPE_CHECKING:
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.hosts.lldb.lldb_target import LentRegisters
    from gdbext.hosts.lldb.selection import Selection

_PATIENCE = 0.05
"""Seconds to wait for LLDB's lock. Who has it may be waiting for the stack that is being made."""


class Innermost(Record):
    """A thread's innermost frame: its registers, where it is, and LLDB's number of the stop."""

    registers: Mapping[str, int]
    position: Position | None
    stop: int


class PlacedFrame(Record):
    """One of ours, and the module of the native frame behind it: the interpreter's, or that of the dispatcher."""

    added: AddedFrame
    module: lldb.SBModule


class StackBuilder:
    """Makes stacks for the frame provider of one LLDB target.

    LLDB holds the lock of the stack meanwhile. So nobody may wait for the lock of LLDB's interface, whose holder may
    wait for the stack; and of native frames that LLDB has already been given nothing can be asked.
    """

    def __init__(self, target: lldb.SBTarget, selection: Selection, lent: LentRegisters, source: FrameSource) -> None:
        """Take LLDB's frames while they are all its own: as soon as the provider is registered, LLDB asks for frames in
        another thread, which cannot ask for registers as long as the command has not ended."""
        self._target = target
        self._selection = selection
        self._lent = lent
        self._source = source
        process = target.GetProcess()
        threads = list(process) if is_there(process) else []
        self._first = [(thread, _innermost(thread.GetFrameAtIndex(0), process)) for thread in threads]

    def innermost(self, natives: lldb.SBFrameList) -> Innermost | None:
        """The innermost frame of the thread that these frames are of; None where LLDB cannot be asked now."""
        with self._lock() as is_locked:
            if is_locked:
                return _innermost(natives.GetFrameAtIndex(0), self._target.GetProcess())
        wanted = natives.GetThread()  # whose number is only to be had with the lock
        return next((innermost for thread, innermost in self._first if thread == wanted), None)

    def position(self, natives: lldb.SBFrameList, index: int) -> Position | None:
        """The position of a native frame; None for an inlined one, and where LLDB cannot be asked now."""
        with self._lock() as is_locked:
            return _position(natives.GetFrameAtIndex(index)) if is_locked else None

    def frames(
        self, natives: lldb.SBFrameList, innermost: Innermost, given: Sequence[Position | None]
    ) -> Sequence[int | PlacedFrame] | None:
        """The whole stack: numbers of native frames, and ours between them. It begins with the native ones that LLDB
        was ``given``, which are at those positions. None where LLDB cannot be asked now."""
        count = natives.GetSize()
        with self._lock() as is_locked:
            if not is_locked:
                return None
            added = self._added(natives.GetThread().GetThreadID(), innermost)
            if not added:
                return range(count)
            rest = (_position(natives.GetFrameAtIndex(index)) for index in range(len(given), count))
            positions = [*given, *rest]
            frames = interleaved(range(count), positions.__getitem__, added)
            behind = [frame for frame in frames if isinstance(frame, AddedFrame) or frame >= len(given)]
            return [*range(len(given)), *self._placed(natives, behind)]

    def _placed(self, natives: lldb.SBFrameList, frames: Sequence[int | AddedFrame]) -> Sequence[int | PlacedFrame]:
        found: list[int | PlacedFrame] = []
        module = self._target.FindModule(self._target.GetExecutable())
        for frame in reversed(frames):
            if isinstance(frame, AddedFrame):
                found.append(PlacedFrame(frame, module))
            else:
                module = natives.GetFrameAtIndex(frame).GetModule()
                found.append(frame)
        return found[::-1]

    def _added(self, tid: int, innermost: Innermost) -> Sequence[AddedFrame]:
        process = self._target.GetProcess()
        is_selected = process.GetUniqueID() == self._selection.process().GetUniqueID()
        if not is_selected or not is_there(process) or process.GetStopID(True) != innermost.stop:
            return ()
        with self._lent.lend(tid, innermost.registers):
            return self._source.of(tid)

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """LLDB's lock of its interface, and that of the session; False where somebody else keeps one of them."""
        mutex = self._target.GetAPIMutex()
        if not _acquired(mutex.try_lock):
            yield False
            return
        try:
            with self._selection.session_if_free() as is_free:
                yield is_free
        finally:
            mutex.unlock()


def _acquired(try_it: Callable[[], bool]) -> bool:
    end = time.monotonic() + _PATIENCE
    while not try_it():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def _innermost(frame: lldb.SBFrame, process: lldb.SBProcess) -> Innermost:
    try:
        registers = registers_of(frame, architecture_of(process))
    except ForeignArchitecture:
        registers = {}
    return Innermost(registers, _position(frame), process.GetStopID(True))


def _position(frame: lldb.SBFrame) -> Position | None:
    return None if frame.IsInlined() else (frame.GetPC(), frame.GetSP())
