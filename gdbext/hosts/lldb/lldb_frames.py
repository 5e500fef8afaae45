"""LLDB's own ``bt`` with more than native frames: a frame provider (LLDB 22 and later).

LLDB makes one for each thread whenever it has run, and asks it for frames one by one. So the provider is registered
once, and puts the stack together when the second frame is asked for: the first one is native. LLDB also makes stacks
while it steps, in a thread of its own, and compares their frames; there all are native.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import lldb

from gdbext.errors import UsageError
from gdbext.hosts.debugger.frame_source import Position, frame_function, frame_source

if TYPE_CHECKING:
    from gdbext.hosts.lldb.stack_builder import Innermost, PlacedFrame, StackBuilder

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
            self._given = [self._innermost.position if self._innermost is not None else None]
            return 0
        if self._frames is None and self._innermost is not None and not _is_stepping():
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
            help="dispatch-bt --native shows the same stack; or install lldb-22",
        )


def _provider(builder: StackBuilder) -> type[FrameProvider]:
    """A class with that builder. LLDB looks for its methods in the class itself, not in its bases."""
    methods = {name: value for name, value in vars(FrameProvider).items() if not name.startswith("__")}
    return type("FrameProvider", (FrameProvider,), {**methods, "builder": builder})
