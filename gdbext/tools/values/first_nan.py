"""``dispatch-values nan`` and ``inf``: the first operator whose result has such a number while no argument had one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

from gdbext.errors import GdbextError
from gdbext.render import escape
from gdbext.tools.values.launch import BEFORE, Find, KernelLaunch, LaunchTensor
from gdbext.torch.compile.generated_kernels import is_only_written
from gdbext.torch.registry.operator_names import matcher
from gdbext.torch.stack import ArgumentTensor, DispatchFrame
from gdbext.torch.values.value_text import number_text, statistics_text

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
    from gdbext.live.host import RunControl
    from gdbext.tools.tensor.tensor_report import TensorReporter


def python_place(control: RunControl, tid: int) -> tuple[str, int | None]:
    """(file, line) of the thread's innermost Python frame outside of torch's own package, else of the innermost one.
    ("", None) without Python frames, as in a thread of the autograd engine."""
    try:
        frames = control.session().python_threads.frames(tid)
    except GdbextError:
        return "", None
    own = [frame for frame in frames if "/torch/" not in frame.file]
    innermost = next(iter(own or frames), None)
    return (innermost.file, innermost.line) if innermost else ("", None)


_UNINITIALIZED = ("empty", "new_empty", "_empty", "resize", "set_")
"""Beginnings of the names of operators whose results are uninitialized memory (native_functions.yaml, 2.13.0)."""


IsBad = Callable[[Union[ArgumentTensor, LaunchTensor]], bool]


def sought_numbers(mode: str, limit: float | None) -> tuple[str, IsBad]:
    """(name of the numbers that are sought, test whether a tensor has one). ``mode``: "nan" or "inf"; ``limit``: seek
    numbers further from zero than this instead."""

    def is_bad(tensor: ArgumentTensor | LaunchTensor) -> bool:
        """True if the tensor has such a number; False also if it has no elements to read."""
        statistics = tensor.statistics
        if not statistics:
            return False
        if limit is None:
            return bool(statistics.nan or (mode == "inf" and statistics.inf))
        if statistics.min is None or statistics.max is None:
            return False
        return max(abs(statistics.min), abs(statistics.max)) > limit or math.isinf(statistics.max)

    if limit is not None:
        return f"number beyond {limit:g}", is_bad
    return "NaN" if mode == "nan" else "infinity or NaN", is_bad


@dataclass
class FirstBad:
    """Receives launches, and reports each call whose result is bad although none of its arguments was."""

    _is_bad: IsBad
    _report: Callable[[Find], None]
    _stays_stopped: bool
    """True: the process stays stopped at the first find."""
    count: int = field(default=0, init=False)
    _before: dict[tuple[int, str, int], tuple[bool, bool]] = field(default_factory=dict, init=False)
    """(thread, operator, number of its call) → (an argument was bad, all arguments were readable)."""
    _history: deque[KernelLaunch] = field(default_factory=lambda: deque(maxlen=20), init=False)

    def launch(self, launch: KernelLaunch, reporter: TensorReporter) -> bool:
        """Receive a launch; True at a find at which the process must stay stopped."""
        del reporter
        call = launch.tid, launch.qualified, launch.call
        if launch.moment == BEFORE:
            # Arguments that are only written do not matter before the call.
            inputs = [value for value in launch.values if value.name != "out" and not is_only_written(value.type)]
            is_certain = all(value.text for value in inputs if "Tensor" in value.type or "*" in value.type)
            self._before[call] = any(self._is_bad(tensor) for value in inputs for tensor in value.tensors), is_certain
            return False
        was_bad, is_certain = self._before.pop(call, (False, False))
        # Its results, and its arguments: it may have written to them.
        is_bad = any(self._is_bad(tensor) for value in launch.values for tensor in value.tensors)
        if not was_bad and is_bad and not launch.op.rpartition("::")[2].startswith(_UNINITIALIZED):
            self.count += 1
            self._report(Find(launch, tuple(self._history), is_certain))
            return self._stays_stopped
        self._history.append(launch)
        return False


def notes_on_stacks(
    session: Session,
    reporter: ArgumentReporter,
    patterns: Sequence[str],
    is_bad: Callable[[ArgumentTensor], bool],
    what: str,
) -> Iterator[str]:
    """A sentence for each thread that is inside an operator that matches one of ``patterns`` (() for any operator).
    ``what``: the name of the bad numbers, "NaN"."""
    matchers = [matcher(pattern) for pattern in patterns]
    is_inside = False
    for thread in session.target.memory.threads():
        try:
            frames = [
                frame
                for frame in reporter.frames(session.threads.snapshot(thread).stack)
                if not matchers or any(matches(frame.qualified) for matches in matchers)
            ]
        except GdbextError as error:
            yield f"thread {thread.tid} cannot be read: {error.what}"
            continue
        if frames:
            is_inside = True
            yield f"thread {thread.tid}: {_sentence(frames, is_bad, what)}"
    if not is_inside:
        yield f"no thread is inside {' or '.join(patterns) or 'an operator'}"


def _sentence(frames: Sequence[DispatchFrame], is_bad: Callable[[ArgumentTensor], bool], what: str) -> str:
    """The sentence on the outermost of the operators ``frames`` (innermost first) with a bad number among its
    arguments, or that there is none."""
    number = f"{'an' if what[0] in 'aeiou' else 'a'} {what}"
    outer: DispatchFrame | None = None
    for frame in reversed(frames):
        bad = [argument.name for argument in frame.arguments if any(map(is_bad, argument.tensors))]
        if bad and not outer:
            return f"{frame.qualified} was called with {number} in {', '.join(bad)}"
        if bad and outer:
            arguments = ", ".join(bad)
            return f"{frame.qualified} has {number} in {arguments}, but its caller {outer.qualified} was given none"
        outer = frame
    names = dict.fromkeys(frame.qualified for frame in frames)
    return f"no {what} among the arguments of {', '.join(names)}"


def find_lines(find: Find, what: str) -> Iterator[str]:
    """The lines on a find: the operator, the Python line that called it, its values, and the calls before it. ``what``:
    the name of the bad number, "NaN"."""
    launch = find.launch
    key = f", key {launch.key}" if launch.key else ""
    yield f"{escape(launch.qualified)} produced the first {what}: call {launch.call}{key}"
    yield f"  kernel {escape(launch.kernel)}"
    if find.file:
        yield f"  called at {escape(find.file)}:{find.line}"
    if not find.is_certain:
        yield "  not certain: an argument that could not be read may have had one already"
    for value in launch.values:
        if not value.tensors:
            yield f"  {value.name} = {escape(value.text) or '?'}"
        for tensor in value.tensors:
            numbers = statistics_text(tensor.statistics) if tensor.statistics else "no elements to read"
            yield f"  {tensor.name}: {tensor.short}  {numbers}"
    if find.history:
        yield f"  the {len(find.history)} calls before it, latest first, with what they returned:"
        yield f"    {'operator':<44}{'min':>14}{'max':>14}{'NaN':>8}"
    for before in reversed(find.history):
        tensors = [tensor for value in before.results for tensor in value.tensors]
        all_statistics = [tensor.statistics for tensor in tensors if tensor.statistics]
        lows = [statistics.min for statistics in all_statistics if statistics.min is not None]
        highs = [statistics.max for statistics in all_statistics if statistics.max is not None]
        low, high = number_text(min(lows)) if lows else "-", number_text(max(highs)) if highs else "-"
        nans = sum(statistics.nan for statistics in all_statistics)
        yield f"    {escape(before.qualified):<44}{low:>14}{high:>14}{nans:>8}"
