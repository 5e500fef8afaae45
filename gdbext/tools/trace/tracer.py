"""The trace itself: turns stops into dispatches and steps, and tells what was open when it ended. Knows no debugger.

Which dispatches a thread is inside of is told by its stack at each stop: no stop at a return is needed. A function that
is called from inside another has its whole frame below the other's. What does not was not called by it: that one has
ended, by a return or an exception. What does lie below is walked (engine/unwind/caller_check.py) to be sure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdbext.engine.unwind.caller_check import CallerCheck, CallerWalk, StopPlace
from gdbext.errors import BadData, GdbextError
from gdbext.live.dispatch_description import LookupResult, TracedDispatch
from gdbext.tools.trace.trace_output import Sink
from gdbext.tools.trace.trace_section import InnermostStep, OpenDispatch, OpenThread
from gdbext.torch.stack import DispatchFrame, DispatchStage

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread
    from gdbext.engine.unwind.unwind_row import ReadMemory
    from gdbext.live.dispatch_description import Describer
    from gdbext.live.host import RunControl
    from gdbext.torch.registry import Operator


@dataclass(frozen=True)
class Limits:
    """The limits of what is shown: at most ``events`` dispatches, none deeper than ``depth``, one thread only, 0 or
    None for all.

    ``since`` are addresses of the operators whose first dispatch begins the trace.
    """

    events: int = 0
    depth: int = 0
    tid: int | None = None
    since: Collection[int] = ()


class Tracer:
    """Receives every stop. Methods return True where the trace is over and the process must stay stopped."""

    def __init__(
        self,
        describer: Describer,
        sink: Sink,
        callers: CallerWalk,
        read: ReadMemory,
        limits: Limits,
        watched: Callable[[Operator], bool],
    ) -> None:
        """``read`` reads memory as it is now; ``watched`` says whether an operator is part of the trace."""
        self.depth = Depth(callers)
        self._callers = callers
        self._read = read
        self.count = 0
        self.operators: set[str] = set()
        self.ended = ""
        """The reason why the trace ended itself: "limit" or "" while it goes on."""
        self._describer = describer
        self._sink = sink
        self._limits = limits
        self._watched = watched
        self._begin = time.perf_counter()
        self._started = not limits.since
        self._found: dict[tuple[int, str, int], LookupResult] = {}

    def now(self) -> float:
        """Microseconds since the trace began."""
        return (time.perf_counter() - self._begin) * 1e6

    def lookup(self, operator: Operator, event: str, tid: int, cfa: int, place: StopPlace, bits: int) -> bool:
        """A lookup with keyset ``bits`` in the frame that ends at ``cfa``. Raises OSError, MemoryFault."""
        if self.ended:
            return True  # another hook of the stop that ended it
        stack = self._enter(tid, place.pc, cfa)
        if stack is None:
            return False
        if not self._started:
            if operator.address not in self._limits.since:
                return False
            self._started = True
        if not self._watched(operator):
            return False
        found = self._found.get((operator.address, event, bits))
        if not found or self._read(found.table_entry, len(found.table_bytes)) != found.table_bytes:
            found = self._look_up(operator, event, bits)
        if not found or len(stack) >= DEPTH_LIMIT:
            return False
        depth = len(stack) + 1
        self.count += 1
        code = (place.start, place.end)
        returns_to = self._callers.return_address(cfa)
        inner = cfa - place.size
        dispatch = TracedDispatch(
            self.count, tid, depth, found, cfa, inner, code, returns_to, self.now(), is_open=place.is_open
        )
        stack.append(dispatch)
        if self._limits.depth and depth > self._limits.depth:
            self.count -= 1
            return False
        self._sink.dispatch(dispatch)
        if self._limits.events and self.count >= self._limits.events:
            self.ended = "limit"
        return bool(self.ended)

    def operator(self, address: int) -> Operator | None:
        """The operator whose OperatorEntry is at ``address``. Raises BadData, MemoryFault."""
        return self._describer.operator(address)

    def _enter(self, tid: int, pc: int, cfa: int) -> list[TracedDispatch] | None:
        """The thread's open dispatches around a frame that ends at ``cfa``; None for a thread that is not traced."""
        if self._limits.tid and tid != self._limits.tid:
            return None
        for gone in self.depth.leave(tid, pc, cfa):
            self._close(gone, False)
        return self.depth.stack(tid)

    def _look_up(self, operator: Operator, event: str, bits: int) -> LookupResult | None:
        try:
            found = self._describer.find(operator, event, bits)
        except BadData:
            return None  # the register held no keyset: not a lookup
        self._found[(operator.address, event, bits)] = found
        self.operators.add(found.qualified)
        return found

    def kernel_entered(self, tid: int, cfa: int) -> None:
        """The stop by which a boxed dispatch was seen is at its kernel's first instruction."""
        dispatch = self.depth.at(tid, cfa)
        if dispatch and not dispatch.entered:
            dispatch.entered = True
            dispatch.kernel_started = dispatch.started
            self._step(dispatch, "enter", f"kernel=[{dispatch.found.kernel.function}], boxed")

    # --- steps -----------------------------------------------------------------------------------

    def entry(self, operator: Operator, event: str, tid: int, cfa: int, pc: int) -> bool:
        """The operator's function is entered, its keyset not known yet. Raises OSError."""
        stack = self._enter(tid, pc, cfa)
        if stack is not None and self._started and self._shown(len(stack) + 1):
            self._sink.entry(tid, len(stack) + 1, event, operator.qualified)
        return False

    def invoke(self, tid: int, cfa: int, through: str, pointer: int) -> bool:
        """An invocation in the function with this CFA is about to call ``pointer`` (0: it needs none)."""
        dispatch = self.depth.at(tid, cfa)
        if not dispatch or dispatch.entered:
            return False
        found = dispatch.found
        if through == "kernel":
            if pointer not in found.addresses:
                return False  # another indirect call: a destructor, a SymInt
            word, how = "enter", "boxed" if pointer == found.boxed_address else "unboxed"
        elif through == "boxing":
            word, how = "boxed", "through BoxedKernelWrapper"
        else:
            word, how = "profiler", "RecordFunction callbacks run around the kernel"
        dispatch.entered = through != "profiler"
        dispatch.kernel_started = self.now()
        self._step(dispatch, word, f"kernel=[{found.kernel.function}], {how}")
        return False

    def invoked(self, tid: int, cfa: int) -> bool:
        """The call of an invocation came back."""
        dispatch = self.depth.at(tid, cfa)
        if not dispatch or dispatch.kernel_started is None or dispatch.left:
            return False
        for gone in self.depth.inside(tid, dispatch):
            self._close(gone, False)
        dispatch.left = True
        dispatch.kernel_ended = self.now()
        self._step(dispatch, "return", f"kernel=[{dispatch.found.kernel.function}]")
        return False

    def function(self, tid: int, cfa: int, pc: int, word: str, name: str) -> bool:
        """A structured kernel's meta or impl function was entered; it counts where a dispatch is open around it."""
        stack = self._enter(tid, pc, cfa)
        if stack:
            self._step(stack[-1], word, f"function=[{name}]")
        return False

    def returned(self, tid: int, cfa: int) -> bool:
        """The function with this CFA executes its ``ret``."""
        dispatch = self.depth.at(tid, cfa)
        if not dispatch:
            return False
        for gone in self.depth.inside(tid, dispatch):
            self._close(gone, False)
        self.depth.stack(tid).pop()
        if dispatch.kernel_ended is None:
            dispatch.kernel_ended = self.now()
        self._step(dispatch, "return", f"op=[{dispatch.found.qualified}]")
        self._close(dispatch, True)
        return False

    def _step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        dispatch.last = word
        if self._shown(dispatch.depth):
            self._sink.step(dispatch, word, text)

    def _shown(self, depth: int) -> bool:
        return not self._limits.depth or depth <= self._limits.depth

    def _close(self, dispatch: TracedDispatch, seen: bool) -> None:
        dispatch.ended = self.now()
        dispatch.returned = seen
        if self._shown(dispatch.depth):
            self._sink.ended(dispatch)


DEPTH_LIMIT = 100_000
"""Dispatches that one thread is followed into; a runaway recursion overflows the stack long before."""


class Depth:
    """The open dispatches of every thread, outermost first."""

    def __init__(self, callers: CallerWalk) -> None:
        self._callers = callers
        self._open: dict[int, list[TracedDispatch]] = {}

    def stack(self, tid: int) -> list[TracedDispatch]:
        """The thread's open dispatches; the caller may append."""
        stack = self._open.get(tid)
        if stack is None:
            stack = self._open[tid] = []
        return stack

    def leave(self, tid: int, pc: int, cfa: int) -> list[TracedDispatch]:
        """Take off, innermost first, what did not call the frame of code ``pc`` that ends at ``cfa``.

        Raises MemoryFault.
        """
        stack = self.stack(tid)
        gone = []
        while stack:
            top = stack[-1]
            caller = CallerCheck(top.cfa, *top.code, top.returns_to, top.is_open)
            if top.body >= cfa and self._callers.inside(pc, cfa, caller):
                break
            gone.append(stack.pop())
        return gone

    def at(self, tid: int, cfa: int) -> TracedDispatch | None:
        """The open dispatch with that very frame, None without one."""
        for dispatch in reversed(self.stack(tid)):
            if dispatch.cfa >= cfa:
                return dispatch if dispatch.cfa == cfa else None
        return None

    def inside(self, tid: int, dispatch: TracedDispatch) -> list[TracedDispatch]:
        """Take off, innermost first, what is open inside ``dispatch``."""
        stack = self.stack(tid)
        gone = []
        while stack and stack[-1] is not dispatch:
            gone.append(stack.pop())
        return gone

    def threads(self) -> dict[int, list[TracedDispatch]]:
        """Thread id → open dispatches, of threads that have any."""
        return {tid: stack for tid, stack in self._open.items() if stack}


MEANINGS = {
    DispatchStage.ENTERING: "it is entering the dispatcher: the operator's handle is not ready, no lookup was made",
    DispatchStage.LOOKUP: "it is looking up the kernel: the dispatch table was not left, no kernel was found yet",
    DispatchStage.INVOKING: "the kernel was found and is being called, but was not entered: it is between dispatcher "
    "and kernel (boxing, or profiler callbacks)",
    DispatchStage.IN_KERNEL: "the kernel was entered and has not returned: it is inside the kernel itself, or in what "
    "that calls",
}
"""Meanings by the stage of dispatch-bt's innermost step; after the table "Where to look" of the print-based
procedure."""


def open_threads(control: RunControl, threads: Mapping[int, Sequence[TracedDispatch]]) -> tuple[OpenThread, ...]:
    """The dispatches that are still on each thread's stack, with the innermost step and its meaning."""
    if not threads:
        return ()
    try:
        session = control.session()
        stopped = {thread.tid: thread for thread in session.target.memory.threads()}
    except GdbextError:
        return ()
    found = [_of_thread(session, stopped[tid], dispatches) for tid, dispatches in threads.items() if tid in stopped]
    return tuple(each for each in found if each)


def _of_thread(session: Session, thread: TargetThread, dispatches: Sequence[TracedDispatch]) -> OpenThread | None:
    try:
        snapshot = session.threads.of(thread)
    except GdbextError:
        return None
    frames = {frame.cfa for frame in snapshot.frames}
    alive = [
        OpenDispatch(one.found.event.value, one.found.qualified, one.found.key, one.last)
        for one in dispatches
        if one.cfa in frames
    ]
    if not alive:
        return None
    innermost = snapshot.dispatch[0] if snapshot.dispatch else None
    meaning = MEANINGS[innermost.stage] if innermost else ""
    return OpenThread(thread.tid, tuple(alive), _step(innermost) if innermost else None, meaning)


def _step(step: DispatchFrame) -> InnermostStep:
    kernel = step.kernel.function if step.kernel else None
    return InnermostStep(step.event, step.qualified, step.key, step.stage, kernel)
