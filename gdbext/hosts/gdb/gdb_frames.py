"""gdb's own ``bt`` with more than native frames: a frame filter.

Only gdb's frames are asked, for the program counter and the stack pointer: no symbol of any library is read for this.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import gdb
from gdb.FrameDecorator import FrameDecorator

from gdbext.hosts.debugger.frame_source import AddedFrame, Position, frame_function, frame_source, interleaved

if TYPE_CHECKING:
    from gdbext.hosts.debugger.frame_source import FrameSource

NAME = "dispatch-frames"
_INDENT = "    "
_WORD = (1 << 64) - 1
_PRIORITY = 50
"""A priority below the 100 of most filters, which then see gdb's own frames only."""


class AddedDecorator(FrameDecorator):  # type: ignore[misc]
    """Shows one added frame. It borrows a frame of gdb's, whose number gdb prints only once: for the frame itself."""

    def __init__(self, lender: gdb.Frame, added: AddedFrame) -> None:
        super().__init__(lender)
        self._added = added

    def function(self) -> str:
        """A Python function's name, or PyTorch's words for a pass through the dispatcher; below gdb's numbers."""
        return _INDENT + frame_function(self._added.frame)

    def filename(self) -> str | None:
        """The source file of a Python function."""
        return frame_source(self._added.frame)[0] or None

    def line(self) -> int | None:
        """The current line of a Python function."""
        return frame_source(self._added.frame)[1] or None

    def address(self) -> int | None:
        """None: there is no code of its own. gdb's DAP server takes no None (gdb 14 to 18) and gets the
        native frame's."""
        return int(self.inferior_frame().pc()) if "gdb.dap" in sys.modules else None

    def frame_args(self) -> None:
        """None that gdb could read."""

    def frame_locals(self) -> None:
        """None that gdb could read."""


class AddedFrameFilter:
    """The filter, as gdb wants it; it stands in ``gdb.frame_filters`` while it is wanted."""

    def __init__(self, source: FrameSource) -> None:
        self.name = NAME
        self.priority = _PRIORITY
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
        lender = gdb.newest_frame()
        for each in interleaved(frames, _position, self._source.of(tid)):
            if isinstance(each, AddedFrame):
                yield AddedDecorator(lender, each)
            else:
                lender = each.inferior_frame()
                yield each

    def remove(self) -> None:
        """Remove our frames: only native ones are shown then."""
        if gdb.frame_filters.get(self.name) is self:
            del gdb.frame_filters[self.name]


def _position(decorator: FrameDecorator) -> Position | None:
    frame = decorator.inferior_frame()
    with suppress(gdb.error):
        if frame.type() != gdb.INLINE_FRAME:
            return frame.pc(), int(frame.read_register("sp")) & _WORD
    return None
