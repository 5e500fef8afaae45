"""LLDB's own ``bt`` with more than native frames: a frame provider (LLDB 22 and later).

LLDB makes one for each thread at each stop, and asks it for frames one by one. A provider that in turn asks LLDB's
frames for anything makes 22.1.8 lock a stack twice in one thread, which ends LLDB, or two locks in either order, which
hangs it. So all stacks are made before the provider is registered, and hold as long as their threads do not run. A stop
hook that registers it anew with the new stacks makes LLDB tell of the stop again, and hangs 22.1.8 in the middle of a
step: it is for the user to say when.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import lldb

from gdbext.debuggers.lldb.target import is_core, is_there
from gdbext.errors import UsageError
from gdbext.inspection.threads.added_frames import AddedFrame, Position, interleaved
from gdbext.model.record import Record
from gdbext.render.text.added_frame_text import frame_function, frame_source
from gdbext.targets.live.thread_motion import Place, turns_of

if TYPE_CHECKING:
    from gdbext.debuggers.frame_source import FrameSource

_CLASS = "gdbext_frames"
"""The name by which LLDB finds the class for as long as a provider is registered: it makes objects of it later."""


class MadeStack(Record):
    """A thread's stack: numbers of LLDB's frames, and ours between them. ``place``: where the thread was; None in a
    core."""

    frames: list[int | AddedFrame]
    pid: int
    place: Place | None

    def holds(self, tid: int) -> bool:
        """The thread has not run since."""
        return self.place is None or not turns_of(self.pid, tid).has_moved(self.place)


class FrameProvider:
    """The frames of one thread at one stop. LLDB makes the object and calls it."""

    stacks: Mapping[int, MadeStack]

    @staticmethod
    def applies_to_thread(_: lldb.SBThread) -> bool:
        """To every one."""
        return True

    @staticmethod
    def get_description() -> str:
        """For ``target frame-provider list``, which knows the provider by nothing else."""
        return "dispatch-frames: Python functions and passes through PyTorch's dispatcher"

    @staticmethod
    def get_priority() -> int | None:
        """The last one."""
        return None

    def __init__(self, input_frames: lldb.SBFrameList, _: lldb.SBStructuredData) -> None:
        self._natives = input_frames
        tid = input_frames.GetThread().GetThreadID()
        made = self.stacks.get(tid)
        self._frames = made.frames if made is not None and made.holds(tid) else None

    def get_frame_at_index(self, index: int) -> int | ShownFrame | None:
        """The number of a native frame, or a frame of ours; None behind the last one. The first is native, always."""
        if index == 0:
            return 0
        if self._frames is None:
            return index if index < self._natives.GetSize() else None
        if index >= len(self._frames):
            return None
        frame = self._frames[index]
        return ShownFrame(index, frame) if isinstance(frame, AddedFrame) else frame


class ShownFrame:
    """One added frame, as LLDB's ScriptedFrame: it has a name and a source line, and neither code nor registers."""

    def __init__(self, index: int, added: AddedFrame) -> None:
        self._index = index
        self._added = added

    def get_id(self) -> int:
        """Its place in the stack."""
        return self._index

    def get_pc(self) -> int:
        """None of its own."""
        return int(lldb.LLDB_INVALID_ADDRESS)

    def get_symbol_context(self) -> lldb.SBSymbolContext:
        """File and line of a Python function."""
        context = lldb.SBSymbolContext()
        file, line = frame_source(self._added.frame)
        if file:
            entry = lldb.SBLineEntry()
            entry.SetFileSpec(lldb.SBFileSpec(file, False))
            entry.SetLine(line)
            context.SetLineEntry(entry)
        return context

    def get_function_name(self) -> str:
        """A Python function's name, or PyTorch's words for a pass through the dispatcher."""
        return frame_function(self._added.frame)

    def get_display_function_name(self) -> str:
        """The same."""
        return self.get_function_name()

    def is_inlined(self) -> bool:
        """No."""
        return False

    def is_artificial(self) -> bool:
        """No: LLDB shows such frames dimmed, as tail calls."""
        return False

    def is_hidden(self) -> bool:
        """No."""
        return False

    def get_variables(self, _: object) -> None:
        """None that LLDB could read."""

    def get_register_info(self) -> None:
        """It has none."""

    def get_register_context(self) -> None:
        """It has none."""


class RegisteredFrames:
    """The provider of one LLDB target, from its making until ``remove``."""

    def __init__(self, target: lldb.SBTarget, names: dict[str, object], source: FrameSource) -> None:
        """``names`` is LLDB's namespace for scripts. Raises UsageError for an LLDB that has no frame providers."""
        if not hasattr(target, "RegisterScriptedFrameProvider"):
            raise UsageError(
                "this LLDB shows no frames but its own",
                why="frame providers came with LLDB 22",
                help="dispatch-bt --native shows the same stack; or install lldb-22",
            )
        self._target = target
        self._names = names
        names[_CLASS] = _provider(_made_stacks(target.GetProcess(), source))
        error = lldb.SBError()
        self._number = target.RegisterScriptedFrameProvider(_CLASS, lldb.SBStructuredData(), error)
        if error.Fail():
            del names[_CLASS]
            raise UsageError(f"LLDB registers no frame provider: {error.GetCString()}", help="dispatch-bt --native")

    def remove(self) -> None:
        """Show native frames only."""
        if self._target.IsValid():
            self._target.RemoveScriptedFrameProvider(self._number)
        self._names.pop(_CLASS, None)


def _made_stacks(process: lldb.SBProcess, source: FrameSource) -> Mapping[int, MadeStack]:
    """Those of the threads to which there is something to add. While LLDB's frames are all its own."""
    threads = {thread.GetThreadID(): thread for thread in process} if is_there(process) else {}
    stacks = {}
    for tid, added in source.of_threads(list(threads)).items():
        positions = [_position(frame) for frame in threads[tid]]
        frames = interleaved(range(len(positions)), positions.__getitem__, added)
        place = None if is_core(process) else turns_of(process.GetProcessID(), tid)
        stacks[tid] = MadeStack(list(frames), process.GetProcessID(), place)
    return stacks


def _position(frame: lldb.SBFrame) -> Position | None:
    return None if frame.IsInlined() else (frame.GetPC(), frame.GetSP())


def _provider(stacks: Mapping[int, MadeStack]) -> type[FrameProvider]:
    """A class with those stacks. LLDB looks for its methods in the class itself, not in its bases."""
    methods = {name: value for name, value in vars(FrameProvider).items() if not name.startswith("__")}
    return type("FrameProvider", (FrameProvider,), {**methods, "stacks": stacks})
