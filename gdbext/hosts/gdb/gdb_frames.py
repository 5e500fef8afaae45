"""The frame filter that adds our frames to gdb's ``bt``.

It reads gdb's frames only for the program counter and the stack pointer, which needs no symbols of any library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import gdb
from gdb.FrameDecorator import FrameDecorator

from gdbext.hosts.debugger.frame_source import AddedFrame, Position, frame_function, frame_location, interleaved
from gdbext.hosts.gdb.gdb_printers import WORD

if TYPE_CHECKING:
    from gdbext.hosts.debugger.frame_source import FrameSource


class AddedDecorator(FrameDecorator):  # type: ignore[misc]
    """Shows one added frame, with a frame of gdb's as its own; gdb prints that frame's number only once."""

    def __init__(self, native: gdb.Frame, added: AddedFrame) -> None:
        super().__init__(native)
        self._added = added

    def function(self) -> str:
        """Indented, to be below gdb's numbers."""
        return f"    {frame_function(self._added.frame)}"

    def filename(self) -> str | None:
        return frame_location(self._added.frame)[0] or None

    def line(self) -> int | None:
        return frame_location(self._added.frame)[1] or None

    def address(self) -> int | None:
        """None: there is no code of its own. gdb's DAP server does not accept None (gdb 14 to 18)."""
        return int(self.inferior_frame().pc()) if "gdb.dap" in sys.modules else None

    def frame_args(self) -> None:
        """None that gdb could read."""

    def frame_locals(self) -> None:
        """None that gdb could read."""


class AddedFrameFilter:
    """The filter in gdb's form, in ``gdb.frame_filters`` until it is removed."""

    def __init__(self, source: FrameSource) -> None:
        self.name = "dispatch-frames"
        self.priority = 50  # below the 100 of most filters, which then see gdb's own frames only
        self.enabled = True
        self._source = source
        gdb.frame_filters[self.name] = self

    def filter(self, frames: Iterator[FrameDecorator]) -> Iterator[FrameDecorator]:
        """Called by gdb for each stack that it shows."""
        thread = gdb.selected_thread()
        if thread is None:
            return frames
        pid, lwp, _ = thread.ptid
        return self._with_added(frames, lwp or pid)

    def _with_added(self, frames: Iterator[FrameDecorator], tid: int) -> Iterator[FrameDecorator]:
        native = gdb.newest_frame()
        for frame in interleaved(frames, _position, self._source.frames_of(tid)):
            if isinstance(frame, AddedFrame):
                yield AddedDecorator(native, frame)
            else:
                native = frame.inferior_frame()
                yield frame

    def remove(self) -> None:
        if gdb.frame_filters.get(self.name) is self:
            del gdb.frame_filters[self.name]


def _position(decorator: FrameDecorator) -> Position | None:
    frame = decorator.inferior_frame()
    with suppress(gdb.error):
        if frame.type() != gdb.INLINE_FRAME:
            return frame.pc(), int(frame.read_register("sp")) & WORD
    return None
