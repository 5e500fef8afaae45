"""The frames that a debugger's own stack lacks (Python functions, passes through the dispatcher), and their places.

A frame that a debugger's own stack lacks, in the words in which the debugger shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from gdbext.diagnosis.bt import dispatch_words
from gdbext.diagnosis.report.thread_report import Frame
from gdbext.engine.record import Record
from gdbext.render.style import escape
from gdbext.torch.stack.dispatch_frame import DispatchFrame

if TYPE_CHECKING:
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot

Position = tuple[int, int]
"""Program counter and stack pointer in a native frame: together they tell the frames of a recursion apart."""
Native = TypeVar("Native")


class AddedFrame(Record):
    """``frame`` stands in front of the native frame at ``position``, which opens or evaluates it."""

    position: Position
    frame: DispatchFrame | Frame


def added_frames(snapshot: ThreadSnapshot) -> Sequence[AddedFrame]:
    """Those of a thread, innermost first, in the order of ``dispatch-bt``."""
    found: list[DispatchFrame | Frame] = [*snapshot.dispatch, *snapshot.python]
    found.sort(key=lambda frame: frame.level)  # the dispatch first where both stand at one frame: sorting is stable
    natives = snapshot.frames
    return [AddedFrame((natives[frame.level].pc, natives[frame.level].sp), frame) for frame in found]


def interleaved(
    natives: Iterable[Native], position: Callable[[Native], Position | None], added: Sequence[AddedFrame]
) -> Iterator[Native | AddedFrame]:
    """The debugger's frames, innermost first, with the added ones in their places.

    The innermost native frame stays the first, whatever belongs in front of it: it is the one that has the thread's
    registers. What belongs to a frame that the debugger did not find comes in front of the next one that it did, or
    last. ``position``: None for a frame that is inlined into the next one.
    """
    places = {each.position: index for index, each in enumerate(added)}
    done = 0
    for count, native in enumerate(natives):
        where = position(native)
        end = max(done, places.get(where, -1) + 1) if where is not None else done
        if count == 0:
            yield native
        yield from added[done:end]
        done = end
        if count:
            yield native
    yield from added[done:]


def frame_function(frame: DispatchFrame | Frame) -> str:
    """The text in the place of the function's name: a Python function's own, or PyTorch's words for a dispatch."""
    return dispatch_words(frame) if isinstance(frame, DispatchFrame) else escape(frame.function)


def frame_source(frame: DispatchFrame | Frame) -> tuple[str, int]:
    """File and line of a Python function, ("", 0) where there are none."""
    return ("", 0) if isinstance(frame, DispatchFrame) else (escape(frame.file), frame.line or 0)
