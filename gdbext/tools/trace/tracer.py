"""The trace itself: turns stops into dispatches and steps. Knows no debugger."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdbext.engine.unwind.caller_check import CallerWalk, StopPlace
from gdbext.engine.unwind.unwind_row import ReadMemory
from gdbext.errors import BadData
from gdbext.hosts.resume.dispatch_description import LookupResult, TracedDispatch
from gdbext.tools.trace.open_dispatches import DEPTH_LIMIT, Depth
from gdbext.tools.trace.trace_output import Sink

if TYPE_CHECKING:
    from gdbext.hosts.resume.dispatch_description import Describer
    from gdbext.torch.registry.operators import Operator

Clock = Callable[[], float]


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
        clock: Clock = time.perf_counter,
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
        self._clock = clock
        self._begin = clock()
        self._started = not limits.since
        self._found: dict[tuple[int, str, int], LookupResult] = {}

    def now(self) -> float:
        """Microseconds since the trace began."""
        return (self._clock() - self._begin) * 1e6

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
        if found is None or self._read(found.table_entry, len(found.table_bytes)) != found.table_bytes:
            found = self._look_up(operator, event, bits)
        if found is None or len(stack) >= DEPTH_LIMIT:
            return False
        depth = len(stack) + 1
        self.count += 1
        code = (place.start, place.end)
        returns_to = self._callers.return_address(cfa)
        inner = cfa - place.size
        dispatch = TracedDispatch(
            found, tid, depth, cfa, inner, code, returns_to, self.now(), number=self.count, is_open=place.is_open
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
        if self._limits.tid is not None and tid != self._limits.tid:
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
        if dispatch is not None and not dispatch.entered:
            dispatch.entered = True
            dispatch.kernel_started = dispatch.started
            self._step(dispatch, "enter", f"kernel=[{dispatch.found.kernel}], boxed")

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
        if dispatch is None or dispatch.entered:
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
        self._step(dispatch, word, f"kernel=[{found.kernel}], {how}")
        return False

    def invoked(self, tid: int, cfa: int) -> bool:
        """The call of an invocation came back."""
        dispatch = self.depth.at(tid, cfa)
        if dispatch is None or dispatch.kernel_started is None or dispatch.left:
            return False
        for gone in self.depth.inside(tid, dispatch):
            self._close(gone, False)
        dispatch.left = True
        dispatch.kernel_ended = self.now()
        self._step(dispatch, "return", f"kernel=[{dispatch.found.kernel}]")
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
        if dispatch is None:
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
