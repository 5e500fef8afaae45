"""A frame that a debugger's own stack lacks, in the words in which the debugger shows it."""

from __future__ import annotations

from gdbext.model.dispatch.dispatch_frame import DispatchFrame
from gdbext.model.threads.frame import Frame
from gdbext.render.text.style import escape
from gdbext.render.text.views.bt_view import dispatch_words


def frame_function(frame: DispatchFrame | Frame) -> str:
    """What stands in the place of the function's name: a Python function's own, or PyTorch's words for a dispatch."""
    return dispatch_words(frame) if isinstance(frame, DispatchFrame) else escape(frame.function)


def frame_source(frame: DispatchFrame | Frame) -> tuple[str, int]:
    """File and line of a Python function, ("", 0) where there are none."""
    return ("", 0) if isinstance(frame, DispatchFrame) else (escape(frame.file), frame.line or 0)
