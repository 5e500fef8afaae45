"""The frames that a debugger's own stack lacks (Python functions, passes through the dispatcher), and their places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from gdbext.model.dispatch.dispatch_frame import DispatchFrame
from gdbext.model.record import Record
from gdbext.model.threads.frame import Frame

if TYPE_CHECKING:
    from gdbext.waits.snapshot import ThreadSnapshot

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
