"""``dispatch-values nan`` and ``inf``: the first operator whose result has such a number while no argument had one.

A process that does not run is asked for the operators on its stacks, and their arguments.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from gdbext.errors import GdbextError
from gdbext.render import escape
from gdbext.tools.values.launch import BEFORE, Find, KernelLaunch, LaunchTensor, LaunchValue
from gdbext.torch.compile.generated_kernels import is_only_written
from gdbext.torch.registry.operator_names import matcher
from gdbext.torch.stack import ArgumentTensor
from gdbext.torch.values.value_text import number_text, statistics_text

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
    from gdbext.live.host import RunControl
    from gdbext.tools.tensor.tensor_report import TensorReporter
    from gdbext.torch.stack import DispatchFrame
    from gdbext.torch.values.value_text import Statistics


def python_place(control: RunControl, tid: int) -> tuple[str, int | None]:
    """(file, line) of the thread's innermost Python frame, outside of torch's own package if there is one.

    "" and None without Python frames: in a thread of the autograd engine.
    """
    try:
        frames = control.session().python_threads.frames(tid)
    except GdbextError:
        return "", None
    own = [frame for frame in frames if "/torch/" not in frame.file]
    found = (own or frames)[:1]
    return (found[0].file, found[0].line) if found else ("", None)


HISTORY = 20
"""Operators before the find that are shown."""

_UNINITIALIZED = ("empty", "new_empty", "_empty", "resize", "set_")
"""Beginnings of the names of operators whose results are memory as it was (native_functions.yaml, 2.13.0)."""


class HasStatistics(Protocol):
    """A tensor of which statistics are known, or not (None)."""

    @property
    def statistics(self) -> Statistics | None:
        """The statistics of its elements."""


IsBad = Callable[["HasStatistics"], bool]


def has_nan(tensor: HasStatistics) -> bool:
    """Any of its numbers is a NaN."""
    return bool(tensor.statistics and tensor.statistics.nan)


def has_infinity(tensor: HasStatistics) -> bool:
    """Any of its numbers is infinite, or a NaN."""
    return bool(tensor.statistics and tensor.statistics.inf + tensor.statistics.nan)


def above(limit: float) -> IsBad:
    """Any of its numbers is further from zero than ``limit``."""

    def is_above(tensor: HasStatistics) -> bool:
        found = tensor.statistics
        if not found or found.min is None or found.max is None:
            return False
        return max(abs(found.min), abs(found.max)) > limit or math.isinf(found.max)

    return is_above


class FirstBad:
    """Receives launches before and after; ends the run, or goes on, where it has found what is looked for."""

    def __init__(self, is_bad: IsBad, found: Callable[[Find], None], stays: bool) -> None:
        """``found`` is told about each find; ``stays``: the process stays stopped at the first one."""
        self._is_bad = is_bad
        self._found = found
        self._stays = stays
        self._before: dict[tuple[int, str, int], tuple[bool, bool]] = {}
        self._history: deque[KernelLaunch] = deque(maxlen=HISTORY)
        self.count = 0

    def launch(self, launch: KernelLaunch, reporter: TensorReporter) -> bool:
        """True at a find, where the process is to stay stopped."""
        del reporter
        call = launch.tid, launch.qualified, launch.call
        if launch.moment == BEFORE:
            given = [value for value in launch.values if not _is_written_over(value)]
            tensors = [tensor for value in given for tensor in value.tensors]
            known = all(value.text for value in given if "Tensor" in value.type or "*" in value.type)
            self._before[call] = any(map(self._is_bad, tensors)), known
            return False
        was_bad, known = self._before.pop(call, (False, False))
        is_bad = any(map(self._is_bad, _results(launch)))
        if not was_bad and is_bad and not launch.op.rpartition("::")[2].startswith(_UNINITIALIZED):
            self.count += 1
            self._found(Find(launch, tuple(self._history), known))
            return self._stays
        self._history.append(launch)
        return False


def _is_written_over(value: LaunchValue) -> bool:
    """True if what is in there before the call does not matter."""
    return value.name == "out" or is_only_written(value.type)


def _results(launch: KernelLaunch) -> Iterator[LaunchTensor]:
    """The values that it returned, and those that it was given: it may have written to them."""
    for value in launch.values:
        yield from value.tensors


def notes_on_stacks(
    session: Session,
    reporter: ArgumentReporter,
    patterns: Sequence[str],
    is_bad: Callable[[ArgumentTensor], bool],
    what: str,
) -> Iterator[str]:
    """One sentence for each thread inside an operator that is named; ``patterns`` () for any operator. ``what``:
    "NaN" or the like."""
    matchers = [matcher(pattern) for pattern in patterns]
    found = False
    for thread in session.target.memory.threads():
        try:
            frames = tuple(
                frame
                for frame in reporter.frames(session.threads.of(thread).stack)
                if not matchers or any(matches(frame.qualified) for matches in matchers)
            )
        except GdbextError as error:
            yield f"thread {thread.tid} cannot be read: {error.what}"
            continue
        if frames:
            found = True
            yield f"thread {thread.tid}: {_sentence(frames, is_bad, what)}"
    if not found:
        yield f"no thread is inside {' or '.join(patterns) or 'an operator'}"


def _sentence(frames: tuple[DispatchFrame, ...], is_bad: Callable[[ArgumentTensor], bool], what: str) -> str:
    """About the outermost operator that was given such a number."""
    one = f"{'an' if what[0] in 'aeiou' else 'a'} {what}"
    outer: DispatchFrame | None = None
    for frame in reversed(frames):
        bad = [argument.name for argument in frame.arguments if any(is_bad(tensor) for tensor in argument.tensors)]
        if bad and not outer:
            return f"{frame.qualified} was called with {one} in {', '.join(bad)}"
        if bad and outer:
            return f"{frame.qualified} has {one} in {', '.join(bad)}, and {outer.qualified} around it was given none"
        outer = frame
    names = dict.fromkeys(frame.qualified for frame in frames)
    return f"no {what} among the arguments of {', '.join(names)}"


_WIDTH = 44


def find_lines(find: Find, what: str) -> Iterator[str]:
    """The operator, where it was called, its values, and the calls before it. ``what``: "NaN" or the like."""
    launch = find.launch
    key = f", key {launch.key}" if launch.key else ""
    yield f"{escape(launch.qualified)} made the first {what}: call {launch.call}{key}"
    yield f"  kernel {escape(launch.kernel)}"
    if find.file:
        yield f"  called at {escape(find.file)}:{find.line}"
    if not find.is_certain:
        yield "  not certain: an argument could not be read, and may have had it already"
    for value in launch.values:
        if not value.tensors:
            yield f"  {value.name} = {escape(value.text) or '?'}"
        yield from (f"  {tensor.name}: {_tensor_text(tensor)}" for tensor in value.tensors)
    if find.history:
        yield f"  the {len(find.history)} calls before, the last one first (what they returned):"
        yield f"    {'operator':<{_WIDTH}}{'min':>14}{'max':>14}{'NaN':>8}"
    for each in reversed(find.history):
        yield f"    {_row(each)}"


def _tensor_text(tensor: LaunchTensor) -> str:
    numbers = statistics_text(tensor.statistics) if tensor.statistics else "no elements to read"
    return f"{tensor.short}  {numbers}"


def _row(launch: KernelLaunch) -> str:
    found = [tensor.statistics for value in launch.results for tensor in value.tensors if tensor.statistics]
    lows = [each.min for each in found if each.min is not None]
    highs = [each.max for each in found if each.max is not None]
    low = number_text(min(lows)) if lows else "-"
    high = number_text(max(highs)) if highs else "-"
    return f"{escape(launch.qualified):<{_WIDTH}}{low:>14}{high:>14}{sum(each.nan for each in found):>8}"
