"""The views that a debugger gets from us: the frames that its stack lacks, in its own words, and summaries of C++
objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gdbext.diagnosis.commands.bt import dispatch_words
from gdbext.diagnosis.report.thread_report import Frame
from gdbext.errors import GdbextError
from gdbext.log import logger
from gdbext.render import escape
from gdbext.tools.tensor.cpp_summaries import TypeSummaries
from gdbext.torch.stack import DispatchFrame

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
    from gdbext.tools.tensor.cpp_object import CppObject, TypeSummary


Position = tuple[int, int]
"""Program counter and stack pointer in a native frame: together they tell the frames of a recursion apart."""
Native = TypeVar("Native")


class AddedFrame(NamedTuple):
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
        end = max(done, places.get(where, -1) + 1) if where else done
        if count == 0:
            yield native
        yield from added[done:end]
        done = end
        if count:
            yield native
    yield from added[done:]


def frame_function(frame: DispatchFrame | Frame) -> str:
    """The text in the place of the function's name: a Python function's own, or PyTorch's words for a dispatch."""
    if not isinstance(frame, DispatchFrame):
        return escape(frame.function)
    return dispatch_words(frame)


def frame_source(frame: DispatchFrame | Frame) -> tuple[str, int]:
    """File and line of a Python function, ("", 0) where there are none."""
    return ("", 0) if isinstance(frame, DispatchFrame) else (escape(frame.file), frame.line or 0)


_log = logger(__name__)
_BURST = 0.2
"""Seconds: a debugger that shows all stacks asks for one after the other."""


class FrameSource:
    """Reads them in the session that the commands share, so that each stack is unwound once at a stop."""

    def __init__(self, session: Callable[[float], Session]) -> None:
        """``session`` gives the current one, compared with the process so many seconds ago at most. It may raise
        TargetError and its relatives."""
        self._session = session

    def of(self, tid: int) -> Sequence[AddedFrame]:
        """Those of a thread; none where they cannot be read: the debugger's stack is shown whatever becomes of ours."""

        try:
            session = self._session(_BURST)
            thread = next((thread for thread in session.target.memory.threads() if thread.tid == tid), None)
            return added_frames(session.threads.of(thread)) if thread else ()
        except GdbextError as error:
            _log.info("no frames are added to the stack of thread %d: %s", tid, error.what)
            return ()


_KEPT = 1000
"""Summaries: a debugger asks for one again for the parts of its object."""


class SummarySource:
    """Keeps what it read as long as the session lasts. Nothing is called in the process."""

    def __init__(self, session: Callable[[], Session]) -> None:
        """``session`` gives the current one; it raises where there is no process."""
        self._current = session
        self._session: Session | None = None
        self._summaries: TypeSummaries | None = None
        self._known: dict[CppObject, TypeSummary | None] = {}

    def of(self, found: CppObject) -> TypeSummary | None:
        """None where the debugger has to show the object itself: no process, no PyTorch, no layout, another type."""
        try:
            session = self._current()
            if not self._summaries or session is not self._session:
                self._summaries, self._session = TypeSummaries(session), session
                self._known.clear()
        except GdbextError:
            return None
        if found not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[found] = self._summaries.of(found)
        return self._known[found]
