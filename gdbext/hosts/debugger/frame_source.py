"""The frames of ours that a debugger adds to its stacks, and the summaries of C++ objects that it shows."""

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
    """``frame`` is shown above the native frame at ``position``, which starts the dispatch or runs the Python code."""

    position: Position
    frame: DispatchFrame | Frame


def added_frames(snapshot: ThreadSnapshot) -> Sequence[AddedFrame]:
    """The frames of a thread, innermost first, in the order of ``dispatch-bt``."""
    frames: list[DispatchFrame | Frame] = [*snapshot.dispatch, *snapshot.python]
    frames.sort(key=lambda frame: frame.level)  # stable: the dispatch is first if both are at one native frame
    natives = snapshot.frames
    return [AddedFrame((natives[frame.level].pc, natives[frame.level].sp), frame) for frame in frames]


def interleaved(
    natives: Iterable[Native], position: Callable[[Native], Position | None], added: Sequence[AddedFrame]
) -> Iterator[Native | AddedFrame]:
    """The debugger's frames, innermost first, with the added ones in their places. ``position()`` of a native frame is
    None if it is inlined into the next one.

    The innermost native frame stays the first, even if added ones belong above it: it has the thread's registers. Added
    frames whose native frame the debugger did not find come above the next one that it did, or last.
    """
    last_index = {frame.position: index for index, frame in enumerate(added)}
    done = 0
    for count, native in enumerate(natives):
        native_position = position(native)
        end = max(done, last_index.get(native_position, -1) + 1) if native_position else done
        if count == 0:
            yield native
        yield from added[done:end]
        done = end
        if count:
            yield native
    yield from added[done:]


def frame_function(frame: DispatchFrame | Frame) -> str:
    """The text for the debugger's function column: a Python function's name, or the operator and key of a dispatch."""
    return dispatch_words(frame) if isinstance(frame, DispatchFrame) else escape(frame.function)


def frame_location(frame: DispatchFrame | Frame) -> tuple[str, int]:
    """(file, line) of a Python function, ("", 0) if there are none."""
    return ("", 0) if isinstance(frame, DispatchFrame) else (escape(frame.file), frame.line or 0)


_log = logger(__name__)


class FrameSource:
    """Reads added frames in the session that the commands share, so that each stack is unwound once at a stop."""

    def __init__(self, session: Callable[[float], Session]) -> None:
        """``session(max_age)`` returns the current session (SessionCache.get). It may raise TargetError."""
        self._session = session

    def frames_of(self, tid: int) -> Sequence[AddedFrame]:
        """The added frames of a thread; empty if they cannot be read: the debugger shows its stack in any case."""
        try:
            session = self._session(0.2)  # a debugger that shows all stacks asks for one after the other
            thread = next((thread for thread in session.target.memory.threads() if thread.tid == tid), None)
            return added_frames(session.threads.snapshot(thread)) if thread else ()
        except GdbextError as error:
            _log.info("no frames are added to the stack of thread %d: %s", tid, error.what)
            return ()


class SummarySource:
    """Makes summaries of objects, and keeps them during a session: a debugger asks again for the parts of an object.
    Nothing is called in the process."""

    def __init__(self, session: Callable[[], Session]) -> None:
        """``session`` returns the current one; it raises if there is no process."""
        self._current = session
        self._session: Session | None = None
        self._summaries: TypeSummaries | None = None
        self._kept: dict[CppObject, TypeSummary | None] = {}

    def summary_of(self, cpp_object: CppObject) -> TypeSummary | None:
        """The object's summary; None without a process, PyTorch or layout, or for another type."""
        try:
            session = self._current()
            if not self._summaries or session is not self._session:
                self._summaries, self._session = TypeSummaries(session), session
                self._kept.clear()
        except GdbextError:
            return None
        if cpp_object not in self._kept:
            if len(self._kept) >= 1000:
                self._kept.clear()
            self._kept[cpp_object] = self._summaries.of(cpp_object)
        return self._kept[cpp_object]
