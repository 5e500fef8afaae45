"""Runaway redispatch: the same operator, or a group of operators, that enters itself again without end.

A repeated operator alone proves nothing: Autograd → CPU is the same operator with another keyset, nested vmap
levels and Python code may call one operator at many depths and come back. What tells "without end" is, from the
strongest to the weakest:

* a *redispatch* with the identical keyset: the table gives the very kernel that just did this, again;
* a *call* in native code with identical keysets, very often;
* the same with Python in between, more often than honest code nests;
* any of it when the stack has already run over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from gdbext.model.dispatch_frame import DispatchFrame

MAX_PERIOD = 64
"""Longest group of steps that is tried."""
REDISPATCHES = 8
"""Identical redispatches: a kernel that goes back into itself this often does not look at anything that changes."""
NATIVE_CALLS = 100
"""Identical calls with no Python in between: recursive kernels that end (a tree, a split) stay far below."""
PYTHON_CALLS = 400
"""Identical calls through Python: about half of the interpreter's default recursion limit of 1000."""
OVERFLOWN = 50
"""What suffices when the stack has run over, provided that the repetition makes up most of the stack."""


@dataclass(frozen=True)
class Run:
    """Items ``start`` … ``start + period * count - 1`` repeat with ``period``, ``count`` full times."""

    start: int
    period: int
    count: int

    @property
    def length(self) -> int:
        """Number of items in the run's full periods."""
        return self.period * self.count


@dataclass(frozen=True)
class Recursion:
    """A runaway recursion: ``group`` is one period, innermost first; ``depth`` the number of full repetitions."""

    group: tuple[DispatchFrame, ...]
    depth: int
    steps: int
    """Steps that belong to the repetition."""
    why: str
    """What makes this endless."""

    @property
    def innermost(self) -> DispatchFrame:
        """The innermost step of one period."""
        return self.group[0]


def find_run(items: Sequence[Hashable], max_period: int = MAX_PERIOD) -> Run | None:
    """The longest periodic run, with its smallest period. Linear in the number of items for a given MAX_PERIOD."""
    names: dict[Hashable, int] = {}
    codes = [names.setdefault(item, len(names)) for item in items]
    best: Run | None = None
    for period in range(1, min(max_period, len(codes) // 2) + 1):
        start, length = _longest_equal(codes, period)
        run = Run(start, period, length // period + 1)
        if length >= period and (best is None or run.length > best.length + period):
            best = run
        if best is not None and best.length * 2 > len(codes):
            break
    return best


def detect(
    steps: Sequence[DispatchFrame], python_levels: Sequence[int] = (), overflown: bool = False
) -> Recursion | None:
    """The runaway recursion in a thread's steps (innermost first), or None.

    ``python_levels`` are the frame levels of the Python interpreter's loop, ascending; ``overflown`` says that
    the thread was stopped by a stack overflow.
    """
    if len(steps) < REDISPATCHES:
        return None
    items = _items(steps)
    run = find_run(items)
    if run is None:
        return None
    part = steps[run.start : run.start + run.length]
    why = _endless(part, run, len(steps), _passes_python(part, python_levels), overflown)
    if why is None:
        return None
    group = tuple(_with_known_keyset(part, at, run.period) for at in range(run.period))
    return Recursion(group, run.count, run.length, why)


def _endless(part: Sequence[DispatchFrame], run: Run, total: int, python: bool, overflown: bool) -> str | None:
    if run.count >= REDISPATCHES and not python and _redispatches(part):
        return "each redispatch has the keyset of the one before, so the table leads to the same kernel again"
    if overflown and run.count >= OVERFLOWN and run.length * 2 >= total:
        return "the repetition filled the stack until it ran over"
    limit = PYTHON_CALLS if python else NATIVE_CALLS
    if run.count >= limit:
        return f"{run.count} repetitions with the same keysets, far more than nesting that ends"
    return None


def _redispatches(part: Sequence[DispatchFrame]) -> bool:
    return all(step.event.startswith("redispatch") for step in part) and any(step.keyset for step in part)


def _passes_python(part: Sequence[DispatchFrame], python_levels: Sequence[int]) -> bool:
    """Python frames between the innermost and the outermost step of the run."""
    first = bisect_left(python_levels, part[0].level)
    return first < len(python_levels) and python_levels[first] < part[-1].level


def _items(steps: Sequence[DispatchFrame]) -> list[Hashable]:
    """What must repeat: operator, overload and keyset bits.

    A keyset that could not be recovered in one frame stands for the only one known for the same operator,
    event and kernel, where there is exactly one.
    """
    known: dict[Hashable, set[int]] = {}
    for step in steps:
        if step.keyset is not None:
            known.setdefault(_place(step), set()).add(step.keyset.bits)
    items: list[Hashable] = []
    for step in steps:
        bits = {step.keyset.bits} if step.keyset is not None else known.get(_place(step), set())
        name = (step.op, step.overload, step.event)
        items.append((*name, min(bits)) if len(bits) == 1 else (*name, "?", _kernel(step)))
    return items


def _place(step: DispatchFrame) -> Hashable:
    return (step.op, step.overload, step.event, _kernel(step))


def _kernel(step: DispatchFrame) -> str | None:
    return step.kernel.function if step.kernel else None


def _with_known_keyset(part: Sequence[DispatchFrame], at: int, period: int) -> DispatchFrame:
    """The period's step number ``at``, taken from a repetition that knows its keyset and its kernel."""
    same = part[at::period]
    best = max(same[:64], key=lambda step: (step.keyset is not None, step.kernel is not None))
    return replace(best, level=part[at].level)


def _longest_equal(codes: Sequence[int], period: int) -> tuple[int, int]:
    """Start and length of the longest stretch where ``codes[i] == codes[i + period]``."""
    equal = bytes(map(int.__eq__, codes, codes[period:]))
    longest, start, at = 0, 0, 0
    while True:
        at = equal.find(1, at)
        if at < 0:
            return start, longest
        end = equal.find(0, at)
        end = len(equal) if end < 0 else end
        if end - at > longest:
            start, longest = at, end - at
        at = end
