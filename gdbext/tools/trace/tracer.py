"""The trace by breakpoints: turns stops into dispatches and steps, and reports what was open when it ended.

A thread's stack at each stop shows which dispatches it is inside of: no stop at a return is needed. A function that is
called from inside another has its whole frame below the other's. If it is not below, the other has ended, by a return
or an exception. If it is below, the stack is walked (engine/unwind/caller_check.py) to be sure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gdbext.engine.unwind.caller_check import CallerCheck, CallerWalk, StopPlace
from gdbext.errors import BadData, GdbextError
from gdbext.live.dispatch_description import Describer, LookupResult, TracedDispatch
from gdbext.tools.trace.trace_output import TraceSink
from gdbext.tools.trace.trace_section import InnermostStep, OpenDispatch, OpenThread
from gdbext.torch.stack import DispatchStage

if TYPE_CHECKING:
    from gdbext.engine.unwind.unwind_row import ReadMemory
    from gdbext.live.host import RunControl
    from gdbext.torch.registry import Operator


@dataclass(frozen=True)
class TraceRequest:
    """The user's request; 0 and "" stand for no limit."""

    patterns: Sequence[str]
    """Of the operators' names."""
    everything: bool = False
    """All calls of all operators."""
    verbose: bool = False
    returns: bool = False
    """Also stop where dispatches end."""
    boxed: bool = False
    """Also stop in ``Dispatcher::callBoxed``, which all operators share."""
    limit: int = 0
    """Number of dispatches after which the trace ends."""
    depth: int = 0
    """Number of levels of nesting that are shown."""
    tid: int | None = None
    since: str = ""
    """The operator whose first dispatch begins the trace."""
    key: str = ""
    last: float = 0.0
    """Write only the dispatches of the last seconds, at the end of the trace."""
    hung_after: float = 0.0
    """Seconds without a dispatch after which the trace ends."""


DEPTH_LIMIT = 100_000
"""Deepest nesting that is followed; a runaway recursion overflows the stack long before."""


@dataclass
class Tracer:
    """Receives every stop at a breakpoint. Its methods return True if the trace is over and the process must stay
    stopped. Their ``tid`` is the thread's id, ``cfa`` the canonical frame address of the frame that the stop is in."""

    describer: Describer
    _sink: TraceSink
    _callers: CallerWalk
    _read: ReadMemory
    """Reads memory as it is now."""
    _request: TraceRequest
    _since: Collection[int]
    """OperatorEntries of the operators whose first dispatch begins the trace."""
    _watched: Callable[[Operator], bool]
    """True for an operator that is part of the trace."""
    _now: Callable[[], float]
    """Returns the microseconds since the trace began."""
    count: int = field(default=0, init=False)
    unproven: int = field(default=0, init=False)
    """Number of dispatches that were shown inside others without proof."""
    operators: set[str] = field(default_factory=set, init=False)
    reached_limit: bool = field(default=False, init=False)
    """The trace has ended itself."""
    open: dict[int, list[TracedDispatch]] = field(default_factory=dict, init=False)
    """Thread id → its open dispatches, outermost first."""

    def __post_init__(self) -> None:
        self._started = not self._since
        self._is_proven = True
        """The last result of _dispatches_around() is proven."""
        self._lookups: dict[tuple[int, str, int], LookupResult] = {}

    def lookup(self, operator: Operator, event: str, tid: int, cfa: int, place: StopPlace, bits: int) -> bool:
        """Handle the lookup of an operator with keyset ``bits``, at ``place``. Raises OSError, MemoryFault."""
        if self.reached_limit:
            return True  # another hook of the stop that ended it
        stack = self._dispatches_around(tid, place.pc, cfa)
        if stack is None:
            return False
        is_proven = self._is_proven
        if not self._started:
            if operator.address not in self._since:
                return False
            self._started = True
        if not self._watched(operator):
            return False
        key = (operator.address, event, bits)
        lookup = self._lookups.get(key)
        if not lookup or self._read(lookup.table_entry, len(lookup.table_bytes)) != lookup.table_bytes:
            try:
                lookup = self._lookups[key] = self.describer.find(operator, event, bits)
            except BadData:
                return False  # the register held no keyset: not a lookup
            self.operators.add(lookup.qualified)
        if len(stack) >= DEPTH_LIMIT:
            return False
        depth = len(stack) + 1
        dispatch = TracedDispatch(
            self.count + 1,
            tid,
            depth,
            lookup,
            cfa,
            cfa - place.size,
            (place.start, place.end),
            self._callers.return_address(cfa),
            self._now(),
            is_open=place.is_open,
        )
        if stack and not is_proven:
            dispatch.nesting = "not proven"
        stack.append(dispatch)
        if not self._is_shown(depth):
            return False
        self.count += 1
        self.unproven += dispatch.nesting is not None
        self._sink.dispatch(dispatch)
        self.reached_limit = bool(self._request.limit) and self.count >= self._request.limit
        return self.reached_limit

    def _dispatches_around(self, tid: int, pc: int, cfa: int) -> list[TracedDispatch] | None:
        """Close the thread's open dispatches that did not call the frame at ``cfa``, which runs the code at ``pc``, and
        return the others; None for a thread that is not traced. Raises MemoryFault."""
        if self._request.tid and tid != self._request.tid:
            return None
        stack = self.open.setdefault(tid, [])
        while stack:
            top = stack[-1]
            caller = CallerCheck(top.cfa, *top.code, top.returns_to, top.is_open)
            is_inside = self._callers.inside(pc, cfa, caller) if top.body >= cfa else False
            self._is_proven = is_inside is not None
            if is_inside is not False:
                break
            self._close(stack.pop(), returned=False)
        return stack

    def kernel_entered(self, tid: int, cfa: int) -> None:
        """Handle the stop of a boxed dispatch at its kernel's first instruction."""
        dispatch = self._dispatch_at(tid, cfa)
        if dispatch and not dispatch.entered:
            dispatch.entered = True
            dispatch.kernel_started = dispatch.started
            self._step(dispatch, "enter", f"kernel=[{dispatch.lookup.kernel.function}], boxed")

    def entry(self, operator: Operator, event: str, tid: int, cfa: int, pc: int) -> bool:
        """Handle the entry of an operator's function, before its keyset is known. Raises OSError."""
        stack = self._dispatches_around(tid, pc, cfa)
        if stack is not None and self._started and self._is_shown(len(stack) + 1):
            self._sink.entry(tid, len(stack) + 1, event, operator.qualified)
        return False

    def invoke(self, tid: int, cfa: int, through: str, pointer: int) -> bool:
        """Handle a call of the kernel, or of what leads to it. ``through``: "kernel", "boxing" (BoxedKernelWrapper) or
        "profiler" (RecordFunction callbacks); ``pointer``: address of the function that a "kernel" call enters."""
        dispatch = self._dispatch_at(tid, cfa)
        if not dispatch or dispatch.entered:
            return False
        lookup = dispatch.lookup
        if through == "kernel":
            if pointer not in lookup.addresses:
                return False  # another indirect call: a destructor, a SymInt
            word, how = "enter", "boxed" if pointer == lookup.boxed_address else "unboxed"
        elif through == "boxing":
            word, how = "boxed", "through BoxedKernelWrapper"
        else:
            word, how = "profiler", "RecordFunction callbacks run around the kernel"
        dispatch.entered = through != "profiler"
        dispatch.kernel_started = self._now()
        self._step(dispatch, word, f"kernel=[{lookup.kernel.function}], {how}")
        return False

    def invoked(self, tid: int, cfa: int) -> bool:
        """Handle the instruction after a call of the kernel: the kernel has returned."""
        dispatch = self._dispatch_at(tid, cfa)
        if dispatch and dispatch.kernel_started is not None and not dispatch.left:
            self._close_inside(dispatch)
            dispatch.left = True
            dispatch.kernel_ended = self._now()
            self._step(dispatch, "return", f"kernel=[{dispatch.lookup.kernel.function}]")
        return False

    def function(self, tid: int, cfa: int, pc: int, word: str, name: str) -> bool:
        """Handle the entry of a structured kernel's function, which is at ``pc``; ``word``: "meta" or "impl"."""
        stack = self._dispatches_around(tid, pc, cfa)
        if stack:
            self._step(stack[-1], word, f"function=[{name}]")
        return False

    def returned(self, tid: int, cfa: int) -> bool:
        """Handle the ``ret`` of a function."""
        dispatch = self._dispatch_at(tid, cfa)
        if dispatch:
            self._close_inside(dispatch)
            self.open[tid].pop()
            if dispatch.kernel_ended is None:
                dispatch.kernel_ended = self._now()
            self._step(dispatch, "return", f"op=[{dispatch.lookup.qualified}]")
            self._close(dispatch, returned=True)
        return False

    def _dispatch_at(self, tid: int, cfa: int) -> TracedDispatch | None:
        """The thread's open dispatch whose frame ends at ``cfa``, None without one."""
        around = (dispatch for dispatch in reversed(self.open.get(tid, ())) if dispatch.cfa >= cfa)
        dispatch = next(around, None)
        return dispatch if dispatch and dispatch.cfa == cfa else None

    def _step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """Store ``word`` as the last step of the dispatch, and report it if its level is shown."""
        dispatch.last = word
        if self._is_shown(dispatch.depth):
            self._sink.step(dispatch, word, text)

    def _is_shown(self, depth: int) -> bool:
        return not self._request.depth or depth <= self._request.depth

    def _close_inside(self, dispatch: TracedDispatch) -> None:
        """Close the dispatches inside of one, innermost first."""
        stack = self.open[dispatch.tid]
        while stack and stack[-1] is not dispatch:
            self._close(stack.pop(), returned=False)

    def _close(self, dispatch: TracedDispatch, returned: bool) -> None:
        """Report the end of a dispatch; ``returned``: its return was seen."""
        dispatch.ended = self._now()
        dispatch.returned = returned
        if self._is_shown(dispatch.depth):
            self._sink.ended(dispatch)


_MEANINGS = {
    DispatchStage.ENTERING: "it is entering the dispatcher: the operator's handle is not ready, and no lookup was made",
    DispatchStage.LOOKUP: "it is looking up the kernel: it is still in the dispatch table, and no kernel was found yet",
    DispatchStage.INVOKING: "the kernel was found but not entered yet: it is in boxing code, or in profiler callbacks",
    DispatchStage.IN_KERNEL: "the kernel was entered and has not returned: it runs, or code that it calls does",
}
"""Stage of dispatch-bt's innermost step → its meaning for a thread that does not return."""


def open_threads(control: RunControl, dispatches: Mapping[int, Sequence[TracedDispatch]]) -> tuple[OpenThread, ...]:
    """The threads with open dispatches on their stacks, with the innermost step and its meaning. ``dispatches``: thread
    id → its open dispatches."""
    if not any(dispatches.values()):
        return ()
    try:
        session = control.session()
        stopped = {thread.tid: thread for thread in session.target.memory.threads()}
    except GdbextError:
        return ()
    threads = []
    for tid, stack in dispatches.items():
        if not stack or tid not in stopped:
            continue
        try:
            snapshot = session.threads.snapshot(stopped[tid])
        except GdbextError:
            continue
        frames = {frame.cfa for frame in snapshot.frames}
        on_stack = tuple(OpenDispatch.of(dispatch) for dispatch in stack if dispatch.cfa in frames)
        if not on_stack:
            continue
        step, innermost, meaning = None, next(iter(snapshot.dispatch), None), ""
        if innermost:
            kernel = innermost.kernel.function if innermost.kernel else None
            step = InnermostStep(innermost.event, innermost.qualified, innermost.key, innermost.stage, kernel)
            meaning = _MEANINGS[innermost.stage]
        threads.append(OpenThread(tid, on_stack, step, meaning))
    return tuple(threads)
