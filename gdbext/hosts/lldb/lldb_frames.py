"""The frame provider that adds our frames to LLDB's ``bt`` (LLDB 22 and later).

LLDB makes one for each thread after each run, and asks it for frames one by one. The first frame is native; when the
second is asked for, the provider makes the whole stack. LLDB also makes stacks while it steps, in a thread of its own,
to compare frames: there all are native.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import lldb

from gdbext.errors import ForeignArchitecture, UsageError
from gdbext.hosts.debugger.frame_source import AddedFrame, Position, frame_function, frame_location, interleaved
from gdbext.hosts.lldb.lldb_target import architecture_of, is_there, registers_of

if TYPE_CHECKING:
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.hosts.lldb.lldb_target import LentRegisters
    from gdbext.hosts.lldb.selection import Selection


_CLASS = "gdbext_frames"
"""The name by which LLDB finds the class while a provider is registered: it makes objects of it later."""


class FrameProvider:
    """The frames of one thread at one stop. LLDB makes the object and calls it."""

    builder: StackBuilder

    @staticmethod
    def applies_to_thread(_: lldb.SBThread) -> bool:
        return True

    @staticmethod
    def get_description() -> str:
        """Shown by ``target frame-provider list``."""
        return "dispatch-frames: Python functions and passes through PyTorch's dispatcher"

    @staticmethod
    def get_priority() -> int | None:
        """None: this provider comes last."""
        return None

    def __init__(self, input_frames: lldb.SBFrameList, _: lldb.SBStructuredData) -> None:
        self._natives = input_frames
        self._innermost: Innermost | None = None
        self._returned: list[Position | None] = []  # of the native frames that LLDB got so far
        self._frames: Sequence[int | PlacedFrame] | None = None

    def get_frame_at_index(self, index: int) -> int | ShownFrame | None:
        """The index of a native frame, or a frame of ours; None after the last one. LLDB asks for them in order."""
        if index == 0:
            self._innermost = self.builder.innermost(self._natives)
            self._returned = [self._innermost.position if self._innermost else None]
            return 0
        if self._frames is None and self._innermost:
            # the thread in which LLDB decides about a stop (Process.cpp, StartPrivateStateThread, 22)
            thread_name = Path("/proc/thread-self/comm").read_text(encoding="utf-8")
            if not thread_name.startswith("intern-state"):
                self._frames = self.builder.frames(self._natives, self._innermost, self._returned)
        if self._frames is None:
            if index >= self._natives.GetSize():
                return None
            self._returned.append(self.builder.position(self._natives, index))
            return index
        if index >= len(self._frames):
            return None
        frame = self._frames[index]
        return frame if isinstance(frame, int) else ShownFrame(index, frame)


class ShownFrame:
    """One added frame, as LLDB's ScriptedFrame: it has a name and a source line, but no code or registers."""

    def __init__(self, index: int, frame: PlacedFrame) -> None:
        self._index = index
        self._frame = frame.added.frame
        self._module = frame.module

    def get_id(self) -> int:
        return self._index

    def get_pc(self) -> int:
        """The index, not an address: LLDB 22.1 identifies frames that are asked for one by one, as by editors, by this
        number alone (SyntheticStackFrameList::FetchFramesUpTo)."""
        return self._index

    def get_symbol_context(self) -> lldb.SBSymbolContext:
        """File and line of a Python function, with a module: else LLDB would search them by the program counter."""
        context = lldb.SBSymbolContext()
        context.SetModule(self._module)
        file, line = frame_location(self._frame)
        if file:
            entry = lldb.SBLineEntry()
            entry.SetFileSpec(lldb.SBFileSpec(file, False))
            entry.SetLine(line)
            context.SetLineEntry(entry)
        return context

    def get_function_name(self) -> str:
        return frame_function(self._frame)

    get_display_function_name = get_function_name

    def is_inlined(self) -> bool:
        return False

    def is_artificial(self) -> bool:
        """True: ``finish`` skips such frames."""
        return True

    def is_hidden(self) -> bool:
        return False

    def get_variables(self, _: object) -> None:
        """None: LLDB could not read them."""

    def get_register_info(self) -> None:
        """None: a frame of ours has no registers."""

    get_register_context = get_register_info


class RegisteredFrames:
    """The frame provider of one LLDB target, registered until ``remove``."""

    def __init__(self, target: lldb.SBTarget, names: dict[str, object], builder: StackBuilder) -> None:
        """``names`` is LLDB's namespace for scripts. Raises UsageError."""
        self._target = target
        self._names = names
        # LLDB looks for methods in the class itself, not in its bases
        methods = {name: value for name, value in vars(FrameProvider).items() if not name.startswith("__")}
        names[_CLASS] = type("FrameProvider", (FrameProvider,), {**methods, "builder": builder})
        error = lldb.SBError()
        self._number = target.RegisterScriptedFrameProvider(_CLASS, lldb.SBStructuredData(), error)
        if error.Fail():
            del names[_CLASS]
            raise UsageError(
                f"LLDB did not register the frame provider: {error.GetCString()}", help="dispatch-bt --native"
            )

    def remove(self) -> None:
        if self._target.IsValid():
            self._target.RemoveScriptedFrameProvider(self._number)
        self._names.pop(_CLASS, None)


def check_frame_providers(target: lldb.SBTarget) -> None:
    """Raise UsageError for an LLDB without frame providers."""
    if not hasattr(target, "RegisterScriptedFrameProvider"):
        raise UsageError(
            "this LLDB cannot show added frames",
            why="frame providers need LLDB 22 or later",
            help="see the same stack with: dispatch-bt --native   or install lldb-22",
        )


class Innermost(NamedTuple):
    """A thread's innermost frame: its registers, its position, and LLDB's number of the stop."""

    registers: Mapping[str, int]
    position: Position | None
    stop: int


class PlacedFrame(NamedTuple):
    """A frame of ours, and the module of the native frame after it: the interpreter's, or the dispatcher's."""

    added: AddedFrame
    module: lldb.SBModule


class StackBuilder:
    """Makes stacks for the frame provider of one LLDB target. LLDB holds the lock of the stack meanwhile: so native
    frames that it already got cannot be read, and we must not wait for the API's lock, whose holder may wait for the
    stack."""

    def __init__(self, target: lldb.SBTarget, selection: Selection, lent: LentRegisters, source: FrameSource) -> None:
        """Read LLDB's innermost frames while all frames are its own: as soon as the provider is registered, LLDB asks
        for frames in another thread, which cannot read registers until the command has ended."""
        self._target = target
        self._selection = selection
        self._lent = lent
        self._source = source
        process = target.GetProcess()
        threads = list(process) if is_there(process) else []
        self._first = [(thread, _innermost(thread.GetFrameAtIndex(0), process)) for thread in threads]

    def innermost(self, natives: lldb.SBFrameList) -> Innermost | None:
        """The innermost frame of the thread with these frames; None if LLDB cannot be asked now."""
        with self._lock() as is_locked:
            if is_locked:
                return _innermost(natives.GetFrameAtIndex(0), self._target.GetProcess())
        owner = natives.GetThread()  # its number can only be read with the lock
        return next((innermost for thread, innermost in self._first if thread == owner), None)

    def position(self, natives: lldb.SBFrameList, index: int) -> Position | None:
        """The position of a native frame; None for an inlined one, and if LLDB cannot be asked now."""
        with self._lock() as is_locked:
            return _position(natives.GetFrameAtIndex(index)) if is_locked else None

    def frames(
        self, natives: lldb.SBFrameList, innermost: Innermost, returned: Sequence[Position | None]
    ) -> Sequence[int | PlacedFrame] | None:
        """The whole stack: indexes of native frames, and ours between them. It begins with the native frames that LLDB
        already got, whose positions are ``returned``. None if LLDB cannot be asked now."""
        count = natives.GetSize()
        with self._lock() as is_locked:
            if not is_locked:
                return None
            added = self._added(natives.GetThread().GetThreadID(), innermost)
            if not added:
                return range(count)
            start = len(returned)
            positions = [*returned, *(_position(natives.GetFrameAtIndex(index)) for index in range(start, count))]
            frames = interleaved(range(count), positions.__getitem__, added)
            rest = [frame for frame in frames if isinstance(frame, AddedFrame) or frame >= start]
            placed: list[int | PlacedFrame] = []
            module = self._target.FindModule(self._target.GetExecutable())
            for frame in reversed(rest):
                if isinstance(frame, AddedFrame):
                    placed.append(PlacedFrame(frame, module))
                else:
                    module = natives.GetFrameAtIndex(frame).GetModule()
                    placed.append(frame)
            return [*range(start), *reversed(placed)]

    def _added(self, tid: int, innermost: Innermost) -> Sequence[AddedFrame]:
        """Our frames of a thread; empty unless its process is selected and has not run since ``innermost``."""
        process = self._target.GetProcess()
        is_selected = process.GetUniqueID() == self._selection.process().GetUniqueID()
        if not is_selected or not is_there(process) or process.GetStopID(True) != innermost.stop:
            return ()
        self._lent[tid] = innermost.registers
        try:
            return self._source.frames_of(tid)
        finally:
            del self._lent[tid]

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Hold the lock of LLDB's API and that of the session; yields False if another thread holds one of them."""
        mutex = self._target.GetAPIMutex()
        end = time.monotonic() + 0.05  # no longer: the holder may wait for the stack that is being made
        while not mutex.try_lock():
            if time.monotonic() > end:
                yield False
                return
            time.sleep(0.001)
        try:
            with self._selection.session_if_free() as is_free:
                yield is_free
        finally:
            mutex.unlock()


def _innermost(frame: lldb.SBFrame, process: lldb.SBProcess) -> Innermost:
    """Read a thread's innermost frame; without registers if its architecture is none of ours."""
    try:
        registers = registers_of(frame, architecture_of(process))
    except ForeignArchitecture:
        registers = {}
    return Innermost(registers, _position(frame), process.GetStopID(True))


def _position(frame: lldb.SBFrame) -> Position | None:
    """Program counter and stack pointer of a native frame; None for an inlined one."""
    return None if frame.IsInlined() else (frame.GetPC(), frame.GetSP())
