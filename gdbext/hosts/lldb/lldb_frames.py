"""LLDB's own ``bt`` with more than native frames: a frame provider (LLDB 22 and later).

LLDB makes one for each thread whenever it has run, and asks it for frames one by one. So the provider is registered
once, and puts the stack together when the second frame is asked for: the first one is native. LLDB also makes stacks
while it steps, in a thread of its own, and compares their frames; there all are native.

LLDB's frames of a thread and ours, put together while LLDB asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import lldb

from gdbext.errors import ForeignArchitecture, UsageError
from gdbext.hosts.debugger.frame_source import AddedFrame, Position, frame_function, frame_source, interleaved
from gdbext.hosts.lldb.lldb_target import architecture_of, is_there, registers_of

if TYPE_CHECKING:
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.hosts.lldb.lldb_target import LentRegisters
    from gdbext.hosts.lldb.selection import Selection


_CLASS = "gdbext_frames"
"""The name by which LLDB finds the class for as long as a provider is registered: it makes objects of it later."""
_STEPPING = "intern-state"
"""The beginning of the name of the thread in which LLDB decides about a stop (Process.cpp,
StartPrivateStateThread, 22)."""


class FrameProvider:
    """The frames of one thread at one stop. LLDB makes the object and calls it."""

    builder: StackBuilder

    @staticmethod
    def applies_to_thread(_: lldb.SBThread) -> bool:
        """True: the provider applies to every thread."""
        return True

    @staticmethod
    def get_description() -> str:
        """The name for ``target frame-provider list``, which knows the provider by nothing else."""
        return "dispatch-frames: Python functions and passes through PyTorch's dispatcher"

    @staticmethod
    def get_priority() -> int | None:
        """The priority: this provider comes last."""
        return None

    def __init__(self, input_frames: lldb.SBFrameList, _: lldb.SBStructuredData) -> None:
        self._natives = input_frames
        self._innermost: Innermost | None = None
        self._given: list[Position | None] = []
        self._frames: Sequence[int | PlacedFrame] | None = None

    def get_frame_at_index(self, index: int) -> int | ShownFrame | None:
        """The number of a native frame, or a frame of ours; None behind the last one. LLDB asks in their order."""
        if index == 0:
            self._innermost = self.builder.innermost(self._natives)
            self._given = [self._innermost.position if self._innermost else None]
            return 0
        if self._frames is None and self._innermost and not _is_stepping():
            self._frames = self.builder.frames(self._natives, self._innermost, self._given)
        if self._frames is None:
            return self._native(index)
        if index >= len(self._frames):
            return None
        frame = self._frames[index]
        return frame if isinstance(frame, int) else ShownFrame(index, frame)

    def _native(self, index: int) -> int | None:
        if index >= self._natives.GetSize():
            return None
        self._given.append(self.builder.position(self._natives, index))
        return index


def _is_stepping() -> bool:
    return Path("/proc/thread-self/comm").read_text(encoding="utf-8").startswith(_STEPPING)


class ShownFrame:
    """One added frame, as LLDB's ScriptedFrame: it has a name and a source line, and neither code nor registers."""

    def __init__(self, index: int, frame: PlacedFrame) -> None:
        self._index = index
        self._frame = frame.added.frame
        self._module = frame.module

    def get_id(self) -> int:
        """Its place in the stack."""
        return self._index

    def get_pc(self) -> int:
        """Nothing that is code: a number that no other frame of the stack has. Of frames that are asked for one by one,
        as editors do, LLDB 22.1 knows ours by nothing else (SyntheticStackFrameList::FetchFramesUpTo)."""
        return self._index

    def get_symbol_context(self) -> lldb.SBSymbolContext:
        """File and line of a Python function. Without a module, LLDB would look for them by the program counter."""
        context = lldb.SBSymbolContext()
        context.SetModule(self._module)
        file, line = frame_source(self._frame)
        if file:
            entry = lldb.SBLineEntry()
            entry.SetFileSpec(lldb.SBFileSpec(file, False))
            entry.SetLine(line)
            context.SetLineEntry(entry)
        return context

    def get_function_name(self) -> str:
        """A Python function's name, or PyTorch's words for a pass through the dispatcher."""
        return frame_function(self._frame)

    def get_display_function_name(self) -> str:
        """The function's name, as LLDB displays it."""
        return self.get_function_name()

    def is_inlined(self) -> bool:
        """False: no frame of ours is inlined."""
        return False

    def is_artificial(self) -> bool:
        """Yes: ``finish`` passes over such frames, and would want to return to others."""
        return True

    def is_hidden(self) -> bool:
        """False: no frame of ours is hidden."""
        return False

    def get_variables(self, _: object) -> None:
        """None that LLDB could read."""

    def get_register_info(self) -> None:
        """None: a frame of ours has no registers."""

    def get_register_context(self) -> None:
        """None: a frame of ours has no registers."""


class RegisteredFrames:
    """The provider of one LLDB target, from its making until ``remove``."""

    def __init__(self, target: lldb.SBTarget, names: dict[str, object], builder: StackBuilder) -> None:
        """``names`` is LLDB's namespace for scripts. Raises UsageError."""
        self._target = target
        self._names = names
        names[_CLASS] = _provider(builder)
        error = lldb.SBError()
        self._number = target.RegisterScriptedFrameProvider(_CLASS, lldb.SBStructuredData(), error)
        if error.Fail():
            del names[_CLASS]
            raise UsageError(f"LLDB registers no frame provider: {error.GetCString()}", help="dispatch-bt --native")

    def remove(self) -> None:
        """Remove our frames: only native ones are shown then."""
        if self._target.IsValid():
            self._target.RemoveScriptedFrameProvider(self._number)
        self._names.pop(_CLASS, None)


def check_frame_providers(target: lldb.SBTarget) -> None:
    """Raises UsageError for an LLDB that has none."""
    if not hasattr(target, "RegisterScriptedFrameProvider"):
        raise UsageError(
            "this LLDB shows no frames but its own",
            why="frame providers came with LLDB 22",
            help="see the same stack with: dispatch-bt --native   or install lldb-22",
        )


def _provider(builder: StackBuilder) -> type[FrameProvider]:
    """A class with that builder. LLDB looks for its methods in the class itself, not in its bases."""
    methods = {name: value for name, value in vars(FrameProvider).items() if not name.startswith("__")}
    return type("FrameProvider", (FrameProvider,), {**methods, "builder": builder})


_PATIENCE = 0.05
"""Seconds to wait for LLDB's lock. Who has it may be waiting for the stack that is being made."""


class Innermost(NamedTuple):
    """A thread's innermost frame: its registers, where it is, and LLDB's number of the stop."""

    registers: Mapping[str, int]
    position: Position | None
    stop: int


class PlacedFrame(NamedTuple):
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
